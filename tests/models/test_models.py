"""Models have the published sizes, fit any shape, and take any norm."""

from typing import Any

import pytest
import torch

import anynorm
from anynorm.models import MODELS, build
from anynorm.models.shape import Shape
from anynorm.surgery.find import find_norms
from anynorm.training.norm_layout import apply_norms, split_norms, validate_norms
from tests.helpers import data

IMAGENET = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnext50": 25_028_904,
    "mobilenetv2": 3_504_872,
    "shufflenetv2": 3_503_624,
    "densenet121": 7_978_856,
}
DIGITS = Shape(1, 8, 8, 10)


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", IMAGENET)
def test_parameters_are_as_many_as_published(name):
    with torch.device("meta"):
        assert size(build(name, Shape(3, 224, 224, 1000))) == IMAGENET[name]


def test_shufflenet_has_its_papers_other_widths():
    with torch.device("meta"):
        assert size(build("shufflenetv2", Shape(3, 224, 224, 1000), 1.0)) == 2_278_604


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_norms_of_every_kind_and_can_be_narrowed(name):
    narrow = build(name, DIGITS, 0.25)
    assert size(narrow) < size(build(name, DIGITS))
    for norms in ("gn:8", "sn", "bgn", "gn:4~bn"):
        model = apply_norms(build(name, DIGITS, 0.25), norms, 4)
        assert model(data(4, 1, 8, 8)).shape == (4, 10)
    kinds = [str(site.module.spec) for site in find_norms(model)]
    assert kinds[1::2] == ["bn"] * (len(kinds) // 2)
    assert all(kind.startswith("gn:") for kind in kinds[::2])


@pytest.mark.parametrize("name", ["small", "resnet50", "mobilenetv2", "shufflenetv2", "densenet121", "wrn-10-2"])
def test_residual_models_take_xbn_blocks(name):
    model = apply_norms(build(name, DIGITS, 0.25), "xbn=gn:64", 4)
    kinds = {type(site.module).__name__ for site in find_norms(model)}
    assert kinds == {"BatchNorm2d", "GroupNorm"}


def test_a_model_of_ones_own_is_called_with_what_it_takes():
    made: Any = build("tests.lab.test_models:own", DIGITS, 2.0)
    assert made.in_features == 64
    assert build("torch.nn:Identity", DIGITS)(3) == 3
    with pytest.raises(anynorm.DataError, match=r"There is no model 'resnet81'\. Near: resnet18"):
        build("resnet81", DIGITS)
    with pytest.raises(anynorm.DataError, match=r"gave a int, not an nn\.Module"):
        build("tests.lab.test_models:size_of_nothing", DIGITS)


def size_of_nothing():
    return 0


def own(shape, width):
    return torch.nn.Linear(shape.height * shape.width, int(width))


def test_lists_of_norms_keep_the_commas_inside():
    assert split_norms("bn, gbgn:8,32 ,gn:4~bn") == ["bn", "gbgn:8,32", "gn:4~bn"]
    validate_norms("xbn=gn:4")
    with pytest.raises(anynorm.SpecError, match="no norm called"):
        validate_norms("gn:4~bm")
    with pytest.raises(anynorm.SpecError, match="has no norm that bn could"):
        apply_norms(torch.nn.Linear(2, 2), "bn", 4)
