"""`pool_statistics` gives the statistics of the union of the data of all models."""

import copy

import pytest
import torch
from torch import nn

import anynorm
from anynorm.core.update_rules import Pooled
from tests.helpers import data, make, same

SIZES = (3, 10, 5)


def clients(norm, condition=None):
    """Copies of a norm with the statistics of data of their own, and these data, in float64."""
    models, parts = [], [data(n, 16, 4, 4, seed=n, mean=n, dtype=torch.float64) for n in SIZES]
    for x in parts:
        model = nn.Sequential(copy.deepcopy(norm).double())
        model[0].momentum = 1.0  # type: ignore[assignment]
        model[0](x, condition(x)) if condition else model(x)
        models.append(model)
    return models, parts


def counts(scale=16):
    return [scale * n for n in SIZES]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(16), anynorm.make("bn", 16)], ids=["torch", "anynorm"])
def test_means_and_variances_are_those_of_the_concatenated_data(norm):
    models, parts = clients(norm)
    pooled = anynorm.pool_statistics(models, counts())
    whole = torch.cat(parts)
    same(pooled["0.running_mean"], whole.mean((0, 2, 3)))
    same(pooled["0.running_var"], whole.var((0, 2, 3)))
    assert pooled["0.num_batches_tracked"] == 3
    target = copy.deepcopy(models[0])
    target.load_state_dict(pooled, strict=False)
    same(target[0].running_var, whole.var((0, 2, 3)))


@pytest.mark.parametrize("spec", ["en:4", "hn:4", "sn", "ln+bn", "bgn:2", "bgn:32", "[1,2,2]", "brn", "bn/bn+en"])
def test_every_cut_is_pooled_exactly(spec):
    models, parts = clients(make(spec))
    whole = make(spec, momentum=1.0).double()
    whole(torch.cat(parts))
    pooled = anynorm.pool_statistics(models, counts())
    for name in (name for name in whole.state_dict() if name.startswith("running_")):
        same(pooled[f"0.{name}"], whole.state_dict()[name])


def test_domains_are_pooled_over_the_models_that_have_seen_them():
    norm = make("auxbn@3")
    models, parts = clients(norm, lambda x: torch.full((len(x),), int(len(x) == 10)))
    pooled = anynorm.pool_statistics(models, counts())
    same(pooled["0.running_var"][0], torch.cat([parts[0], parts[2]]).var((0, 2, 3)))
    same(pooled["0.running_var"][1], parts[1].var((0, 2, 3)))
    same(pooled["0.running_mean"][2], torch.zeros(16, dtype=torch.float64))
    same(pooled["0.running_var"][2], torch.ones(16, dtype=torch.float64))
    assert pooled["0.num_batches_tracked"].tolist() == [2, 1, 0]


def test_weights_that_are_fractions_give_the_variance_of_the_mixture():
    models, _ = clients(nn.BatchNorm2d(16))
    pooled = anynorm.pool_statistics(models[:2], torch.tensor([0.25, 0.75], dtype=torch.float64))  # type: ignore[arg-type]
    means, variances = (
        torch.stack([getattr(model[0], name) for model in models[:2]]) for name in ("running_mean", "running_var")
    )
    same(pooled["0.running_mean"], 0.25 * means[0] + 0.75 * means[1])
    between = 0.25 * 0.75 * (means[0] - means[1]).square()
    same(pooled["0.running_var"], 0.25 * variances[0] + 0.75 * variances[1] + between)


def test_a_model_with_weight_0_is_left_out_even_if_it_is_not_finite():
    models, parts = clients(nn.BatchNorm2d(16))
    models[1][0].running_mean.fill_(float("nan"))
    pooled = anynorm.pool_statistics(models, [48, 0, 80])
    same(pooled["0.running_var"], torch.cat([parts[0], parts[2]]).var((0, 2, 3)))


