"""Operations on a norm with an activation keep the activation."""

from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.core.activation import Activation
from anynorm.surgery.freeze import freeze
from tests.helpers import data, make, same
from tests.surgery.networks import relative

X = data(4, 3, 8, 8)


def stem(spec: str, **options) -> Any:
    """A convolution, and a norm with silu whose statistics and affine are not the initial ones."""
    norm = make(spec, activation="silu", **options)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), norm)
    torch.manual_seed(0)
    for _ in range(3):
        with anynorm.condition(model, torch.arange(4) % 3, strict=False):
            model(X)
    return model


@pytest.mark.parametrize("spec", ["bn", "hn:4", "brn"])
def test_a_converted_norm_keeps_its_activation(spec):
    model = stem("bn").eval()
    expected = model(X)
    anynorm.convert(model, spec)
    assert model[1].activation == Activation("silu")
    same(model(X), expected, rtol=1e-4, atol=1e-5)


def test_an_activation_among_the_options_replaces_that_of_the_norm():
    model = stem("bn")
    anynorm.convert(model, "gn:4", activation="relu")
    assert model[1].activation == Activation("relu")


def test_a_norm_is_fitted_to_inputs_behind_the_activation_of_the_norm_before_it():
    model = nn.Sequential(*stem("bn"), nn.Conv2d(16, 16, 3), anynorm.make("bn", 16)).eval()
    expected = model(X)
    anynorm.convert(model, "ln", fit=X)
    assert model[1].activation == Activation("silu")
    assert relative(model(X), expected) < 0.3  # 0.66 if the activation is missing during the fit


def test_a_folded_norm_applies_its_activation_and_then_its_post_modules():
    model = stem("bn").eval()
    model[1].act, model[1].post_modules = nn.Softplus(), ("act",)
    expected = model(X)
    report = anynorm.fold(model, X)
    assert report["1"]["into"] == "0"
    same(model(X), expected, rtol=1e-4, atol=1e-5)


def test_a_folded_norm_takes_the_residual_and_the_activation_of_a_call():
    model = stem("bn").eval()
    model[1].activation = None
    h = model[0](X)
    residual = torch.randn_like(h)
    expected = model[1](h, residual=residual, activation=Activation("relu"))
    anynorm.fold(model, X)
    same(model[1](model[0](X), residual=residual, activation=Activation("relu")), expected, rtol=1e-4, atol=1e-5)


def test_a_norm_with_an_activation_is_not_folded_into_the_layer_after_it():
    model = nn.Sequential(anynorm.make("bn", 3, activation="relu"), nn.Conv2d(3, 4, 1)).eval()
    assert anynorm.fold(model, X)["0"]["note"] == "not folded: it applies an activation before the layer after it"


def test_merged_and_hardened_norms_keep_their_activation():
    sandwich, mixed = stem("sabn@3"), stem("sn")
    assert sandwich[1].merge().activation == Activation("silu")
    anynorm.merge(sandwich)
    anynorm.harden(mixed)
    assert sandwich[1].activation == mixed[1].activation == Activation("silu")
    assert sandwich[1].spec == "bn.cc@3"


def test_a_norm_with_an_activation_keeps_it_when_it_is_frozen_or_recalibrated():
    model = stem("bn")
    freeze(model)
    anynorm.unfreeze(model)
    anynorm.recalibrate(model, [X])
    assert model[1].activation == Activation("silu")


def test_post_modules_are_those_of_the_layer_and_not_every_child_of_that_name():
    norm = anynorm.make("bn", 4)
    norm.act = nn.ReLU()
    assert anynorm.read_norm(norm).post_modules == {}
