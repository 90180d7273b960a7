"""Running statistics are estimated again, exactly, for anynorm and torch norms; a failure changes nothing."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.core.update_rules import Frozen
from tests.distributed import two_processes
from tests.helpers import data, same
from tests.surgery.networks import BatchNormAct2d, X, network, trained

X8 = data(8, 8, 4, 4)
BATCHES = [data(n, 3, 8, 8, mean=0.5, std=2.0) for n in (5, 3, 8)]


def first_norm_input(model):
    return model[0](torch.cat(BATCHES)).detach()


@pytest.mark.parametrize("spec", [None, "bn", "hn:4", "sn", "bgn:4"])
def test_the_pooled_estimator_is_exact_for_unequal_batches(spec):
    model = trained(network())
    if spec:
        anynorm.convert(model, spec)
    anynorm.recalibrate(model, BATCHES)
    seen = first_norm_input(model).transpose(0, 1).flatten(1)
    same(model[1].running_mean, seen.mean(1) if spec != "bgn:4" else seen.reshape(4, -1).mean(1), rtol=1e-4, atol=1e-5)
    parts = {"hn:4": 4, "bgn:4": 4}.get(spec, 16)
    same(model[1].running_var, seen.reshape(parts, -1).var(1), rtol=1e-4, atol=1e-5)


def test_second_moments_are_estimated_exactly_and_their_change_is_reported():
    model: Any = nn.Sequential(nn.Conv2d(3, 16, 3), anynorm.make("0/bn", 16))
    report = anynorm.recalibrate(model, BATCHES)
    seen = first_norm_input(model).transpose(0, 1).flatten(1)
    same(model[1].running_var, seen.square().mean(1), rtol=1e-4, atol=1e-5)
    assert report["1"]["mean_change"] == 0
    assert report["1"]["std_change"] == pytest.approx(float((seen.square().mean(1).sqrt() - 1).abs().mean()), rel=1e-4)


def test_the_change_of_a_mean_without_running_variance_is_absolute():
    model: Any = nn.Sequential(anynorm.make("bn/ln", 3))
    report = anynorm.recalibrate(model, BATCHES)
    mean = torch.cat(BATCHES).mean((0, 2, 3))
    assert report["0"]["mean_change"] == pytest.approx(float(mean.abs().mean()), rel=1e-4)
    assert report["0"]["std_change"] == 0


def test_the_averaged_estimator_gives_batches_equal_weights():
    model = trained(network())
    anynorm.recalibrate(model, BATCHES, estimator="averaged")
    each = [model[0](batch).mean((0, 2, 3)) for batch in BATCHES]
    same(model[1].running_mean, torch.stack(each).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", ["bn", "sn", "gbgn:2,2"])
def test_the_biased_average_is_the_mean_of_the_variances_that_normalize(spec):
    x = torch.randn(12, 8)
    model: Any = nn.Sequential(anynorm.make(spec, 8, batch_size=4))
    anynorm.recalibrate(model, x.split(4), estimator="averaged_biased")
    rows = x.reshape(6, 2, 2, 4).transpose(1, 2).flatten(2) if spec.startswith("gbgn") else x.reshape(3, 4, 8).transpose(1, 2)
    same(model[0].running_var, rows.var(-1, unbiased=False).mean(0), rtol=1e-4, atol=1e-5)
    anynorm.recalibrate(model, x.split(4), estimator="averaged")
    same(model[0].running_var, rows.var(-1).mean(0), rtol=1e-4, atol=1e-5)


def test_only_statistics_change_and_dropout_is_off():
    model: Any = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm2d(3), nn.Dropout(0.5)).train()
    model[2].eval()
    modes = [module.training for module in model.modules()]
    weight = model[1].weight.clone()
    report = anynorm.recalibrate(model, BATCHES)
    same(model[1].running_mean, torch.cat(BATCHES).mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    same(model[1].weight, weight)
    assert [module.training for module in model.modules()] == modes
    assert isinstance(model[1], nn.BatchNorm2d)
    assert "16 samples (pooled)" in report.finding
    report.undo()
    same(model[1].running_mean, torch.zeros(3))
    assert int(model[1].num_batches_tracked) == 0


def test_recalibration_restores_a_network_whose_statistics_were_reset():
    model = trained(network())
    anynorm.recalibrate(model, BATCHES)
    expected = model.eval()(BATCHES[0])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    assert not torch.allclose(model(BATCHES[0]), expected, atol=0.1)
    anynorm.recalibrate(model, BATCHES)
    same(model(BATCHES[0]), expected)


@pytest.mark.parametrize("how", ["raises", "ends early", "is empty"])
def test_a_loader_that_fails_or_ends_early_changes_nothing(how):
    model = trained(network())
    before = copy.deepcopy(model.state_dict())

    def loader():
        if how != "is empty":
            yield BATCHES[0]
        if how == "raises":
            raise OSError("disk")

    error = OSError if how == "raises" else anynorm.AnynormError
    with pytest.raises(error, match=r"disk|loader must have at least [12] batches; got [01]"):
        anynorm.recalibrate(model, loader(), 2 if how == "ends early" else None)
    for key, value in model.state_dict().items():
        same(value, before[key])
    assert all(isinstance(model[k], nn.BatchNorm2d) for k in (1,))


def test_a_custom_forward_can_set_conditions_and_frozen_norms_stay():
    model = trained(network())
    anynorm.convert(model, "sabn@2")
    model[1].update_rule = Frozen()
    frozen_mean = model[1].running_mean.clone()

    def forward(model, batch):
        x, labels = batch
        with anynorm.condition(model, labels):
            model(x)

    loader = [(x, torch.arange(len(x)) % 2) for x in BATCHES]
    report = anynorm.recalibrate(model, loader, forward=forward)
    same(model[1].running_mean, frozen_mean)
    assert "1" not in [row["path"] for row in report]
    with pytest.raises(anynorm.AnynormError, match="needs the class or domain"):
        anynorm.recalibrate(model, loader)


def test_wrong_arguments_are_refused():
    with pytest.raises(anynorm.SurgeryError, match="estimator must be one of pooled averaged averaged_biased; got 'mean'"):
        anynorm.recalibrate(network(), BATCHES, estimator="mean")
    with pytest.raises(anynorm.SurgeryError, match="nothing to recalibrate"):
        anynorm.recalibrate(nn.Sequential(nn.GroupNorm(2, 4)), BATCHES)


class Auxiliary(nn.Module):
    """A network with a head that only training uses."""

    def __init__(self):
        super().__init__()
        self.main, self.aux = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        return (self.main(x), self.aux(x)) if self.training else self.main(x)


def test_norms_that_no_sample_reaches_keep_their_statistics():
    model: Any = trained(Auxiliary())
    before = model.aux.running_mean.clone()
    report = anynorm.recalibrate(model, [X])
    same(model.aux.running_mean, before)
    assert "unchanged: no sample reached it" in report["aux"]["note"]
    assert "1 of 2 norms" in report.finding


def test_domains_without_samples_keep_their_statistics():
    domains: Any = nn.Sequential(anynorm.make("auxbn@3", 3))
    with anynorm.condition(domains, torch.tensor([0, 1, 2, 2])):
        domains(X)
    before = domains[0].running_mean.clone()
    with anynorm.condition(domains, torch.tensor([0, 0, 1, 1])):
        anynorm.recalibrate(domains, [X])
    same(domains[0].running_mean[2], before[2])
    assert not torch.allclose(domains[0].running_mean[0], before[0])


def test_only_the_requested_number_of_batches_is_used():
    model = trained(network())
    report = anynorm.recalibrate(model, iter(BATCHES), 2)
    assert "8 samples (pooled)" in report.finding
    seen = model[0](torch.cat(BATCHES[:2])).detach().transpose(0, 1).flatten(1)
    same(model[1].running_mean, seen.mean(1), rtol=1e-4, atol=1e-5)


def test_a_tensor_is_one_batch():
    x = 3 + 2 * torch.randn(64, 8, 4, 4)
    model = nn.Sequential(nn.BatchNorm2d(8))
    anynorm.recalibrate(model, x)
    torch.testing.assert_close(model[0].running_mean, x.mean((0, 2, 3)))


@pytest.mark.parametrize("weight", [0.25, 0.9])
def test_source_weight_mixes_every_norm_with_the_statistics_of_its_own_inputs(weight):
    model = trained(network())
    norms = {name: module for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    source = {name: (norm.running_mean.clone(), norm.running_var.clone()) for name, norm in norms.items()}
    report = anynorm.recalibrate(model, X, source_weight=weight)
    seen: dict[str, Any] = {}
    for name, norm in norms.items():
        norm.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0].double()}))
    model.eval()(X)
    for name, norm in norms.items():  # as recalibrated, in eval mode: the inputs of later norms depend on the mixture before them
        values = seen[name].transpose(0, 1).flatten(1)
        same(norm.running_mean.double(), weight * source[name][0] + (1 - weight) * values.mean(1), rtol=1e-4, atol=1e-5)
        same(norm.running_var.double(), weight * source[name][1] + (1 - weight) * values.var(1), rtol=1e-4, atol=1e-5)
    assert f"4 samples (pooled, source weight {weight})" in report.finding
    report.undo()
    for name, norm in norms.items():
        same(norm.running_mean, source[name][0], rtol=0, atol=0)
        same(norm.running_var, source[name][1], rtol=0, atol=0)


@pytest.mark.parametrize("spec", ["bn", "hn:4", "bgn:4", "bgn:32", "sn", "brn", "gbgn:4,8", "auxbn@2"])
@pytest.mark.parametrize("estimator", ["pooled", "averaged"])
def test_every_norm_with_running_statistics_mixes_them_linearly(spec, estimator):
    def recalibrated(source_weight):
        model = trained_with(spec)
        with anynorm.condition(model, 1, strict=False):
            anynorm.recalibrate(model, [X8, X8 + 1], estimator=estimator, source_weight=source_weight)
        return {name: value.double() for name, value in model.state_dict().items() if "running" in name}

    target, mixed, source = recalibrated(0.0), recalibrated(0.25), recalibrated(1.0)
    assert any((target[name] - source[name]).abs().max() > 0.1 for name in source)
    for name in source:
        same(mixed[name], 0.25 * source[name] + 0.75 * target[name], rtol=1e-5, atol=1e-6)
    for name, value in trained_with(spec).state_dict().items():
        if "running" in name:
            same(source[name], value.double(), rtol=0, atol=0)


def test_every_batch_is_normalized_by_its_own_mixture_with_the_source():
    model: Any = nn.Sequential(nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8, affine=False))
    batches = [X8, 3 * X8 - 2]
    anynorm.recalibrate(model, batches, source_weight=0.5)

    def after_first(x):
        mean, var = (statistic((0, 2, 3), keepdim=True) for statistic in (x.double().mean, x.double().var))
        return (x - 0.5 * mean) / (0.5 + 0.5 * var + 1e-5).sqrt()

    values = torch.cat([after_first(x) for x in batches]).transpose(0, 1).flatten(1)
    same(model[1].running_mean.double(), 0.5 * values.mean(1), rtol=1e-5, atol=1e-6)
    same(model[1].running_var.double(), 0.5 + 0.5 * values.var(1), rtol=1e-5, atol=1e-6)


def test_conditions_that_a_forward_sets_reach_norms_whose_statistics_are_mixed():
    def forward(model, x):
        with anynorm.condition(model, 1):
            model(x)

    model = trained_with("auxbn@2")
    before = model[0].running_mean.clone()
    anynorm.recalibrate(model, X8, source_weight=0.5, forward=forward)
    same(model[0].running_mean[0], before[0], rtol=0, atol=0)
    same(model[0].running_mean[1], 0.5 * before[1] + 0.5 * X8.mean((0, 2, 3)))


def trained_with(spec):
    """One norm with statistics of other data than X."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(anynorm.make(spec, 8))
    with anynorm.condition(model, torch.arange(8) % 2, strict=False):
        for _ in range(4):
            model(data(8, 8, 4, 4, mean=3.0, std=0.5))
    return model


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan")])
def test_a_source_weight_outside_0_and_1_is_refused(weight):
    with pytest.raises(
        anynorm.SurgeryError, match=rf"source_weight must be in \[0, 1\]; got {weight}. It is the weight of the curr"
    ):
        anynorm.recalibrate(network(), BATCHES, source_weight=weight)


