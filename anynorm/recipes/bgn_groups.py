"""bgn Table 1: the number of groups of BGN at a large and a small batch.

    anynorm reproduce bgn_groups --preset desk        (data: CIFAR-10)

The paper trains ResNet-50 on ImageNet with 512 to 1 groups at batch 128 and 2. `desk` scales that down to
`anynorm.recipes.support.presets.DESK` at batch 32 and 2 with 64 to 1 groups: more would have to cut the smallest maps finer than they are.

`paper` is the published setting as far as the lab has it: see `anynorm.recipes.support.presets.IMAGENET` (data: a folder `imagenet` with
`train` and `test`). `smoke` claims nothing. `desk` took 7 minutes on two cores.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from anynorm import plot
from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.presets import DESK, IMAGENET, SMOKE, accuracy, config_of, numbers, saved, there, told, trained
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.table import Table

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [32, 2], "groups": [16, 1]},
    "desk": DESK | {"batch_sizes": [32, 2], "groups": [64, 16, 4, 1]},
    "paper": IMAGENET | {"batch_sizes": [128, 2], "groups": [512, 256, 128, 64, 32, 16, 8, 4, 2, 1]},
}
AT_2 = {512: 63.968, 256: 66.000, 128: 68.160, 64: 70.064, 32: 71.856, 16: 72.832, 8: 74.928, 4: 75.120, 2: 75.968, 1: 76.096}


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], groups=settings["groups"], batch_size=settings["batch_sizes"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network."""
    config = config_of(settings, f"bgn:{cell['groups']}", cell["batch_size"], cell["seed"])
    return numbers(trained(config), settings.get("median", 1))


def claims(settings: Settings) -> list[Claim]:
    """List the orderings: at a small batch the fewer groups the better, at a large one not."""
    (large, small), groups = settings["batch_sizes"], settings["groups"]
    found = [_better(fewer, more, small) for more, fewer in pairwise(groups)]
    if len(groups) > 2:
        found.append(_better(groups[-1], groups[0], small))
    says = f"bgn:{groups[0]} is more accurate than bgn:{groups[-1]} (batch {large})"
    one, other = (accuracy(groups=number, batch_size=large) for number in (groups[0], groups[-1]))
    found.append(Claim(says, "512 groups suit batch 128, 1 suits batch 2", one, other))
    return found


def _better(fewer: int, more: int, size: int) -> Claim:
    says = f"bgn:{fewer} is more accurate than bgn:{more} (batch {size})"
    one, other = (accuracy(groups=number, batch_size=size) for number in (fewer, more))
    return Claim(says, f"{AT_2[fewer]:.2f} and {AT_2[more]:.2f}", one, other)


def tables(record: Record) -> list[Table]:
    """Give accuracies by groups and batch size."""
    groups = record.settings["groups"]
    rows = [
        {"batch": size, **{f"G = {number}": told(record.rows, groups=number, batch_size=size) for number in groups}}
        for size in record.settings["batch_sizes"]
    ]
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def draw(record: Record, path: Path) -> list[Path]:
    """Draw accuracy against the number of groups."""
    groups = record.settings["groups"]
    things = {
        f"batch {size}": {number: there(record.rows, groups=number, batch_size=size) for number in groups}
        for size in record.settings["batch_sizes"]
    }
    fig, _ = plot.lines(things, xlabel="groups", ylabel="test accuracy (%)", title="bgn Table 1")
    return saved(fig, path)


RECIPE = Recipe("bgn_groups", PRESETS, cells, measure, claims, draw, tables)
