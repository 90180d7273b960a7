"""Data sets at a lower resolution: "digits@4" has 4 × 4 pixels."""

import pytest
import torch

from anynorm.errors import DataError
from anynorm.lab.data import load_dataset


def test_images_are_averaged_to_a_lower_resolution():
    whole, half = load_dataset("digits"), load_dataset("digits@4")
    assert half.shape[1:3] == (4, 4)
    expected = whole.train[0].float().reshape(-1, 1, 4, 2, 4, 2).mean((3, 5)).round().to(torch.uint8)
    assert torch.equal(half.train[0], expected)
    assert torch.equal(half.train[1], whole.train[1])
    for name in ("digits@3", "digits@", "digits@16", "digits@x"):
        size = name.partition("@")[2]
        with pytest.raises(
            DataError, match=rf"{name}: .* must divide the original 8 × 8 pixels; got '{size}'\. Usable: 1 2 4 8\."
        ):
            load_dataset(name)
