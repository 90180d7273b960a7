"""Time networks with each norm against the same network with nn.BatchNorm2d.

    python benchmarks/model.py [--minutes 20] [--networks resnet50,mobilenetv2,resnet20] [--threads 1,2] [--json out.json]

A training step is forward, cross entropy and backward; inference is a forward pass in eval mode. All networks have the same
convolution weights and are timed alternately; the result is the minimum time of each. Only ratios within one run are meaningful.
"bn fused" is the network with bn after `anynorm.fuse`: additions and activations are computed by the norms before them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from aims import FUSED_NORMS
from candidates import PublishedSwitchNorm
from measurement import best_times, write_results
from sections import model_section
from targets import model_targets
from torch import Tensor, nn

import anynorm
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.models.cifar_resnet import CifarResNet
from anynorm.progress import track

NORMS = ("nn.BatchNorm2d", "bn", "sn", "hn", "bgn", "published SN", *FUSED_NORMS)
NETWORKS = {"resnet50": (224, 1000, (2, 8)), "mobilenetv2": (224, 1000, (2, 32)), "resnet20": (32, 10, (2, 32))}
"""Image size, number of classes and batch sizes of each network."""
MODES = ("training step", "inference")


def network(name: str, norm: str) -> nn.Module:
    """Build a network in which nn.BatchNorm2d is replaced by a norm."""
    size, classes, _ = NETWORKS[name]
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
        anynorm.convert(model, norm.removesuffix(" fused"), batch_size=2)
    if norm in FUSED_NORMS:
        fuse(model, torch.randn(2, 3, size, size))
    return model


def fuse(model: nn.Module, example: Tensor) -> None:
    """Fuse the norms of a model with the operations after them, as `anynorm.fuse` does."""
    surgery: Any = anynorm  # `fuse` may be missing
    surgery.fuse(model, example)


def usable_norms() -> list[str]:
    """Return the candidates; without those that are fused if this version of anynorm has no `fuse`."""
    return [norm for norm in NORMS if norm not in FUSED_NORMS or "fuse" in anynorm.__all__]


def step(model: nn.Module, x: Tensor, target: Tensor, mode: str) -> Callable[[], None]:
    """Return a function that runs a training step or inference; `mode` is one of `MODES`."""
    training = mode == MODES[0]

    def run() -> None:
        model.train(training)
        with torch.set_grad_enabled(training):
            logits = model(x)
            if training:
                model.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(logits, target).backward()  # type: ignore[no-untyped-call]

    return run


def measure(name: str, batch_size: int, mode: str, threads: int, seconds: float) -> dict[str, Any]:
    """Time a network with each norm alternately, at one batch size."""
    torch.set_num_threads(threads)
    size, classes, _ = NETWORKS[name]
    x, target = torch.randn(batch_size, 3, size, size), torch.randint(0, classes, (batch_size,))
    calls = {norm: step(network(name, norm), x, target, mode) for norm in usable_norms()}
    times = best_times(calls, seconds)
    return {"network": name, "batch_size": batch_size, "mode": mode, "threads": threads, "seconds": times}


def main() -> None:
    """Measure, and print a table and the target of ResNet-50."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="time for the complete run (default: 20)")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="comma-separated networks (default: all)")
    parser.add_argument("--threads", default="1,2", help="comma-separated numbers of threads (default: 1,2)")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.threads.split(",")]
    names = arguments.networks.split(",")
    cells = [(name, n, mode, count) for count in counts for name in names for n in NETWORKS[name][2] for mode in MODES]
    seconds = arguments.minutes * 60 / len(cells)
    rows = [measure(*cell, seconds) for cell in track(cells, "timing networks")]
    results = {"norms": usable_norms(), "rows": rows}
    print(model_section(results))
    for target in model_targets(results):
        print(target)
    write_results(arguments.json, results)


if __name__ == "__main__":
    main()
