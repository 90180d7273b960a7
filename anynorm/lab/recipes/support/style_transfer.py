"""Recipes of style transfer: settings, losses of a run, images to stylize, and plots of curves.

Only images listed in the setting `pictures` are shown, because the images of the training sets may not be redistributed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.data.image_sources import read_image
from anynorm.lab.data.transforms import CenterCrop
from anynorm.lab.data.unlabeled import find_image
from anynorm.lab.recipes.support.pictures import encode_picture
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import save_figure
from anynorm.lab.recipes.support.runs import items_of, run_outcome
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.tasks.run import load_run
from anynorm.lab.tasks.style.crops import to_float
from anynorm.lab.tasks.style.pictures import draw_single_style, draw_styles
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.sweep import Measurement


@dataclass(frozen=True)
class Pictures:
    """Images that a trained network stylizes.

    Args:
        contents: files of content images.
        size: height and width of the pictures in pixels.
        styles: files of style images; empty if the network has one style.
    """

    contents: tuple[str, ...]
    size: int
    styles: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StyleSettings(TrainingSettings):
    """Settings of style transfer.

    Args:
        pictures: images to stylize by the networks of the first seed; None for no pictures.
    """

    pictures: Pictures | None = None


def loss_metrics(record: RunRecord, losses: list[str]) -> Measurement:
    """Return the losses of a run for a row of a recipe.

    Args:
        record: the record of the run in the run store.
        losses: names of metrics without the prefix train_ or test_.

    Returns:
        The last value of each loss, in training (mean since the previous evaluation) and on held-out images, with the values of
        held-out images; the curves of the run; the mean training loss; the reason of a failure, seconds, and commit. Losses are
        None if the run failed.
    """
    done, curve = record.done, record.curve
    names = [f"{split}_{loss}" for split in ("train", "test") for loss in losses]
    values = {name: round(curve[-1][name], 5) if done else None for name in names if not done or name in curve[-1]}
    return {
        **values,
        "mean_train_loss": round(statistics.fmean(point["train_loss"] for point in curve), 5) if done else None,
        "steps": [point["step"] for point in curve],
        "curves": {name: [round(point[name], 5) for point in curve if name in point] for name in names},
        **items_of(record, {f"test_{loss}": loss for loss in losses}),
        **run_outcome(record),
    }


def draw_picture(pictures: Pictures | None, runs: Path, run: str) -> str:
    """Return the images that a trained network makes of content (and style) images, encoded; "" without images.

    Args:
        pictures: the images.
        runs: the folder of the run store.
        run: the id of the run.
    """
    if pictures is None:
        return ""
    task: Any = load_run(runs, run)
    contents = read_pictures(pictures.contents, pictures.size)
    with torch.no_grad():
        if pictures.styles:
            return encode_picture(draw_styles(task.stylize, contents, read_pictures(pictures.styles, pictures.size)))
        return encode_picture(draw_single_style(task.stylize, contents))


def read_pictures(files: Iterable[str], size: int) -> torch.Tensor:
    """Return center crops of image files, (n, 3, size, size) in [0, 1]; paths may be relative to the data directory."""
    from PIL import Image

    crop, generator = CenterCrop(size, size), np.random.default_rng(0)
    squares = []
    for file in files:
        image = Image.fromarray(read_image(find_image(file)).permute(1, 2, 0).numpy())
        squares.append(torch.from_numpy(crop(image, generator)))
    return to_float(torch.stack(squares))


def draw_losses(record: RecipeRecord[Any], path: Path, norms: Iterable[str], panels: dict[str, str]) -> list[Path]:
    """Plot the curves of losses by norm: the mean over seeds, and each seed as a thin line.

    Args:
        record: a record whose rows have `curves`.
        path: the path without the extension.
        norms: the norms to draw.
        panels: the label of the y axis by the name of a curve.
    """
    fig = Figure(figsize=(3.6 * len(panels), 3.6), layout="constrained")
    for ax, (name, label) in zip(fig.subplots(1, len(panels)), panels.items(), strict=True):
        for norm, color in zip(norms, draw.COLORS, strict=False):
            rows = [row for row in record.rows if row["norm"] == norm and not row["failure"]]
            curves = [row["curves"][name] for row in rows]
            for curve in curves:
                ax.plot(rows[0]["steps"], curve, color=color, alpha=0.25, lw=1)
            if curves:
                ax.plot(
                    rows[0]["steps"], [statistics.fmean(values) for values in zip(*curves, strict=True)], color=color, label=norm
                )
        ax.set(xlabel="step", ylabel=label, yscale="log")
    fig.axes[0].legend(frameon=False)
    return save_figure(fig, path)
