"""Recipes that train one network with the mean of one norm and the standard deviation of another, for pairs of norms."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.claims import Check, Claim, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Requirement
from anynorm.lab.recipes.support.norm_grid import NormGrid, cell_config
from anynorm.lab.recipes.support.norm_grid import controls as learned_controls
from anynorm.lab.recipes.support.quantities import Measured, accuracy_drop, accuracy_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

BN_LOSES = "points that (bn, bn) loses at the small batch size"
"""The requirement of claims that another pair repairs BN: without a loss, there is nothing to repair."""
LEAST_LOSS = 2.5
"""A quarter of the loss of BN in the paper, 10.46 points."""


class Pair(NamedTuple):
    """The norm of the mean and the norm of the standard deviation."""

    mean: str
    std: str

    def __str__(self) -> str:
        return f"({self.mean}, {self.std})"

    @property
    def spec(self) -> str:
        """The spec of the pair; HN has its own name, so that recipes share its runs."""
        if self.mean == self.std:
            return self.mean
        is_hn = self.mean == "bn" and self.std.startswith("en")
        return self.std.replace("en", "hn", 1) if is_hn else f"{self.mean}/{self.std}"


HN, BN = Pair("bn", "en"), Pair("bn", "bn")


@dataclass(frozen=True, kw_only=True)
class PairGrid(NormGrid):
    """Settings of a grid of pairs of norms × batch sizes.

    Args:
        only: the pairs that are measured; empty for all pairs of `norms`.
    """

    only: tuple[Pair, ...] = ()

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs that are measured."""
        return self.only or tuple(Pair(mean, std) for mean in self.norms for std in self.norms)


def pair_grid_recipe(
    name: str,
    presets: Mapping[str, PairGrid],
    claims: Callable[[PairGrid], list[Claim | Check]],
) -> Recipe[PairGrid]:
    """Return a recipe that measures a grid of means × standard deviations × batch sizes.

    Args:
        name: the name of the recipe's module.
        presets: settings by preset.
        claims: a function that returns the claims that can be tested with given settings.
    """
    return Recipe(name, presets, cells, measure, claims, plot, tables, controls=controls)


def controls(settings: PairGrid) -> list[Control]:
    """Return the controls: every network has learned, and BN loses accuracy at the small batch size."""
    result = learned_controls(settings)
    if len(settings.batch_sizes) > 1:
        large, small = settings.batch_sizes
        result.append(Requirement(BN_LOSES, accuracy_drop(large, small, mean="bn", std="bn"), LEAST_LOSS))
    return result


def cells(settings: PairGrid) -> list[Cell]:
    """Return one cell per pair of norms, batch size and seed."""
    return [
        {"mean": pair.mean, "std": pair.std} | cell
        for pair in settings.pairs
        for cell in grid(settings.seeds, batch_size=settings.batch_sizes)
    ]


def measure(settings: PairGrid, cell: Cell, runs: Path) -> Measurement:
    """Train the network of a cell with the spec "MEAN/STD" and return its accuracy."""
    return train_cell(cell_config(settings, Pair(cell["mean"], cell["std"]).spec, cell), settings.training, runs)


def accuracy_of_pair(pair: Pair, batch_size: int) -> Measured:
    """Return the test accuracy of a pair."""
    return accuracy_of(mean=pair.mean, std=pair.std, batch_size=batch_size)


def pair_claims(
    settings: PairGrid,
    orders: Sequence[tuple[Pair, Pair]],
    batch_size: int,
    source: Source,
    published: Callable[[Pair], float],
    *,
    group: str = "",
    repairs_bn: bool = False,
) -> list[Claim | Check]:
    """Return one claim per two pairs: the first is more accurate than the second.

    Args:
        settings: claims about pairs that are not measured are left out.
        orders: the more accurate pair and the less accurate one.
        batch_size: the batch size of both.
        source: the figure.
        published: a function that returns the accuracy of a pair in the figure, in %.
        group: see `Larger`. By default, the claim about the same two pairs in another recipe, which has the same runs.
        repairs_bn: whether the claims require that BN loses accuracy at the small batch size, if both sizes are measured.
    """
    requires = (BN_LOSES,) if repairs_bn and len(settings.batch_sizes) > 1 else ()
    return [
        Larger(
            statement=f"{pair} is more accurate than {other} (batch {batch_size})",
            source=source,
            published=Published(published(pair), published(other)),
            larger=accuracy_of_pair(pair, batch_size),
            smaller=accuracy_of_pair(other, batch_size),
            group=group or f"hn {pair} > {other}, batch {batch_size}, same runs in hn_grid and hn_groups",
            requires=requires,
        )
        for pair, other in orders
        if {pair, other} <= {*settings.pairs}
    ]


def best_pair_group(batch_size: int) -> str:
    """Return the group of the claims that (bn, en) is the best pair at the large batch size."""
    return f"hn Figs. 2a and 3a, (BN, EN) is the best pair, batch {batch_size}"


def best_std_group(batch_size: int) -> str:
    """Return the group of the claims that, with BN's mean, the std of EN with groups is the best at the small batch size."""
    return f"hn Figs. 2b and 3b, EN with groups has the best std for BN's mean, batch {batch_size}"


def other_means_group(batch_size: int) -> str:
    """Return the group of the claims that (bn, en) is better than EN's std with another mean."""
    return f"hn Fig. 3b, no other mean than BN's is needed, batch {batch_size}"


def tables(record: RecipeRecord[PairGrid]) -> list[Table]:
    """Return one table per batch size, laid out as in the paper: one column per mean, one row per standard deviation."""
    settings, measured = record.settings, record.rows
    means, stds = (list(dict.fromkeys(names)) for names in zip(*settings.pairs, strict=True))
    result = []
    for size in settings.batch_sizes:
        rows = [
            {"std \\ mean": std}
            | {
                mean: result_over_seeds(measured, "accuracy", mean=mean, std=std, batch_size=size)
                if Pair(mean, std) in settings.pairs
                else ""
                for mean in means
            }
            for std in stds
        ]
        finding = f"Test accuracy in % at batch size {size}, mean ± sd over seeds. Columns: norm of the mean; rows: of the std."
        result.append(result_table(rows, finding))
    return result


def plot(record: RecipeRecord[PairGrid], path: Path) -> list[Path]:
    """Plot the accuracies as one grid per batch size."""
    norms, sizes, rows = record.settings.norms, record.settings.batch_sizes, record.rows
    fig = Figure(figsize=(6 * len(sizes), 5), layout="constrained")
    for ax, size in zip(fig.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        accuracies = [[successful(rows, mean=mean, std=std, batch_size=size) for mean in norms] for std in norms]
        means = [[statistics.fmean(values) if values else float("nan") for values in line] for line in accuracies]
        labels = {"xlabel": "norm of the mean", "ylabel": "norm of the standard deviation", "title": f"batch size {size}"}
        draw.annotated_heatmap(means, (norms, norms), ax, label="test accuracy (%)", **labels)
    return save_figure(fig, path)
