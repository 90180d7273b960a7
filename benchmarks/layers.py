"""Time every norm against torch's layers, the published formulation of SN, and the memory traffic that no norm can avoid.

    python benchmarks/layers.py [--minutes 8] [--threads 1,2] [--json out.json]

Everything of a shape runs interleaved in one loop and the best time of each counts: the machine may be shared, so only ratios
of one run mean anything. Outputs and gradients are freshly allocated, as a network's are. The traffic limit is what four
passes read and write (read x; read x, write y; read x, dy; read x, dy, write dx), done by torch's sum, copy, dot and add.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anynorm

SPECS = [
    "bn",
    "in",
    "ln",
    "gn:32",
    "en",
    "en:32",
    "bgn:32",
    "gbgn:2,32",
    "hn",
    "hn:32",
    "sn",
    "sn:2",
    "sn.hard",
    "bn/bn+en",
    "sabn@10",
    "auxbn@2",
]
RESNET50 = [(64, 112), (64, 56), (256, 56), (128, 28), (512, 28), (256, 14), (1024, 14), (512, 7), (2048, 7)]
RESNET20 = [(16, 32), (32, 16), (64, 8)]
MODES = ("inference", "training forward", "forward + backward")


def shapes() -> list[tuple[int, ...]]:
    """Give ResNet-50's norm inputs at 224 px, CIFAR ResNet-20's, a video's and vectors."""
    found: list[tuple[int, ...]] = [(n, c, s, s) for n in (2, 8, 32) for c, s in RESNET50 if n * c * s * s < 2**24]
    found += [(n, c, s, s) for n in (4, 128) for c, s in RESNET20]
    return [*found, (2, 64, 8, 28, 28), (256, 512)]


class PublishedSwitchNorm(nn.Module):
    """Write SN as its users run it: eqs. 3 and 4 of the paper in tensor operations, means and variances of IN, LN and BN."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.mean_weight, self.var_weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.running_mean = nn.Buffer(torch.zeros(1, channels, 1))
        self.running_var = nn.Buffer(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x."""
        rows = x.flatten(2) if x.dim() > 2 else x[..., None]
        mean_in, var_in = rows.mean(-1, keepdim=True), rows.var(-1, keepdim=True, correction=0)
        square = var_in + mean_in**2
        mean_ln = mean_in.mean(1, keepdim=True)
        var_ln = square.mean(1, keepdim=True) - mean_ln**2
        if self.training:
            mean_bn = mean_in.mean(0, keepdim=True)
            var_bn = square.mean(0, keepdim=True) - mean_bn**2
            self.running_mean.mul_(0.9).add_(mean_bn.detach(), alpha=0.1)
            self.running_var.mul_(0.9).add_(var_bn.detach(), alpha=0.1)
        else:
            mean_bn, var_bn = self.running_mean, self.running_var
        w, v = self.mean_weight.softmax(0), self.var_weight.softmax(0)
        mean = w[0] * mean_in + w[1] * mean_ln + w[2] * mean_bn
        var = v[0] * var_in + v[1] * var_ln + v[2] * var_bn
        y = (rows - mean) / (var + 1e-5).sqrt()
        return (y * self.weight[None, :, None] + self.bias[None, :, None]).reshape(x.shape)


def candidates(shape: tuple[int, ...]) -> dict[str, nn.Module]:
    """Make everything that is timed at a shape; specs that do not fit are left out."""
    c = shape[1]
    batch_norm: dict[int, Any] = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    found = {
        "nn.BatchNorm": batch_norm[len(shape)](c),
        "nn.GroupNorm": nn.GroupNorm(min(32, c), c),
        "published SN": PublishedSwitchNorm(c),
    }
    for spec in SPECS:
        try:
            norm = anynorm.make(spec, c)
            norm(torch.zeros(shape), 0)
        except anynorm.AnynormError:
            continue
        norm.reset_running_stats()
        found[spec] = norm
    return found


def step(module: nn.Module, x: Tensor, dy: Tensor, mode: str) -> Callable[[], None]:
    """Make the call that is timed."""
    condition = [0] if getattr(module, "takes_condition", False) else []
    given = x.detach().clone().requires_grad_(mode == MODES[2])

    def run() -> None:
        module.train(mode != MODES[0])
        if mode == MODES[2]:
            given.grad = None
            module(given, *condition).backward(dy)
        else:
            with torch.no_grad():
                module(given, *condition)

    return run


def traffic(x: Tensor, dy: Tensor, mode: str) -> Callable[[], None]:
    """Make the reads and writes that no norm can do without."""
    flat, up = x.flatten(), dy.flatten()

    def run() -> None:
        if mode != MODES[0]:
            flat.sum()
        torch.empty_like(flat).copy_(flat)
        if mode == MODES[2]:
            torch.dot(flat, up)
            torch.add(flat, up)

    return run


