"""Masks together with channels on the last axis, and with norms whose mean is 0."""

import pytest
import torch

import anynorm
from tests.helpers import condition_for, data, make, same, same_state

LENGTHS = torch.tensor([7, 3, 5])
VALID = torch.arange(7) < LENGTHS[:, None]


def run(norm, x, mask, **options):
    """Output, gradient of x and gradients of the parameters."""
    leaf = x.clone().requires_grad_()
    y = norm(leaf, condition_for(norm, data(3, 16, 7)), mask=mask, **options)
    y.square().sum().backward()
    return [y.detach(), leaf.grad, *[p.grad for p in norm.parameters() if p.grad is not None]]


@pytest.mark.parametrize("spec", ["bn", "in", "gn:4", "sn", "pn", "rms", "0/bn+ln", "auxbn@2", "hn:4"])
def test_a_masked_norm_of_tokens_is_that_of_the_transposed_input(spec):
    x, residual = data(3, 16, 7), data(3, 16, 7, seed=1)
    x = torch.where(VALID[:, None], x, torch.nan)
    norm, tokens = make(spec), anynorm.make(spec, 16, channel_axis=-1)
    tokens.load_state_dict(norm.state_dict())
    expected = run(norm, x, VALID, residual=residual, activation="relu")
    actual = run(tokens, x.transpose(1, 2).contiguous(), LENGTHS, residual=residual.transpose(1, 2), activation="relu")
    for a, b in zip(actual[:2], expected[:2], strict=True):
        same(a.transpose(1, 2), b, rtol=1e-4, atol=1e-5)
        assert b.transpose(1, 2)[~VALID].eq(0).all()
    for a, b in zip(actual[2:], expected[2:], strict=True):
        same(a, b, rtol=1e-4, atol=1e-4)
    same_state(tokens, norm)


@pytest.mark.parametrize("spec", ["0/in", "rms", "0/gn:4", "0/ln"])
def test_a_masked_norm_with_zero_mean_is_that_of_each_sequence_alone(spec):
    x = data(3, 16, 7) + 2
    norm = anynorm.make(spec, 16)
    y = norm(x, mask=LENGTHS)
    for i, length in enumerate(LENGTHS):
        same(y[i, :, :length], norm(x[i : i + 1, :, :length])[0], rtol=1e-5, atol=1e-5)
        assert y[i, :, length:].eq(0).all()


def test_masked_second_moments_are_those_of_the_valid_positions():
    x = data(3, 16, 7) + 2
    norm = anynorm.make("0/bn", 16, momentum=1.0)
    rows = torch.cat([x[i, :, :length] for i, length in enumerate(LENGTHS)], 1).double()
    moment = rows.square().mean(1)
    y = norm(x, mask=LENGTHS)
    same(norm.running_var.double(), moment, rtol=1e-5, atol=1e-6)
    expected = torch.where(VALID[:, None], x.double() / (moment[:, None] + 1e-5).sqrt(), 0.0)
    same(y.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_mask_of_tokens_that_does_not_fit_says_which_shape_is_needed():
    norm = anynorm.make("bn", 16, channel_axis=-1)
    with pytest.raises(anynorm.ShapeError, match=r"one entry per sample and position, \(3, 7\); got \(3, 16\)"):
        norm(data(3, 7, 16), mask=torch.ones(3, 16, dtype=torch.bool))
    with pytest.raises(anynorm.ShapeError, match=r"(axis of the samples|at least 2 dimensions)"):
        norm(torch.zeros(16), mask=torch.ones(3, dtype=torch.bool))
