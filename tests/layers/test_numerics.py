"""Right where float32 and float16 lose digits, and finite where there is nothing to normalise."""

import copy

import pytest
import torch
from torch import nn

import anynorm
from tests import references
from tests.helpers import ROWS, condition_for, data, make, same

battery = pytest.mark.parametrize("spec", ROWS)
both_modes = pytest.mark.parametrize("training", [True, False])
FAR = ["bn", "in", "ln", "gn:4", "en:4", "bgn:32", "gbgn:2,4", "pn", "hn:4", "sn"]


@pytest.mark.parametrize("spec", FAR)
def test_at_a_mean_of_ten_thousand_deviations_the_output_is_that_of_float64(spec):
    x = data(4, 16, 8, 8, mean=1e4, std=1.0)
    exact = anynorm.make(spec, 16, dtype=torch.float64)(x.double())
    same(anynorm.make(spec, 16)(x), exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", FAR)
def test_at_a_mean_of_ten_thousand_deviations_the_gradient_is_that_of_float64(spec):
    x, up = data(4, 16, 8, 8, mean=1e4, std=1.0), data(4, 16, 8, 8, seed=4)
    grads = []
    for dtype in (torch.float32, torch.float64):
        given = x.to(dtype, copy=True).requires_grad_()
        (anynorm.make(spec, 16, dtype=dtype)(given) * up).sum().backward()
        grads.append(given.grad.float())
    same(grads[0], grads[1], rtol=1e-4, atol=1e-4)


def test_torchs_own_batch_norm_is_not_right_there_so_the_test_above_says_something():
    x = data(4, 16, 8, 8, mean=1e4, std=1.0)
    exact = nn.BatchNorm2d(16, dtype=torch.float64)(x.double())
    ours = (anynorm.make("bn", 16)(x) - exact).abs().max()
    theirs = (nn.BatchNorm2d(16)(x) - exact).abs().max()
    assert theirs > 20 * ours


def test_inference_far_from_zero_loses_no_digits_either():
    norm, exact = anynorm.make("bn", 16, momentum=1.0), anynorm.make("bn", 16, momentum=1.0)
    x = data(4, 16, 8, 8, mean=1e4, std=1.0)
    norm(x), exact(x)
    same(norm.eval()(x), exact.double().eval()(x.double()).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", ["bn", "hn:4", "sn"])
def test_rows_of_a_million_values_keep_their_digits(spec):
    x = data(2, 4, 1000, 500, mean=100.0, std=1.0)
    same(anynorm.make(spec, 4)(x), anynorm.make(spec, 4, dtype=torch.float64)(x.double()).float(), rtol=1e-5, atol=1e-5)


@battery
@both_modes
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_values_of_300_with_50_deviation_stay_finite_and_right(spec, training, dtype):
    norm = make(spec)
    x = data(4, 16, 8, 8, mean=300.0, std=50.0, dtype=dtype)
    norm(x, condition_for(norm, x))
    norm.train(training)
    wide = copy.deepcopy(norm).double()
    x.requires_grad_()
    y = norm(x, condition_for(norm, x))
    assert y.isfinite().all()
    y.sum().backward()
    assert x.grad.isfinite().all()
    # bfloat16 keeps 3 digits of an output of some hundreds (before the running mean has arrived)
    same(y.float(), wide(x.double(), condition_for(norm, x)).float(), rtol=2e-2, atol=5e-2)


@battery
@both_modes
@pytest.mark.parametrize("value", [0.0, 7.3, 1e4])
def test_constant_input_stays_finite_with_finite_gradients(spec, training, value):
    norm = make(spec).train(training)
    x = torch.full((4, 16, 4, 4), value, requires_grad=True)
    y = norm(x, condition_for(norm, x.detach()))
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in norm.parameters())
    assert all(buffer.isfinite().all() for buffer in norm.buffers())
    if training and spec == "bn.none":
        same(y, torch.zeros_like(y), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("spec", ["sn", "ln", "gn:4", "en:4", "bn", "hn:4", "pn", "bn/bn+ln+in"])
def test_maps_of_one_position_work_in_training(spec):
    x = data(4, 16, 1, 1).requires_grad_()
    norm = make(spec)
    y = norm(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert norm.running_var is None or norm.running_var.isfinite().all()


def test_running_statistics_in_float16_buffers_do_not_overflow_at_300():
    norm = anynorm.make("bn", 16).half()
    norm(data(4, 16, 8, 8, mean=300.0, std=50.0, dtype=torch.float16))
    assert norm.running_var.isfinite().all()


@battery
def test_under_autocast_the_input_dtype_comes_back(spec):
    norm = make(spec)
    x = data(4, 16, 4, 4, dtype=torch.bfloat16)
    plain = make(spec)(x, condition_for(norm, x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(norm(x, condition_for(norm, x)), plain)


def test_variances_are_mixed_not_deviations():
    norm = anynorm.make("bn/bn+en", 4)
    x = data(4, 4, 8, 8)
    rows = x.double().flatten(2)
    mean, var, _ = references.statistics(rows, "bn")
    _, other, _ = references.statistics(rows, "en")
    same(norm(x), references.normalize(rows, mean, (var + other) / 2, []).reshape(x.shape).float())
