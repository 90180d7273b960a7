"""The norms of networks of torchvision and segmentation_models_pytorch."""

import segmentation_models_pytorch as smp
import torchvision

import anynorm
from anynorm.surgery.find import find_norms


def test_the_example_of_torchvision():
    model = torchvision.models.resnet18(norm_layer=anynorm.layer("gn:8"))
    assert {site.label for site in find_norms(model)} == {"gn:8"}


def test_the_example_of_segmentation_models_pytorch():
    model = smp.Unet("resnet18", encoder_weights=None)
    anynorm.convert(model, "gn:8", groups="nearest")
    assert {site.label for site in find_norms(model)} == {"gn:8"}
