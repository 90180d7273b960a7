"""A new norm gets what it can use of the old one: affine, running statistics, classes."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import data, same
from tests.surgery.networks import X, network, trained


@pytest.mark.parametrize("spec", ["en", "en:4", "hn:4", "bgn:4", "bgn:8", "gbgn:2,4"])
def test_running_statistics_of_coarser_cuts_are_pooled_from_the_channels(spec):
    model: Any = nn.Sequential(nn.BatchNorm2d(8))
    x = data(16, 8, 6, 6) * torch.linspace(0.5, 3, 8)[:, None, None] + torch.linspace(-2, 2, 8)[:, None, None]
    model[0].momentum = 1.0
    model(x)
    report = anynorm.convert(model, spec)
    assert "running statistics" in report["0"]["transferred"]
    fresh = anynorm.make(spec.replace("gbgn:2,4", "en:4"), 8, momentum=1.0)
    fresh(x)
    same(model[0].running_var, fresh.running_var, rtol=0.02, atol=0.0)  # Bessel's correction is that of one channel
    same(model[0].running_mean, fresh.running_mean)


def test_running_statistics_of_each_domain_are_pooled_too():
    model: Any = nn.Sequential(anynorm.make("bn.dom@2", 8, momentum=1.0))
    x, domains = data(16, 8, 6, 6), torch.arange(16) % 2
    with anynorm.condition(model, domains):
        model(x)
    report = anynorm.convert(model, "en:4.dom@2")
    assert "running statistics" in report["0"]["transferred"]
    fresh = anynorm.make("en:4.dom@2", 8, momentum=1.0)
    fresh(x, domains)
    same(model[0].running_mean, fresh.running_mean)
    same(model[0].running_var, fresh.running_var, rtol=0.02, atol=0.0)  # Bessel's correction is that of one channel


@pytest.mark.parametrize("spec", ["hn", "hn:4", "en:8", "bgn:4", "bgn:16", "gbgn:2,4", "0/bn", "0/en:4"])
def test_norms_with_running_statistics_replace_bn_without_changing_inference(spec):
    model = trained(network()).eval()
    with torch.no_grad():
        model[1].weight[3] = 0.0
    expected = model(X)
    report = anynorm.convert(model, spec, groups="nearest")
    assert "γ, β rescaled" in report["1"]["transferred"] or spec == "bgn:16"
    same(model(X), expected, rtol=1e-4, atol=1e-4)


def test_norms_with_statistics_per_domain_replace_bn_without_changing_inference():
    model = trained(network()).eval()
    expected = model(X)
    report = anynorm.convert(model, "hn:4.dom@2")
    assert report["1"]["transferred"] == ["γ, β rescaled", "running statistics"]
    with anynorm.condition(model, torch.tensor([0, 1, 1, 0])):
        same(model(X), expected, rtol=1e-4, atol=1e-4)


def test_second_moments_are_the_variance_plus_the_squared_mean():
    model: Any = trained(network())
    mean, var = model[1].running_mean.clone(), model[1].running_var.clone()
    copies = [copy.deepcopy(model) for _ in range(2)]
    anynorm.convert(copies[0], "0/bn")
    same(copies[0][1].running_var, var + mean.square())
    anynorm.convert(copies[1], "0/en:4")
    same(copies[1][1].running_var, (var + mean.square()).reshape(4, -1).mean(1))
    anynorm.convert(copies[0], "0/en:4")
    same(copies[0][1].running_var, copies[1][1].running_var)
    assert copies[0][1].running_mean is None


@pytest.mark.parametrize(("old", "new"), [("0/bn", "bn"), ("0/en:4", "hn:4"), ("hn:4", "0/en:4")])
def test_statistics_are_not_transferred_if_a_mean_is_unknown(old, new):
    model: Any = nn.Sequential(anynorm.make(old, 8))
    model(data(4, 8, 3, 3))
    report = anynorm.convert(model, new)
    assert report["0"]["not_transferred"] == ["running statistics (recalibrate)"]
    same(model[0].running_var, torch.ones_like(model[0].running_var))


def test_a_norm_without_shift_gets_the_scale_and_the_report_says_so():
    model: Any = trained(network())
    weight = model[1].weight.clone()
    report = anynorm.convert(model, "rms")
    assert report["1"]["transferred"] == ["γ"]
    assert report["1"]["not_transferred"] == ["β", "running statistics"]
    same(model[1].weight, weight)
    assert model[1].bias is None
    report = anynorm.convert(model, "gn:4", where="all")
    assert report["1"]["transferred"] == ["γ, β"]
    same((model[1].weight, model[1].bias), (weight, torch.zeros_like(weight)))


def test_a_norm_whose_style_comes_with_each_input_gets_the_affine_as_it_is():
    model = trained(network())
    weight = model[1].weight.clone()
    report = anynorm.convert(model, "hn:4.sastyle")
    assert report["1"]["transferred"] == ["γ, β", "running statistics"]
    same(model[1].weight, weight)


def test_conditional_norms_take_their_number_of_classes_and_keep_the_output():
    model = trained(network()).eval()
    expected = model(X)
    for spec, count in (("ccbn", "num_classes"), ("sabn", "num_classes"), ("auxbn", "num_domains"), ("saauxbn", "num_domains")):
        changed = copy.deepcopy(model)
        options: dict[str, Any] = {count: 3}
        report = anynorm.convert(changed, spec, **options)
        assert report["1"]["new_norm"] == f"{spec}@3"
        with anynorm.condition(changed, torch.tensor([0, 1, 2, 0])):
            same(changed(X), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", ["bn", "gn:4", "hn", "sn", "modenorm:2", "brn", "[*,24]", "rms", "0/bn"])
def test_a_norm_without_affine_is_replaced_by_one_without(spec):
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8))
    report = anynorm.convert(model, spec)
    assert report["1"]["transferred"][0] == "affine=False"
    assert not model[1].affine
    assert model[2].affine
    assert model[1].spec == f"{spec}.none"


def test_a_norm_without_affine_gets_the_affine_of_classes_that_its_spec_has():
    for spec in ("ccbn@3", "sabn@3", "saauxbn@3", "gn:4.cc@3"):
        model: Any = nn.Sequential(nn.BatchNorm2d(8, affine=False))
        anynorm.convert(model, spec)
        assert model[0].class_weight is not None, spec


def test_affine_true_gives_a_norm_without_affine_a_new_one_that_is_rescaled_and_trained():
    model: Any = trained(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False))).eval()
    expected = model(X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = anynorm.convert(model, "hn", optimizer=optimizer, affine=True)
    assert report["1"]["transferred"][0] == "new γ, β rescaled"
    same(model(X), expected, rtol=1e-4, atol=1e-4)
    assert any(model[1].weight is p for p in optimizer.param_groups[0]["params"])


def test_running_statistics_that_cannot_be_transferred_are_named_with_what_to_do():
    def not_transferred(module, spec):
        return anynorm.convert(nn.Sequential(module), spec, where="all")["0"]["not_transferred"]

    assert not_transferred(nn.BatchNorm2d(8), "gn:4") == ["running statistics"]
    assert not_transferred(anynorm.make("en:4", 8), "bn") == ["running statistics (recalibrate)"]
    assert not_transferred(nn.GroupNorm(4, 8), "bn") == ["running statistics (the old norm has none: recalibrate)"]
    assert not_transferred(anynorm.make("sn", 8), "bn") == ["λ"]
    assert not_transferred(nn.BatchNorm2d(8), "bn.none") == ["γ, β"]


def test_running_statistics_of_the_same_cut_are_preferred_to_those_pooled_from_a_finer_one():
    model: Any = nn.Sequential(anynorm.make("bn/bn+en", 8))
    model(data(4, 8, 2, 2))
    exact = model[0].running_var_2.clone()
    anynorm.convert(model, "hn:1")
    assert torch.equal(model[0].running_var, exact)


@pytest.mark.parametrize(("old", "new"), [("sabn@3", "ccbn@3"), ("bn.nobias", "bn")])
def test_an_affine_that_is_computed_from_a_trained_one_is_trained_too(old, new):
    model: Any = nn.Sequential(anynorm.make(old, 8))
    anynorm.convert(model, new, "all")
    assert all(parameter.requires_grad for parameter in model.parameters())
    for parameter in (model := nn.Sequential(anynorm.make(old, 8))).parameters():
        parameter.requires_grad_(False)
    anynorm.convert(model, new, "all")
    assert not any(parameter.requires_grad for parameter in model.parameters())
