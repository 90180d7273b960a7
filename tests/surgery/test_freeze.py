"""Frozen norms do not change in training; norms get no weight decay."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import same
from tests.surgery.networks import X, network, trained


@pytest.mark.parametrize("spec", [None, "bn", "hn:4", "sn"])
def test_frozen_norms_do_not_change_in_training_and_can_be_unfrozen(spec):
    model = trained(network())
    if spec:
        anynorm.convert(model, spec)
        trained(model)
    expected = copy.deepcopy(model).eval()(X)
    report = anynorm.freeze(model)
    before = copy.deepcopy(model.state_dict())
    if spec != "sn":  # its in and ln use the batch in both modes
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


def test_statistics_and_affine_can_be_frozen_separately():
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
    with pytest.raises(anynorm.SurgeryError, match="At least one of statistics and affine must be True"):
        anynorm.freeze(model, statistics=False, affine=False)


def test_freezing_can_be_undone():
    model = trained(network())
    anynorm.freeze(model).undo()
    assert isinstance(model[1], nn.BatchNorm2d)
    assert model[1].weight.requires_grad


def test_parameters_of_norms_get_no_weight_decay():
    model = network()
    anynorm.convert(model, "sn")
    with_decay, without_decay = anynorm.split_decay(model, 1e-4)
    names = {id(p): name for name, p in model.named_parameters()}
    assert all("conv" in names[id(p)] or names[id(p)].endswith(("0.weight", "downsample.0.weight")) for p in with_decay["params"])
    assert {names[id(p)] for p in without_decay["params"]} >= {"1.weight", "1.bias", "1.mean_weight", "1.var_weight"}
    assert len(with_decay["params"]) + len(without_decay["params"]) == len(list(model.parameters()))
    torch.optim.SGD([with_decay, without_decay], lr=0.1)


def test_frozen_norms_keep_their_parameter_objects():
    model = trained(network())
    weights = [model[1].weight, model[3].bn1.bias]
    anynorm.freeze(model, affine=False)
    assert model[1].weight is weights[0]
    assert model[3].bn1.bias is weights[1]


def test_a_parametrized_norm_gets_no_weight_decay_either():
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    nn.utils.parametrizations.weight_norm(model[1], "weight", dim=0)
    with_decay, without_decay = anynorm.split_decay(model, 1e-4, biases=True)
    assert [p is model[0].weight for p in with_decay["params"]] == [True]
    assert len(without_decay["params"]) == 4


def test_a_model_without_norms_cannot_be_frozen():
    with pytest.raises(anynorm.SurgeryError, match="no norm that anynorm supports"):
        anynorm.freeze(nn.Linear(2, 2))
