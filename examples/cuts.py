"""Show what each cut does to a batch of real digits.

A norm brings the sets it takes statistics from to mean 0 and deviation 1. The table looks at samples and at channels,
whichever sets the norm used: the mean farthest from 0, and the smallest and largest deviation.
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import anynorm
from anynorm.show import listing

SPECS = ["bn", "in", "ln", "gn:4", "pn", "en", "en:4", "bgn:32", "gbgn:8,4", "hn:4", "sn"]


def features(samples: int = 32, channels: int = 16) -> torch.Tensor:
    """Give the digits as a convolution sees them: 16 fixed random 3×3 filters, some of them loud, on 8×8 images."""
    images = torch.tensor(load_digits().images[:samples], dtype=torch.float32)[:, None] / 16
    generator = torch.Generator().manual_seed(0)
    filters = torch.randn(channels, 1, 3, 3, generator=generator) * torch.linspace(0.5, 4, channels)[:, None, None, None]
    return torch.nn.functional.conv2d(images, filters, padding=1)


def measure(y: torch.Tensor) -> list[float]:
    """Take means and deviations per sample and per channel."""
    by_sample, by_channel = y.flatten(1), y.transpose(0, 1).flatten(1)
    numbers = []
    for rows in (by_sample, by_channel):
        std, mean = torch.std_mean(rows, dim=1, correction=0)
        numbers += [mean.abs().max().item(), std.min().item(), std.max().item()]
    return numbers


def main() -> None:
    """List the zoo, normalise, and print the table."""
    console = Console(width=None if Console().is_terminal else 110)
    names = [line["spec"] for line in listing()]
    console.print(f"The zoo ({len(names)} norms; `anynorm list` says more): {'  '.join(names)}\n", highlight=False)
    x = features()
    table = Table(title=f"Digits after a convolution, {'×'.join(map(str, x.shape))}: what each norm makes of the moments")
    for column in ("norm", "per sample: max |mean|", "min std", "max std", "per channel: max |mean|", "min std", "max std"):
        table.add_column(column, justify="left" if column == "norm" else "right")
    for spec in ["(input)", *SPECS]:
        y = x if spec == "(input)" else anynorm.make(spec, x.shape[1])(x)
        table.add_row(spec, *(f"{abs(number):.2f}" for number in measure(y.detach())))
    console.print(table)
    console.print(
        "bn makes every channel 0 and 1, ln every sample, in both; hn:4 centres channels as bn does but keeps their loudness.",
        highlight=False,
    )


if __name__ == "__main__":
    main()
