"""sn Fig. 3: directions and lengths of filters with IN, BN, LN and SN.

    anynorm reproduce sn_geometry --preset night

Paper (Remark 1, App. B): for patches with zero mean and unit variance, the norms are weight normalization v wᵀx / ‖w‖ with a
scale γ in the place of v. IN: γ = v. BN regularizes γ (γ ≤ v) and increases the angles between filters. LN constrains filters
less (γ > v). SN combines them. Fig. 3 is a drawing; no network was measured.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    night  20 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-8, 15 epochs, 32 samples per step (`support.presets.NIGHT`)
    paper  ResNet-50 on ImageNet (`sn.training.IMAGENET_SN`); needs a folder imagenet/ with train/ and test/

Chosen here: v is read as the γ of IN, because weight normalization is not implemented and the paper has "the length of γ would be
identically to v" for IN. γ is |γ|, averaged over the channels of all layers; the angle between two filters of a layer is that
between their lines, 0 to 90 degrees, averaged over all pairs and layers. γ has the weight decay of all parameters.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from anynorm import draw
from anynorm.lab.recipes.sn.training import IMAGENET_SN, LEARNED_NIGHT, LEARNED_PAPER
from anynorm.lab.recipes.support.claims import RATIO, UNITS, Claim, Larger, Source
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.presets import NIGHT, SMOKE
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, save_figure, successful
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.tasks.run import load_run
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.layers.norm import Norm
from anynorm.table import Table

NORMS = ("in", "bn", "ln", "sn")
ANGLE, LENGTH = "angle", "gamma"


@dataclass(frozen=True, kw_only=True)
class GeometrySettings(TrainingSettings):
    """Settings of the geometry of filters.

    Args:
        min_train_accuracy: training accuracy in % from which on a network has learned.
    """

    min_train_accuracy: float


PRESETS = {
    "smoke": GeometrySettings(
        seeds=2,
        training=replace(SMOKE, config=replace(SMOKE.config, model="small")),  # IN needs maps of more than one pixel
        min_train_accuracy=0.0,
    ),
    "night": GeometrySettings(seeds=8, training=NIGHT, min_train_accuracy=LEARNED_NIGHT),
    "paper": GeometrySettings(seeds=3, training=IMAGENET_SN, min_train_accuracy=LEARNED_PAPER),
}


def cells(settings: GeometrySettings) -> list[Cell]:
    """Return one cell per norm and seed."""
    return grid(settings.seeds, norm=NORMS)


def measure(settings: GeometrySettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracy, angles and lengths: means over the layers, and of each layer."""
    config = replace(settings.training.config, norm=cell["norm"], batch_size=32, seed=cell["seed"])
    config = make_config(config, settings.training)
    record = train_run(config, runs)
    if not record.done:
        return run_metrics(record) | {ANGLE: None, LENGTH: None, "layers": {}}
    layers = filter_geometry(load_run(runs, config.id).network)
    means = {name: round(statistics.fmean(layer[name] for layer in layers.values()), 4) for name in (ANGLE, LENGTH)}
    return run_metrics(record) | means | {"layers": layers}


@torch.no_grad()
def filter_geometry(model: nn.Module) -> dict[str, dict[str, float]]:
    """Return the mean angle between filters, in degrees, and the mean |γ| of each convolution that a norm follows."""
    result = {}
    before: nn.Module | None = None
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            before = module
        elif isinstance(module, Norm | nn.BatchNorm2d) and isinstance(before, nn.Conv2d):
            gamma = module.weight
            if isinstance(gamma, Tensor) and len(gamma) == before.out_channels:
                result[path] = {ANGLE: round(mean_angle(before.weight), 4), LENGTH: round(float(gamma.abs().mean()), 5)}
            before = None
    return result


def mean_angle(filters: Tensor) -> float:
    """Return the mean angle between the lines of two filters, in degrees.

    >>> mean_angle(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))  # 90, 0 and 90 degrees
    60.0
    """
    directions = nn.functional.normalize(filters.double().flatten(1), dim=1)
    cosines = (directions @ directions.T).abs().clamp(max=1)
    first, second = torch.triu_indices(len(filters), len(filters), offset=1)
    return round(float(torch.rad2deg(torch.acos(cosines[first, second])).mean()), 6)


def controls(settings: GeometrySettings) -> list[Control]:
    """Return when a network has learned."""
    return [Learned(settings.min_train_accuracy)]


def claims(_: GeometrySettings) -> list[Claim]:
    """Return the orders of angles and lengths that Fig. 3 draws."""
    place = Source("sn", "Fig. 3")
    result: list[Claim] = [
        Larger(
            statement=f"angles between filters are larger with BN than with {other.upper()}",
            source=place._replace(quote="the regularization of BN ... increases angle between filters"),
            larger=Measured(ANGLE, {"norm": "bn"}),
            smaller=Measured(ANGLE, {"norm": other}),
            scale=UNITS,
            group="sn Fig. 3: angles",
        )
        for other in ("in", "ln")
    ]
    for larger, smaller, quote in (
        ("in", "bn", "BN: regularization over γ, making it shorter than v"),
        ("ln", "in", "LN allows γ > v to increase learning ability"),
    ):
        result.append(
            Larger(
                statement=f"γ is longer with {larger.upper()} than with {smaller.upper()}",
                source=place._replace(quote=quote),
                larger=Measured(LENGTH, {"norm": larger}),
                smaller=Measured(LENGTH, {"norm": smaller}),
                scale=RATIO,
            )
        )
    return result


def tables(record: RecipeRecord[GeometrySettings]) -> list[Table]:
    """Return angles, lengths and accuracies by norm."""
    columns = {"angle (degrees)": ANGLE, "γ": LENGTH, "accuracy": "accuracy", "training accuracy": "train_accuracy"}
    rows = metric_rows(record.rows, "norm", NORMS, columns)
    return [Table(rows, "Angles and |γ| averaged over the layers, accuracies in %; mean ± sd over seeds.")]


def plot(record: RecipeRecord[GeometrySettings], path: Path) -> list[Path]:
    """Plot angles and lengths by norm."""
    fig = Figure(figsize=(10, 4), layout="constrained")
    labels = {ANGLE: "angle between filters (degrees)", LENGTH: "|γ|"}
    for ax, (column, label) in zip(fig.subplots(1, 2), labels.items(), strict=True):
        lines = {label: {norm: successful(record.rows, column, norm=norm) for norm in NORMS}}
        draw.lines(lines, ax, xlabel="norm", ylabel=label, title="sn Fig. 3, measured")
        for points in ax.containers:
            points[0].set_linestyle("none")
    return save_figure(fig, path)


RECIPE = Recipe("sn_geometry", PRESETS, cells, measure, claims, plot, tables, controls)
