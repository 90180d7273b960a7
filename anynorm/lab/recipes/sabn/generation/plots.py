"""Plots of `sabn_generation`: curves (Fig. 3), gradient balance by stage (Fig. 2) and samples (Fig. 4)."""

from __future__ import annotations

import base64
import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import save_figure, select
from anynorm.lab.tasks.generation.class_gradients import MODES, BalanceMetric
from anynorm.lab.training.sweep import Row

LABELS = {"grad_norm_std": "sd of gradient norms", "g_inter": "cosine of gradients"}
Series = dict[str, dict[Any, list[float]]]


def draw_curves(record: RecipeRecord[Any], path: Path, networks: Sequence[str], names: dict[str, str]) -> list[Path]:
    """Plot series of `curves` against steps: one row per network, one column per series.

    Args:
        record: the record.
        path: the path without the extension.
        networks: the networks.
        names: the labels of the y axes by the name of a series.
    """
    fig = Figure(figsize=(4.4 * len(names), 2.9 * len(networks)), layout="constrained")
    for network, row in zip(networks, fig.subplots(len(networks), len(names), squeeze=False), strict=True):
        for ax, (name, label) in zip(row, names.items(), strict=True):
            draw.lines(by_step(record, network, name), ax, xlabel="step", ylabel=label, title=network)
            ax.legend(frameon=False, fontsize="small")
    return save_figure(fig, path, dpi=90)


def draw_balance(record: RecipeRecord[Any], path: Path, networks: Sequence[str], columns: Sequence[str]) -> list[Path]:
    """Plot columns of the gradient balance by stage, in train mode and in eval mode, one row per network (Fig. 2)."""
    panels = [(column, mode) for column in columns for mode in MODES]
    fig = Figure(figsize=(4.4 * len(panels), 2.9 * len(networks)), layout="constrained")
    for network, row in zip(networks, fig.subplots(len(networks), len(panels), squeeze=False), strict=True):
        for ax, (column, mode) in zip(row, panels, strict=True):
            labels = {"xlabel": "stage", "ylabel": LABELS[column], "title": f"{network}, {mode} mode"}
            draw.lines(by_stage(record, network, column, mode), ax, **labels)
            ax.legend(frameon=False, fontsize="small")
    return save_figure(fig, path.with_name(f"{path.name}.balance"), dpi=90)


def draw_samples(record: RecipeRecord[Any], path: Path, networks: Sequence[str], norms: Sequence[str]) -> list[Path]:
    """Draw images generated in the first run of each network and norm, one row per class (Fig. 4); no file without pictures."""
    from PIL import Image

    rows: list[Row] = [row for row in record.rows if row.get("picture")]
    networks = [network for network in networks if any(row["network"] == network for row in rows)]
    if not networks:
        return []
    fig = Figure(figsize=(4 * len(norms), 4.3 * len(networks)), layout="constrained")
    for network, axes in zip(networks, fig.subplots(len(networks), len(norms), squeeze=False), strict=True):
        for ax, norm in zip(axes, norms, strict=True):
            ax.set_axis_off()
            ax.set_title(f"{network}, {norm}")
            for row in (row for row in rows if (row["network"], row["norm"]) == (network, norm)):
                with Image.open(io.BytesIO(base64.b64decode(row["picture"]))) as image:
                    ax.imshow(image)
    return save_figure(fig, path.with_name(f"{path.name}.samples"), dpi=110)


def by_step(record: RecipeRecord[Any], network: str, name: str) -> Series:
    """Return a series of `curves` by norm and step, one value per seed."""
    result: Series = {}
    for norm in record.settings.norms:
        points: dict[Any, list[float]] = {}
        for curves in select(record.rows, "curves", network=network, norm=norm):
            for step, value in zip(curves["step"], curves[name], strict=True) if name in curves else ():
                if value is not None:
                    points.setdefault(step, []).append(value)
        result[norm] = points
    return result


def by_stage(record: RecipeRecord[Any], network: str, column: str, mode: str) -> Series:
    """Return a column of the gradient balance by norm and stage, means over steps, one per seed."""
    result: Series = {}
    for norm in record.settings.norms:
        stages: dict[Any, list[float]] = {}
        for curves in select(record.rows, "curves", network=network, norm=norm):
            for name, values in curves.items():
                metric = BalanceMetric.parse(name)
                if metric and (metric.column, metric.mode) == (column, mode):
                    known = [value for value in values if value is not None]
                    stages.setdefault(metric.stage, []).append(statistics.fmean(known))
        result[norm] = stages
    return result
