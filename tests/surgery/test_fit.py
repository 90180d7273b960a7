"""Fitting: new layers do what the old ones did, as far as γ and β can make them."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import data, same
from tests.surgery.test_convert import BatchNormAct2d, Residual, network, trained

IMAGES = data(64, 3, 8, 8, mean=0.3, std=1.5)


def relative(a, b):
    return float(((a - b).norm() / b.norm()).detach())


@pytest.mark.parametrize("spec", ["ln", "gn:4", "sn"])
def test_fitted_networks_are_nearer_to_the_original_than_plain_ones(spec):
    original = trained(network()).eval()
    expected = original(IMAGES)
    plain, fitted = copy.deepcopy(original), copy.deepcopy(original)
    anynorm.convert(plain, spec)
    report = anynorm.convert(fitted, spec, fit=IMAGES)
    assert relative(fitted(IMAGES), expected) < relative(plain(IMAGES), expected)
    for row in report:
        assert row["error_after"] <= row["error_before"] + 1e-6


@pytest.mark.parametrize("spec", ["hn:4", "bgn:4"])
def test_norms_that_fit_without_data_stay_so(spec):
    model = trained(network()).eval()
    expected = model(IMAGES)
    anynorm.convert(model, spec, fit=IMAGES)
    assert relative(model(IMAGES), expected) < 1e-5


def test_a_single_layer_is_the_least_squares_solution():
    model: Any = nn.Sequential(nn.BatchNorm2d(4)).eval()
    x = data(32, 4, 5, 5) * torch.tensor([0.5, 1, 2, 4])[:, None, None]
    target = model(x).detach().transpose(0, 1).flatten(1).double()
    anynorm.convert(model, "gn:2", fit=x)
    plain = anynorm.make("gn:2", 4, affine=False)(x).transpose(0, 1).flatten(1).double()
    for c in range(4):
        design = torch.stack([plain[c], torch.ones_like(plain[c])], 1)
        gamma, beta = torch.linalg.lstsq(design, target[c][:, None]).solution.flatten()
        same(model[0].weight[c].double(), gamma, rtol=1e-4, atol=1e-4)
        same(model[0].bias[c].double(), beta, rtol=1e-4, atol=1e-4)


def test_the_same_norm_is_fitted_to_itself():
    model = trained(network()).eval()
    expected = model(IMAGES)
    anynorm.recalibrate(model, [IMAGES])
    expected = model(IMAGES)
    anynorm.convert(model, "bn", fit=IMAGES)
    same(model(IMAGES), expected, rtol=1e-3, atol=1e-3)


def test_loaders_tuples_and_dictionaries_are_taken_and_no_pair_stays_behind():
    model = trained(network()).train()
    labels = torch.zeros(16, dtype=torch.long)
    anynorm.convert(model, "gn:4", fit=[(batch, labels) for batch in IMAGES.split(16)])
    assert {type(m).__name__ for m in model.modules()} == {
        "Sequential", "Conv2d", "GroupNorm", "ReLU", "Residual", "Flatten"
    }  # fmt: skip
    assert all(module.training for module in model.modules())
    with pytest.raises(anynorm.SurgeryError, match="holds no batch"):
        anynorm.convert(network(), "gn:4", fit=[])


def test_a_failing_forward_leaves_the_model_as_it_was():
    model = trained(network())
    before = list(model.modules())
    with pytest.raises(RuntimeError):
        anynorm.convert(model, "gn:4", fit=data(4, 5, 8, 8))
    assert all(a is b for a, b in zip(model.modules(), before, strict=True))


def test_fused_and_shared_norms_and_xbn_are_fitted():
    shared = nn.BatchNorm2d(8)
    model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), BatchNormAct2d(8), nn.Conv2d(8, 8, 1), shared, nn.Conv2d(8, 8, 1), shared))
    report = anynorm.convert(model, "ln", fit=IMAGES)
    assert [row["path"] for row in report] == ["1", "3"]
    assert bool((model[:2](IMAGES) >= 0).all())
    report = anynorm.xbn(trained(network()), "gn:4", fit=IMAGES)
    assert all("error_after" in row for row in report)


def test_a_norm_the_batch_does_not_reach_is_said_so():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = Residual(3, 3), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.used(x)

    report = anynorm.convert(Half(), "ln", fit=IMAGES)
    assert "did not reach it" in report["unused"]["lost"][-1]
