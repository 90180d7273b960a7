"""Norms with activation in networks of timm."""

import pickle

import pytest
import timm
import torch
from timm.optim import param_groups_weight_decay
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


@pytest.mark.parametrize(
    ("function", "instead"),
    [
        (timm.layers.freeze_batch_norm_2d, r"anynorm\.freeze\(model\)"),
        (timm.layers.convert_sync_batchnorm, r"anynorm\.sync\(model\)"),
        (timm.layers.convert_splitbn_model, "auxbn@N"),
    ],
)
def test_functions_of_timm_that_look_for_batch_norm_say_what_to_call(function, instead):
    model = timm.create_model("resnet18")
    anynorm.convert(model, "hn:8")
    with pytest.raises(
        anynorm.SurgeryError, match=f"{function.__name__} of timm looks for torch's BatchNorm classes, .*{instead}"
    ):
        function(model)


def test_weight_decay_of_timm_has_the_affine_per_class_and_split_decay_has_not():
    model = timm.create_model("resnet18")
    anynorm.convert(model, "sabn@3")
    tables = {id(value) for name, value in model.named_parameters() if "class_" in name}
    for groups, expected in (
        (param_groups_weight_decay(model, 0.1), len(tables)),
        (anynorm.split_decay(model, 0.1), 0),
    ):
        decayed = {id(value) for group in groups if group["weight_decay"] for value in group["params"]}
        assert len(decayed & tables) == expected
