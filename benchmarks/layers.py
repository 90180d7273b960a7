"""Time every norm against torch's layers, the published formulation of SN, and the memory traffic that no norm can avoid.

    python benchmarks/layers.py [--minutes 8] [--threads 1,2] [--compile] [--json out.json] [--plot out.png]

All candidates take turns at a shape, and the best time of each counts. Only ratios within one run are meaningful.
Outputs and gradients are newly allocated, as in a network. The traffic limit is what four passes read and write (read x; read x,
write y; read x, dy; read x, dy, write dx), performed by torch's sum, copy, dot and add. Memory is counted in bytes saved for
backward, and as the peak memory of a separate process during a training step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from candidates import MODES, SPECS, candidates, copy, shapes, step, traffic
from torch import Tensor, nn


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Return the number of bytes saved for backward, without parameters and buffers."""
    saved: dict[int, int] = {}
    state = {tensor.data_ptr() for tensor in [*module.parameters(), *module.buffers()]}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in state:
            saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    condition = [0] if getattr(module, "takes_condition", False) else []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module.train()(x.detach().requires_grad_(), *condition)
    return sum(saved.values())


def peak_megabytes(name: str, shape: tuple[int, ...]) -> float:
    """Return the peak memory of a training step of eight such layers in sequence, beyond x, measured in a separate process."""
    command = [sys.executable, __file__, "--peak", name, "--shape", "x".join(map(str, shape))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(name: str, shape: tuple[int, ...]) -> None:
    """Run and measure the training step of `peak_megabytes` in this process."""
    torch.set_num_threads(1)
    condition = [0] if "@" in name else []
    layers = [candidates(shape)[name] for _ in range(8)]
    small = torch.randn(2, *shape[1:], requires_grad=True)
    layers[0](small, *condition).sum().backward()
    x = torch.randn(shape, requires_grad=True)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the peak
    before = _peak_kilobytes()
    h = x
    for layer in layers:
        h = layer(h, *condition)
    h.backward(torch.ones_like(h))  # type: ignore[no-untyped-call]
    print((_peak_kilobytes() - before) / 1024)


def _peak_kilobytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def best(calls: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Take the best time of each call, all interleaved and in another order each round: a neighbour's memory shows."""
    for call in calls.values():
        call()
    times = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        for name, call in random.sample(sorted(calls.items()), len(calls)):
            start = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - start)
        rounds += 1
    return times


def measure(shape: tuple[int, ...], threads: int, seconds: float, *, compiled: bool) -> dict[str, Any]:
    """Time all candidates at one shape."""
    torch.set_num_threads(threads)
    x, dy = torch.randn(shape), torch.randn(shape)
    modules = candidates(shape, compiled=compiled)
    row: dict[str, Any] = {"shape": list(shape), "threads": threads, "megabytes": x.numel() * 4 / 1e6, "seconds": {}}
    for mode in MODES:
        calls = {name: step(module, x, dy, mode) for name, module in modules.items()}
        row["seconds"][mode] = best(calls | {"traffic": traffic(x, dy, mode), "copy": copy(x)}, seconds)
    row["saved"] = {name: saved_bytes(module, x) / (x.numel() * 4) for name, module in modules.items() if name != "sn compiled"}
    return row


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the ratios with their targets: forward + backward, float32, tensors of at least 0.1 MB."""
    ours = [(row, row["seconds"][MODES[2]], spec) for row in rows for spec in SPECS if spec in row["seconds"][MODES[2]]]
    small = [cell for cell in ours if cell[0]["shape"] == [4, 64, 8, 8]]
    ours = [cell for cell in ours if cell[0]["megabytes"] >= 0.1]
    large = [cell for cell in ours if cell[0]["megabytes"] >= 6]
    switch = [cell for cell in ours if cell[2] == "sn"]
    ratios = {
        "nn.BatchNorm / ours": ([t["nn.BatchNorm"] / t[s] for _, t, s in ours], (2.5, 1.0), "least"),
        "ours / nn.GroupNorm": ([t[s] / t["nn.GroupNorm"] for _, t, s in ours], (1.1, 1.5), "most"),
        "published SN / our sn": ([t["published SN"] / t[s] for _, t, s in switch], (12.0, 6.0), "least"),
        "ours / traffic limit, 6 MB and more": ([t[s] / t["traffic"] for _, t, s in large], (1.35, None), "most"),
        "bytes saved for backward / bytes of x": ([row["saved"][s] for row, _, s in ours], (1.02, 1.05), "most"),
        "ours / nn.BatchNorm2d at 4×64×8×8": ([t[s] / t["nn.BatchNorm"] for _, t, s in small], (1.0, None), "most"),
    }
    results = []
    for name, (values, (median, worst), kind) in ratios.items():
        middle, extreme = statistics.median(values), (min if kind == "least" else max)(values)
        median_met = middle >= median if kind == "least" else middle <= median
        worst_met = worst is None or (extreme >= worst if kind == "least" else extreme <= worst)
        met = [median_met, worst_met]
        results.append({"ratio": name, "median": middle, "worst": extreme, "target": [median, worst], "met": met})
    return results


def show(rows: list[dict[str, Any]], threads: int) -> None:
    """Print forward + backward relative to nn.BatchNorm (above 1 is faster), and the traffic limit."""
    columns = [
        "nn.GroupNorm",
        "published SN",
        "sn by reference",
        "sn compiled",
        "bn",
        "gn:32",
        "hn:32",
        "sn",
        "bgn:32",
        "sabn@10",
    ]
    columns = [*(name for name in columns if any(name in row["seconds"][MODES[2]] for row in rows)), "traffic", "copy"]
    print(f"\nforward + backward, {threads} thread(s): time of nn.BatchNorm / time of each")
    print(f"{'shape':>20} {'MB':>7} {'BatchNorm ms':>13} " + " ".join(f"{column:>{max(8, len(column))}}" for column in columns))
    for row in (row for row in rows if row["threads"] == threads):
        times = row["seconds"][MODES[2]]
        ratios = [f"{times['nn.BatchNorm'] / times[name]:.2f}" if name in times else "-" for name in columns]
        cells = [f"{ratio:>{max(8, len(name))}}" for name, ratio in zip(columns, ratios, strict=True)]
        shape = "×".join(map(str, row["shape"]))
        print(f"{shape:>20} {row['megabytes']:>7.2f} {times['nn.BatchNorm'] * 1e3:>13.3f} {' '.join(cells)}")


def show_peaks(shape: tuple[int, ...]) -> dict[str, float]:
    """Print the peak memory of a training step of eight layers in sequence."""
    names = ["nn.BatchNorm", "nn.GroupNorm", "published SN", "sn by reference", "bn", "hn:32", "sn", "sabn@10"]
    peaks = {name: peak_megabytes(name, shape) for name in names}
    size = 4e-6 * torch.Size(shape).numel()
    print(f"\npeak memory of a training step of eight layers at {'×'.join(map(str, shape))}, in tensors of x ({size:.1f} MB)")
    print("  ".join(f"{name} {peak * 1.048576 / size:.1f}" for name, peak in peaks.items()))
    return peaks


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot time of nn.BatchNorm / ours against the size of x: one dot per spec and shape, one panel per number of threads."""
    from matplotlib.figure import Figure

    counts = sorted({row["threads"] for row in rows})
    figure = Figure(figsize=(5.5 * len(counts), 4.2), layout="constrained")
    for ax, threads in zip(figure.subplots(1, len(counts), sharey=True, squeeze=False)[0], counts, strict=True):
        for name in ("gn:32", "hn:32", "sn", "bn", "nn.GroupNorm", "published SN", "traffic"):
            cells = [(row["megabytes"], row["seconds"][MODES[2]]) for row in rows if row["threads"] == threads]
            points = sorted((size, times["nn.BatchNorm"] / times[name]) for size, times in cells if name in times)
            ours = name in SPECS
            ax.plot(*zip(*points, strict=True), "o" if ours else ".", label=name, alpha=1 if ours else 0.5, markersize=5)
        ax.axhline(1, color="black", linewidth=1)
        ax.set(xscale="log", yscale="log", xlabel="size of x (MB)", title=f"{threads} thread{'s' if threads > 1 else ''}")
        ax.set_ylabel("time of nn.BatchNorm / time")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.suptitle("forward + backward, float32: above 1 is faster than nn.BatchNorm")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, and print the table and one line per target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="time for the complete run (default: 8)")
    parser.add_argument("--threads", default=f"1,{torch.get_num_threads()}", help="numbers of threads, such as 1,2")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--plot", type=Path, help="plot the ratios to this file")
    parser.add_argument(
        "--compile", action="store_true", help="also time the reference under torch.compile (compiling takes minutes)"
    )
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(arguments.peak, tuple(int(size) for size in arguments.shape.split("x")))
        return
    counts = sorted({int(count) for count in arguments.threads.split(",")})
    cells = [(shape, threads) for threads in counts for shape in shapes()]
    seconds = arguments.minutes * 60 / len(cells) / len(MODES) * 0.8
    rows = []
    for k, (shape, threads) in enumerate(cells):
        rows.append(measure(shape, threads, seconds, compiled=arguments.compile))
        print(f"\r{k + 1}/{len(cells)}", end="", file=sys.stderr, flush=True)
    for threads in counts:
        show(rows, threads)
    peaks = show_peaks((32, 64, 56, 56))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"
    print(f"\n{machine}")
    for target in targets(rows):
        verdicts = ["met" if met else "missed" for met in target["met"]]
        median, worst = target["target"]
        worst_text = "" if worst is None else f", worst {target['worst']:.2f} (target {worst}: {verdicts[1]})"
        print(f"{target['ratio']}: median {target['median']:.2f} (target {median}: {verdicts[0]}){worst_text}")
    if arguments.json:
        results = {"machine": machine, "rows": rows, "targets": targets(rows), "peak_megabytes": peaks}
        arguments.json.write_text(json.dumps(results, indent=1))
    if arguments.plot:
        draw(rows, arguments.plot)


if __name__ == "__main__":
    main()
