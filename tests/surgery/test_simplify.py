"""Freezing, merging, hardening, and groups for weight decay."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import same
from tests.surgery.test_convert import X, network, trained


@pytest.mark.parametrize("spec", [None, "bn", "hn:4", "sn"])
def test_frozen_norms_survive_train_and_learn_again(spec):
    model = trained(network())
    if spec:
        anynorm.convert(model, spec)
        trained(model)
    expected = copy.deepcopy(model).eval()(X)
    report = anynorm.freeze(model)
    before = copy.deepcopy(model.state_dict())
    if spec != "sn":  # its live cuts look at the batch in both modes, and so agree too, but λ's share of bn is frozen
        same(model.train()(X), expected, rtol=1e-4, atol=1e-5)
    model(X).sum().backward()
    assert all(p.grad is None for name, p in model.named_parameters() if "bn" in name)
    for key, value in model.state_dict().items():
        same(value, before[key])
    anynorm.unfreeze(model)
    model.train()(X)
    assert not torch.equal(model[1].running_mean, before["1.running_mean"])
    assert model[1].weight.requires_grad
    assert "6 of 6 norms frozen" in report.finding


def test_statistics_or_affine_alone():
    model = trained(network())
    anynorm.freeze(model, statistics=False)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert not model[1].weight.requires_grad
    anynorm.unfreeze(model)
    anynorm.freeze(model, "3.*", affine=False)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert model[3].bn1.weight.requires_grad
    before = model[3].bn1.running_mean.clone()
    model.train()(X)
    same(model[3].bn1.running_mean, before)
    with pytest.raises(anynorm.SurgeryError, match="Nothing is asked for"):
        anynorm.freeze(model, statistics=False, affine=False)


def test_freezing_is_undone():
    model = trained(network())
    anynorm.freeze(model).undo()
    assert isinstance(model[1], nn.BatchNorm2d)
    assert model[1].weight.requires_grad


def test_sandwiches_merge_into_class_affines():
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
    assert report["1"]["is"] == "bn.cc@3"
    with anynorm.condition(model, labels):
        same(model(X), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(anynorm.SurgeryError, match="no sandwich"):
        anynorm.merge(network())


@pytest.mark.parametrize(("chosen", "spec"), [(0, "in"), (1, "ln"), (2, "bn")])
def test_switches_harden_to_their_largest_weight_and_drop_the_rest(chosen, spec):
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
    assert report["1"]["is"] == spec
    assert model[1].mean_weight is None
    assert (model[1].running_mean is None) == (spec != "bn")
    same(model(X), expected, rtol=1e-4, atol=1e-4)


def test_groups_that_chose_differently_keep_weights_of_zero_and_one():
    model: Any = nn.Sequential(anynorm.make("sn:2", 8))
    with torch.no_grad():
        model[0].mean_weight.copy_(torch.tensor([[9.0, 0, 0], [0, 0, 9.0]]))
    report = anynorm.harden(model)
    assert ".hard" in report["0"]["is"]
    with pytest.raises(anynorm.SurgeryError, match="no norm of mixed cuts"):
        anynorm.harden(network())


def test_torch_s_batch_norms_are_synchronised_as_ours_and_come_back():
    model = trained(network())
    expected = copy.deepcopy(model)(X)
    report = anynorm.sync(model)
    assert len(report) == 6
    assert model[1].sync_group == model[3].bn1.sync_group != anynorm.make("bn", 4).sync_group
    same(model(X), expected, rtol=1e-4, atol=1e-5)
    assert len(anynorm.sync(model, on=False)) == 6
    assert model[1].sync_group == anynorm.make("bn", 4).sync_group
    report.undo()
    assert isinstance(model[1], nn.BatchNorm2d)


def test_norm_and_switch_parameters_go_without_weight_decay():
    model = network()
    anynorm.convert(model, "sn")
    decayed, bare = anynorm.split_decay(model, 1e-4)
    names = {id(p): name for name, p in model.named_parameters()}
    assert all("conv" in names[id(p)] or names[id(p)].endswith(("0.weight", "downsample.0.weight")) for p in decayed["params"])
    assert {names[id(p)] for p in bare["params"]} >= {"1.weight", "1.bias", "1.mean_weight", "1.var_weight"}
    assert len(decayed["params"]) + len(bare["params"]) == len(list(model.parameters()))
    torch.optim.SGD([decayed, bare], lr=0.1)
