"""Folding: the same outputs with fewer layers, and a reason for each norm that stays."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import anynorm
from tests.helpers import data, same
from tests.surgery.networks import BatchNormAct2d, X, network, trained

FOLDABLE = ["bn", "hn:4", "en:4", "bgn:4", "bgn:16", "bn/en:4", "bn.none", "bn.nobias", "0/bn", "0/en:4.nobias"]


@pytest.mark.parametrize("spec", FOLDABLE)
def test_every_norm_with_running_statistics_folds(spec):
    model = trained(network())
    anynorm.convert(model, spec, groups="nearest")
    trained(model).eval()
    expected = model(X)
    report = anynorm.fold(model, X)
    assert [row.get("note") for row in report] == [None] * 6
    same(model(X), expected, rtol=1e-4, atol=1e-4)
    assert not [m for m in model.modules() if isinstance(m, anynorm.Norm)]
    report.undo()
    same(model(X), expected)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 12, 3, padding=1),
        nn.Conv2d(8, 12, 3, groups=4, dilation=2, bias=False),
        nn.ConvTranspose2d(8, 12, 3, stride=2),
        nn.ConvTranspose2d(8, 12, 3, groups=4, bias=False),
        nn.Conv1d(8, 12, 3),
        nn.Conv3d(8, 12, 1),
        nn.Linear(8, 12, bias=False),
    ],
)
@pytest.mark.parametrize("side", ["before", "after"])
def test_norms_fold_into_layers_of_every_class(layer, side):
    layer = copy.deepcopy(layer)
    space = {nn.Conv1d: (7,), nn.Conv3d: (2, 3, 3), nn.Linear: ()}.get(type(layer), (7, 7))
    norm = anynorm.make("bn", 12 if side == "before" else 8)
    model = nn.Sequential(layer, norm) if side == "before" else nn.Sequential(norm, layer)
    x = data(4, 8, *space)
    trained_on = [model(data(4, 8, *space)) for _ in range(5)]
    assert trained_on
    with torch.no_grad():
        norm.weight.normal_(1, 0.3)
        norm.bias.normal_()
    expected = model.eval()(x)
    report = anynorm.fold(model, x)
    if side == "after" and (isinstance(layer, nn.ConvTranspose2d) or getattr(layer, "padding", 0) == (1, 1)):
        assert "not folded" in next(iter(report))["note"]
    else:
        assert next(iter(report))["layer_position"] == side
    same(model(x), expected, rtol=1e-4, atol=1e-4)


def test_conditional_norms_fold_for_one_class_or_domain():
    for spec in ("sabn@3", "auxbn@3", "ccbn@3"):
        model = trained(network())
        anynorm.convert(model, spec)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, anynorm.Norm):
                    module.class_weight.normal_(1, 0.3)
        model.eval()
        with anynorm.condition(model, 2):
            expected = model(X)
        report = anynorm.fold(model, X, condition=2)
        assert all(row["into"] for row in report)
        same(model(X), expected, rtol=1e-4, atol=1e-4)


def test_a_hardened_switch_norm_that_became_bn_folds():
    model = trained(network())
    anynorm.convert(model, "sn")
    trained(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, anynorm.Norm):
                module.mean_weight[2] = module.var_weight[2] = 5.0
    anynorm.harden(model)
    expected = model.eval()(X)
    assert all(row["into"] for row in anynorm.fold(model, X))
    same(model(X), expected, rtol=1e-4, atol=1e-4)


class Awkward(nn.Module):
    """Norms that cannot be folded, each for another reason."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)
        self.live, self.twice, self.shared_output, self.far = (anynorm.make(spec, 8) for spec in ("in", "bn", "bn", "bn"))
        self.unused = nn.BatchNorm2d(8)
        self.other = nn.Conv2d(8, 8, 1)
        self.third = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = self.live(self.conv(x))
        y = self.twice(self.twice(y))
        z = self.other(y)
        y = self.shared_output(z) + z
        return self.far(y.relu()).relu()


def test_the_report_says_why_a_norm_cannot_be_folded():
    model = Awkward().eval()
    expected = model(X)
    reasons = {row["path"]: row.get("note", "") for row in anynorm.fold(model, X)}
    assert "come from each input" in reasons["live"]
    assert "runs 2 times" in reasons["twice"]
    assert "other code uses the output" in reasons["shared_output"]
    assert "directly before or after" in reasons["far"]
    assert "does not run on the example" in reasons["unused"]
    same(model(X), expected)


def test_models_with_control_flow_activations_and_train_mode_fold():
    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1), BatchNormAct2d(8)

        def forward(self, x):
            return self.bn(self.conv(x)) if x.mean() > -1e9 else x

    model = trained(Flow()).train()
    anynorm.convert(model, "hn:4")
    trained(model)
    expected = copy.deepcopy(model).eval()(X)
    report = anynorm.fold(model, X)
    assert report["bn"]["into"] == "conv"
    assert model.training
    same(model.eval()(X), expected, rtol=1e-4, atol=1e-4)
    assert bool((model(X) >= 0).all())


@dataclass
class Outputs:
    features: torch.Tensor
    y: torch.Tensor


def test_a_layer_whose_output_is_also_part_of_a_returned_object_takes_no_norm():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x):
            h = self.conv(x)
            return Outputs(h, self.bn(h))

    assert "other code uses the output" in anynorm.fold(trained_outputs(Both()), X)["bn"]["note"]


def test_a_fold_that_would_change_the_output_is_left_out_even_if_the_output_has_infinite_values():
    class Standardized(nn.Conv2d):
        def forward(self, x):
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            return nn.functional.conv2d(x, weight / weight.std((1, 2, 3), keepdim=True), self.bias)

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = Standardized(3, 8, 3), nn.BatchNorm2d(8)
            self.last, self.bn2 = nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.bn2(self.last(self.bn(self.conv(x)).relu())).mean((2, 3))
            return {"logits": y.masked_fill(torch.arange(4) == 2, -torch.inf), "mask": y > 0}

    model = trained(Masked()).eval()
    expected = model(X)["logits"]
    report = anynorm.fold(model, X)
    assert "would change the output" in report["bn"]["note"]
    assert report["bn2"]["into"] == "last"
    same(model(X)["logits"], expected, rtol=1e-4, atol=1e-4)


def trained_outputs(model):
    for _ in range(3):
        model(data(8, 3, 8, 8, mean=0.3))
    return model.eval()


def test_parametrized_layers_take_no_norm():
    conv = nn.Conv2d(3, 8, 3)
    parametrize.register_parametrization(conv, "weight", nn.Identity())
    model: Any = nn.Sequential(conv, nn.BatchNorm2d(8))
    assert "computed from other tensors" in anynorm.fold(model.eval(), X)["1"]["note"]


def test_bfloat16_models_fold():
    half = trained(network()).to(torch.bfloat16).eval()
    assert "6 of 6" in anynorm.fold(half, X.to(torch.bfloat16)).finding


def test_a_folded_conditional_norm_still_accepts_its_condition_and_keeps_its_hooks():
    class Conditional(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 8, 3), anynorm.make("sabn@3", 8)

        def forward(self, x, y):
            return self.bn(self.conv(x), y)

    model: Any = Conditional().eval()
    called = []
    model.bn.register_forward_hook(lambda *_: called.append(1))
    expected = model(X, 2)
    anynorm.fold(model, (X, 2), condition=2)
    called.clear()
    same(model(X, 2), expected, rtol=1e-4, atol=1e-5)
    assert called == [1]
