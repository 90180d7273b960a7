"""Time a ResNet-50 with each norm against the same network with nn.BatchNorm2d.

    python benchmarks/model.py [--minutes 10] [--batch-sizes 2,8] [--size 224] [--threads 2] [--json out.json]

A training step is forward, cross-entropy and backward; inference is forward in eval mode. All networks have the same convolution
weights and take turns; the best time of each counts. Only ratios within one run are meaningful. The exit code is 1 if a
training step with sn is slower than with nn.BatchNorm2d.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anynorm

NORMS = ["nn.BatchNorm2d", "bn", "sn", "hn", "bgn", "sabn@10"]


def make_norm(name: str, channels: int) -> nn.Module:
    """Build a norm; the number of groups of `bgn` follows from the batch size, here 2."""
    if name == "nn.BatchNorm2d":
        return nn.BatchNorm2d(channels)
    return anynorm.make(name, channels, batch_size=2)


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3, 1 × 1 convolutions with a shortcut (He et al. 2016)."""

    def __init__(self, in_channels: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, width, 1, bias=False),
            norm(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            norm(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            norm(4 * width),
        )
        same_shape = stride == 1 and in_channels == 4 * width
        self.shortcut: nn.Module = nn.Identity()
        if not same_shape:
            self.shortcut = nn.Sequential(nn.Conv2d(in_channels, 4 * width, 1, stride, bias=False), norm(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body(x) + shortcut(x))."""
        y: Tensor = self.body(x) + self.shortcut(x)
        return y.relu_()


def resnet50(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Build a ResNet-50 for 1000 classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), norm(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    in_channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(in_channels, 64 << stage, 2 if block == 0 and stage else 1, norm))
            in_channels = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def networks() -> dict[str, nn.Sequential]:
    """Build the network with each norm."""
    models = {}
    for name in NORMS:
        torch.manual_seed(0)
        models[name] = resnet50(partial(make_norm, name))
    return models


def step(name: str, model: nn.Module, x: Tensor, target: Tensor, training: bool) -> Callable[[], None]:
    """Return the function to time: a training step or inference."""

    def run() -> None:
        model.train(training)
        with torch.set_grad_enabled(training):
            logits = model(x)
            if training:
                model.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(logits, target).backward()  # type: ignore[no-untyped-call]

    def run_conditioned() -> None:
        with anynorm.condition(model, target % 10):
            run()

    return run_conditioned if "@" in name else run


def measure(models: dict[str, nn.Sequential], batch_size: int, size: int, training: bool, seconds: float) -> dict[str, Any]:
    """Time all networks at one batch size, in turns."""
    x, target = torch.randn(batch_size, 3, size, size), torch.randint(0, 1000, (batch_size,))
    calls = {name: step(name, model, x, target, training) for name, model in models.items()}
    times = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 3 or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - start)
        rounds += 1
    return {"batch_size": batch_size, "mode": "training step" if training else "inference", "rounds": rounds, "seconds": times}


def main() -> None:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="time for the complete run (default: 10)")
    parser.add_argument("--batch-sizes", default="2,8", help="comma-separated batch sizes (default: 2,8)")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images (default: 224)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of threads")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batch_sizes = [int(size) for size in arguments.batch_sizes.split(",")]
    models = networks()
    cells = [(batch_size, training) for batch_size in batch_sizes for training in (True, False)]
    work = sum(batch_size * (3 if training else 1) for batch_size, training in cells)
    print(f"ResNet-50, {arguments.size} px, {arguments.threads} thread(s): time of each / time with nn.BatchNorm2d")
    print(f"{'batch size':>10} {'':>14} {'BatchNorm2d ms':>15} " + " ".join(f"{name:>8}" for name in NORMS[1:]))
    rows = []
    for batch_size, training in cells:
        seconds = arguments.minutes * 60 * batch_size * (3 if training else 1) / work
        row = measure(models, batch_size, arguments.size, training, seconds)
        base = row["seconds"][NORMS[0]]
        ratios = " ".join(f"{row['seconds'][name] / base:>8.2f}" for name in NORMS[1:])
        print(f"{batch_size:>10} {row['mode']:>14} {base * 1e3:>15.0f} {ratios}", flush=True)
        rows.append(row)
    steps = [row["seconds"] for row in rows if row["mode"] == "training step"]
    slower = [
        times for times in steps if times["sn"] > 1.01 * times[NORMS[0]]
    ]  # two measurements of the same network differ by as much
    print(f"a training step with sn is {'slower' if slower else 'not slower'} than with nn.BatchNorm2d")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"
    print(machine)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
