"""sn Fig. 4: what SN weighs, against the batch size.

    anynorm reproduce sn_importance --preset desk        (data: CIFAR-10)

The paper trains ResNet-50 on ImageNet with 32 to 2 images a device and averages the weights of IN, LN and BN over its 53 layers.
`desk` scales that down to `anynorm.recipes.support.presets.DESK`, batch 32 to 2. What is claimed is where weights go as the batch shrinks.
The last block's maps are 1 × 1 there: IN's mean is the value itself, and its variance 0, so what SN gives to IN in three of the
twelve layers is no choice between estimates.

`paper` is sn's setting as far as the lab has it: see `anynorm.recipes.support.presets.IMAGENET` (data: a folder `imagenet` with `train` and
`test`). `smoke` claims nothing. `desk` took 4 minutes on two cores.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import plot
from anynorm.recipes.support.claims import Claim, pick, spread
from anynorm.recipes.support.presets import DESK, IMAGENET_100, SMOKE, Numbers, column, config_of, numbers, saved, trained
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.table import Table

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [32, 2]},
    "desk": DESK | {"batch_sizes": [32, 16, 8, 4, 2]},
    "paper": IMAGENET_100 | {"batch_sizes": [32, 16, 8, 4, 2]},
}
CUTS, SIDES = ("in", "ln", "bn"), ("mean", "var")


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], batch_size=settings["batch_sizes"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network with SN, and average its weights over the layers."""
    record = trained(config_of(settings, "sn", **cell))
    layers = record.get("importance") or []
    names = [f"{side}_{cut}" for side in SIDES for cut in CUTS]
    weights = {name: round(statistics.fmean(layer[name] for layer in layers), 4) if layers else None for name in names}
    return numbers(record) | weights


def claims(settings: Settings) -> list[Claim]:
    """List where weights go from the largest to the smallest batch."""
    large, small = settings["batch_sizes"][0], settings["batch_sizes"][-1]
    found = []
    for side, name in zip(SIDES, ("mean", "variance"), strict=True):
        says = f"BN's weight in the {name} is larger at batch {large} than at {small}"
        found.append(Claim(says, "Fig. 4: it falls", weight(f"{side}_bn", large), weight(f"{side}_bn", small)))
        says = f"LN's weight in the {name} is larger at batch {small} than at {large}"
        found.append(Claim(says, "Fig. 4: it rises", weight(f"{side}_ln", small), weight(f"{side}_ln", large)))
    for size in (large, small):
        says = f"BN's weight is larger in the mean than in the variance (batch {size})"
        found.append(Claim(says, "App. C.2: mostly, in res5", weight("mean_bn", size), weight("var_bn", size)))
    return found


def weight(name: str, size: int) -> Numbers:
    """Give a weight at a batch size, a number a seed."""
    return column(name, batch_size=size)


def tables(record: Record) -> list[Table]:
    """Give weights and accuracy by batch size."""
    rows = []
    for size in record.settings["batch_sizes"]:
        names = [f"{side}_{cut}" for side in SIDES for cut in CUTS]
        line = {name.replace("_", " "): spread(pick(record.rows, name, batch_size=size)) for name in names}
        rows.append({"batch": size, **line, "accuracy": spread(pick(record.rows, "accuracy", batch_size=size))})
    return [Table(rows, "Weights averaged over the layers, and test accuracy in %; mean ± sd over seeds.")]


def draw(record: Record, path: Path) -> list[Path]:
    """Draw the weights of the mean and of the variance against the batch size."""
    fig = Figure(figsize=(11, 4), layout="constrained")
    for ax, side, name in zip(fig.subplots(1, 2, sharey=True), SIDES, ("mean", "variance"), strict=True):
        things = {}
        for cut in CUTS:
            by_size = {size: weight(f"{side}_{cut}", size)(record.rows) for size in record.settings["batch_sizes"]}
            things[cut.upper()] = {size: [value for value in found if value is not None] for size, found in by_size.items()}
        plot.lines(things, ax, xlabel="samples a batch", ylabel="weight, averaged over layers", title=f"sn Fig. 4: {name}")
    return saved(fig, path)


RECIPE = Recipe("sn_importance", PRESETS, cells, measure, claims, draw, tables)
