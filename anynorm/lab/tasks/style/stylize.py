"""Stylization of an image by a trained run of `style_transfer` or `single_style_transfer`."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from anynorm.errors import DataError, ShapeError
from anynorm.io.atomic import atomic_write
from anynorm.io.pictures import encode_png
from anynorm.lab.data.image_sources import read_image
from anynorm.lab.data.transforms import resize_shorter_side, to_pixels
from anynorm.lab.tasks.style.crops import to_float, to_uint8
from anynorm.lab.tasks.style.single_style import SingleStyleTransfer
from anynorm.lab.tasks.style.task import StyleTransfer
from anynorm.lab.training.task import Task

SUFFIX = ".png"


def stylize(
    task: Task,
    content: str | os.PathLike[str],
    style: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    alpha: float = 1.0,
    image_size: int | None = None,
) -> Path:
    """Stylize a content image with the style of another image, and write the result as PNG.

    Args:
        task: the task of a trained run, as `anynorm.lab.load_run` returns it.
        content: the content image, a file of any size.
        style: the style image, a file of any size; None for a run of `single_style_transfer`, which was trained for one style.
        out: the file to write, with the suffix .png; an existing file is replaced.
        alpha: weight of the style, from 0 to 1.
        image_size: size in pixels to which the shorter side of both images is resized first; None for no resizing.

    Returns:
        The path of the stylized image.

    Raises:
        DataError: if the task is not one of style transfer, an image cannot be read, alpha is not in [0, 1], or `out` does not
            end in .png.
        ShapeError: if an image is too small for the encoder.
        DiskError: if the folder of `out` does not exist or cannot be written to.
    """
    if not isinstance(task, StyleTransfer | SingleStyleTransfer):
        raise DataError(
            f"stylize needs a run of style transfer (style_transfer or single_style_transfer); got one of {task.config.task}."
        )
    target = Path(out)
    if target.suffix.lower() != SUFFIX or target.is_dir():
        raise DataError(f"the picture is written as PNG: the path must be a file that ends in {SUFFIX}; got {target}.")
    if not target.parent.is_dir():
        raise DataError(f"the folder of the picture must exist; got {target}. Create the folder {target.parent} and run again.")
    content_image = _read(Path(content), image_size)
    style_image = None if style is None else _read(Path(style), image_size)
    try:
        with torch.no_grad():
            picture = task.stylize(content_image, style_image, alpha)[0]
    except ShapeError as error:
        raise ShapeError(f"{error} Content {content}, style {style}; image_size enlarges both.") from None
    with atomic_write(target) as temporary:
        temporary.write_bytes(encode_png(to_uint8(picture)))
    return target


def _read(path: Path, image_size: int | None) -> Tensor:
    pixels = read_image(path)
    if image_size is not None:
        if image_size < 1:
            raise DataError(f"image_size must be at least 1; got {image_size}.")
        image = resize_shorter_side(Image.fromarray(pixels.permute(1, 2, 0).numpy()), image_size)
        pixels = torch.from_numpy(to_pixels(image))
    return to_float(pixels[None])