def test_the_result_is_written_into_a_target_and_the_models_are_unchanged():
    models, parts = clients(make("hn:4", update_rule=Pooled()))
    before = copy.deepcopy(models)
    target = nn.Sequential(make("hn:4"))
    anynorm.pool_statistics(models, counts(), target)
    same(target[0].running_mean, torch.cat(parts).mean((0, 2, 3)).float())
    for model, old in zip(models, before, strict=True):
        for key, value in old.state_dict().items():
            assert torch.equal(model.state_dict()[key], value)


def test_a_shared_norm_has_an_entry_for_each_of_its_paths():
    norm = nn.BatchNorm1d(4)
    assert set(anynorm.pool_statistics([nn.Sequential(norm, norm)], [1])) == set(nn.Sequential(norm, norm).state_dict()) - {
        "0.weight", "0.bias", "1.weight", "1.bias"
    }  # fmt: skip


BN = nn.Sequential(nn.BatchNorm1d(4))
ERRORS = [
    (BN, [1], "models must be a list of models; got one Sequential"),
    ([BN], 1.0, r"weights must be a list with one number per model; got 1\.0"),
    ([BN], None, "one number per model; got None"),
    ([], [], "models must hold at least one model; got none"),
    ([BN, BN], [1], "weights must have one number per model, 2; got 1"),
    ([BN, BN], [1, -1], r"weights must be finite numbers of at least 0; got -1 for models\[1\]"),
    ([BN, BN], [float("nan"), 1], r"at least 0; got nan for models\[0\]"),
    ([BN, BN], [float("inf"), 1], r"at least 0; got inf for models\[0\]"),
    ([BN, BN], ["3", 1], r"at least 0; got '3' for models\[0\]"),
    ([BN, BN], [0, 0], r"One of the weights must be positive; got \[0, 0\]"),
    ([BN, 3], [1, 1], r"models\[1\] must be an nn.Module; got a int"),
    ([BN, nn.Sequential(nn.Linear(2, 2))], [1, 1], r"models\[1\] \(Sequential\) has no norm with running statistics to pool"),
    (
        [BN, nn.Sequential(nn.BatchNorm1d(5))],
        [1, 1],
        r"same norms with running statistics; models\[1\] has '0' \(bn, \(5,\) \(5,\)\) where models\[0\] has '0' \(bn, \(4,\)",
    ),
    ([BN, nn.Sequential(anynorm.make("hn:2", 4))], [1, 1], r"models\[1\] has '0' \(hn:2, .* where models\[0\] has '0' \(bn,"),
    ([BN, nn.Sequential(*BN, nn.BatchNorm1d(4))], [1, 1], r"models\[1\] has '1' \(bn, .*\) where models\[0\] has no norm"),
    ([BN, nn.Sequential(*BN, *BN)], [1, 1], r"models\[1\] has '0' = '1' \(bn, .*\) where models\[0\] has '0' \(bn"),
    (
        [nn.Sequential(anynorm.make("in/en", 4))],
        [1],
        r"'0' \(in/en\) tracks variances of en without means .* update_rule=anynorm.Pooled\(\)",
    ),
    ([nn.Sequential(anynorm.make("modenorm:2", 4))], [1], "fractional weights, so the number of values of a mode is unknown"),
]


@pytest.mark.parametrize(("models", "weights", "message"), ERRORS)
def test_models_and_weights_that_do_not_fit_raise(models, weights, message):
    with pytest.raises(anynorm.SurgeryError, match=message):
        anynorm.pool_statistics(models, weights)


def test_statistics_that_are_not_finite_raise():
    broken = copy.deepcopy(BN)
    broken[0].running_var.fill_(float("inf"))  # type: ignore[operator]
    with pytest.raises(anynorm.SurgeryError, match=r"those of '0' of models\[1\] are not. Give this model the weight 0"):
        anynorm.pool_statistics([BN, broken], [1, 1])
    with pytest.raises(anynorm.SurgeryError, match=r"target has '0' \(bn, \(3,\) \(3,\)\) where models\[0\]"):
        anynorm.pool_statistics([BN], [1], nn.Sequential(nn.BatchNorm1d(3)))