def test_a_loader_that_fails_while_statistics_are_mixed_changes_nothing():
    model = trained(network()).train()
    before = copy.deepcopy(model.state_dict())

    def loader():
        yield X
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        anynorm.recalibrate(model, loader(), source_weight=0.5)
    assert all(isinstance(module, nn.BatchNorm2d) for module in (model[1], model[3].bn1))
    assert all(module.training for module in model.modules())
    for key, value in model.state_dict().items():
        same(value, before[key], rtol=0, atol=0)


def test_the_activation_inside_a_norm_is_applied_once_while_statistics_are_mixed():
    calls = []
    model: Any = nn.Sequential(BatchNormAct2d(3))
    model[0].act = nn.LeakyReLU(0.5)
    model[0].act.register_forward_hook(lambda *_: calls.append(1))
    model[0].register_forward_hook(lambda *_: calls.append(2))
    anynorm.recalibrate(model, [X], source_weight=0.5)
    assert calls[-2:] == [1, 2]
    assert calls.count(2) == 1


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_two_processes_recalibrate_as_one_with_all_samples(weight, tmp_path):
    x = data(16, 3, 5, 5, mean=2.0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), anynorm.make("sn", 4))
    expected = copy.deepcopy(model)
    anynorm.recalibrate(expected, [x], source_weight=weight)
    two_processes(partial(recalibrate_half, model, x, weight, expected.state_dict()), tmp_path)


def recalibrate_half(model, x, weight, expected, rank):
    model = copy.deepcopy(model)  # tensors that are passed to a process share memory
    anynorm.recalibrate(model, [x[8 * rank : 8 * rank + 8]], source_weight=weight)
    for name, value in model.state_dict().items():
        same(value, expected[name], rtol=1e-4, atol=1e-5)
