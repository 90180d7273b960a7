"""Models have the published sizes, fit any data shape, and accept every norm."""

from typing import Any

import pytest
import torch

import anynorm
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import MODELS, build_model
from anynorm.lab.models.vit import Block
from anynorm.lab.training.norm_layout import Layout, split_norms
from anynorm.surgery.find import find_norms
from tests.helpers import data, same

IMAGENET = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnext50": 25_028_904,
    "resnext101": 88_791_336,  # 32 × 8d
    "mobilenetv2": 3_504_872,
    "shufflenetv2": 3_503_624,
    "densenet121": 7_978_856,
}
DIGITS = DataShape(1, 8, 8, 10)


def count_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", IMAGENET)
def test_the_number_of_parameters_is_the_published_one(name):
    with torch.device("meta"):
        assert count_parameters(build_model(name, DataShape(3, 224, 224, 1000))) == IMAGENET[name]


def test_shufflenet_has_the_other_widths_of_its_paper():
    with torch.device("meta"):
        assert count_parameters(build_model("shufflenetv2", DataShape(3, 224, 224, 1000), 1.0)) == 2_278_604


def test_the_pre_activation_network_has_a_norm_more_than_that_of_public_code():
    with torch.device("meta"):
        model = build_model("preact_resnet18", DataShape(3, 32, 32, 10))
    assert count_parameters(model) == 11_171_146 + 2 * 512
    assert [type(module).__name__ for module in list(model.children())[-5:-2]] == ["BatchNorm2d", "ReLU", "AdaptiveAvgPool2d"]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_accepts_every_kind_of_norm_and_can_be_narrower(name):
    narrow = build_model(name, DIGITS, 0.25)
    assert count_parameters(narrow) < count_parameters(build_model(name, DIGITS))
    for norms in ("gn:8", "sn", "bgn", "gn:4~bn"):
        model = Layout.parse(norms, 4).apply(build_model(name, DIGITS, 0.25))
        assert model(data(4, 1, 8, 8)).shape == (4, 10)
    specs = [str(site.module.spec) for site in find_norms(model)]
    assert specs[1::2] == ["bn"] * (len(specs) // 2)
    assert all(spec.startswith("gn:") for spec in specs[::2])


def test_a_block_of_the_vision_transformer_is_the_encoder_layer_of_torch():
    torch.manual_seed(0)
    ours, theirs = Block(32), torch.nn.TransformerEncoderLayer(32, 2, 64, 0.0, "gelu", batch_first=True, norm_first=True)
    pairs = [(ours.norm1, theirs.norm1), (ours.norm2, theirs.norm2), (ours.attention.proj, theirs.self_attn.out_proj)]
    pairs += [(ours.mlp[0], theirs.linear1), (ours.mlp[2], theirs.linear2)]
    with torch.no_grad():
        for own, other in pairs:
            own.load_state_dict(other.state_dict())
        ours.attention.qkv.weight.copy_(theirs.self_attn.in_proj_weight)
        ours.attention.qkv.bias.copy_(theirs.self_attn.in_proj_bias.normal_())
    x = data(4, 6, 32)
    same(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("vit", (1, 8, 8), (2, 2, 16)),  # patches and kernels of 2 × 2 pixels, 16 tokens
        ("vit", (3, 32, 32), (4, 4, 64)),
        ("vit", (3, 224, 224), (16, 16, 196)),
        ("convnext", (1, 8, 8), (2, 3, None)),
        ("convnext", (3, 32, 32), (2, 7, None)),
        ("convnext", (3, 224, 224), (4, 7, None)),
    ],
)
def test_patches_and_kernels_suit_the_size_of_the_image(name, shape, expected):
    with torch.device("meta"):
        model: Any = build_model(name, DataShape(*shape, 10))  # type: ignore[call-arg]
        assert model(torch.zeros(2, *shape)).shape == (2, 10)
    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    tokens = len(model.positions) if name == "vit" else None
    assert (convolutions[0].kernel_size[0], convolutions[min(1, len(convolutions) - 1)].kernel_size[0], tokens) == expected


@pytest.mark.parametrize(
    "name", ["small", "resnet50", "mobilenetv2", "shufflenetv2", "densenet121", "wrn-10-2", "preact_resnet8"]
)
def test_residual_models_accept_xbn_blocks(name):
    model = Layout.parse("xbn=gn:64", 4).apply(build_model(name, DIGITS, 0.25))
    classes = {type(site.module).__name__ for site in find_norms(model)}
    assert classes == {"BatchNorm2d", "GroupNorm"}


def test_a_custom_factory_receives_the_arguments_it_has():
    model: Any = build_model("tests.lab.models.test_models:custom_model", DIGITS, 2.0)
    assert model.in_features == 64
    assert build_model("torch.nn:Identity", DIGITS)(3) == 3
    message = r"unknown model 'resnet81'\. Did you mean resnet18 .*Usable: small mlp .* package\.module:factory"
    with pytest.raises(anynorm.DataError, match=message):
        build_model("resnet81", DIGITS)
    with pytest.raises(anynorm.DataError, match=r"must return an nn\.Module; got int"):
        build_model("tests.lab.models.test_models:not_a_model", DIGITS)


def not_a_model():
    return 0


def custom_model(shape, width):
    return torch.nn.Linear(shape.height * shape.width, int(width))


def test_lists_of_norms_keep_commas_inside_specs():
    assert split_norms("bn, gbgn:8,32 ,gn:4~bn") == ["bn", "gbgn:8,32", "gn:4~bn"]
    Layout.parse("xbn=gn:4")
    with pytest.raises(anynorm.SpecError, match="unknown norm"):
        Layout.parse("gn:4~bm")
    with pytest.raises(anynorm.SpecError, match="bn cannot be applied: Linear has no norm to replace"):
        Layout.parse("bn", 4).apply(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["torch.nn:Linear", "math:pi"])
def test_a_factory_that_cannot_be_called_raises(name):
    with pytest.raises(anynorm.DataError, match=f"'{name}' must be a factory"):
        build_model(name, DIGITS)
