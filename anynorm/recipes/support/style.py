"""What the recipes of style transfer share: losses of a run, freely usable images, curves.

Only the images that `pictures` of the settings lists are shown; the images of training sets may not be passed on.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from anynorm import plot
from anynorm.data.unlabeled import CenterCrop, find_image, read_image
from anynorm.recipes.support.record import Record
from anynorm.recipes.support.rows import save_figure
from anynorm.tasks.crops import to_float
from anynorm.training.sweep import Row


def loss_metrics(record: dict[str, Any], losses: list[str]) -> Row:
    """Return the losses of a run for the row of a recipe.

    Args:
        record: the record of the run in its store.
        losses: names of metrics without train_ or test_.

    Returns:
        Per loss its last value, in training (mean since the evaluation before) and on held-out images; the curves of the run;
        the mean training loss of all steps; the reason of a failure, seconds, and the commit. Losses are None if the run failed.
    """
    done, curve = record["status"] == "done", record["curve"]
    names = [f"{split}_{loss}" for split in ("train", "test") for loss in losses]
    values = {name: round(curve[-1][name], 5) if done else None for name in names if not done or name in curve[-1]}
    return {
        **values,
        "mean_train_loss": round(statistics.fmean(point["train_loss"] for point in curve), 5) if done else None,
        "steps": [point["step"] for point in curve],
        "curves": {name: [round(point[name], 5) for point in curve if name in point] for name in names},
        "failure": "" if done else record["note"],
        "seconds": record["seconds"],
        "commit": record["provenance"]["commit"],
    }


def read_pictures(files: list[str], size: int) -> torch.Tensor:
    """Return the central squares of image files, (n, 3, size, size) in [0, 1]; paths may be relative to the data directory."""
    from PIL import Image

    crop, generator = CenterCrop(size, size), np.random.default_rng(0)
    squares = []
    for file in files:
        image = Image.fromarray(read_image(find_image(file)).permute(1, 2, 0).numpy())
        squares.append(torch.from_numpy(crop(image, generator)))
    return to_float(torch.stack(squares))


def draw_losses(record: Record, path: Path, panels: dict[str, str]) -> list[Path]:
    """Plot curves of losses by norm, mean over the seeds with every seed behind it.

    Args:
        record: rows with `curves`.
        path: the path without the extension.
        panels: the label of the y axis by the name of a curve.
    """
    fig = Figure(figsize=(3.6 * len(panels), 3.6), layout="constrained")
    for ax, (name, label) in zip(fig.subplots(1, len(panels)), panels.items(), strict=True):
        for norm, color in zip(record.settings["norms"], plot.COLORS, strict=False):
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
