"""Estimation shift is Definition 2 of the XBN paper, accumulated over batches."""

import copy
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anynorm
from anynorm.diagnostics import estimation_shift
from tests.helpers import ROWS, condition_for, data, make
from tests.surgery.networks import network, trained

X = data(48, 3, 8, 8, mean=0.7, std=2.0)


def naive_esm(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Definition 2 with numpy in double: inputs of every BatchNorm recorded by a wrapper instead of a hook."""
    inputs: dict[str, Any] = {}
    model = copy.deepcopy(model).double().eval()
    for path, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            original = module.forward

            def forward(y, path=path, original=original):
                inputs[path] = y.detach().numpy()
                return original(y)

            module.forward = forward  # type: ignore[method-assign]
    with torch.no_grad():
        model(x.double())
    expected = {}
    for path, y in inputs.items():
        norm: Any = model.get_submodule(path)
        mean, std = y.mean((0, 2, 3)), y.std((0, 2, 3), ddof=1)
        mu, sigma = norm.running_mean.numpy(), np.sqrt(norm.running_var.numpy())
        sizes = [float(np.linalg.norm(values)) for values in (mu - mean, sigma - std, mean, std)]
        errors = [np.sqrt(np.mean(values**2)) for values in ((mu - mean) / std, np.log(sigma / std))]
        expected[path] = (*sizes, float(max(errors)))
    return expected


def test_esm_equals_a_naive_float64_reference_for_any_split_into_batches():
    model = trained(network())
    expected = naive_esm(model, X)
    for sizes in ([48], [16, 16, 16], [1, 30, 17]):
        report = estimation_shift(model, X.split(sizes), trial_samples=0)
        assert [row["path"] for row in report] == list(
            expected
        )  # execution order: the shortcut's norm comes after those of the branch
        for row in report:
            mean, std, mean_size, std_size, shift = expected[row["path"]]
            assert row["esm_mean"] == pytest.approx(mean, rel=1e-4, abs=1e-6)
            assert row["esm_std"] == pytest.approx(std, rel=1e-4, abs=1e-6)
            assert row["relative_mean"] == pytest.approx(mean / mean_size, rel=1e-4, abs=1e-6)
            assert row["relative_std"] == pytest.approx(std / std_size, rel=1e-4, abs=1e-6)
            assert row["shift"] == pytest.approx(shift, rel=1e-3, abs=1e-6)  # the shift includes eps


def test_anynorm_and_torch_norms_have_the_same_shift():
    model = trained(network())
    report = estimation_shift(model, [X])
    anynorm.convert(model, "bn")
    converted = estimation_shift(model, [X])
    for ours, torchs in zip(converted, report, strict=True):
        assert ours["norm"] == "bn"
        assert torchs["norm"] == "BatchNorm2d"
        for column in ("esm_mean", "esm_std", "shift", "output_error", "shift_removed"):
            assert ours[column] == pytest.approx(torchs[column], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("spec", [spec for spec in ROWS if make(spec).pools_samples])
def test_a_norm_with_the_statistics_of_its_input_has_no_shift(spec):
    norm = make(spec, momentum=1.0)
    x = data(8, 16, 4, 4, mean=1.0, std=3.0)
    condition = condition_for(norm, x)
    norm.set_condition(condition)
    norm(x)
    model = nn.Sequential(norm)
    before = estimation_shift(model, [x])
    norm.running_mean.add_(1.0) if norm.running_mean is not None else norm.running_var.mul_(4.0)
    after = estimation_shift(model, [x])
    if "gbgn" in spec:  # running statistics are means over ghost batches, the shift is against all values together
        assert before["0"]["shift"] < 0.2
    else:
        assert before["0"]["shift"] < 1e-5
    assert after["0"]["shift"] > 0.1


def test_a_domain_without_samples_does_not_count():
    norm = anynorm.make("auxbn@2", 4, momentum=1.0)
    x = data(64, 4)
    norm(x, 0)
    model = nn.Sequential(norm)
    with anynorm.condition(model, 0):
        assert estimation_shift(model, [x])["0"]["shift"] < 1e-5


def test_output_error_equals_that_of_correcting_one_norm_by_hand_and_the_model_is_unchanged():
    model = trained(network())
    state = copy.deepcopy(model.state_dict())
    report = estimation_shift(model, [X])
    twin = copy.deepcopy(model).eval()
    inputs = []
    twin[3].bn1.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    with torch.no_grad():
        before = twin(X)
        twin[3].bn1.running_mean.copy_(inputs[0].mean((0, 2, 3)))
        twin[3].bn1.running_var.copy_(inputs[0].var((0, 2, 3)))
        after = twin(X)
    expected = float((after - before).norm() / before.norm())
    assert report["3.bn1"]["output_error"] == pytest.approx(expected, rel=1e-3)
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_channel_of_small_scale_is_not_hidden_by_one_of_large_scale():
    model: Any = nn.Sequential(nn.BatchNorm1d(2)).eval()
    x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([100.0, 0.01])
    model[0].running_var.copy_(torch.tensor([1e4, 1e-4]))
    model[0].running_mean[1] = 0.4
    report = estimation_shift(model, x)
    assert report["0"]["shift"] == pytest.approx(40 / 2**0.5, rel=0.05)
    assert "at fault" in report.finding


@pytest.mark.parametrize("var", [1e-4, 1e4])
def test_a_standard_deviation_too_small_counts_as_much_as_one_too_large(var):
    model: Any = nn.Sequential(nn.BatchNorm1d(4, eps=0.0)).eval()
    model[0].running_var.fill_(var)
    x = torch.randn(4000, 4, generator=torch.Generator().manual_seed(0))
    assert estimation_shift(model, x)["0"]["shift"] == pytest.approx(4.6, rel=0.02)  # ln 100


def test_channels_without_variance_are_left_out_of_the_shift():
    model: Any = nn.Sequential(nn.BatchNorm1d(3)).eval()
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    x[:, 1] = 7.0
    report = estimation_shift(model, x)
    assert report["0"]["shift"] < 0.1
    assert json.loads(report.json())["rows"][0]["shift_removed"] is not None


def test_a_norm_that_runs_twice_is_pooled_and_one_that_does_not_run_is_listed():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.never = nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.a(self.b(x)) + self.a(x)

    report = estimation_shift(Twice(), [data(32, 4), data(8, 4)])
    assert report["a"]["note"] == "runs 2 times per pass: pooled"
    assert report["never"]["note"] == "no sample reached it"
    assert "shift" not in report["never"]


def test_models_may_take_keywords_and_return_nested_outputs():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, *, tokens, scale):
            return {"y": [self.norm(tokens) * scale], "n": 3}

    batch = {"data": data(32, 4), "scale": 2.0}
    report = estimation_shift(Picky(), [batch], forward=lambda model, b: model(tokens=b["data"], scale=b["scale"]))
    assert report["norm"]["output_error"] > 0


def test_a_custom_forward_may_take_any_batch_and_return_any_output():
    @dataclasses.dataclass
    class Pair:
        x: Any
        name: str = "a"

    model: Any = nn.Sequential(nn.BatchNorm1d(4))
    batches = [Pair(5 + data(16, 4)), Pair(5 + data(16, 4))]
    report = estimation_shift(model, batches, forward=lambda net, batch: Pair(net(batch.x)))
    assert report["0"]["output_error"] > 0.1
    assert report.details["samples"] == 32
    texts = estimation_shift(model, ["a", "b"], forward=lambda net, text: net(5 + data(16, 4)))
    assert texts.details["samples"] == 32
    lengths = iter(range(100))
    varying = estimation_shift(model, data(16, 4), forward=lambda net, x: net(x)[: next(lengths) + 1])
    assert "output_error" not in varying["0"]


def test_compiled_models_and_inputs_by_keyword_are_observed():
    model: Any = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), backend="eager")
    model(data(8, 4))
    assert len(estimation_shift(model, [data(32, 4)])) == 1

    class Keyed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.BatchNorm1d(4), anynorm.make("auxbn@2", 4)

        def forward(self, x):
            return self.b(condition=torch.zeros(len(x), dtype=torch.long), input=self.a(input=x))

    assert [row["path"] for row in estimation_shift(Keyed(), data(32, 4))] == ["a", "b"]


def test_worst_table_and_json_agree():
    report = estimation_shift(trained(network()), [X])
    worst = report.worst(2)
    assert len(worst) == 2
    assert worst.rows[0]["shift"] == max(row["shift"] for row in report)
    assert json.loads(report.json())["rows"][0]["esm_mean"] == report.rows[0]["esm_mean"]
    assert report.text().splitlines()[-1] == report.finding
    with pytest.raises(anynorm.AnynormError, match=r"no row is named '3\.bn9'\. Did you mean 3\.bn"):
        report["3.bn9"]
