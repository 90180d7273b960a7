"""Accuracy of pretrained networks after conversion, with and without fitting: the table of docs/guide/surgery.md.

    python -m tests.surgery.accuracy [--depths 20,56] [--images 512] [--seed 0] [--json out.json]

CIFAR-10 and the pretrained ResNets are read from the shared data folder beside the project. About ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import anynorm
from tests.real import accuracy, load_cifar, pretrained_resnet

SPECS = ("ln", "gn:4", "gn:8", "sn", "hn", "xbn", "in")


def measure(depth: int, spec: str, fit: Any, test: Any) -> dict[str, float]:
    """Convert a pretrained network and return its accuracy on the test images."""
    model = pretrained_resnet(depth)
    start = time.perf_counter()
    if spec == "xbn":
        anynorm.xbn(model, "gn:8", position=1, fit=fit)
    elif spec != "bn":
        anynorm.convert(model, spec, fit=fit)
    return {"seconds": time.perf_counter() - start, "accuracy": accuracy(model, *test)}


def main() -> None:
    """Print one line per network and norm as soon as it is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--depths", default="20,56")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    train, test = load_cifar("train")[0], load_cifar("test")
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(arguments.seed))[: arguments.images]
    rows = []
    for depth in map(int, arguments.depths.split(",")):
        print(f"ResNet-{depth}  bn {measure(depth, 'bn', None, test)['accuracy']:.2f}", flush=True)
        for spec in SPECS:
            plain, fitted = (measure(depth, spec, fit, test) for fit in (None, train[chosen]))
            rows.append({"depth": depth, "spec": spec, "plain": plain["accuracy"], "fitted": fitted["accuracy"]})
            print(f"ResNet-{depth}  {spec:5} plain {plain['accuracy']:.2f}  fitted {fitted['accuracy']:.2f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"images": arguments.images, "seed": arguments.seed, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
