"""sn Fig. 4: SN's weights of IN, LN and BN against the batch size.

    anynorm reproduce sn_importance --preset desk

Paper: ResNet-50 on ImageNet, 32 to 2 images per device; the weights of IN, LN and BN averaged over the 53 layers.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`); batch sizes 32 to 2
    paper  sn's setting (`support.presets.IMAGENET_100`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: the claims are about how the weights change as the batch size shrinks. In the last block, maps have 1 × 1
pixels: IN's mean is the value itself and its variance 0, so in three of the twelve layers the weight of IN is not a choice
between estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.presets import DESK, IMAGENET_100, SMOKE
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, save_figure, successful, values_of
from anynorm.lab.recipes.support.runs import make_config, mean_weights, run_metrics, train_run
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class ImportanceSettings(TrainingSettings):
    """Settings of SN's weights by batch size.

    Args:
        batch_sizes: numbers of samples per forward pass and device, the largest first.
    """

    batch_sizes: tuple[int, ...]


PRESETS = {
    "smoke": ImportanceSettings(seeds=2, training=SMOKE, batch_sizes=(32, 2)),
    "desk": ImportanceSettings(seeds=3, training=DESK, batch_sizes=(32, 16, 8, 4, 2)),
    "paper": ImportanceSettings(seeds=3, training=IMAGENET_100, batch_sizes=(32, 16, 8, 4, 2)),
}
STATISTICS = {"mean": "mean", "var": "variance"}
CUTS = ("in", "ln", "bn")
WEIGHTS = [f"{statistic}_{cut}" for statistic in STATISTICS for cut in CUTS]


def cells(settings: ImportanceSettings) -> list[Cell]:
    """Return one cell per batch size and seed."""
    return grid(settings.seeds, batch_size=settings.batch_sizes)


def measure(settings: ImportanceSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network with SN and return its accuracy and its weights, averaged over the layers."""
    config = replace(settings.training.config, norm="sn", batch_size=cell["batch_size"], seed=cell["seed"])
    record = train_run(make_config(config, settings.training.base_batch_size), runs)
    return run_metrics(record) | mean_weights(record, WEIGHTS)


def claims(settings: ImportanceSettings) -> list[Claim]:
    """Return how the weights change from the largest to the smallest batch size."""
    large, small = settings.batch_sizes[0], settings.batch_sizes[-1]
    result = []
    for statistic, name in STATISTICS.items():
        for cut, high, low, paper in (("bn", large, small, "Fig. 4: it falls"), ("ln", small, large, "Fig. 4: it rises")):
            statement = f"{cut.upper()}'s weight in the {name} is larger at batch {high} than at {low}"
            weights = [values_of(f"{statistic}_{cut}", batch_size=size) for size in (high, low)]
            result.append(Claim(statement, paper, *weights))
    for size in (large, small):
        statement = f"BN's weight is larger in the mean than in the variance (batch {size})"
        weights = [values_of(f"{statistic}_bn", batch_size=size) for statistic in STATISTICS]
        result.append(Claim(statement, "App. C.2: mostly, in res5", *weights))
    return result


def tables(record: RecipeRecord[ImportanceSettings]) -> list[Table]:
    """Return the weights and the accuracy by batch size."""
    columns = {name.replace("_", " "): name for name in WEIGHTS} | {"accuracy": "accuracy"}
    rows = metric_rows(record.rows, "batch_size", record.settings.batch_sizes, columns, label="batch")
    return [Table(rows, "Weights averaged over the layers, and test accuracy in %; mean ± sd over seeds.")]


def plot(record: RecipeRecord[ImportanceSettings], path: Path) -> list[Path]:
    """Plot the weights in the mean and in the variance against the batch size."""
    sizes = record.settings.batch_sizes
    fig = Figure(figsize=(11, 4), layout="constrained")
    for ax, (statistic, name) in zip(fig.subplots(1, 2, sharey=True), STATISTICS.items(), strict=True):
        lines = {
            cut.upper(): {size: successful(record.rows, f"{statistic}_{cut}", batch_size=size) for size in sizes} for cut in CUTS
        }
        labels = {"xlabel": "samples per batch", "ylabel": "weight, averaged over layers", "title": f"sn Fig. 4: {name}"}
        draw.lines(lines, ax, **labels)
    return save_figure(fig, path)


RECIPE = Recipe("sn_importance", PRESETS, cells, measure, claims, plot, tables)
