"""Fluctuation of batch statistics: recorded series, batches at fixed parameters, and errors."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anynorm
from anynorm.diagnostics import batch_fluctuation, fluctuation
from tests.helpers import data, same
from tests.surgery.networks import network, trained


def hooks(model):
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


def test_series_are_the_means_and_standard_deviations_of_the_last_batches():
    model = nn.Sequential(nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1), nn.GroupNorm(2, 4))
    batches = [data(5, 6, 3, 3, seed=seed) for seed in range(7)]
    with fluctuation(model, last=4) as recorder:
        for x in batches:
            model(x)
    assert hooks(model) == 0
    report, series = recorder.report(), recorder.series("0")
    for k, x in enumerate(batches[3:]):
        same(series["bn_mean"][k], x.double().mean((0, 2, 3)))
        same(series["bn_std"][k], x.double().std((0, 2, 3), correction=0))
        same(series["en_mean"][k], x.double().mean().reshape(1))
        same(series["en_std"][k], x.double().std(correction=0).reshape(1))
    expected = torch.stack([x.double().mean((0, 2, 3)) for x in batches[3:]]).std(0).mean()
    assert report["0"]["bn_mean"] == pytest.approx(float(expected))
    assert [row["norm"] for row in report] == ["BatchNorm2d", "GroupNorm"]
    assert report["2"]["steps"] == 4


def test_eval_passes_and_recomputations_are_not_counted_as_steps():
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with fluctuation(inner, last=9) as recorder:
        x = data(8, 4).requires_grad_()
        checkpoint(inner, x, use_reentrant=False).sum().backward()
        inner.eval()(x)
    assert len(recorder.series("1")["bn_mean"]) == 1


def test_a_recorder_without_steps_raises_and_other_cuts_can_be_chosen():
    model = nn.Sequential(nn.BatchNorm1d(8)).eval()
    with fluctuation(model) as recorder:
        model(data(4, 8))
    with pytest.raises(anynorm.DiagnosticError, match="No norm ran twice in train mode"):
        recorder.report()
    with fluctuation(model.train(), cuts=["en:2"]) as recorder:
        model(data(4, 8))
    assert recorder.series("0")["en:2_std"].shape == (1, 2)
    with pytest.raises(anynorm.DiagnosticError, match="No norm at '7'"):
        recorder.series("7")
    for cuts, message in ((["ln"], "got ln"), (["sn"], "got sn")):
        with pytest.raises(anynorm.DiagnosticError, match=message), fluctuation(model, cuts=cuts):
            pass
    with pytest.raises(anynorm.DiagnosticError, match="last=1"), fluctuation(model, last=1):
        pass
    for batches, message in (
        ([], "it yielded 0"),
        ([data(4, 8)], "it yielded 1"),
        ([data(4, 8) * float("nan")] * 2, "input of '0' has NaN"),
    ):
        with pytest.raises(anynorm.DiagnosticError, match=message):
            batch_fluctuation(model, batches)


def test_buffers_that_a_model_reassigns_are_restored():
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.average: torch.Tensor
            self.register_buffer("average", torch.zeros(4))

        def forward(self, x):
            self.average = 0.9 * self.average + x.mean(0)
            return self.norm(x)

    model = Averaging()
    before = model.average
    batch_fluctuation(model, [data(8, 4), data(8, 4)])
    assert model.average is before


def test_smaller_batches_fluctuate_more_and_the_model_is_unchanged():
    model = trained(network()).eval()
    state = copy.deepcopy(model.state_dict())
    rng_state = torch.random.get_rng_state()
    x = data(240, 3, 8, 8)
    small, large = (batch_fluctuation(model, x.split(size)) for size in (4, 40))
    assert small["1"]["bn_std"] > 2 * large["1"]["bn_std"]
    assert "fixed parameters" in small.finding
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), rng_state)
