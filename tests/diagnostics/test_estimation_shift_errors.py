"""What estimation_shift refuses, and that a failure leaves the model unchanged."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.diagnostics import estimation_shift
from tests.helpers import data
from tests.surgery.networks import network, trained

X = data(48, 3, 8, 8, mean=0.7, std=2.0)


class Stop(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "at least one batch with a sample"),
        ([torch.zeros(0, 3, 8, 8)], "at least one batch with a sample"),
        ([object()], "without a tensor"),
        ([{}], "without a tensor"),
        (
            [X.clone().fill_(float("nan"))],
            r"'1' in batch 0 are NaN or infinite\. It is the first norm that runs\. The batch itself",
        ),
    ],
)
def test_unusable_data_raises_and_leaves_the_model_unchanged(batches, message):
    model = trained(network())
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(anynorm.DiagnosticError, match=message):
        estimation_shift(model, batches)
    assert model.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_first_norm_with_nan_input_is_named():
    model = trained(network())
    with pytest.raises(anynorm.DiagnosticError, match=r"'3\.bn2' in batch 1.* The input of '3\.bn1' before it was finite\.$"):
        estimation_shift(model, Poisoned(model))


class Poisoned:
    """Yields a good batch, and sets a weight to NaN before the next."""

    def __init__(self, model):
        self.weight = model[3].conv2.weight.data

    def __iter__(self):
        yield X[:4]
        self.weight[0, 0, 0, 0] = float("nan")
        yield X[:4]


def test_an_interrupted_forward_leaves_no_hooks_modes_or_statistics():
    model = trained(network())
    state = copy.deepcopy(model.state_dict())
    calls = []

    def forward(model, batch):
        calls.append(batch)
        if len(calls) == 4:  # inside an ablation, with corrected statistics
            raise Stop
        return model(batch)

    with pytest.raises(Stop):
        estimation_shift(model, [X], forward=forward)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(module.training for module in model.modules())


def test_models_that_cannot_be_diagnosed_raise_with_the_reason():
    model: Any
    for model, message in (
        (nn.Linear(2, 2), "has no norm among its modules"),
        (
            nn.Sequential(nn.GroupNorm(2, 4), anynorm.make("ln", 4)),
            r"None of the 2 norms has running statistics \(GroupNorm, ln\)",
        ),
        (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), "has running statistics"),
        ("no model", "must be an nn.Module; got a str"),
    ):
        with pytest.raises(anynorm.DiagnosticError, match=message):
            estimation_shift(model, [data(4, 4)])
    with pytest.raises(anynorm.SurgeryError, match="matches no norm"):
        estimation_shift(nn.Sequential(nn.BatchNorm1d(4)), [data(4, 4)], where="layer9.*")

    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return x

    with pytest.raises(anynorm.DiagnosticError, match="No batch reached any of the 1 norms"):
        estimation_shift(Aside(), [data(4, 4)])
    scripted = torch.jit.script(nn.Sequential(nn.BatchNorm1d(4)))
    with pytest.raises(anynorm.DiagnosticError, match="before scripting"):
        estimation_shift(scripted, [data(4, 4)])


def test_running_statistics_that_are_not_finite_are_named():
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].running_var[0] = float("nan")
    with pytest.raises(anynorm.DiagnosticError, match=r"1 of 4 running statistics of '1' \(BatchNorm1d\) are NaN"):
        estimation_shift(model, data(8, 4))


def test_loaders_that_are_not_iterable_and_meta_models_raise():
    nothing: Any = None
    with pytest.raises(anynorm.DiagnosticError, match="must be a tensor or an iterable of batches; got a NoneType"):
        estimation_shift(nn.Sequential(nn.BatchNorm1d(4)), nothing)
    with torch.device("meta"):
        empty = nn.Sequential(nn.BatchNorm1d(4))
    with pytest.raises(anynorm.DiagnosticError, match=r"'0\.weight' is on the meta device"):
        estimation_shift(empty, data(4, 4))


def test_loaders_and_models_that_overwrite_batches_do_not_distort_ablations():
    model: Any = nn.Sequential(nn.BatchNorm1d(4)).eval()
    buffer = torch.empty(64, 4)

    def loader():
        for seed in range(3):
            yield buffer.copy_(5 + data(64, 4, seed=seed))

    def forward(net, x):
        y = net(x)
        x.zero_()
        return y

    assert estimation_shift(model, loader(), forward=forward)["0"]["shift_removed"] > 0.9


def test_a_graph_that_waits_for_its_backward_pass_stays_valid():
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    loss = model(data(8, 4)).sum()
    estimation_shift(model, data(32, 4))
    loss.backward()
