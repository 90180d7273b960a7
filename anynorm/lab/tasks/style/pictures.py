"""Pictures of a run of style transfer: content images, and what a network makes of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.pictures import image_grid
from anynorm.lab.tasks.style.crops import to_uint8

NUM_PICTURES = 4
"""Number of contents and of styles in the picture of an evaluation."""


def draw_styles(stylize: Callable[[Tensor, Tensor], Tensor], contents: Tensor, styles: Tensor) -> Tensor:
    """Return one uint8 image: the styles in the first row, then one row per content, in every style.

    Args:
        stylize: a function of a content and a style, both (1, 3, h, w), that returns the stylized image.
        contents: (n, 3, h, w) in [0, 1].
        styles: (m, 3, h, w) in [0, 1], of the same size.

    Raises:
        DataError: if contents and styles differ in size.
    """
    if contents.shape[1:] != styles.shape[1:]:
        sizes = " and ".join(" × ".join(map(str, images.shape[2:])) for images in (contents, styles))
        raise DataError(f"contents and styles of a picture must have one size; got {sizes} pixels.")
    rows = [torch.ones_like(contents[:1]), styles]
    for content in contents:
        rows += [content[None], *(stylize(content[None], style[None]) for style in styles)]
    return image_grid(to_uint8(torch.cat(rows)), columns=1 + len(styles))


def draw_single_style(stylize: Callable[[Tensor], Tensor], contents: Tensor) -> Tensor:
    """Return one uint8 image: the contents in the first row, stylized below.

    Args:
        stylize: a function of a content (1, 3, h, w) that returns the stylized image.
        contents: (n, 3, h, w) in [0, 1].
    """
    rows = torch.cat([contents, *(stylize(content[None]) for content in contents)])
    return image_grid(to_uint8(rows), columns=len(contents))
