"""Estimation shift is Definition 2, streamed, and says who is at fault."""

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
from anynorm.diagnostics.ablation import accuracy
from anynorm.diagnostics.ranks import rank_correlation
from tests.helpers import ROWS, condition_for, data, make
from tests.surgery.test_convert import network, trained

X = data(48, 3, 8, 8, mean=0.7, std=2.0)


def naive_esm(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Definition 2 with numpy in double: inputs of every BatchNorm caught by a wrapper, not by a hook."""
    caught: dict[str, Any] = {}
    model = copy.deepcopy(model).double().eval()
    for path, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            original = module.forward

            def forward(y, path=path, original=original):
                caught[path] = y.detach().numpy()
                return original(y)

            module.forward = forward  # type: ignore[method-assign]
    with torch.no_grad():
        model(x.double())
    found = {}
    for path, y in caught.items():
        norm: Any = model.get_submodule(path)
        mean, std = y.mean((0, 2, 3)), y.std((0, 2, 3), ddof=1)
        mu, sigma = norm.running_mean.numpy(), np.sqrt(norm.running_var.numpy())
        sizes = [float(np.linalg.norm(values)) for values in (mu - mean, sigma - std, mean, std)]
        off = [np.sqrt(np.mean(values**2)) for values in ((mu - mean) / std, np.log(sigma / std))]
        found[path] = (*sizes, float(max(off)))
    return found


def test_esm_is_that_of_a_naive_double_reference_whatever_the_batches():
    model = trained(network())
    expected = naive_esm(model, X)
    for sizes in ([48], [16, 16, 16], [1, 30, 17]):
        report = estimation_shift(model, X.split(sizes), trial_samples=0)
        assert [row["path"] for row in report] == list(expected)  # in the order they run: the shortcut's norm after the branch's
        for row in report:
            mean, std, mean_size, std_size, shift = expected[row["path"]]
            assert row["esm_mean"] == pytest.approx(mean, rel=1e-4, abs=1e-6)
            assert row["esm_std"] == pytest.approx(std, rel=1e-4, abs=1e-6)
            assert row["relative_mean"] == pytest.approx(mean / mean_size, rel=1e-4, abs=1e-6)
            assert row["relative_std"] == pytest.approx(std / std_size, rel=1e-4, abs=1e-6)
            assert row["shift"] == pytest.approx(shift, rel=1e-3, abs=1e-6)  # ε stands in it too


def test_ours_and_torchs_norms_are_measured_alike():
    model = trained(network())
    report = estimation_shift(model, [X])
    anynorm.convert(model, "bn")
    ours = estimation_shift(model, [X])
    for mine, theirs in zip(ours, report, strict=True):
        assert mine["norm"] == "bn"
        assert theirs["norm"] == "BatchNorm2d"
        for column in ("esm_mean", "esm_std", "shift", "output_error", "cures"):
            assert mine[column] == pytest.approx(theirs[column], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("spec", [spec for spec in ROWS if make(spec).pools_samples])
def test_a_norm_that_keeps_the_statistics_of_its_input_has_no_shift(spec):
    norm = make(spec, momentum=1.0)
    x = data(8, 16, 4, 4, mean=1.0, std=3.0)
    condition = condition_for(norm, x)
    norm.set_condition(condition)
    norm(x)
    model = nn.Sequential(norm)
    before = estimation_shift(model, [x])
    norm.running_mean.add_(1.0) if norm.running_mean is not None else norm.running_var.mul_(4.0)
    after = estimation_shift(model, [x])
    if "gbgn" in spec:  # what is kept is the mean over ghost batches; the shift is against all values together
        assert before["0"]["shift"] < 0.2
    else:
        assert before["0"]["shift"] < 1e-5
    assert after["0"]["shift"] > 0.1


def test_a_domain_that_nobody_reached_has_no_share():
    norm = anynorm.make("auxbn@2", 4, momentum=1.0)
    x = data(64, 4)
    norm(x, 0)
    model = nn.Sequential(norm)
    with anynorm.condition(model, 0):
        assert estimation_shift(model, [x])["0"]["shift"] < 1e-5


def test_replacing_one_norms_statistics_gives_its_output_error_and_the_model_is_left_as_it_was():
    model = trained(network())
    state = copy.deepcopy(model.state_dict())
    report = estimation_shift(model, [X])
    twin = copy.deepcopy(model).eval()
    seen = []
    twin[3].bn1.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        before = twin(X)
        twin[3].bn1.running_mean.copy_(seen[0].mean((0, 2, 3)))
        twin[3].bn1.running_var.copy_(seen[0].var((0, 2, 3)))
        after = twin(X)
    expected = float((after - before).norm() / before.norm())
    assert report["3.bn1"]["output_error"] == pytest.approx(expected, rel=1e-3)
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert not any(module._forward_pre_hooks for module in model.modules())


def deep(depth: int = 12, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def settled(model: Any, x: torch.Tensor) -> Any:
    """Keep the statistics of all of x, as norms that look at it see it."""
    anynorm.recalibrate(model, [x])
    return model.eval()


def test_the_verdict_is_none_where_statistics_are_right():
    x = data(2000, 16)
    report = estimation_shift(settled(deep(), x), [x])
    assert max(row["shift"] for row in report) < 0.05
    assert "no shift above" in report.finding
    assert "Leave the statistics" in report.finding


def test_the_verdict_names_the_one_norm_that_was_hurt_though_all_after_it_shift():
    x = data(2000, 16)
    model = settled(deep(), x)
    model[10].running_mean.add_(2 * model[10].running_var.sqrt())
    report = estimation_shift(model, x.split(500))
    assert sum(row["shift"] > 0.3 for row in report) > 3
    assert "one norm is at fault, '10'" in report.finding
    assert report["10"]["cures"] > 0.9


def test_the_verdict_says_that_shift_grows_with_depth():
    torch.manual_seed(0)
    few, many = data(24, 16), data(2000, 16)
    model = deep(16)
    report = estimation_shift(settled(model, few), [many])
    assert "grows with depth" in report.finding
    assert "xbn" in report.finding


def test_few_samples_are_not_trusted_with_small_shifts():
    x = data(2000, 16)
    report = estimation_shift(settled(deep(1), x), [x[:16]])
    assert "16 samples cannot tell less than 0.5. Give more data." in report.finding


def test_scores_are_told_as_it_is_and_with_each_norm_put_right():
    x = data(400, 16)
    model = settled(deep(), x)
    labels = model(x).argmax(1)
    model[1].running_var.mul_(50.0)
    report = estimation_shift(model, [(x, labels)], score=accuracy)
    assert report["1"]["score"] > 90
    assert report.details["score"] < 90
    assert "with '1' alone put right" in report.finding


def test_a_norm_that_runs_twice_is_pooled_and_one_that_does_not_run_is_told():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.never = nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.a(self.b(x)) + self.a(x)

    report = estimation_shift(Twice(), [data(32, 4), data(8, 4)])
    assert report["a"]["note"] == "runs 2 times a pass: pooled"
    assert report["never"]["note"] == "no sample reached it"
    assert "shift" not in report["never"]


def test_any_forward_and_any_output_will_do():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, *, tokens, scale):
            return {"y": [self.norm(tokens) * scale], "n": 3}

    batch = {"data": data(32, 4), "scale": 2.0}
    report = estimation_shift(Picky(), [batch], forward=lambda model, b: model(tokens=b["data"], scale=b["scale"]))
    assert report["norm"]["output_error"] > 0


def test_compiled_models_and_inputs_by_keyword_are_seen():
    model: Any = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), backend="eager")
    model(data(8, 4))
    assert len(estimation_shift(model, [data(32, 4)])) == 1

    class Keyed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.BatchNorm1d(4), anynorm.make("auxbn@2", 4)

        def forward(self, x):
            return self.b(condition=torch.zeros(len(x), dtype=torch.long), x=self.a(input=x))

    assert [row["path"] for row in estimation_shift(Keyed(), data(32, 4))] == ["a", "b"]


def test_worst_table_and_json_tell_the_same():
    report = estimation_shift(trained(network()), [X])
    worst = report.worst(2)
    assert len(worst) == 2
    assert worst.rows[0]["shift"] == max(row["shift"] for row in report)
    assert json.loads(report.json())["rows"][0]["esm_mean"] == report.rows[0]["esm_mean"]
    assert report.table().splitlines()[-1] == report.finding
    with pytest.raises(anynorm.AnynormError, match=r"no row '3\.bn9'\. Near: 3\.bn"):
        report["3.bn9"]


class Stop(BaseException):
    """As Ctrl-C."""


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([], "no batch with a sample"),
        ([torch.zeros(0, 3, 8, 8)], "no batch with a sample"),
        ([object()], "holds no tensor"),
        ([{}], "holds no tensor"),
        (
            [X.clone().fill_(float("nan"))],
            r"'1' in batch 0 are NaN or infinite\. It is the first norm that runs\. The batch itself",
        ),
    ],
)
def test_data_that_tells_nothing_is_refused_and_the_model_untouched(batches, said):
    model = trained(network())
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(anynorm.DiagnosticError, match=said):
        estimation_shift(model, batches)
    assert model.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_first_layer_that_nan_reaches_is_named():
    model = trained(network())
    with pytest.raises(anynorm.DiagnosticError, match=r"'3\.bn2' in batch 1.* The input of '3\.bn1' before it was finite\.$"):
        estimation_shift(model, Poisoned(model))


class Poisoned:
    """Gives a good batch, and breaks a weight before the next."""

    def __init__(self, model):
        self.weight = model[3].conv2.weight.data

    def __iter__(self):
        yield X[:4]
        self.weight[0, 0, 0, 0] = float("nan")
        yield X[:4]


def test_nothing_remains_after_ctrl_c_in_a_forward():
    model = trained(network())
    state = copy.deepcopy(model.state_dict())
    calls = []

    def forward(model, batch):
        calls.append(batch)
        if len(calls) == 4:  # inside a trial, with statistics put right
            raise Stop
        return model(batch)

    with pytest.raises(Stop):
        estimation_shift(model, [X], forward=forward)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(module.training for module in model.modules())


def test_models_without_an_answer_are_told_why():
    model: Any
    for model, said in (
        (nn.Linear(2, 2), "has no norm among its modules"),
        (nn.Sequential(nn.GroupNorm(2, 4), anynorm.make("ln", 4)), r"None of the 2 norms keeps statistics \(GroupNorm, ln\)"),
        (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), "keeps statistics"),
        ("no model", "not at a str"),
    ):
        with pytest.raises(anynorm.DiagnosticError, match=said):
            estimation_shift(model, [data(4, 4)])
    with pytest.raises(anynorm.SurgeryError, match="matches no norm"):
        estimation_shift(nn.Sequential(nn.BatchNorm1d(4)), [data(4, 4)], where="layer9.*")

    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return x

    with pytest.raises(anynorm.DiagnosticError, match="reached none of the 1 norms"):
        estimation_shift(Aside(), [data(4, 4)])
    scripted = torch.jit.script(nn.Sequential(nn.BatchNorm1d(4)))
    with pytest.raises(anynorm.DiagnosticError, match="before scripting"):
        estimation_shift(scripted, [data(4, 4)])


def test_rank_correlation_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    a, b = [3.0, 1.0, 2.0, 2.0, 5.0, 7.0], [1.0, 4.0, 4.0, 2.0, 9.0, 0.0]
    assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0


def test_a_quiet_channel_is_not_hidden_by_a_loud_one():
    model: Any = nn.Sequential(nn.BatchNorm1d(2)).eval()
    x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([100.0, 0.01])
    model[0].running_var.copy_(torch.tensor([1e4, 1e-4]))
    model[0].running_mean[1] = 0.4
    report = estimation_shift(model, x)
    assert report["0"]["shift"] == pytest.approx(40 / 2**0.5, rel=0.05)
    assert "at fault" in report.finding


@pytest.mark.parametrize("var", [1e-4, 1e4])
def test_deviations_count_as_much_when_they_are_too_small_as_when_they_are_too_large(var):
    model: Any = nn.Sequential(nn.BatchNorm1d(4, eps=0.0)).eval()
    model[0].running_var.fill_(var)
    x = torch.randn(4000, 4, generator=torch.Generator().manual_seed(0))
    assert estimation_shift(model, x)["0"]["shift"] == pytest.approx(4.6, rel=0.02)  # ln 100


def test_statistics_that_are_no_numbers_are_named():
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].running_var[0] = float("nan")
    with pytest.raises(anynorm.DiagnosticError, match=r"1 of 4 statistics that '1' \(BatchNorm1d\) keeps are NaN"):
        estimation_shift(model, data(8, 4))


def test_channels_that_do_not_vary_are_left_out_of_the_shift():
    model: Any = nn.Sequential(nn.BatchNorm1d(3)).eval()
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    x[:, 1] = 7.0
    report = estimation_shift(model, x)
    assert report["0"]["shift"] < 0.1
    assert json.loads(report.json())["rows"][0]["cures"] is not None


def test_not_one_norm_is_at_fault_where_putting_it_right_leaves_others_shifted():
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.BatchNorm1d(16))
    x = data(1000, 16)
    settled(model, x)
    with torch.no_grad():
        model[1].running_mean.add_(3.0)
        model[3].running_var.mul_(1e-4)
    assert "one norm" not in estimation_shift(model, x).finding


def test_frozen_norms_are_told_to_be_thawed_and_unread_ones_are_listed():
    model: Any = nn.Sequential(
        nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)
    )
    anynorm.freeze(model, where="0")
    report = estimation_shift(model, [5 + data(64, 4)], forward=lambda _, x: model[:3](x))
    assert report["0"]["note"] == "frozen"
    assert "unfreeze them first" in report.finding
    assert "normalizes by them in eval mode" in report["3"]["note"]


def test_a_forward_of_ones_own_takes_batches_and_gives_outputs_of_any_kind():
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
    odd = estimation_shift(model, data(16, 4), forward=lambda net, x: net(x)[: next(lengths) + 1])
    assert "output_error" not in odd["0"]


def test_loaders_and_models_that_write_into_their_batches_do_not_falsify_trials():
    model: Any = nn.Sequential(nn.BatchNorm1d(4)).eval()
    buffer = torch.empty(64, 4)

    def loader():
        for seed in range(3):
            yield buffer.copy_(5 + data(64, 4, seed=seed))

    def forward(net, x):
        y = net(x)
        x.zero_()
        return y

    assert estimation_shift(model, loader(), forward=forward)["0"]["cures"] > 0.9


def test_a_graph_that_waits_for_its_backward_is_not_disturbed():
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    loss = model(data(8, 4)).sum()
    estimation_shift(model, data(32, 4))
    loss.backward()


def test_loaders_that_are_none_and_models_without_values_are_told():
    nothing: Any = None
    with pytest.raises(anynorm.DiagnosticError, match="The loader is a NoneType"):
        estimation_shift(nn.Sequential(nn.BatchNorm1d(4)), nothing)
    with torch.device("meta"):
        empty = nn.Sequential(nn.BatchNorm1d(4))
    with pytest.raises(anynorm.DiagnosticError, match=r"'0\.weight' is on the meta device"):
        estimation_shift(empty, data(4, 4))
