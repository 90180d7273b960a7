"""Tables and plots of the recipe `xbn_mlp`."""

from __future__ import annotations

import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, save_figure, select
from anynorm.lab.recipes.xbn.mlp.settings import MlpSettings
from anynorm.lab.training.result import Result
from anynorm.lab.training.sweep import Row
from anynorm.table import Table

NETWORKS = ("bn", "gnbn")
NUM_SHOWN_LAYERS = 6


class FittedResult(Result):
    """A result of networks without training error, which is marked by † in text."""

    def __format__(self, format_spec: str) -> str:
        return f"{super().__format__(format_spec)} †"


def tables(record: RecipeRecord[MlpSettings]) -> list[Table]:
    """Return the table of test errors by training set size, and one by initialization, learning rate and iterations.

    The second table is for the smallest training set.
    """
    rows, settings = record.rows, record.settings
    sizes = settings.train_sizes
    by_size: list[Row] = []
    for network in (*NETWORKS, "none"):
        cell = {"figure": "3, 5", "network": network}
        errors = {f"|S| = {size}": result_over_seeds(rows, "test_error", **cell, train_size=size) for size in sizes}
        by_size.append({"network": network, **errors})
    by_init = [_row_of_init(record, init) for init in settings.inits]
    both = "none and for bn with the same training" if settings.equal_training else "none"
    return [
        Table(by_size, "Test error in % by number of training images |S|. The paper has 73.02 (BN) and 57.73 (none) at 32."),
        Table(
            by_init,
            f"Test error in % at |S| = {min(sizes)} by initialization, with the stated training; for {both} by lr × iterations. "
            "†: training error 0 with every seed.",
        ),
    ]


def _row_of_init(record: RecipeRecord[MlpSettings], init: str) -> Row:
    """Return the test errors on the smallest training set with an initialization."""
    settings = record.settings
    cell = {"train_size": min(settings.train_sizes), "init": init}
    figure = "3, 5" if init == "default" else "initializations"
    row: Row = {"initialization": init}
    row |= {name: result_over_seeds(record.rows, "test_error", figure=figure, network=name, **cell) for name in NETWORKS}
    for network in ("none", "bn") if settings.equal_training else ("none",):
        for iterations, lr in product(settings.no_norm_iterations, settings.no_norm_lrs):
            run = cell | {"figure": "no norm", "network": network, "lr": lr, "iterations": iterations}
            has_fitted = max(select(record.rows, "train_error", **run)) == 0
            values = select(record.rows, "test_error", **run)
            row[f"{network}, {lr} × {iterations}"] = FittedResult.of(values) if has_fitted else Result.of(values)
    return row


def plot(record: RecipeRecord[MlpSettings], path: Path) -> list[Path]:
    """Write the plots of Figs. 2 and 4, of Figs. 3 and 5, and of the curves of subsets and of the start of the statistics."""
    pictures = {"figs24": _draw_curves(record), "figs35": _draw_subsets(record)}
    if record.settings.measure_subsets:
        pictures["fig3c"] = _draw_curves_of_subsets(record)
    if record.settings.first_batch_start:
        pictures["start"] = _draw_curves(record, "start")
    return [
        file for suffix, fig in pictures.items() for file in save_figure(fig, path.with_name(f"{path.name}.{suffix}"), dpi=110)
    ]


def _draw_curves(record: RecipeRecord[MlpSettings], figure: str = "2, 4") -> Figure:
    """Plot errors and the ESM of selected layers over the iterations (Figs. 2, 4; "start": from the first batch)."""
    fig = Figure(figsize=(13, 7), layout="constrained")
    for axes, network in zip(fig.subplots(2, 3), NETWORKS, strict=True):
        runs = select(record.rows, "curves", figure=figure, network=network)
        _draw_errors(axes[0], runs)
        axes[0].set_title(f"{network.upper()}: error, {len(runs)} seeds")
        for ax, column, symbol in ((axes[1], "esm_std", r"\sigma"), (axes[2], "esm_mean", r"\mu")):
            _draw_shift(ax, torch.tensor([run[column] for run in runs]).mean(0), record.settings.depth)
            ax.set(ylabel=rf"$\mathrm{{ESM}}_{symbol}$", title=f"{network.upper()}: ESM of selected batch norms")
        for ax in axes:
            ax.set_xlabel("iteration")
            ax.legend(frameon=False)
    return fig


