"""A norm whose mean is 0: the variance is E[x²], for a single value too, and no running mean is kept."""

from itertools import product

import pytest
import torch
from torch import nn

import anynorm
from anynorm import kernels
from anynorm.core.moments import Moments, about_zero
from anynorm.core.update_rules import Cumulative, CumulativeBiased, Pooled, Running
from tests.helpers import condition_for, data, make, same

BATCHES = [data(n, 8, 4, 4, seed=n) for n in (2, 5, 3)]
WHOLE = torch.cat(BATCHES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"eps": 1e-2}, {"elementwise_affine": False}])
@pytest.mark.parametrize("shape", [(6, 32), (3, 32, 5), (3, 32, 4, 5)])
def test_rms_is_torchs_rms_norm_of_the_channels(shape, options, dtype):
    theirs = nn.RMSNorm(32, dtype=dtype, **options)
    eps = theirs.eps or torch.finfo(torch.float32).eps  # torch's default, for half precision too
    ours = anynorm.make("rms", 32, eps=eps, affine=theirs.elementwise_affine, dtype=dtype)
    if theirs.elementwise_affine:
        nn.init.uniform_(theirs.weight)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    given, up = data(*shape, dtype=dtype), data(*shape, seed=1, dtype=dtype)
    a, b = given.clone().requires_grad_(), given.clone().requires_grad_()
    y = ours(a)
    z = theirs(b.movedim(1, -1)).movedim(-1, 1)
    y.backward(up), z.to(dtype).backward(up)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for actual, expected in zip(
        [y, a.grad, *(p.grad for p in ours.parameters())], [z, b.grad, *(p.grad for p in theirs.parameters())], strict=True
    ):
        same(actual, expected.to(actual.dtype), **tolerance)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [*product(["rms", "0/bn", "0/gn:4", "0/bn+ln", "0/en.sa@3"], [(8, 16, 12, 12), (96, 16)]), ("0/in", (8, 16, 12, 12))],
)
def test_values_and_gradients_are_those_of_float64_at_a_mean_of_ten_thousand_deviations(spec, shape):
    x, up = data(*shape, mean=1e4, std=1.0), data(*shape, seed=4)
    found = []
    for dtype in (torch.float64, torch.float32):
        norm, given = make(spec).to(dtype), x.to(dtype, copy=True).requires_grad_()
        y = norm(given, condition_for(norm, x))
        y.backward(up.to(dtype))
        affine = [p.grad for name, p in norm.named_parameters() if name != "var_weight"]  # λ: a difference of like numbers
        found.append([y.detach(), given.grad, *affine, *norm.buffers()])
    for expected, actual in zip(*found, strict=True):
        same(actual.double(), expected.double(), rtol=2e-6, atol=2e-6 * float(expected.double().abs().max()))


@pytest.mark.parametrize("spec", ["0/bn", "0/gn:4", "0/bn+ln", "rms"])
@pytest.mark.parametrize("shape", [(4, 16, 4, 4), (8, 16)])
@pytest.mark.reference_only
def test_nan_goes_where_the_reference_lets_it(spec, shape):
    x = data(*shape)
    x[1, 5] = float("nan")
    found = []
    for backend in ("reference", "cpu"):
        norm, given = make(spec), x.clone().requires_grad_()
        with kernels.use(backend):
            y = norm(given)
        y.backward(data(*shape, seed=1))
        found.append([y, given.grad, *norm.buffers()])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())


@pytest.mark.parametrize(("spec", "shape"), [("0/in", (4, 8)), ("0/in+ln", (4, 8)), ("0/gn:8", (4, 8, 1, 1)), ("0/bn", (1, 8))])
def test_a_single_value_is_divided_by_its_absolute_value(spec, shape):
    norm, x = anynorm.make(spec, 8, eps=0.0, momentum=1.0), data(*shape).requires_grad_()
    y = norm(x)
    squares = x.detach().square()
    var = (squares + squares.mean(1, keepdim=True)) / 2 if spec == "0/in+ln" else squares
    same(y, x / var.sqrt())
    y.sum().backward()
    assert x.grad.isfinite().all()
    if spec == "0/bn":
        same(norm.running_var, squares[0])


def test_a_domain_with_a_single_value_is_no_error():
    norm, x = anynorm.make("0/bn.dom@3", 8, momentum=1.0), data(3, 8)
    norm(x, torch.tensor([0, 1, 1]))
    same(norm.running_var, torch.stack([x[0].square(), x[1:].square().mean(0), torch.ones(8)]))
    assert norm.num_batches_tracked.tolist() == [1, 1, 0]
    with pytest.raises(anynorm.ShapeError, match="more than one value per statistic"):
        anynorm.make("bn.dom@3", 8)(x, torch.tensor([0, 1, 1]))


def test_running_statistics_are_second_moments_without_a_mean():
    norm = anynorm.make("0/bn+ln", 8)
    assert list(norm.state_dict()) == ["weight", "bias", "var_weight", "running_var", "num_batches_tracked"]
    assert norm.running_mean is None
    assert list(anynorm.make("0/bn", 8, bias=False).state_dict()) == ["weight", "running_var", "num_batches_tracked"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Pooled(), WHOLE.square().mean((0, 2, 3))),
        (Cumulative(), torch.stack([x.square().mean((0, 2, 3)) for x in BATCHES]).mean(0)),
        (CumulativeBiased(), torch.stack([x.square().mean((0, 2, 3)) for x in BATCHES]).mean(0)),
        (Running(1.0), BATCHES[-1].square().mean((0, 2, 3))),
    ],
)
def test_every_update_rule_averages_second_moments_without_bessels_correction(rule, expected):
    norm = anynorm.make("0/bn", 8, update_rule=rule)
    for x in BATCHES:
        norm(x)
    same(norm.running_var, expected)
    assert norm.running_mean is None
    y = norm.eval()(BATCHES[0])
    same(y, BATCHES[0] / (expected[:, None, None] + float(norm.eps)).sqrt())


def test_pooled_second_moments_of_two_cuts_are_exact():
    norm = anynorm.make("0/bn+en:2", 8, update_rule=Pooled())
    for x in BATCHES:
        norm(x)
    same(norm.running_var, WHOLE.square().mean((0, 2, 3)))
    same(norm.running_var_2, torch.stack([WHOLE[:, :4].square().mean(), WHOLE[:, 4:].square().mean()]))


def test_moments_about_zero_are_those_of_the_values():
    x = data(50, 3, dtype=torch.float64)
    mean, var, count = about_zero(Moments(x.mean(0), x.var(0, correction=0), torch.full((3,), 50.0)))
    same((mean, var, count), (torch.zeros_like(mean), x.square().mean(0), torch.full((3,), 50.0)))
