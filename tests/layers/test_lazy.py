"""A norm without a number of channels takes it from its first input, or from the state that is loaded, as torch's lazy layers."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import CHANNELS, ROWS, condition_for, data, same, same_state


@pytest.mark.parametrize("spec", ROWS)
def test_a_lazy_norm_becomes_the_norm_of_its_first_input(spec):
    torch.manual_seed(0)
    expected = anynorm.make(spec, CHANNELS, eps=1e-3)
    torch.manual_seed(0)
    lazy: Any = anynorm.make(spec, None, eps=1e-3)
    x = data(4, CHANNELS, 4, 4)
    y = lazy(x, condition_for(expected, x))
    same(y, expected(x, condition_for(expected, x)), rtol=0, atol=0)
    assert type(lazy) is type(expected)
    assert repr(lazy) == repr(expected)
    same_state(lazy, expected)
    same(lazy(x, condition_for(expected, x)), expected(x, condition_for(expected, x)), rtol=0, atol=0)
    for copied in (copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
        same(copied.eval()(x, condition_for(expected, x)), expected.eval()(x, condition_for(expected, x)))


def test_a_lazy_network_trains_as_torchs():
    torch.manual_seed(0)
    theirs: Any = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU())
    ours: Any = nn.Sequential(nn.LazyConv2d(8, 3), anynorm.make("bn", None), nn.ReLU())
    x = data(4, 3, 6, 6, dtype=torch.float64)
    for model in (ours, theirs):
        model.double().eval()(x)
        torch.manual_seed(0)
        nn.init.normal_(model[0].weight)
        nn.init.zeros_(model[0].bias)
        model.train()
    same(ours(x), theirs(x))
    assert ours[1].weight.dtype == torch.float64
    same_state(ours, theirs)
    assert not ours[1].__dict__["_forward_pre_hooks"]


def test_a_state_is_loaded_into_a_lazy_norm():
    full = anynorm.make("hn:4", CHANNELS)
    full(data(4, CHANNELS, 3))
    model: Any = nn.Sequential(anynorm.make("hn:4", None))
    model.load_state_dict(nn.Sequential(full).state_dict())
    same_state(model[0], full)
    same(model.eval()(data(4, CHANNELS, 3)), full.eval()(data(4, CHANNELS, 3)))
    assert type(model[0]) is anynorm.HeteroNorm


def test_a_lazy_norm_can_be_pickled_and_shows_its_spec():
    lazy: Any = pickle.loads(pickle.dumps(anynorm.make("gn:4", None, channel_axis=-1)))
    assert repr(lazy) == "LazyNorm('gn:4', None)"
    assert list(copy.deepcopy(lazy).state_dict()) == ["weight"]
    assert lazy(data(2, 5, 8)).shape == (2, 5, 8)
    assert (lazy.num_features, lazy.channel_axis) == (8, -1)


@pytest.mark.parametrize("options", [{"spec": "nope"}, {"spec": "gn:4", "num_classes": 3}])
def test_a_spec_is_checked_before_the_first_input(options):
    with pytest.raises(anynorm.SpecError):
        anynorm.make(num_features=None, **options)


def test_convert_says_that_a_lazy_norm_must_run_once():
    for norm in (nn.LazyBatchNorm2d(), nn.LazyInstanceNorm2d(), anynorm.make("bn", None)):
        with pytest.raises(
            anynorm.SurgeryError, match="its number of channels is unknown before the first forward pass; run the"
        ):
            anynorm.convert(nn.Sequential(norm), "gn:4")