def _draw_curves_of_subsets(record: RecipeRecord[MlpSettings]) -> Figure:
    """Plot ESM_σ over the iterations, the mean over layers and seeds, for each size of the training set (Fig. 3c)."""
    fig = Figure(figsize=(9, 4.2), layout="constrained")
    for ax, network in zip(fig.subplots(1, 2, sharey=True), NETWORKS, strict=True):
        for size in record.settings.train_sizes:
            runs = select(record.rows, "curves", figure="3, 5", network=network, train_size=size)
            ax.plot(torch.tensor([run["esm_std"] for run in runs]).mean((0, 2)), label=f"|S| = {size}")
        ax.set(xlabel="iteration", ylabel=r"$\mathrm{ESM}_\sigma$", yscale="log", title=f"{network.upper()}, mean over layers")
        ax.legend(frameon=False)
    return fig


def _draw_errors(ax: Any, runs: list[dict[str, Any]]) -> None:
    """Plot the error curve of each seed as a thin line, and the mean."""
    for label, color in (("train", draw.COLORS[0]), ("test", draw.COLORS[1])):
        curves = [run[f"{label}_error"] for run in runs]
        for curve in curves:
            ax.plot(curve, color=color, alpha=0.25, lw=1)
        ax.plot(torch.tensor(curves).mean(0), color=color, label=label)
    ax.set(ylabel="error (%)", ylim=(0, 100))


def _draw_shift(ax: Any, esm: torch.Tensor, depth: int) -> None:
    """Plot the ESM of about six batch norms, evenly spaced over the depth; `esm` has shape (iterations, batch norms)."""
    step = depth // esm.shape[1]  # GNBN has a batch norm on every second layer
    wanted = [round(1 + k * (depth - 1) / (NUM_SHOWN_LAYERS - 1)) for k in range(NUM_SHOWN_LAYERS)]
    for layer in range(step, depth + 1, step):
        if min(abs(layer - k) for k in wanted) < step:
            ax.plot(esm[:, layer // step - 1], color=colormaps["viridis"](0.9 * layer / depth), label=f"layer {layer}")


def _draw_subsets(record: RecipeRecord[MlpSettings]) -> Figure:
    """Plot the ESM by layer and the test error, for each size of the training set S (Figs. 3, 5)."""
    rows, settings = record.rows, record.settings
    sizes = settings.train_sizes
    fig = Figure(figsize=(13, 4.2), layout="constrained")
    axes = fig.subplots(1, 3)
    for ax, network in zip(axes[:2], NETWORKS, strict=True):
        profiles = {}
        for size in sizes:
            esm = torch.tensor(select(rows, "esm_std", figure="3, 5", network=network, train_size=size)).mean(0)
            step = settings.depth // len(esm)
            inputs = statistics.fmean(select(rows, "input_shift", figure="3, 5", network=network, train_size=size))
            points = [(0, inputs), *((step * k, float(value)) for k, value in enumerate(esm, 1))]  # layer 0 is the input
            profiles[f"|S| = {size}"] = [{"esm_std": value, "layer": layer} for layer, value in points]
        draw.profiles(profiles, "esm_std", ax)
        ax.set(title=f"{network.upper()} after training", yscale="log", ylim=(0.02, 12))
    for network, color in zip(NETWORKS, draw.COLORS, strict=False):
        errors = [select(rows, "test_error", figure="3, 5", network=network, train_size=size) for size in sizes]
        means, sds = [statistics.fmean(values) for values in errors], [statistics.stdev(values) for values in errors]
        axes[2].errorbar(range(len(errors)), means, sds, fmt="o-", capsize=3, color=color, label=network.upper())
    if sizes[0] == 32:
        axes[2].plot([0], [73.02], "x", color=draw.COLORS[5], label="paper: BN 73.02")
    axes[2].set_xticks(range(len(sizes)), sizes)
    axes[2].set(xlabel="number of training images |S|", ylabel="test error (%)")
    axes[2].set_title(f"Test error, mean ± sd of {settings.seeds} seeds")
    axes[2].legend(frameon=False)
    return fig
