"""Accuracy of a pretrained network after fine-tuning with new norms, at once or gradually: a table of docs/guide/surgery.md.

    python -m tests.surgery.morph_accuracy [--spec gn:8] [--images 2000] [--steps 200] [--lrs 0.003,0.03] [--seed 0]

Each route gets the same images with labels, number of steps, batches and learning rates (cosine schedule). CIFAR-10 and the
pretrained ResNet-20 are read from the shared data folder beside the project. The route `bn` keeps the old norms.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn

import anynorm
from tests.real import accuracy, load_cifar, pretrained_resnet

ROUTES = ("bn", "convert", "convert fit", "morph", "morph fit")


def fine_tune(route: str, arguments: argparse.Namespace, lr: float, train: Any, test: Any) -> float:
    """Return the accuracy after fine-tuning, for one route from the pretrained network to the new norms."""
    images, labels = train
    torch.manual_seed(arguments.seed)
    model = pretrained_resnet(20)
    fit = images[:512] if route.endswith("fit") else None
    report = None
    if route.startswith("convert"):
        anynorm.convert(model, arguments.spec, fit=fit)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=1e-4, nesterov=True)
    if route.startswith("morph"):
        ramp = anynorm.Ramp(stop=arguments.stop)
        report = anynorm.morph(model, arguments.spec, steps=arguments.steps, schedule=ramp, fit=fit, optimizer=optimizer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    generator = torch.Generator().manual_seed(arguments.seed)
    batches: list[Any] = []
    model.train()
    for _ in range(arguments.steps):
        batches = batches or list(torch.randperm(len(images), generator=generator).split(arguments.batch))
        chosen = batches.pop()
        x = nn.functional.pad(images[chosen], (4, 4, 4, 4))
        i, j, flip = torch.randint(0, 9, (3,), generator=generator).tolist()
        x = x[..., i : i + 32, j : j + 32]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.flip(-1) if flip % 2 else x), labels[chosen]).backward()
        optimizer.step()
        schedule.step()
    assert report is None or report.is_finished
    return accuracy(model.eval(), *test)


def main() -> None:
    """Print one line per route and learning rate as soon as it is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", default="gn:8")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--stop", type=float, default=0.8)
    parser.add_argument("--lrs", default="0.003,0.03")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routes", default=",".join(ROUTES))
    arguments = parser.parse_args()
    (images, labels), test = load_cifar("train"), load_cifar("test")
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(arguments.seed))[: arguments.images]
    for lr in map(float, arguments.lrs.split(",")):
        for route in arguments.routes.split(","):
            start = time.perf_counter()
            after = fine_tune(route, arguments, lr, (images[chosen], labels[chosen]), test)
            seconds = time.perf_counter() - start
            print(f"{arguments.spec}  lr {lr:<5}  {route:12} {after:.2f}   {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
