"""Surgery on public pretrained networks."""

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import same
from tests.real import REAL, accuracy, augment, load_cifar, load_photos, pretrained_efficientnet, pretrained_resnet

pytestmark = REAL

# accuracy in percent that fitting on 512 unlabeled images must reach: one point below a first measurement on other images
MIN_ACCURACY = {
    20: {"ln": 89.1, "gn:4": 86.5, "gn:8": 83.3, "sn": 85.7, "hn": 90.7, "xbn": 87.1},
    56: {"ln": 90.9, "gn:4": 88.9, "gn:8": 85.6, "sn": 87.1, "hn": 92.0, "xbn": 90.6},
}


@pytest.fixture(scope="module")
def images():
    chosen = torch.randperm(50000, generator=torch.Generator().manual_seed(0))[:512]
    return load_cifar("train", chosen.numpy())[0], *load_cifar("test", slice(4000))


def converted(depth, spec, fit):
    model = pretrained_resnet(depth)
    if spec == "xbn":
        anynorm.xbn(model, "gn:8", position=1, fit=fit)
    else:
        anynorm.convert(model, spec, fit=fit)
    return model


def test_converting_bn_to_bn_keeps_the_output_of_a_pretrained_network(images):
    model, twin = pretrained_resnet(56), pretrained_resnet(56)
    anynorm.convert(model, "bn")
    x = images[1][:64]
    same(model(x), twin(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", list(MIN_ACCURACY[20]))
def test_a_fitted_resnet20_keeps_its_accuracy(spec, images):
    fit, x, y = images
    assert accuracy(converted(20, spec, fit), x, y) >= MIN_ACCURACY[20][spec]


@pytest.mark.parametrize("spec", ["ln", "hn"])
def test_a_fitted_resnet56_keeps_its_accuracy(spec, images):
    fit, x, y = images
    assert accuracy(converted(56, spec, fit), x, y) >= MIN_ACCURACY[56][spec]


def test_recalibration_restores_a_network_whose_statistics_were_reset(images):
    _, x, y = images
    model = pretrained_resnet(20)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    assert accuracy(model, x[:2000], y[:2000]) < 30
    anynorm.recalibrate(model, augment(load_cifar("train", slice(2048))[0]).split(256))
    assert accuracy(model, x, y) > 91.2


def test_folding_keeps_the_output_of_a_pretrained_network(images):
    model = converted(20, "hn", images[0])
    expected = model(images[1][:64])
    report = anynorm.fold(model, images[1][:2])
    assert all(row["into"] for row in report)
    same(model(images[1][:64]), expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def imagenet():
    model, x = pretrained_efficientnet(), load_photos()
    with torch.no_grad():
        logits = torch.cat([model(batch) for batch in x.split(5)])
    return x, logits


@torch.no_grad()
def agreement(model, x, logits):
    """How often the predicted class is that of the original network, in percent."""
    predicted = torch.cat([model.eval()(batch).argmax(1) for batch in x.split(5)])
    return 100 * float((predicted == logits.argmax(1)).float().mean())


@torch.no_grad()
def test_efficientnet_keeps_its_output_with_bn_and_hn_and_folds_completely(imagenet):
    x, logits = imagenet
    for spec in ("bn", "hn"):
        model = pretrained_efficientnet()
        anynorm.convert(model, spec)
        same(model(x[:16]), logits[:16], rtol=1e-4, atol=1e-4)
        report = anynorm.fold(model, x[:2])
        assert len(report) == 49
        assert all(row["into"] for row in report)
        same(model(x[:16]), logits[:16], rtol=1e-4, atol=1e-4)


def test_efficientnet_fitted_with_ln_predicts_the_original_class_for_most_images(imagenet):
    x, logits = imagenet
    plain, fitted = pretrained_efficientnet(), pretrained_efficientnet()
    anynorm.convert(plain, "ln")
    anynorm.convert(fitted, "ln", fit=x[:64])
    assert agreement(plain, x[64:104], logits[64:104]) < 5
    assert agreement(fitted, x[64:], logits[64:]) > 50


def test_the_blocks_of_efficientnet_are_found():
    report = anynorm.xbn(pretrained_efficientnet(), "gn:8")
    assert [row["path"] for row in report][:3] == ["_blocks.0._bn1", "_blocks.1._bn1", "_blocks.2._bn1"]
    assert len(report) == 16
