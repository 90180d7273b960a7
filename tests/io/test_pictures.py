import io

import numpy as np
import pytest
import torch

from anynorm.errors import DataError
from anynorm.io.pictures import encode_png, image_grid


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_decodes_to_the_same_pixels(channels):
    image_files = pytest.importorskip("PIL.Image", reason="needs Pillow")
    image = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    decoded = np.asarray(image_files.open(io.BytesIO(encode_png(image)))).reshape(5, 7, channels)
    assert np.array_equal(decoded, image.permute(1, 2, 0).numpy())


def test_a_grid_has_images_row_by_row_with_white_lines():
    images = torch.arange(3, dtype=torch.uint8)[:, None, None, None].expand(3, 3, 2, 2)
    grid = image_grid(images, columns=2)
    assert grid[0].tolist() == [
        [0, 0, 255, 1, 1],
        [0, 0, 255, 1, 1],
        [255, 255, 255, 255, 255],
        [2, 2, 255, 255, 255],
        [2, 2, 255, 255, 255],
    ]


def test_pictures_of_other_types_are_refused():
    with pytest.raises(DataError, match=r"must be \(1 or 3, h, w\) of uint8; got \(3, 2, 2\) of torch.float32"):
        encode_png(torch.zeros(3, 2, 2))
    with pytest.raises(DataError, match=r"needs images .*; got \(3, 2, 2\)"):
        image_grid(torch.zeros(3, 2, 2, dtype=torch.uint8), columns=2)
