"""Pictures made by trained networks, stored in a record.

Pictures are stored in the record itself as base64-encoded JPEG files, so that plots need only the record. Images of data sets
whose license does not allow redistribution are not shown.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import save_figure, select
from anynorm.lab.training.store import Store

QUALITY = 85
WIDE = 1.5
"""Minimum ratio of width to height of pictures that are drawn in two columns."""


def encode_picture(picture: torch.Tensor) -> str:
    """Return a uint8 image (3, h, w) as a base64-encoded JPEG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=QUALITY)
    return base64.b64encode(buffer.getvalue()).decode()


def last_artifact(runs: Path, run: str, prefix: str) -> str:
    """Return the last picture that a run wrote, as a base64-encoded JPEG file.

    Args:
        runs: the folder of the run store.
        run: the id of the run.
        prefix: the prefix of the names of the pictures; the last name in sorted order is the picture of the last evaluation.

    Returns:
        The picture; "" if the run has none.
    """
    from PIL import Image

    store = Store(runs)
    names = sorted(name for name in store.artifacts(run) if name.startswith(prefix))
    if not names:
        return ""
    with Image.open(store.folder(run) / "artifacts" / names[-1]) as image:
        return encode_picture(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1))


def draw_pictures(record: RecipeRecord[Any], path: Path, norms: Iterable[str]) -> list[Path]:
    """Draw the pictures of the first seed of each norm side by side; write no file if the record has no pictures.

    Args:
        record: a record whose rows have `picture`.
        path: the path without the extension.
        norms: the norms to draw.
    """
    from PIL import Image

    norms = [norm for norm in norms if select(record.rows, "picture", norm=norm)[0]]
    if not norms:
        return []
    images = []
    for norm in norms:
        with Image.open(io.BytesIO(base64.b64decode(select(record.rows, "picture", norm=norm)[0]))) as image:
            images.append(np.asarray(image))
    height, width = images[0].shape[:2]
    columns = len(norms) if width < WIDE * height else min(2, len(norms))
    rows, side = -(-len(norms) // columns), 4 if columns > 2 else 6
    fig = Figure(figsize=(side * columns, rows * (side * height / width + 0.3)), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes:
        ax.set_axis_off()
    for ax, norm, pixels in zip(axes, norms, images, strict=False):
        ax.imshow(pixels)
        ax.set_title(norm)
    return save_figure(fig, path.with_name(f"{path.name}.pictures"), dpi=110)
