"""hn Fig. 3: the groups of EN for the mean against those for the deviation, at a small batch.

    anynorm reproduce hn_groups --preset desk        (data: CIFAR-10)

The paper trains ResNet-18 on CIFAR-10 with EN of c, 32, 16, 8, 4 and 1 groups for either statistic (c groups are BN), at batch
128 and 4. `desk` scales that down to `anynorm.lab.trained.FEWER`, batch 2, with c, 16, 4 and 1 groups.

`paper` is the published setting, complete. `smoke` claims nothing.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import plot
from anynorm.lab.claims import Claim
from anynorm.lab.recipe import Recipe, Settings, grid
from anynorm.lab.record import Record, Row
from anynorm.lab.trained import CIFAR, FEWER, SMOKE, accuracy, config_of, numbers, saved, there, told, trained
from anynorm.report import Rows

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [4], "groups": ["c", 1]},
    "desk": FEWER | {"batch_sizes": [2], "groups": ["c", 16, 4, 1]},
    "paper": CIFAR | {"batch_sizes": [128, 4], "groups": ["c", 32, 16, 8, 4, 1]},
}
FIG_3: dict[tuple[Any, Any], float] = {
    ("c", "c"): 84.59,
    ("c", 32): 95.04,
    ("c", 16): 94.95,
    ("c", 8): 95.17,
    ("c", 4): 94.72,
    ("c", 1): 94.93,
}
FIG_3 |= {(32, 1): 94.37, (16, 1): 94.28, (8, 1): 93.87, (4, 1): 93.89, (1, 1): 93.69}


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], mean=settings["groups"], std=settings["groups"], batch_size=settings["batch_sizes"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network."""
    mean, std = ("bn" if groups == "c" else f"en:{groups}" if groups > 1 else "en" for groups in (cell["mean"], cell["std"]))
    norm = mean if mean == std else f"{mean}/{std}"
    return numbers(trained(config_of(settings, norm, cell["batch_size"], cell["seed"])))


def claims(settings: Settings) -> list[Claim]:
    """List what the paper reads from its figure: a mean a channel, and a deviation over more, is best at a small batch."""
    size, groups = settings["batch_sizes"][-1], settings["groups"]
    wider = [_better(("c", std), ("c", "c"), size) for std in groups[1:]]
    return wider + [_better(("c", 1), (mean, 1), size) for mean in groups[1:]]


def _better(one: tuple[Any, Any], other: tuple[Any, Any], size: int) -> Claim:
    says = "mean {} and deviation {} are better than {} and {}".format(*one, *other) + f" (groups; batch {size})"
    larger, smaller = (accuracy(mean=mean, std=std, batch_size=size) for mean, std in (one, other))
    return Claim(says, f"{FIG_3[one]} and {FIG_3[other]}", larger, smaller)


def tables(record: Record) -> list[Rows]:
    """Give the grid of each batch size."""
    groups = record.settings["groups"]
    found = []
    for size in record.settings["batch_sizes"]:
        rows = []
        for std in groups:
            line = {str(mean): told(record.rows, mean=mean, std=std, batch_size=size) for mean in groups}
            rows.append({"std \\ mean": str(std), **line})
        found.append(Rows(rows, f"Test accuracy in %, batch {size}, mean ± sd over seeds; groups of the mean, of the deviation."))
    return found


def draw(record: Record, path: Path) -> list[Path]:
    """Draw the grids."""
    groups, sizes = record.settings["groups"], record.settings["batch_sizes"]
    names = [str(number) for number in groups]
    fig = Figure(figsize=(6 * len(sizes), 5), layout="constrained")
    for ax, size in zip(fig.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        table = []
        for std in groups:
            line = [there(record.rows, mean=mean, std=std, batch_size=size) for mean in groups]
            table.append([statistics.fmean(values) if values else float("nan") for values in line])
        words = {"xlabel": "groups of the mean", "ylabel": "groups of the deviation", "title": f"batch {size}"}
        plot.grid(table, (names, names), ax, label="test accuracy (%)", **words)
    return saved(fig, path)


RECIPE = Recipe("hn_groups", PRESETS, cells, measure, claims, draw, tables)
