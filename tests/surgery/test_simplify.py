"""Sandwiches are merged into class affines, and mixed norms are hardened to their largest cut."""

from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import same
from tests.surgery.networks import BatchNormAct2d, X, network, trained


def test_sandwiches_become_one_affine_per_class_with_the_same_output():
    model = trained(network())
    anynorm.convert(model, "sabn@3")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, anynorm.Norm):
                module.class_weight.normal_(1, 0.2)
    labels = torch.tensor([0, 1, 2, 1])
    with anynorm.condition(model.eval(), labels):
        expected = model(X)
    report = anynorm.merge(model)
    assert report["1"]["new_norm"] == "bn.cc@3"
    with anynorm.condition(model, labels):
        same(model(X), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(anynorm.SurgeryError, match="no sandwich norm: there is nothing to merge"):
        anynorm.merge(network())


@pytest.mark.parametrize(("chosen", "spec"), [(0, "in"), (1, "ln"), (2, "bn")])
def test_switch_norms_become_the_cut_with_the_largest_weight(chosen, spec):
    model = trained(network())
    anynorm.convert(model, "sn")
    trained(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, anynorm.Norm):
                module.mean_weight.fill_(0)[chosen] = 30.0
                module.var_weight.fill_(0)[chosen] = 30.0
    expected = model.eval()(X)
    report = anynorm.harden(model)
    assert report["1"]["new_norm"] == spec
    assert model[1].mean_weight is None
    assert (model[1].running_mean is None) == (spec != "bn")
    same(model(X), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("same_cut", [False, True])
def test_a_mean_of_0_stays_0_in_the_hardened_norm(same_cut):
    model: Any = nn.Sequential(anynorm.make("0/sn", 8))
    model(X[:, :1].expand(-1, 8, -1, -1))
    with torch.no_grad():
        model[0].var_weight.fill_(0)[2] = 30.0
    expected = model.eval()(X[:, :1].expand(-1, 8, -1, -1))
    assert anynorm.harden(model, same_cut=same_cut)["0"]["new_norm"] == "0/bn"
    same(model(X[:, :1].expand(-1, 8, -1, -1)), expected, rtol=1e-4, atol=1e-4)


def test_channel_groups_with_different_largest_cuts_keep_all_cuts():
    model: Any = nn.Sequential(anynorm.make("sn:2", 8))
    with torch.no_grad():
        model[0].mean_weight.copy_(torch.tensor([[9.0, 0, 0], [0, 0, 9.0]]))
    report = anynorm.harden(model)
    assert ".hard" in report["0"]["new_norm"]
    with pytest.raises(anynorm.SurgeryError, match="no norm with mixed cuts: there is nothing to harden"):
        anynorm.harden(network())


@pytest.mark.parametrize(("spec", "operation"), [("sn", anynorm.harden), ("sabn@3", anynorm.merge)])
def test_simplified_norms_keep_their_activation_and_stay_in_the_optimizer(spec, operation):
    model: Any = trained(nn.Sequential(nn.Conv2d(3, 8, 3), BatchNormAct2d(8)))
    anynorm.convert(model, spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    operation(model, optimizer=optimizer)
    with anynorm.condition(model, 1) if "@" in spec else torch.no_grad():
        assert bool((model.eval()(X) >= 0).all())
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}


def set_weights(norm: Any, mean: list[Any], var: list[Any]) -> None:
    with torch.no_grad():
        norm.mean_weight.copy_(torch.tensor(mean))
        norm.var_weight.copy_(torch.tensor(var))


def test_with_the_same_cut_a_layer_selects_one_normalizer_for_mean_and_variance():
    model: Any = nn.Sequential(anynorm.make("sn", 8))
    set_weights(model[0], [3.0, 0.0, 2.9], [0.0, 0.0, 1.0])
    assert anynorm.harden(model)["0"]["new_norm"] == "in/bn"
    model = nn.Sequential(anynorm.make("sn", 8))
    set_weights(model[0], [3.0, 0.0, 2.9], [0.0, 0.0, 1.0])
    assert anynorm.harden(model, same_cut=True)["0"]["new_norm"] == "bn"


def test_with_the_same_cut_each_channel_group_selects_one_normalizer():
    model: Any = nn.Sequential(anynorm.make("sn:2", 8))
    set_weights(model[0], [[9.0, 0, 0], [0, 0, 9.0]], [[0, 1.0, 0], [1.0, 0, 0]])
    anynorm.harden(model, same_cut=True)
    assert model[0].mean_weight.argmax(-1).tolist() == model[0].var_weight.argmax(-1).tolist() == [0, 2]


def test_the_same_cut_is_refused_if_mean_and_variance_mix_different_cuts():
    with pytest.raises(anynorm.SurgeryError, match="same_cut needs norms whose mean and variance mix the same cuts"):
        anynorm.harden(nn.Sequential(anynorm.make("bn/bn+en", 8)), same_cut=True)
