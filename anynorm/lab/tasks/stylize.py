"""Stylization of an image by a trained run of `style_transfer` or `single_style_transfer`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anynorm.errors import DataError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor

SUFFIX = ".png"


def stylize(
    content: str | os.PathLike[str],
    style: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    model: str,
    alpha: float = 1.0,
    runs: str | os.PathLike[str] = "runs",
    image_size: int | None = None,
) -> Path:
    """Stylize a content image with the style of another image, and write the result as PNG.

    Args:
        content: the content image, a file of any size.
        style: the style image, a file of any size; None for a run of `single_style_transfer`, which was trained for one style.
        out: the file to write, with the suffix .png; an existing file is replaced.
        model: id of a trained run, or its first characters.
        alpha: weight of the style, from 0 to 1.
        runs: folder of the run store.
        image_size: size in pixels to which the shorter side of both images is resized first; None for no resizing.

    Returns:
        The path of the stylized image.

    Raises:
        DataError: if an image cannot be read, the run does not exist or is not a style transfer run, alpha is not in [0, 1], or
            `out` does not end in .png.
        ShapeError: if an image is too small for the encoder.
        DiskError: if the folder of `out` does not exist or cannot be written to.
    """
    import torch

    from anynorm.io.atomic import atomic_write
    from anynorm.io.pictures import encode_png
    from anynorm.lab.tasks.style.crops import to_uint8

    target = Path(out)
    if target.suffix.lower() != SUFFIX or target.is_dir():
        raise DataError(f"the picture is written as PNG: the path must be a file that ends in {SUFFIX}; got {target}.")
    if not target.parent.is_dir():
        raise DataError(f"the folder of the picture must exist; got {target}. Create the folder {target.parent} and run again.")
    images = [None if path is None else _read(Path(path), image_size) for path in (content, style)]
    task = _load_stylizer(Path(runs), model)
    try:
        with torch.no_grad():
            picture = task.stylize(*images, alpha)[0]
    except ShapeError as error:
        raise ShapeError(f"{error} Content {content}, style {style}; image_size enlarges both.") from None
    with atomic_write(target) as part:
        part.write_bytes(encode_png(to_uint8(picture)))
    return target


def _read(path: Path, image_size: int | None) -> Tensor:
    from PIL import Image

    from anynorm.lab.data.image_sources import read_image
    from anynorm.lab.data.transforms import resize_shorter_side, to_pixels
    from anynorm.lab.tasks.style.crops import to_float

    pixels = read_image(path)
    if image_size is not None:
        if image_size < 1:
            raise DataError(f"image_size must be at least 1; got {image_size}.")
        import torch

        image = resize_shorter_side(Image.fromarray(pixels.permute(1, 2, 0).numpy()), image_size)
        pixels = torch.from_numpy(to_pixels(image))
    return to_float(pixels[None])


def _load_stylizer(runs: Path, model: str) -> Any:
    """Return the style transfer task of a trained run.

    Raises:
        DataError: if the run has another task, or did not finish training.
    """
    from anynorm.lab.tasks import TASKS, task_class
    from anynorm.lab.tasks.run import load_run
    from anynorm.lab.training.store import Store

    task = Store(runs).config(model).task
    if not hasattr(task_class(task), "stylize"):
        usable = ", ".join(name for name in TASKS if hasattr(task_class(name), "stylize"))
        raise DataError(f"stylize needs a run of style transfer ({usable}); run {model} is of the task {task}.")
    record = Store(runs).record(model)
    if not record.done:
        raise DataError(f"stylize needs a run that was trained to its end; run {model} failed: {record.note}")
    return load_run(runs, model)
