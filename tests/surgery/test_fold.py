"""Folding: the same outputs with fewer layers, and a reason for each norm that stays."""

import copy

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import data, same
from tests.surgery.test_convert import BatchNormAct2d, X, network, trained

FOLDABLE = ["bn", "hn:4", "en:4", "bgn:4", "bgn:16", "bn/en:4", "bn.none"]


@pytest.mark.parametrize("spec", FOLDABLE)
def test_every_norm_with_kept_statistics_folds(spec):
    model = trained(network())
    anynorm.convert(model, spec, groups="nearest")
    trained(model).eval()
    expected = model(X)
    report = anynorm.fold(model, X)
    assert [row.get("left") for row in report] == [None] * 6
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
def test_layers_of_every_kind_take_a_norm_in(layer, side):
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
        assert "left" in next(iter(report))
    else:
        assert next(iter(report))["side"] == side
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
        assert all("into" in row for row in report)
        same(model(X), expected, rtol=1e-4, atol=1e-4)


def test_a_hardened_switch_that_chose_bn_folds():
    model = trained(network())
    anynorm.convert(model, "sn")
    trained(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, anynorm.Norm):
                module.mean_weight[2] = module.var_weight[2] = 5.0
    anynorm.harden(model)
    expected = model.eval()(X)
    assert all("into" in row for row in anynorm.fold(model, X))
    same(model(X), expected, rtol=1e-4, atol=1e-4)


class Awkward(nn.Module):
    """Norms that cannot be folded, each for a reason of its own."""

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


def test_what_cannot_be_folded_is_named_with_the_reason():
    model = Awkward().eval()
    expected = model(X)
    reasons = {row["path"]: row.get("left", "") for row in anynorm.fold(model, X)}
    assert "come from each input" in reasons["live"]
    assert "2 times" in reasons["twice"]
    assert "to others too" in reasons["shared_output"]
    assert "directly before or after" in reasons["far"]
    assert "does not reach it" in reasons["unused"]
    same(model(X), expected)


def test_control_flow_fused_activations_and_modes_are_no_hindrance():
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
