"""Time the generator of SNGAN with conditional norms against torch's BatchNorm with an embedding of scales and shifts.

    python benchmarks/conditional.py [--minutes 4] [--classes 10,1000] [--batch-size 16] [--width 0.25] [--json out.json]

A step is a forward and backward pass of the generator for 32 × 32 images. The update by Adam, whose time grows with the number of
classes, is timed separately. All norms are timed alternately, on one thread; the result is the minimum CPU time of each. Only
ratios within one run are meaningful.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch
from measurement import best_times, saved_bytes, write_results
from sections import conditional_section
from torch import Tensor, nn

import anynorm
from anynorm.lab.data.shape import DataShape
from anynorm.lab.tasks.generation.networks import build_gan
from anynorm.progress import track

BASE = "nn.BatchNorm2d + nn.Embedding"
NORMS = (BASE, "ccbn", "sabn", "hn.sa", "nn.BatchNorm2d", "bn")
"""Norms of the generator's blocks; the number of classes is appended to specs with a class affine."""


class EmbeddingNorm(nn.Module):
    """CCBN as implemented in public code: BatchNorm without affine, then scale and shift from embeddings."""

    takes_condition = True

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, affine=False)
        self.gain, self.bias = nn.Embedding(num_classes, channels), nn.Embedding(num_classes, channels)
        nn.init.normal_(self.gain.weight, 1, 0.02)
        nn.init.zeros_(self.bias.weight)
        self._condition: Any = None

    def set_condition(self, labels: Any) -> None:
        """Set the classes of the next forward pass."""
        self._condition = labels

    def forward(self, x: Tensor) -> Tensor:
        """Return gain · normalized x + bias."""
        gain, bias = (table(self._condition)[:, :, None, None] for table in (self.gain, self.bias))
        output: Tensor = gain * self.bn(x) + bias
        return output


def make_generator(norm: str, num_classes: int, width: float) -> nn.Module:
    """Build the generator with a norm in its blocks; the output norm is always a BatchNorm."""
    torch.manual_seed(0)
    generator = build_gan("sngan", DataShape(3, 32, 32, num_classes), width).generator
    blocks = generator.get_submodule("blocks")
    if norm == BASE:
        for path, module in list(blocks.named_modules()):
            if isinstance(module, nn.BatchNorm2d):
                blocks.set_submodule(path, EmbeddingNorm(module.num_features, num_classes))
    elif norm != "nn.BatchNorm2d":
        anynorm.convert(blocks, norm if norm == "bn" else f"{norm}@{num_classes}")
        anynorm.convert(generator, "bn", where="output_norm")
    result: nn.Module = generator
    return result


def step(generator: nn.Module, z: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return a function that runs a forward and backward pass of a generator."""

    def run() -> None:
        generator.zero_grad(set_to_none=True)
        with anynorm.condition(generator, labels, strict=False):
            generator(z).square().mean().backward()

    return run


def measure(num_classes: int, batch_size: int, width: float, seconds: float) -> dict[str, Any]:
    """Time a step and an optimizer update with each norm for one number of classes."""
    z, labels = torch.randn(batch_size, 128), torch.randint(0, num_classes, (batch_size,))
    generators = {norm: make_generator(norm, num_classes, width) for norm in NORMS}
    times = best_times(
        {norm: step(generator, z, labels) for norm, generator in generators.items()}, seconds * 0.95, clock=process_time
    )
    optimizers = {norm: torch.optim.Adam(generator.parameters(), fused=True) for norm, generator in generators.items()}
    updates = best_times({norm: optimizer.step for norm, optimizer in optimizers.items()}, seconds * 0.05, clock=process_time)
    saved = {}
    for norm, generator in generators.items():
        with anynorm.condition(generator, labels, strict=False):
            saved[norm] = saved_bytes(generator, z)
    parameters = {norm: sum(parameter.numel() for parameter in generator.parameters()) for norm, generator in generators.items()}
    return {"classes": num_classes, "seconds": times, "update_seconds": updates, "saved_bytes": saved, "parameters": parameters}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0, help="time for the complete run (default: 4)")
    parser.add_argument("--classes", default="10,1000", help="comma-separated numbers of classes (default: 10,1000)")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per step (default: 16)")
    parser.add_argument("--width", type=float, default=0.25, help="width multiplier of the generator (default: 0.25)")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    counts = [int(count) for count in arguments.classes.split(",")]
    seconds = arguments.minutes * 60 / len(counts)
    rows = [measure(count, arguments.batch_size, arguments.width, seconds) for count in track(counts, "timing generators")]
    results = {"batch_size": arguments.batch_size, "width": arguments.width, "base": BASE, "rows": rows}
    print(conditional_section(results))
    write_results(arguments.json, results)


if __name__ == "__main__":
    main()
