"""Point-wise functions (dyt, derf): their formulas, what they do not have, and their fit."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.surgery.fit_pointwise import LARGEST, SMALLEST, fit_pointwise
from tests.helpers import data, make, same
from tests.layers.baselines import references
from tests.layers.baselines.test_reference import affine, agree, shapes
from tests.surgery.networks import X, network, relative, trained

pointwise = pytest.mark.parametrize("spec", ["dyt", "derf"])


def reference(norm, x):
    """The output of a layer in float64."""
    if norm.norm_spec.class_name == "dyt":
        return references.dynamic_tanh(x, norm.alpha, affine(norm))
    return references.dynamic_erf(x, norm.alpha, norm.shift, affine(norm))


@shapes
@pointwise
@pytest.mark.parametrize("training", [True, False])
def test_output_and_gradients_are_those_of_the_reference(shape, spec, training):
    agree(make(spec, channels=8).train(training), data(*shape), reference)


def test_each_value_is_that_of_the_published_formula():
    x = data(2, 3, 4)
    for spec, function in (("dyt", math.tanh), ("derf", math.erf)):
        norm = make(spec, channels=3)
        shift = norm.shift.item() if spec == "derf" else 0.0
        for (n, c, s), y in zip(torch.cartesian_prod(*map(torch.arange, x.shape)), norm(x).flatten(), strict=True):
            expected = norm.weight[c] * function(norm.alpha.item() * float(x[n, c, s]) + shift) + norm.bias[c]
            same(y, expected)


def test_initial_values_names_and_shapes_are_those_of_the_authors():
    assert {name: tensor.tolist() for name, tensor in anynorm.make("derf", 2).state_dict().items()} == {
        "weight": [1.0, 1.0], "bias": [0.0, 0.0], "alpha": [0.5], "shift": [0.0]
    }  # fmt: skip
    assert list(anynorm.make("dyt", 2).state_dict()) == ["weight", "bias", "alpha"]
    assert repr(anynorm.make("dyt", 16, activation="relu")) == "DynamicTanh('dyt', 16, alpha_init_value=0.5, activation='relu')"
    norm: Any = anynorm.make("derf", 16, alpha_init_value=2)
    assert norm.alpha.item() == 2
    assert repr(norm) == "DynamicErf('derf', 16, alpha_init_value=2)"
    with torch.no_grad():
        norm.alpha.fill_(7)
    norm.reset_parameters()
    assert norm.alpha.item() == 2
    assert type(norm) is anynorm.DynamicErf


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), True, "0.5"])
def test_an_invalid_initial_value_raises(value):
    with pytest.raises(
        anynorm.SpecError, match=r"alpha_init_value of dyt must be a finite number above 0; got .*\. Usual: 0\.5\."
    ):
        anynorm.make("dyt", 16, alpha_init_value=value)


@pointwise
def test_there_are_no_statistics(spec):
    norm, x = make(spec), data(4, 16, 5)
    y = norm(x)
    assert not list(norm.buffers())
    same(norm.eval()(x), y)
    same(norm.train()(x[1:2, :, 3]), y[1:2, :, 3])  # one value per channel, in training
    assert make(spec, channels=1)(x[:1, :1, 0]).shape == (1, 1)
    assert norm(x[..., :0]).shape == (4, 16, 0)
    huge = torch.full((1, 16), 6e4, dtype=torch.float16)
    same(norm(huge)[0].float(), (norm.weight * norm.alpha.sign() + norm.bias).detach(), rtol=1e-3, atol=1e-3)


@pointwise
def test_other_operations_treat_it_as_a_norm_without_statistics(spec):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), make(spec)).eval()
    assert "it is not linear in its input" in anynorm.fold(model, data(1, 3, 8, 8)).rows[0]["note"]
    with pytest.raises(anynorm.FoldError, match="has no fixed affine: it is not linear in its input"):
        model[1].fixed_affine()  # type: ignore[operator]
    with pytest.raises(anynorm.SurgeryError, match="has no norm with running statistics"):
        anynorm.recalibrate(model, data(4, 3, 8, 8))
    with pytest.raises(anynorm.DiagnosticError, match="running statistics"):
        anynorm.diagnostics.estimation_shift(model, [data(4, 3, 8, 8)])
    with pytest.raises(anynorm.SpecError, match=rf"{spec} takes no suffix except \.none; got \.sa@3"):
        anynorm.make(f"{spec}.sa@3", 16)


def explained(function, x, target):
    """The squared error of the least-squares γ and β of each channel, in float64."""
    error = 0.0
    for c in range(x.shape[1]):
        f, t = function(x[:, c].double()).flatten(), target[:, c].double().flatten()
        design = torch.stack([f, torch.ones_like(f)], 1)
        error += float((design @ torch.linalg.lstsq(design, t[:, None]).solution - t[:, None]).square().sum())
    return error


def test_the_search_finds_the_alpha_and_shift_of_a_target():
    x = data(8, 4, 6, 6, mean=0.3)
    weight, bias = torch.tensor([1.0, -2.0, 0.5, 3.0]), torch.tensor([0.1, 2.0, -1.0, 0.0])
    for spec, alpha, shift in (("dyt", 0.8, 0.0), ("derf", 1.3, 0.0), ("derf", 0.6, -0.4)):
        source: Any = anynorm.make(spec, 4)
        with torch.no_grad():
            source.alpha.fill_(alpha)
            source.weight.copy_(weight)
            source.bias.copy_(bias)
            if spec == "derf":
                source.shift.fill_(shift)
            norm: Any = anynorm.make(spec, 4)
            fit_pointwise(norm, x, source(x))
        assert norm.alpha.item() == pytest.approx(alpha, rel=0.02)
        assert spec == "dyt" or norm.shift.item() == pytest.approx(shift, abs=0.02)


def test_the_search_is_as_good_as_trying_many_values():
    x = data(8, 4, 6, 6, mean=0.3) * torch.linspace(0.2, 3, 8)[:, None, None, None]
    target = anynorm.make("ln", 4)(x).detach()
    norm: Any = anynorm.make("dyt", 4)
    with torch.no_grad():
        fit_pointwise(norm, x, target)
        tried = [explained(lambda v, a=a: torch.tanh(a * v), x, target) for a in torch.logspace(-2, 1, 200).tolist()]
        assert explained(lambda v: torch.tanh(norm.alpha.double() * v), x, target) < min(tried) * 1.001
    assert min(tried) < 0.9 * explained(lambda v: v, x, target)  # a curved function is nearer to LN than a linear one


@pointwise
def test_convert_with_fit_keeps_the_output_of_a_network_with_bn(spec):
    original = trained(network()).eval()
    images = data(64, 3, 8, 8, mean=0.3, std=1.5)
    expected = original(images)
    plain, fitted = copy.deepcopy(original), copy.deepcopy(original)
    anynorm.convert(plain, spec)
    report = anynorm.convert(fitted, spec, fit=images)
    assert all(row["error_after"] < row["error_before"] for row in report)
    assert relative(fitted(images), expected) < 0.02 < 0.4 < relative(plain(images), expected)
    for site, row in zip([module for module in fitted.modules() if hasattr(module, "alpha")], report.rows, strict=True):
        assert any(f"α = {site.alpha.item():.3g}" in note for note in row["note"].split("; "))
    report.undo()
    same(fitted(X), original(X))


def test_the_targets_of_bn_are_linear_so_alpha_ends_at_its_lower_limit():
    model: Any = nn.Sequential(nn.BatchNorm2d(4)).eval()
    x = data(32, 4, 5, 5)
    anynorm.convert(model, "dyt", fit=x)
    assert model[0].alpha.item() == pytest.approx(SMALLEST / float(x.square().mean().sqrt()), rel=1e-5)
    assert SMALLEST < 1 < LARGEST


@pointwise
def test_constant_inputs_are_fitted_without_nan(spec):
    model: Any = nn.Sequential(nn.BatchNorm2d(4)).eval()
    with torch.no_grad():
        model[0].bias.fill_(3.0)
    for x in (torch.zeros(8, 4, 3, 3), torch.full((8, 4, 3, 3), 2.0), torch.eye(4)[:, :, None, None].expand(4, 4, 3, 3)):
        converted = copy.deepcopy(model)
        expected = model(x)
        anynorm.convert(converted, spec, fit=x)
        same(converted(x), expected.detach(), rtol=1e-2, atol=1e-2)
