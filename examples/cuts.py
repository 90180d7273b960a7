"""Show the effect of each norm on the mean and standard deviation of a batch of digits.

A norm transforms each set of values that share a statistic to mean 0 and standard deviation 1. The table shows, per sample and
per channel, the largest absolute mean and the smallest and largest standard deviation of the output.

    python examples/cuts.py
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import anynorm

SPECS = ["bn", "in", "ln", "gn:4", "pn", "en", "en:4", "bgn:32", "gbgn:8,4", "hn:4", "sn"]


def features(num_samples: int = 32, num_channels: int = 16) -> torch.Tensor:
    """Return the output of a convolution of 8 × 8 digits with fixed random 3 × 3 filters of increasing scale, (n, c, 8, 8)."""
    images = torch.tensor(load_digits().images[:num_samples], dtype=torch.float32)[:, None] / 16
    generator = torch.Generator().manual_seed(0)
    filters = torch.randn(num_channels, 1, 3, 3, generator=generator) * torch.linspace(0.5, 4, num_channels)[:, None, None, None]
    return torch.nn.functional.conv2d(images, filters, padding=1)


def measure(y: torch.Tensor) -> list[float]:
    """Return max |mean|, min std and max std over samples, then over channels."""
    by_sample, by_channel = y.flatten(1), y.transpose(0, 1).flatten(1)
    numbers = []
    for rows in (by_sample, by_channel):
        std, mean = torch.std_mean(rows, dim=1, correction=0)
        numbers += [mean.abs().max().item(), std.min().item(), std.max().item()]
    return numbers


def main() -> None:
    """List all norms, normalize the features with each of `SPECS`, and print the table."""
    console = Console(width=None if Console().is_terminal else 110)
    names = [entry.spec for entry in anynorm.zoo()]
    console.print(f"{len(names)} norms (details: `anynorm list`): {'  '.join(names)}\n", highlight=False)
    x = features()
    table = Table(title=f"Digits after a convolution, {'×'.join(map(str, x.shape))}: moments of the output of each norm")
    for column in ("norm", "per sample: max |mean|", "min std", "max std", "per channel: max |mean|", "min std", "max std"):
        table.add_column(column, justify="left" if column == "norm" else "right")
    for spec in ["(input)", *SPECS]:
        y = x if spec == "(input)" else anynorm.make(spec, x.shape[1])(x)
        table.add_row(spec, *(f"{abs(number):.2f}" for number in measure(y.detach())))
    console.print(table)
    console.print(
        "bn gives every channel mean 0 and std 1; ln does so for every sample; in does both. "
        "hn:4 centers channels as bn does but keeps their relative scale within each group of channels.",
        highlight=False,
    )


if __name__ == "__main__":
    main()
