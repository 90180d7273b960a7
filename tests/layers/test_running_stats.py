"""Running statistics after several batches follow the update rule."""

import pytest
import torch
from torch import nn

import anynorm
from anynorm import kernels
from anynorm.core.update_rules import Cumulative, Frozen, Pooled, Running
from tests.helpers import data, same, same_state

BATCHES = [data(n, 8, 4, 4, seed=n) for n in (2, 5, 3)]


def test_cumulative_is_torchs_momentum_none():
    ours, theirs = anynorm.make("bn", 8, momentum=None), nn.BatchNorm2d(8, momentum=None)
    for x in BATCHES:
        same(ours(x), theirs(x))
        same_state(ours, theirs)
    assert isinstance(ours.update_rule, Cumulative)


def test_cumulative_is_the_mean_of_variances_and_pooled_the_variance_of_the_union():
    averaged, pooled = anynorm.make("bn", 8, update_rule=Cumulative()), anynorm.make("bn", 8, update_rule=Pooled())
    for x in BATCHES:
        averaged(x), pooled(x)
    same(averaged.running_var, torch.stack([x.var((0, 2, 3)) for x in BATCHES]).mean(0))
    whole = torch.cat(BATCHES)
    same(pooled.running_mean, whole.mean((0, 2, 3)))
    same(pooled.running_var, whole.var((0, 2, 3)))
    assert pooled.num_values_tracked == 10 * 16


def test_pooled_is_exact_if_mean_and_variance_have_different_cuts():
    norm = anynorm.make("hn:2", 8, update_rule=Pooled())
    for x in BATCHES:
        norm(x)
    whole = torch.cat(BATCHES)
    same(norm.running_mean, whole.mean((0, 2, 3)))
    same(norm.running_var, torch.stack([whole[:, :4].var(), whole[:, 4:].var()]))


def test_pooled_is_exact_per_domain():
    norm = anynorm.make("auxbn@3", 8, update_rule=Pooled())
    labels = [torch.tensor([0, 1]), torch.tensor([0, 0, 0, 0, 0]), torch.tensor([1, 0, 1])]
    for x, label in zip(BATCHES, labels, strict=True):
        norm(x, label)
    whole, label = torch.cat(BATCHES), torch.cat(labels)
    for domain in (0, 1):
        same(norm.running_var[domain], whole[label == domain].var((0, 2, 3)))
    same(norm.running_var[2], torch.ones(8))
    assert norm.num_batches_tracked.tolist() == [3, 2, 0]


def test_frozen_normalizes_by_running_statistics_in_training_too():
    norm = anynorm.make("bn", 8)
    norm(BATCHES[0])
    norm.update_rule = Frozen()
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    expected = norm.eval()(BATCHES[1])
    same(norm.train()(BATCHES[1]), expected)
    for key, value in norm.state_dict().items():
        same(value, before[key])


def test_changing_the_update_rule_keeps_the_running_statistics():
    norm = anynorm.make("hn:2", 8)
    keys = list(norm.state_dict())
    norm(BATCHES[0])
    kept = norm.running_var.clone()
    norm.update_rule = Pooled()
    assert "num_values_tracked" in norm.state_dict()
    assert "running_var_2" in norm.state_dict()
    same(norm.running_var, kept)
    norm.update_rule = Running(0.2)
    assert list(norm.state_dict()) == keys
    same(norm.running_var, kept)


def test_momentum_can_be_set_as_on_torchs_layers():
    ours, theirs = anynorm.make("bn", 8), nn.BatchNorm2d(8)
    for momentum in (0.3, None, 0.9):
        ours.momentum = theirs.momentum = momentum
        assert ours.momentum == momentum
        ours(BATCHES[0]), theirs(BATCHES[0])
        same_state(ours, theirs)


@pytest.mark.parametrize("update_rule", [Running(), Cumulative(), Pooled()])
def test_an_empty_batch_updates_nothing(update_rule):
    norm = anynorm.make("sn", 8, update_rule=update_rule)
    norm(BATCHES[0])
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    assert norm(torch.empty(0, 8, 4, 4)).shape == (0, 8, 4, 4)
    for key, value in norm.state_dict().items():
        same(value, before[key])


def test_ghost_batches_update_by_the_average_of_their_statistics():
    norm = anynorm.make("gbgn:2,4", 8, momentum=1.0)
    x = data(6, 8, 3, 3)
    norm(x)
    parts = x.reshape(3, 2, 4, 2, 9).permute(0, 2, 1, 3, 4).reshape(3, 4, -1)
    same(norm.running_mean, parts.mean(-1).mean(0))
    same(norm.running_var, parts.var(-1).mean(0))


def test_setting_momentum_leaves_deleted_running_statistics_deleted():
    norm = anynorm.make("bn", 8, dtype=torch.float64).eval()
    norm.running_mean = norm.running_var = None
    norm.momentum = 0.2
    assert norm.running_mean is norm.running_var is None
    same(norm(BATCHES[0].double()).mean((0, 2, 3)), torch.zeros(8, dtype=torch.float64), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("rate", [5, -0.1, True, float("nan"), "a"])
def test_a_rate_out_of_range_raises(rate):
    with pytest.raises(anynorm.SpecError, match=r"momentum must be in \[0, 1\] or None"):
        Running(rate)


@pytest.mark.parametrize("spec", ["bn", "en:4", "hn:4", "gbgn:2,4", "bgn:32", "sn.dom@2"])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_the_pooled_rule_counts_the_positions_of_one_channel(spec, name):
    norm = anynorm.make(spec, 16, update_rule=Pooled())
    with kernels.use(name):
        norm(data(4, 16, 6, 4), torch.tensor([0, 1, 1, 1]))
    assert norm.num_values_tracked.sum() == 4 * 6 * 4
