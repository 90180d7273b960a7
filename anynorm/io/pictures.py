"""Conversion of image tensors to PNG files."""

from __future__ import annotations

import io

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.pillow import require_pillow


def encode_png(image: Tensor) -> bytes:
    """Return the content of a PNG file of an image.

    Args:
        image: tensor (c, h, w) of uint8, with 1 channel (gray) or 3 channels (RGB).

    Raises:
        DataError: if the image has another dtype, shape or number of channels, or Pillow is not installed.
    """
    if image.dtype != torch.uint8 or image.dim() != 3 or image.shape[0] not in (1, 3):
        raise DataError(f"a picture must be (1 or 3, h, w) of uint8; got {tuple(image.shape)} of {image.dtype}.")
    require_pillow()
    from PIL import Image

    pixels = image.cpu().permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if image.shape[0] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def image_grid(images: Tensor, columns: int, *, padding: int = 1) -> Tensor:
    """Arrange images of equal size in a grid, with white lines between them.

    Args:
        images: tensor (n, c, h, w) of uint8.
        columns: number of images per row.
        padding: width of the lines, in pixels.

    Returns:
        One image, a tensor (c, H, W) of uint8; empty places in the last row are white.

    >>> image_grid(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), columns=2).shape
    torch.Size([1, 9, 9])
    """
    if images.dtype != torch.uint8 or images.dim() != 4 or columns < 1:
        raise DataError(
            f"a grid needs images (n, c, h, w) of uint8 and at least 1 column; got {tuple(images.shape)} of {images.dtype} "
            f"and {columns} columns."
        )
    count, channels, height, width = images.shape
    rows = -(-count // columns)
    grid = torch.full((channels, rows * (height + padding) - padding, columns * (width + padding) - padding), 255)
    for index, image in enumerate(images.cpu()):
        top, left = (index // columns) * (height + padding), (index % columns) * (width + padding)
        grid[:, top : top + height, left : left + width] = image
    return grid.to(torch.uint8)
