"""Blocks with a fused forward: they can be exported and copied, and never run a graph that is out of date."""

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn

import anynorm
from anynorm.surgery.block_forward import fused_forward
from tests.helpers import data, same
from tests.surgery.fusable_networks import Bottleneck, conv

X = data(6, 8, 8, 8)


def fused(model: Any) -> Any:
    """Return a fused copy of a model."""
    model = copy.deepcopy(model)
    anynorm.fuse(model, X)
    return model


def networks() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "the model itself": nn.Sequential(conv(8, 8), nn.BatchNorm2d(8), nn.ReLU()).eval(),
        "a block": nn.Sequential(conv(8, 8), Bottleneck(8, 8)).eval(),
    }


@pytest.mark.parametrize("network", networks())
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_fused_network_can_be_exported(network, strict):
    plain = networks()[network]
    model = fused(plain)
    assert any(map(fused_forward, model.modules()))
    same(torch.export.export(model, (X,), strict=strict).module()(X), plain(X), rtol=1e-4, atol=1e-5)


def test_torch_fx_traces_the_original_forward_of_a_fused_block():
    plain = networks()["a block"]
    model = fused(plain)
    tracer: Any = fx.Tracer()
    tracer.is_leaf_module = lambda module, _: isinstance(module, anynorm.Norm | nn.BatchNorm2d | nn.Conv2d | nn.ReLU)
    same(fx.GraphModule(model, tracer.trace(model))(X), plain(X), rtol=1e-4, atol=1e-5)


COPIES = {"copy.copy": copy.copy, "a replica of DataParallel": lambda block: block._replicate_for_data_parallel()}


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("network", networks())
def test_a_shallow_copy_of_a_fused_block_runs_its_own_children(copied, network):
    model = fused(networks()[network])
    block = model if network == "the model itself" else model[1]
    expected = block(X)
    replica = COPIES[copied](block)
    replica._modules = {name: copy.deepcopy(child) for name, child in block._modules.items()}
    assert fused_forward(replica) is fused_forward(block)
    with torch.no_grad():
        for parameter in replica.parameters():
            parameter.zero_()
    same(block(X), expected, rtol=0, atol=0)
    assert not same_values(replica(X), expected)


def same_values(a, b):
    return a.shape == b.shape and bool(torch.isclose(a, b).all())


def test_a_fused_block_keeps_the_name_of_its_class_and_can_be_pickled():
    model = fused(networks()["a block"])
    assert repr(model[1]).startswith("Bottleneck(")
    assert isinstance(model[1], Bottleneck)
    loaded = pickle.loads(pickle.dumps(model))
    assert fused_forward(loaded[1]) is not None
    same(loaded(X), model(X), rtol=0, atol=0)


class Inner(nn.Module):
    """A child with attributes that its parent reads."""

    scale: Any
    bias: Any

    def __init__(self):
        super().__init__()
        self.scale, self.bias = 2.0, None


class Scaled(nn.Module):
    """A norm and an activation, with attributes of all kinds in `forward`."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.cfg: Any = {"k": [3.0, 1.0]}
        self.flags: Any = (True, 1.0)
        self.steps = nn.ModuleList([nn.Tanh()])
        self.norm, self.act = nn.BatchNorm2d(8), nn.ReLU()

    def forward(self, x):
        y = self.act(self.norm(x)) * self.inner.scale * self.cfg["k"][0]
        for step in self.steps:
            y = step(y)
        y = y if self.inner.bias is None else y + self.inner.bias
        return y if self.flags[0] else -y


CHANGES = {
    "an attribute of a child": lambda block: setattr(block.inner, "scale", 5.0),
    "an optional attribute of a child": lambda block: setattr(block.inner, "bias", 1.0),
    "an attribute that becomes a tensor": lambda block: setattr(block.inner, "scale", torch.full((8, 1, 1), 5.0)),
    "an entry of a dictionary": lambda block: block.cfg["k"].__setitem__(0, 7.0),
    "an element that becomes a tensor": lambda block: setattr(block, "flags", (torch.tensor(False), 1.0)),
    "a setting that becomes a tensor": lambda block: setattr(block.act, "note", torch.ones(3)),
    "a module in a list": lambda block: block.steps.append(nn.Sigmoid()),
    "a norm that becomes an identity": lambda block: setattr(block, "norm", nn.Identity()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_fused_block_notices_changes_in_its_children_and_containers(change):
    plain = nn.Sequential(conv(8, 8), Scaled()).eval()
    model = fused(plain)
    assert fused_forward(model[1]) is not None
    same(model(X), plain(X), rtol=1e-4, atol=1e-5)
    for network in (plain, model):
        CHANGES[change](network[1])
    same(model(X), plain(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [SimpleNamespace(scale=2.0), torch.ones(())], ids=["an object", "a tensor"])
def test_a_block_that_reads_an_object_is_left_alone(value):
    class Block(Scaled):
        def forward(self, x):
            return self.act(self.norm(x)) * getattr(self.cfg, "scale", 1.0)

    model = nn.Sequential(conv(8, 8), Block())
    model[1].cfg = value
    reason = f"block '1': its forward reads the attribute cfg ({type(value).__name__}), whose changes cannot be noticed"
    assert anynorm.fuse(model, X)["1.norm"]["note"] == f"not fused: {reason}"
