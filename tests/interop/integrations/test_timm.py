"""Norms with activation in networks of timm."""

import pickle

import pytest
import timm
import torch
from torch import nn

import anynorm
from anynorm.integrations.timm import norm_act_layer
from anynorm.surgery.find import find_norms
from tests.helpers import same

X = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
NAMES = ["efficientnet_b0", "regnetx_002", "resnetv2_50d"]


@pytest.mark.parametrize("name", NAMES)
def test_a_network_with_bn_loads_the_weights_of_timm_and_has_its_outputs(name):
    torch.manual_seed(0)
    options = {"layers": (1, 1, 1, 1)} if name.startswith("resnetv2") else {}
    plain = timm.create_model(name, norm_layer=timm.layers.BatchNormAct2d, **options)
    model = timm.create_model(name, norm_layer=norm_act_layer("bn"), **options)
    model.load_state_dict(plain.state_dict())
    assert {type(site.module) for site in find_norms(model)} == {anynorm.BatchNorm}
    for mode in (False, True):
        new, old = (outputs(network.train(mode)) for network in (model, plain))
        same(new, old, rtol=1e-3, atol=1e-3 * float(old.abs().max()))


@torch.no_grad()
def outputs(model):
    torch.manual_seed(0)  # of dropout
    return model(X)


def activations(model):
    return [type(norm.act).__name__ for norm in model.modules() if hasattr(norm, "act") and hasattr(norm, "drop")]


@pytest.mark.parametrize(("name", "activation"), [("efficientnet_b0", "SiLU"), ("mobilenetv2_035", "ReLU6")])
def test_the_activation_of_each_layer_is_that_of_timm(name, activation):
    plain, model = timm.create_model(name), timm.create_model(name, norm_layer=norm_act_layer("gn:8", groups="nearest"))
    assert activations(model) == activations(plain)
    assert set(activations(model)) == {activation, "Identity"}


def test_the_example_of_the_guide():
    from anynorm.integrations.timm import norm_act_layer

    model = timm.create_model("resnet18", norm_layer=anynorm.layer("gn:8"))
    model = timm.create_model("efficientnet_b0", norm_layer=norm_act_layer("gn:8", groups="nearest"))
    assert model.bn1.spec == "gn:8"


def test_a_network_with_gn_trains_and_can_be_pickled():
    model = timm.create_model("efficientnet_b0", norm_layer=norm_act_layer("gn:8", groups="nearest"))
    assert {site.info.spec.split(":")[0] for site in find_norms(model)} == {"gn"}
    model(X).sum().backward()
    assert model.bn1.weight.grad is not None
    restored = pickle.loads(pickle.dumps(model))
    same(outputs(restored.eval()), outputs(model.eval()))


def test_options_reach_the_layer():
    factory = norm_act_layer("bn", eps=1e-3, momentum=0.01)
    norm = factory(8, apply_act=False)
    assert (norm.eps, norm.momentum, type(norm.act)) == (1e-3, 0.01, nn.Identity)
    assert type(factory(8).act) is nn.ReLU
    assert factory(8, act_layer="leaky_relu", act_kwargs={"negative_slope": 0.3}).act.negative_slope == 0.3
    assert type(factory(8, drop_layer=nn.Dropout).drop) is nn.Dropout
    with pytest.raises(anynorm.SpecError, match="groups must be 'exact' or 'nearest'"):
        norm_act_layer("gn:8", groups="some")
