"""Fitting: new norms reproduce the output of the old ones, as far as γ and β can."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.layers.norm import Norm
from tests.helpers import data, same
from tests.surgery.networks import BatchNormAct2d, Residual, X, network, relative, trained

IMAGES = data(64, 3, 8, 8, mean=0.3, std=1.5)


@pytest.mark.parametrize("spec", ["ln", "gn:4", "sn", "0/gn:4", "rms"])
def test_fitted_networks_are_nearer_to_the_original_than_plain_ones(spec):
    original = trained(network()).eval()
    expected = original(IMAGES)
    plain, fitted = copy.deepcopy(original), copy.deepcopy(original)
    anynorm.convert(plain, spec)
    report = anynorm.convert(fitted, spec, fit=IMAGES)
    assert relative(fitted(IMAGES), expected) < relative(plain(IMAGES), expected)
    for row in report:
        assert row["error_after"] <= row["error_before"] + 1e-6


def test_a_norm_without_shift_gets_the_least_squares_scale():
    model: Any = nn.Sequential(nn.BatchNorm2d(4)).eval()
    x = data(32, 4, 5, 5) * torch.tensor([0.5, 1, 2, 4])[:, None, None]
    target = model(x).detach().transpose(0, 1).flatten(1).double()
    anynorm.convert(model, "0/gn:2.nobias", fit=x)
    plain = anynorm.make("0/gn:2", 4, affine=False)(x).transpose(0, 1).flatten(1).double()
    same(model[0].weight.double(), (plain * target).sum(1) / plain.square().sum(1), rtol=1e-4, atol=1e-4)
    assert model[0].bias is None


@pytest.mark.parametrize("spec", ["hn:4", "bgn:4"])
def test_norms_that_need_no_fitting_keep_the_output(spec):
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


def test_a_fit_normalizes_each_input_once_per_output_that_it_needs(monkeypatch):
    """The target; the new norm before the fit, for three pairs of γ and β, and fitted."""
    calls = []
    original = Norm.normalize

    def count(self, x, condition=None):
        calls.append(self.spec)
        return original(self, x, condition)

    monkeypatch.setattr(Norm, "normalize", count)
    anynorm.convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "gn:2", fit=data(8, 3, 6, 6))
    assert calls == ["bn", "gn:2", "gn:2", "gn:2", "gn:2", "gn:2"]


def test_fitting_a_norm_to_itself_keeps_the_output():
    model = trained(network()).eval()
    expected = model(IMAGES)
    anynorm.recalibrate(model, [IMAGES])
    expected = model(IMAGES)
    anynorm.convert(model, "bn", fit=IMAGES)
    same(model(IMAGES), expected, rtol=1e-3, atol=1e-3)


def test_a_loader_of_tuples_can_be_used_and_no_fitting_module_remains():
    model = trained(network()).train()
    labels = torch.zeros(16, dtype=torch.long)
    anynorm.convert(model, "gn:4", fit=[(batch, labels) for batch in IMAGES.split(16)])
    assert {type(m).__name__ for m in model.modules()} == {
        "Sequential", "Conv2d", "GroupNorm", "ReLU", "Residual", "Flatten"
    }  # fmt: skip
    assert all(module.training for module in model.modules())
    with pytest.raises(anynorm.SurgeryError, match="must hold at least one calibration batch"):
        anynorm.convert(network(), "gn:4", fit=[])


def test_a_failing_forward_leaves_the_model_unchanged():
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


def test_the_report_says_which_norm_the_batch_does_not_reach():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = Residual(3, 3), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.used(x)

    report = anynorm.convert(Half(), "ln", fit=IMAGES)
    assert "did not reach it" in report["unused"]["note"]


def test_a_norm_that_fits_exactly_does_not_change():
    model = trained(network()).eval()
    expected = model(X)
    for row in anynorm.convert(model, "bn", fit=data(32, 3, 8, 8)):
        assert row["error_before"] < 1e-5
    same(model(X), expected, rtol=1e-4, atol=1e-5)


def test_models_that_reorder_samples_are_refused():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, batch):
            return self.bn(self.conv(torch.cat([batch["a"], batch["b"]])))

    with pytest.raises(anynorm.SurgeryError, match="reorders the samples"):
        anynorm.convert(Siamese(), "ln", fit={"a": X, "b": X + 1})


def test_a_custom_forward_can_set_conditions():
    model = trained(network())
    anynorm.convert(model, "sabn@3")
    with torch.no_grad():
        model[1].class_weight.normal_(1, 0.3)
    expected = copy.deepcopy(model).eval()

    def forward(model, batch):
        with anynorm.condition(model, batch[1]):
            return model(batch[0])

    labels = torch.tensor([0, 1, 2, 0])
    report = anynorm.convert(model, "gn:4.sa@3", fit=[(X, labels)], forward=forward)
    assert all(row["error_after"] < row["error_before"] for row in report)
    assert relative(forward(model.eval(), (X, labels)), forward(expected, (X, labels))) < 0.9


def test_batches_of_any_mapping_are_joined_and_fitted():
    class Batch(dict[str, Any]):
        """A subclass of dict, as some collate functions return it."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, batch):
            return self.bn(self.conv(batch["image"]))

    torch.manual_seed(0)
    joined, split = Model(), Model()
    split.load_state_dict(joined.state_dict())
    anynorm.convert(joined, "ln", fit={"image": IMAGES, "name": "all"})
    anynorm.convert(split, "ln", fit=[Batch(image=images, name="part") for images in IMAGES.split(16)])
    same(split.bn.weight, joined.bn.weight)
