"""Time every norm against torch's layers, the published formulation of SN, and the memory traffic that every norm needs.

    python benchmarks/layers.py [--minutes 8] [--threads 1,2] [--compile] [--json out.json] [--plot out.png]

At each shape, all candidates are timed alternately; the result is the minimum time of each. Only ratios within one run are
meaningful. Outputs and gradients are newly allocated, as in a network. Memory traffic means the reads and writes of four passes
(read x; read x, write y; read x, dy; read x, dy, write dx), performed by torch's sum, copy, dot and add. Memory is measured as
the number of bytes saved for backward, and as the peak memory of a separate process during a training step.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from candidates import MODES, SPECS, candidates, copy, shapes, step, traffic
from measurement import best_times, condition_of, saved_bytes, write_results
from sections import layers_section
from targets import layer_targets

from anynorm.progress import track

PEAK_NAMES = ("nn.BatchNorm", "nn.GroupNorm", "published SN", "sn by reference", "bn", "hn:32", "sn", "sabn@10")
PEAK_SHAPE = (32, 64, 56, 56)
FORMAT_SHAPES = ((8, 64, 56, 56), (8, 256, 14, 14), (4, 32, 16, 16))
FORMATS = (
    (torch.bfloat16, torch.contiguous_format),
    (torch.float32, torch.channels_last),
    (torch.bfloat16, torch.channels_last),
)
"""Pairs (dtype, memory format) of the additional table."""
FORMAT_NAMES = ("nn.BatchNorm", "nn.GroupNorm", "bn", "gn:32", "hn:32", "sn", "bgn:32", "sabn@10")


def measure(shape: tuple[int, ...], threads: int, seconds: float, *, compiled: bool) -> dict[str, Any]:
    """Time all candidates at one shape in float32, for `seconds` per mode."""
    torch.set_num_threads(threads)
    x, dy = torch.randn(shape), torch.randn(shape)
    modules = candidates(shape, compiled=compiled)
    row: dict[str, Any] = {"shape": list(shape), "threads": threads, "megabytes": x.numel() * 4 / 1e6, "seconds": {}}
    for mode in MODES:
        calls = {name: step(module, x, dy, mode) for name, module in modules.items()}
        row["seconds"][mode] = best_times(calls | {"traffic": traffic(x, dy, mode), "copy": copy(x)}, seconds)
    row["saved"] = {
        name: saved_bytes(module.train(), x, *condition_of(module)) / (x.numel() * 4)
        for name, module in modules.items()
        if name != "sn compiled"
    }
    return row


def measure_format(
    shape: tuple[int, ...], threads: int, dtype: torch.dtype, memory_format: torch.memory_format, seconds: float
) -> dict[str, Any]:
    """Time forward + backward in another dtype and memory format; parameters stay float32."""
    torch.set_num_threads(threads)
    x, dy = (torch.randn(shape).to(dtype, memory_format=memory_format) for _ in range(2))
    modules = {name: module for name, module in candidates(shape).items() if name in FORMAT_NAMES}
    times = best_times({name: step(module, x, dy, MODES[2]) for name, module in modules.items()}, seconds)
    names = {"dtype": str(dtype), "memory_format": str(memory_format)}
    return {"shape": list(shape), "threads": threads, "seconds": times} | {
        key: name.removeprefix("torch.") for key, name in names.items()
    }


def peak_megabytes(name: str, shape: tuple[int, ...]) -> float:
    """Return the peak memory of a training step of eight equal layers in sequence, without x, measured in a separate process."""
    command = [sys.executable, __file__, "--peak", name, "--shape", "x".join(map(str, shape))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(name: str, shape: tuple[int, ...]) -> None:
    """Run the training step of `peak_megabytes` in this process, and print its peak memory in MiB."""
    torch.set_num_threads(1)
    layers = [candidates(shape)[name] for _ in range(8)]
    condition = condition_of(layers[0])
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


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot the time relative to nn.BatchNorm over the size of x: one dot per layer and shape, one panel per number of threads."""
    from matplotlib.figure import Figure

    counts = sorted({row["threads"] for row in rows})
    figure = Figure(figsize=(5.5 * len(counts), 4.2), layout="constrained")
    for ax, threads in zip(figure.subplots(1, len(counts), sharey=True, squeeze=False)[0], counts, strict=True):
        for name in ("gn:32", "hn:32", "sn", "bn", "nn.GroupNorm", "published SN", "traffic"):
            cells = [(row["megabytes"], row["seconds"][MODES[2]]) for row in rows if row["threads"] == threads]
            points = sorted((size, times[name] / times["nn.BatchNorm"]) for size, times in cells if name in times)
            ours = name in SPECS
            ax.plot(*zip(*points, strict=True), "o" if ours else ".", label=name, alpha=1 if ours else 0.5, markersize=5)
        ax.axhline(1, color="black", linewidth=1)
        ax.set(xscale="log", yscale="log", xlabel="size of x (MB)", title=f"{threads} thread{'s' if threads > 1 else ''}")
        ax.set_ylabel("time / time of nn.BatchNorm")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.suptitle("forward + backward, float32: below 1 is faster than nn.BatchNorm")
    figure.savefig(path, dpi=120)


def parse_arguments() -> argparse.Namespace:
    """Parse the command-line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="time for the complete run (default: 8)")
    parser.add_argument("--threads", default="1,2", help="comma-separated numbers of threads (default: 1,2)")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--plot", type=Path, help="plot the ratios to this file")
    parser.add_argument(
        "--compile", action="store_true", help="also time the reference under torch.compile (compiling takes minutes)"
    )
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, and print the tables and one line per target."""
    arguments = parse_arguments()
    if arguments.peak:
        print_peak(arguments.peak, tuple(int(size) for size in arguments.shape.split("x")))
        return
    counts = sorted({int(count) for count in arguments.threads.split(",")})
    cells = [(shape, threads) for threads in counts for shape in shapes()]
    format_cells = [(shape, threads, *format) for threads in counts for format in FORMATS for shape in FORMAT_SHAPES]
    seconds = arguments.minutes * 60 / (len(cells) * len(MODES) + len(format_cells)) * 0.8
    rows = [measure(shape, threads, seconds, compiled=arguments.compile) for shape, threads in track(cells, "timing shapes")]
    formats = [measure_format(*cell, seconds) for cell in track(format_cells, "timing formats")]
    peaks = {name: peak_megabytes(name, PEAK_SHAPE) for name in PEAK_NAMES}
    peak = {"shape": list(PEAK_SHAPE), "megabytes": peaks}
    results = {"specs": SPECS, "rows": rows, "formats": formats, "peak": peak}
    print(layers_section(results))
    for target in layer_targets(results):
        print(target)
    write_results(arguments.json, results)
    if arguments.plot:
        draw(rows, arguments.plot)


if __name__ == "__main__":
    main()
