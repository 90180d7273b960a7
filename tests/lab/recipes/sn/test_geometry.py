"""Remark 1 of sn on white noise, and the angles and lengths of filters."""

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.recipes.sn.geometry import filter_geometry, mean_angle


def white_patches(channels):
    """Return inputs of a 1 × 1 convolution whose channels have mean 0, variance 1 and covariance 0 in each image."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, channels, 400, generator=generator, dtype=torch.double)
    x = x - x.mean(2, keepdim=True)
    inverse_root = torch.linalg.inv(torch.linalg.cholesky(x @ x.transpose(1, 2) / 400))
    return (inverse_root @ x).reshape(2, channels, 20, 20)


@pytest.mark.parametrize("spec", ["in", "bn"])
def test_on_white_patches_in_and_bn_are_weight_normalization(spec):
    conv = nn.Conv2d(6, 4, 1, bias=False).double()
    x = white_patches(6)
    y = anynorm.make(spec, 4, eps=0.0).double()(conv(x))
    norms = conv.weight.flatten(1).norm(dim=1)[:, None, None]
    torch.testing.assert_close(y, conv(x) / norms)


def test_on_white_patches_ln_divides_by_the_mean_squared_length_of_all_filters():
    conv = nn.Conv2d(6, 4, 1, bias=False).double()
    x = white_patches(6)
    y = anynorm.make("ln", 4, eps=0.0).double()(conv(x))
    torch.testing.assert_close(y, conv(x) / conv.weight.flatten(1).square().sum(1).mean().sqrt())


def test_angles_and_lengths_are_those_of_convolutions_with_a_norm():
    conv, norm = nn.Conv2d(3, 4, 1), anynorm.make("bn", 4)
    model = nn.Sequential(conv, norm, nn.Conv2d(4, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 1))
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]).reshape(4, 3, 1, 1))
        norm.weight.copy_(torch.tensor([1.0, -1, 2, -2]))
    assert filter_geometry(model) == {"1": {"angle": 75.0, "gamma": 1.5}}
    assert mean_angle(torch.tensor([[1.0, 0.0], [1.0, 1.0]])) == pytest.approx(45.0)
