"""Time networks with each norm against the same network with nn.BatchNorm2d.

    python benchmarks/model.py [--minutes 20] [--networks resnet50,mobilenetv2,resnet20] [--batch-sizes 2,8,32] [--threads 2]
                               [--json out.json]

A training step is forward, cross-entropy and backward; inference is forward in eval mode. All networks have the same convolution
weights and take turns; the best time of each counts. Only ratios within one run are meaningful.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from candidates import PublishedSwitchNorm
from torch import Tensor, nn

import anynorm
from anynorm.models import build_model
from anynorm.models.cifar_resnet import CifarResNet
from anynorm.models.shape import DataShape

NORMS = ["nn.BatchNorm2d", "bn", "sn", "hn", "bgn", "published SN"]
SIZES = {"resnet50": (224, 1000), "mobilenetv2": (224, 1000), "resnet20": (32, 10)}
TARGET = 0.95


def network(name: str, norm: str) -> nn.Module:
    """Build a network with a norm in the place of nn.BatchNorm2d."""
    size, classes = SIZES[name]
    torch.manual_seed(0)
    if name == "resnet20":
        model: nn.Module = CifarResNet(20, norm=nn.BatchNorm2d)
    else:
        model = build_model(name, DataShape(3, size, size, classes))
    if norm == "published SN":
        for path, module in list(model.named_modules()):
            if isinstance(module, nn.BatchNorm2d):
                model.set_submodule(path, PublishedSwitchNorm(module.num_features))
    elif norm != NORMS[0]:
        anynorm.convert(model, norm, batch_size=2)
    return model


def step(model: nn.Module, x: Tensor, target: Tensor, training: bool) -> Callable[[], None]:
    """Return the function to time: a training step or inference."""

    def run() -> None:
        model.train(training)
        with torch.set_grad_enabled(training):
            logits = model(x)
            if training:
                model.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(logits, target).backward()  # type: ignore[no-untyped-call]

    return run


def measure(name: str, batch_size: int, training: bool, seconds: float) -> dict[str, Any]:
    """Time a network with each norm at one batch size, in turns."""
    size, classes = SIZES[name]
    x, target = torch.randn(batch_size, 3, size, size), torch.randint(0, classes, (batch_size,))
    calls = {norm: step(network(name, norm), x, target, training) for norm in NORMS}
    times = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 3 or time.perf_counter() < end:
        for norm, call in calls.items():
            start = time.perf_counter()
            call()
            times[norm] = min(times[norm], time.perf_counter() - start)
        rounds += 1
    mode = "training step" if training else "inference"
    return {"network": name, "batch_size": batch_size, "mode": mode, "rounds": rounds, "seconds": times}


def main() -> None:
    """Measure and print the ratios, and the target of ResNet-50."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="time for the complete run (default: 20)")
    parser.add_argument("--networks", default="resnet50,mobilenetv2,resnet20", help="comma-separated networks (default: all)")
    parser.add_argument("--batch-sizes", default="2,8,32", help="comma-separated batch sizes (default: 2,8,32)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of threads")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batch_sizes = [int(size) for size in arguments.batch_sizes.split(",")]
    cells = [(name, n, training) for name in arguments.networks.split(",") for n in batch_sizes for training in (True, False)]
    print(f"{arguments.threads} thread(s): time of each / time with nn.BatchNorm2d")
    print(f"{'network':>12} {'batch':>5} {'':>14} {'BatchNorm2d ms':>15} " + " ".join(f"{norm:>8}" for norm in NORMS[1:]))
    rows = []
    for name, batch_size, training in cells:
        row = measure(name, batch_size, training, arguments.minutes * 60 / len(cells))
        base = row["seconds"][NORMS[0]]
        ratios = " ".join(f"{row['seconds'][norm] / base:>{max(8, len(norm))}.2f}" for norm in NORMS[1:])
        print(f"{name:>12} {batch_size:>5} {row['mode']:>14} {base * 1e3:>15.1f} {ratios}", flush=True)
        rows.append(row)
    for row in rows:
        if row["network"] == "resnet50" and row["mode"] == "training step" and row["batch_size"] in (2, 8):
            ratio = row["seconds"]["sn"] / row["seconds"][NORMS[0]]
            verdict = "met" if ratio <= TARGET else "missed"
            print(f"ResNet-50 step, sn / nn.BatchNorm2d, batch {row['batch_size']}: {ratio:.2f} (target {TARGET}: {verdict})")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"
    print(machine)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "threads": arguments.threads, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
