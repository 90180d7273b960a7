"""Dilated backbones are the strided ones on a finer grid; heads take any size, and one sample in training."""

from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.errors import SpecError
from anynorm.lab.models.backbone import make_backbone
from anynorm.lab.tasks.segmentation.networks import HEADS, AtrousPyramid, PyramidPooling, SegmentationNetwork, dilate, resize
from anynorm.lab.training.norm_layout import Layout
from anynorm.surgery.find import find_norms
from tests.helpers import same


def make_pair(name, image_size, num_stages=2):
    """Return a backbone and its dilated copy, both in eval mode with random statistics."""
    torch.manual_seed(0)
    backbone = make_backbone(name, 3, 0.125, image_size)
    for layer in backbone.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    dilated = make_backbone(name, 3, 0.125, image_size)
    dilated.load_state_dict(backbone.state_dict())
    return backbone.eval(), dilate(dilated, num_stages).eval()


@pytest.mark.parametrize(("name", "image_size"), [("resnet18", 128), ("resnet26", 128), ("resnet18", 32), ("resnext50", 128)])
@pytest.mark.parametrize("size", [(64, 96), (67, 45)])
def test_a_dilated_backbone_has_the_features_of_the_strided_one_on_its_grid(name, image_size, size):
    backbone, dilated = make_pair(name, image_size)
    x = torch.randn(2, 3, *size)
    strided_features, features = backbone(x), dilated(x)
    assert dilated.strides == [*backbone.strides[:2], backbone.strides[1], backbone.strides[1]]
    for strided, fine, factor in zip(strided_features, features, (1, 1, 2, 4), strict=True):
        same(fine[..., ::factor, ::factor], strided, rtol=1e-4, atol=1e-5)  # convolutions of other shapes sum in another order
    assert features[3].shape[-2:] == features[1].shape[-2:]


def test_dilation_changes_no_parameter_and_can_be_limited_to_the_last_stage():
    backbone, dilated = make_pair("resnet10", 128, num_stages=1)
    assert [name for name, _ in backbone.named_parameters()] == [name for name, _ in dilated.named_parameters()]
    assert all(torch.equal(value, dilated.state_dict()[name]) for name, value in backbone.state_dict().items())
    assert dilated.strides == [4, 8, 16, 16]
    assert dilated(torch.randn(1, 3, 64, 64))[3].shape[-2:] == (4, 4)
    with pytest.raises(SpecError, match="num_stages must be from 1 to 3; got 4"):
        dilate(backbone, 4)


def make_network(norm="bn", head="psp", batch_size=2):
    torch.manual_seed(0)
    network = SegmentationNetwork(make_backbone("resnet10", 3, 0.5, 128), 5, head)
    return Layout.parse(norm, batch_size).apply(network)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("norm", ["bn", "gn:8", "sn", "bn;head=gn:8"])
def test_logits_have_the_size_of_the_image_and_both_heads_get_gradients(head, norm):
    network = make_network(norm, head)
    x = torch.randn(2, 3, 53, 66)
    logits, auxiliary = network(x)
    assert logits.shape == auxiliary.shape == (2, 5, 53, 66)
    (logits.square().mean() + auxiliary.square().mean()).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    evaluated = network.eval()(x)
    assert evaluated.shape == (2, 5, 53, 66)
    assert network.stride == 8


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("norm", ["bn", "sn", "gn:8", "in"])
def test_one_sample_can_be_trained_because_maps_of_one_pixel_have_no_norm(head, norm):
    logits, _ = make_network(norm, head, batch_size=1)(torch.randn(1, 3, 64, 64))
    logits.sum().backward()
    assert torch.isfinite(logits).all()


def test_a_layout_by_parts_reaches_the_norms_of_each_part():
    network = make_network("bn;head=gn:8;aux_head=sn")
    norms = {path: getattr(site.module, "spec", "bn") for site in find_norms(network) for path in [site.path]}
    assert {spec for path, spec in norms.items() if path.startswith("head.")} == {"gn:8"}
    assert [spec for path, spec in norms.items() if path.startswith("aux_head.")] == ["sn"]
    assert {spec for path, spec in norms.items() if path.startswith("backbone.")} == {"bn"}


def test_pyramid_pooling_is_the_mean_of_each_cell_beside_the_features():
    head = PyramidPooling(8, 3, dropout=0.0, bins=(1, 2)).eval()
    x = torch.randn(2, 8, 4, 6)
    means = torch.stack([torch.stack([x[..., i : i + 2, j : j + 3].mean((2, 3)) for j in (0, 3)], -1) for i in (0, 2)], -2)
    branches = [head.branches[0](x.mean((2, 3), keepdim=True)).expand(-1, -1, 4, 6), resize(head.branches[1](means), (4, 6))]
    same(head(x), head.classifier(torch.cat([x, *branches], 1)))


def test_rates_beyond_the_map_act_as_convolutions_of_one_pixel():
    head: Any = AtrousPyramid(8, 3, dropout=0.0, rates=(50,)).eval()
    x = torch.randn(2, 8, 6, 6)
    before = head(x)
    weight = head.branches[1][0].weight
    with torch.no_grad():
        weight[:, :, [0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 2, 0, 2, 0, 1, 2]] = 7.0
    same(head(x), before)


def test_resizing_is_that_of_torch_and_unknown_heads_are_refused():
    x = torch.randn(1, 2, 3, 4)
    assert resize(x, (3, 4)) is x
    same(resize(x, (9, 8)), nn.functional.interpolate(x, (9, 8), mode="bilinear"))
    with pytest.raises(SpecError, match="head must be one of psp aspp; got 'fcn'"):
        SegmentationNetwork(make_backbone("resnet10", 3, 0.25, 64), 2, "fcn")


def test_a_trained_network_can_be_folded_except_for_the_auxiliary_head_which_is_not_used_then():
    network = make_network()
    network(torch.randn(2, 3, 64, 64))
    x = torch.randn(1, 3, 64, 64)
    expected = network.eval()(x)
    folded = anynorm.fold(network, x).model
    assert {site.path.partition(".")[0] for site in find_norms(folded)} <= {"aux_head"}
    same(folded(x), expected, rtol=1e-3, atol=1e-4)  # weights multiplied by γ/σ round differently
