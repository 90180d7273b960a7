"""Backbones are classifiers without their last layer."""

import pytest
import torch

import anynorm
from anynorm.errors import DataError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.models.backbone import load_backbone, make_backbone
from tests.helpers import same


@pytest.mark.parametrize(
    ("name", "image_size", "strides"),
    [
        ("resnet10", 32, [1, 2, 4, 8]),
        ("resnet26", 128, [4, 8, 16, 32]),
        ("resnext50", 224, [4, 8, 16, 32]),
        ("small", 32, [1, 2, 4]),
    ],
)
def test_features_have_the_channels_and_strides_of_their_stage(name, image_size, strides):
    backbone = make_backbone(name, 3, 0.25, image_size)
    features = backbone(torch.randn(2, 3, 64, 96))
    assert backbone.strides == strides
    assert [tuple(each.shape) for each in features] == [
        (2, channels, 64 // stride, 96 // stride) for channels, stride in zip(backbone.channels, strides, strict=True)
    ]


@pytest.mark.parametrize("norm", ["bn", "sn"])
def test_the_last_features_are_those_of_the_classifier_whose_weights_it_has(norm):
    classifier = anynorm.convert(build_model("resnet10", DataShape(3, 32, 32, 10), 0.5), norm).model.eval()
    backbone = anynorm.convert(make_backbone("resnet10", 3, 0.5, image_size=32), norm).model.eval()
    load_backbone(backbone, classifier.state_dict())
    x = torch.randn(2, 3, 32, 32)
    head = list(classifier.children())[-1]
    same(head(backbone(x)[-1]), classifier(x))


def test_weights_of_other_norms_and_widths_are_refused():
    backbone = make_backbone("resnet10", 3, 0.5, image_size=32)
    wide = build_model("resnet10", DataShape(3, 32, 32, 10), 1.0).state_dict()
    with pytest.raises(
        DataError, match=r"runs/model\.pt must be those .*first '0\.0\.weight': expected shape \(8, 3, 3, 3\), got"
    ):
        load_backbone(backbone, wide, "runs/model.pt")
    plain = anynorm.convert(build_model("resnet10", DataShape(3, 32, 32, 10), 0.5), "gn:4").model.state_dict()
    with pytest.raises(
        DataError, match=r"36 of 72 tensors do not fit, first '0\.1\.running_mean': expected shape \(8,\), got none"
    ):
        load_backbone(backbone, plain)
    trained = build_model("resnet10", DataShape(3, 32, 32, 10), 0.5).state_dict()
    with pytest.raises(
        DataError, match=r"must have the norms of the backbone; they have 36 further tensors, first '0\.1\.running_mean'"
    ):
        load_backbone(anynorm.convert(backbone, "gn:4").model, trained)


def test_a_model_without_stages_is_refused():
    with pytest.raises(DataError, match=r"a backbone must be a residual network with stages; got 'mlp'\. Usable: resnet10"):
        make_backbone("mlp", 3, None, image_size=32)
    with pytest.raises(DataError, match="got 'wrn-10-2'"):
        make_backbone("wrn-10-2", 3, None, image_size=32)
