"""`anynorm.layer` as the norm of networks of torchvision and timm."""

import pickle

import pytest
import timm
import torch
from torch import nn
from torchvision.models import mobilenet_v3_small, resnet18
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

import anynorm
from anynorm.surgery.dataflow import tensors_of
from anynorm.surgery.find import find_norms
from tests.helpers import same

X = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
NETWORKS = {
    "torchvision resnet18": lambda norm: resnet18(norm_layer=norm),
    "torchvision mobilenet_v3_small": lambda norm: mobilenet_v3_small(norm_layer=norm),
    "torchvision resnet18 with FPN": lambda norm: resnet_fpn_backbone(backbone_name="resnet18", weights=None, norm_layer=norm),
    "timm resnet18": lambda norm: timm.create_model("resnet18", norm_layer=norm),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_bn_loads_the_weights_of_torch_and_has_its_outputs(name):
    torch.manual_seed(0)
    plain = NETWORKS[name](nn.BatchNorm2d)
    model = NETWORKS[name](anynorm.layer("bn"))
    model.load_state_dict(plain.state_dict())
    assert {type(site.module) for site in find_norms(model)} == {anynorm.BatchNorm}
    for mode in (False, True):
        for new, old in zip(outputs(model.train(mode)), outputs(plain.train(mode)), strict=True):
            same(new, old, rtol=1e-3, atol=1e-3 * float(old.abs().max()))


@torch.no_grad()
def outputs(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(0)  # of dropout
    return tensors_of(model(X))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_gn_runs_and_can_be_pickled(name):
    model = NETWORKS[name](anynorm.layer("gn:32", groups="nearest"))
    assert {site.info.spec.split(":")[0] for site in find_norms(model)} == {"gn"}
    restored = pickle.loads(pickle.dumps(model))
    for new, old in zip(outputs(restored.eval()), outputs(model.eval()), strict=True):
        same(new, old)


def test_a_timm_network_whose_norms_include_the_activation_refuses_it_loudly():
    with pytest.raises(anynorm.SpecError, match="takes no argument 'inplace'"):
        timm.create_model("efficientnet_b0", norm_layer=anynorm.layer("bn"))
    assert anynorm.convert(timm.create_model("efficientnet_b0"), "bn").rows[0]["norm"] == "BatchNormAct2d"