def best(calls: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Take the best time of each call, all interleaved."""
    for call in calls.values():
        call()
    times = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - start)
        rounds += 1
    return times


def measure(shape: tuple[int, ...], threads: int, seconds: float) -> dict[str, Any]:
    """Time everything at one shape."""
    torch.set_num_threads(threads)
    x, dy = torch.randn(shape), torch.randn(shape)
    modules = candidates(shape)
    row: dict[str, Any] = {"shape": list(shape), "threads": threads, "megabytes": x.numel() * 4 / 1e6, "seconds": {}}
    for mode in MODES:
        calls = {name: step(module, x, dy, mode) for name, module in modules.items()}
        row["seconds"][mode] = best(calls | {"traffic": traffic(x, dy, mode)}, seconds)
    return row


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold the figures against what the project wants: forward + backward, float32, tensors of 0.1 MB and more."""
    ours = [(row, row["seconds"][MODES[2]], spec) for row in rows for spec in SPECS if spec in row["seconds"][MODES[2]]]
    ours = [found for found in ours if found[0]["megabytes"] >= 0.1]
    large = [found for found in ours if found[0]["megabytes"] >= 6]
    switch = [found for found in ours if found[2] == "sn"]
    ratios = {
        "nn.BatchNorm / ours": ([t["nn.BatchNorm"] / t[s] for _, t, s in ours], (2.0, 1.0), "least"),
        "ours / nn.GroupNorm": ([t[s] / t["nn.GroupNorm"] for _, t, s in ours], (1.1, 1.5), "most"),
        "published SN / our sn": ([t["published SN"] / t[s] for _, t, s in switch], (10.0, 5.0), "least"),
        "ours / traffic limit, 6 MB and more": ([t[s] / t["traffic"] for _, t, s in large], (1.4, None), "most"),
    }
    found = []
    for name, (values, (median, worst), kind) in ratios.items():
        middle, extreme = statistics.median(values), (min if kind == "least" else max)(values)
        good = middle >= median if kind == "least" else middle <= median
        bound = worst is None or (extreme >= worst if kind == "least" else extreme <= worst)
        found.append({"ratio": name, "median": middle, "worst": extreme, "wanted": [median, worst], "holds": [good, bound]})
    return found


def show(rows: list[dict[str, Any]], threads: int) -> None:
    """Print forward + backward as ratios to nn.BatchNorm, above 1 is faster, with the traffic limit beside."""
    columns = ["nn.GroupNorm", "published SN", "bn", "gn:32", "hn:32", "sn", "bgn:32", "sabn@10", "traffic"]
    print(f"\nforward + backward, {threads} thread(s): time of nn.BatchNorm / time of each")
    print(f"{'shape':>20} {'MB':>7} {'BatchNorm ms':>13} " + " ".join(f"{column:>12}" for column in columns))
    for row in (row for row in rows if row["threads"] == threads):
        times = row["seconds"][MODES[2]]
        cells = [f"{times['nn.BatchNorm'] / times[name]:>12.2f}" if name in times else f"{'-':>12}" for name in columns]
        shape = "×".join(map(str, row["shape"]))
        print(f"{shape:>20} {row['megabytes']:>7.2f} {times['nn.BatchNorm'] * 1e3:>13.3f} {' '.join(cells)}")


def main() -> None:
    """Measure, print the table and a line a target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=8.0, help="time for the whole run")
    parser.add_argument("--threads", default=f"1,{torch.get_num_threads()}", help="thread counts, such as 1,2")
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    counts = sorted({int(count) for count in arguments.threads.split(",")})
    cells = [(shape, threads) for threads in counts for shape in shapes()]
    seconds = arguments.minutes * 60 / len(cells) / len(MODES) * 0.8
    rows = []
    for k, (shape, threads) in enumerate(cells):
        rows.append(measure(shape, threads, seconds))
        print(f"\r{k + 1}/{len(cells)}", end="", file=sys.stderr, flush=True)
    for threads in counts:
        show(rows, threads)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"
    print(f"\n{machine}")
    for target in targets(rows):
        holds = ["holds" if good else "does not hold" for good in target["holds"]]
        wanted = target["wanted"]
        worst = "" if wanted[1] is None else f", worst {target['worst']:.2f} (wanted {wanted[1]}: {holds[1]})"
        print(f"{target['ratio']}: median {target['median']:.2f} (wanted {wanted[0]}: {holds[0]}){worst}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows, "targets": targets(rows)}, indent=1))


if __name__ == "__main__":
    main()
