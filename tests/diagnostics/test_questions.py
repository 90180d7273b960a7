"""The other questions: fluctuation, gradient balance, importance, perturbation."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import anynorm
from anynorm.diagnostics import batch_fluctuation, fluctuation, gradient_balance, importance, perturb, perturbation_curve
from anynorm.diagnostics.gradient_balance import stage_of
from tests.helpers import data, same
from tests.surgery.test_convert import X, network, trained


def hooks(model):
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


# fluctuation


def test_series_are_the_means_and_deviations_of_the_last_batches():
    model = nn.Sequential(nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1), nn.GroupNorm(2, 4))
    batches = [data(5, 6, 3, 3, seed=seed) for seed in range(7)]
    with fluctuation(model, last=4) as recorder:
        for x in batches:
            model(x)
    assert hooks(model) == 0
    report, found = recorder.report(), recorder.series("0")
    for k, x in enumerate(batches[3:]):
        same(found["bn_mean"][k], x.double().mean((0, 2, 3)))
        same(found["bn_std"][k], x.double().std((0, 2, 3), correction=0))
        same(found["en_mean"][k], x.double().mean().reshape(1))
        same(found["en_std"][k], x.double().std(correction=0).reshape(1))
    by_hand = torch.stack([x.double().mean((0, 2, 3)) for x in batches[3:]]).std(0).mean()
    assert report["0"]["bn_mean"] == pytest.approx(float(by_hand))
    assert [row["norm"] for row in report] == ["BatchNorm2d", "GroupNorm"]
    assert report["2"]["steps"] == 4


def test_eval_passes_and_recomputations_are_no_steps():
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with fluctuation(inner, last=9) as recorder:
        x = data(8, 4).requires_grad_()
        checkpoint(inner, x, use_reentrant=False).sum().backward()
        inner.eval()(x)
    assert len(recorder.series("1")["bn_mean"]) == 1


def test_a_recorder_that_saw_nothing_says_so_and_other_cuts_can_be_asked_for():
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
    for cuts, said in ((["ln"], "ln is not one cut"), (["sn"], "sn is not one cut")):
        with pytest.raises(anynorm.DiagnosticError, match=said), fluctuation(model, cuts=cuts):
            pass
    with pytest.raises(anynorm.DiagnosticError, match="last=1"), fluctuation(model, last=1):
        pass
    for batches, said in (
        ([], "gave 0 batches"),
        ([data(4, 8)], "gave 1 batch;"),
        ([data(4, 8) * float("nan")] * 2, "reached '0'"),
    ):
        with pytest.raises(anynorm.DiagnosticError, match=said):
            batch_fluctuation(model, batches)


def test_buffers_that_a_model_sets_anew_are_put_back_too():
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen = 0.9 * self.seen + x.mean(0)
            return self.norm(x)

    model = Averaging()
    before = model.seen
    batch_fluctuation(model, [data(8, 4), data(8, 4)])
    assert model.seen is before


def test_smaller_batches_fluctuate_more_and_asking_leaves_no_trace():
    model = trained(network()).eval()
    state = copy.deepcopy(model.state_dict())
    chance = torch.random.get_rng_state()
    x = data(240, 3, 8, 8)
    small, large = (batch_fluctuation(model, x.split(size)) for size in (4, 40))
    assert small["1"]["bn_std"] > 2 * large["1"]["bn_std"]
    assert "fixed parameters" in small.finding
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), chance)


# gradient balance


def loss(model, x, label):
    return nn.functional.cross_entropy(model(x), torch.full((len(x),), label))


def classifier(norm=nn.BatchNorm1d):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), norm(8), nn.ReLU(), nn.Linear(8, 8), norm(8), nn.ReLU(), nn.Linear(8, 3))


def test_norms_and_cosines_of_class_gradients_are_those_of_backward():
    model = classifier()
    draws = [{label: data(5, 6, seed=10 * draw + label) for label in range(3)} for draw in range(2)]
    report = gradient_balance(model, draws, loss, stage=str)
    assert [row["stage"] for row in report] == ["0", "3"]  # the last linear layer stands before no norm
    norms, cosines = [], []
    for draw in draws:
        gradients = []
        for label, x in draw.items():
            model.zero_grad()
            loss(model, x, label).backward()
            gradients.append(model[3].weight.grad.flatten().double())
        norms.append(torch.stack([gradient.norm() for gradient in gradients]))
        pairs = [(0, 1), (0, 2), (1, 2)]
        found = [nn.functional.cosine_similarity(gradients[a], gradients[b], dim=0) for a, b in pairs]
        cosines.append(torch.stack(found).mean())
    by_class = torch.stack(norms).mean(0)
    assert report["3"]["norm_std"] == pytest.approx(float(by_class.std()), rel=1e-4)
    assert report["3"]["norm_mean"] == pytest.approx(float(by_class.mean()), rel=1e-4)
    assert report["3"]["g_inter"] == pytest.approx(float(torch.stack(cosines).mean()), rel=1e-3, abs=1e-5)


def test_a_generator_is_asked_with_the_same_latents_for_every_class_and_nothing_moves():
    class Generator(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(4, 8), anynorm.make("sabn@3", 8)
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(2)])

        def forward(self, z, label):
            y = self.norm(self.first(z), label)
            for block in self.blocks:
                y = block(y)
            return y

    model, critic = Generator(), nn.Linear(8, 1)
    state = copy.deepcopy(model.state_dict())
    latents = [data(16, 4, seed=seed) for seed in range(2)]
    draws = [dict.fromkeys(range(3), z) for z in latents]
    report = gradient_balance(model, draws, lambda net, z, label: -critic(net(z, label)).mean())
    assert [row["stage"] for row in report] == ["first", "blocks.0", "blocks.1"]
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert hooks(model) == 0


def test_equal_gradients_have_cosine_one_and_no_spread():
    x = data(8, 6)
    report = gradient_balance(classifier(), {"a": x, "b": x.clone()}, lambda net, batch, _: net(batch).square().mean())
    assert report["0"]["g_inter"] == pytest.approx(1)
    assert report["0"]["norm_std"] == pytest.approx(0, abs=1e-9)


def test_stages_follow_the_path():
    assert [stage_of(path) for path in ("layer1.0.conv1", "features.3", "conv1", "a.b.c")] == [
        "layer1.0",
        "features",
        "conv1",
        "a",
    ]


def test_draws_and_losses_that_mean_nothing_are_refused():
    model, x = classifier(), data(4, 6)
    chosen: Any
    for draws, chosen, said in (
        ([], loss, "There is no draw"),
        ({0: x}, loss, "has 1 of them"),
        ([{0: x, 1: x}, {0: x, 2: x}], loss, r"Draw 1 has the classes \[0, 2\]"),
        ({0: x, 1: x}, lambda net, batch, _: net(batch), r"it gave a tensor of shape \(4, 3\)"),
        ({0: x, 1: x}, lambda net, batch, _: 3.0, "it gave a float"),
    ):
        with pytest.raises(anynorm.DiagnosticError, match=said):
            gradient_balance(model, draws, chosen)
    model[0].weight.requires_grad_(False)
    with pytest.raises(anynorm.DiagnosticError, match="'0' does not require a gradient"):
        gradient_balance(model, {0: x, 1: x}, loss)
    model[0].weight.requires_grad_()
    with pytest.raises(anynorm.DiagnosticError, match="does not depend on the model"):
        gradient_balance(model, {0: x, 1: x}, lambda net, batch, label: loss(net, batch, label).detach())
    with pytest.raises(anynorm.DiagnosticError, match="The loss of class 1 is nan"):
        gradient_balance(model, {0: x, 1: x * float("nan")}, loss)
    with pytest.raises(anynorm.DiagnosticError, match="No convolution or linear layer ran before a norm"):
        gradient_balance(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), {0: x, 1: x}, loss)


def test_the_layer_before_a_norm_is_the_one_that_feeds_it():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.norm_a, self.norm_b = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6)

        def forward(self, x):
            a, b = self.a(x), self.b(x)
            return self.norm_a(a.relu()) + self.norm_b(b)

    x = data(8, 6)
    with torch.no_grad():  # gradients are taken all the same
        report = gradient_balance(Crossed(), {0: x, 1: 2 * x}, lambda net, batch, _: net(batch).square().sum())
    assert [row["stage"] for row in report] == ["a", "b"]


@pytest.mark.parametrize("wrap", [parametrizations.spectral_norm, parametrizations.weight_norm, nn.utils.spectral_norm])
def test_weights_that_are_computed_are_looked_at_through_their_parameters(wrap):
    model = classifier()
    model[0] = wrap(model[0])
    compiled: Any = torch.compile(model, backend="eager")
    report = gradient_balance(compiled, {0: data(8, 6), 1: 3 + data(8, 6)}, loss)
    assert report.rows[0]["norm_mean"] > 0


# importance


def test_importance_gives_the_softmax_of_each_side():
    model: Any = nn.Sequential(anynorm.make("sn", 8), anynorm.make("bn/bn+en", 8), nn.BatchNorm2d(8), anynorm.make("sn:2", 8))
    with torch.no_grad():
        model[0].mean_weight.copy_(torch.tensor([2.0, 0.0, -1.0]))
        model[3].var_weight[0].copy_(torch.tensor([9.0, 0.0, 0.0]))
    report = importance(model)
    assert [row["path"] for row in report] == ["0", "1", "3"]
    weights = torch.tensor([2.0, 0.0, -1.0]).softmax(0)
    assert [report["0"][f"mean_{cut}"] for cut in ("in", "ln", "bn")] == pytest.approx(weights.tolist())
    assert report["1"]["var_en"] == pytest.approx(0.5)
    assert "mean_bn" not in report["1"]
    assert report.worst(1).rows[0]["path"] == "0"  # gone farthest towards one cut
    grouped = (torch.tensor([9.0, 0.0, 0.0]).softmax(0) + 1 / 3) / 2
    assert report["3"]["var_in"] == pytest.approx(float(grouped[0]))
    average = (weights[0] + 1 / 3) / 2
    assert f"mean in {float(average):.2f}" in report.finding
    with pytest.raises(anynorm.DiagnosticError, match=r"None of the 1 norms mixes cuts \(BatchNorm2d\)"):
        importance(nn.Sequential(nn.BatchNorm2d(8)))


# perturbation


def test_statistics_are_scaled_within_delta_and_put_back():
    model = trained(network())
    before = copy.deepcopy(model.state_dict())
    with perturb(model, 0.3, per="channel", seeds=4) as draws:
        found = []
        for _ in draws:
            ratio = model[1].running_var / before["1.running_var"] - 1
            assert float(ratio.abs().max()) <= 0.3 + 1e-6
            found.append(ratio)
    assert float(torch.stack(found).std(0).min()) > 0
    assert len(set(found[0].tolist())) == 16
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with perturb(model, 0.3, layers="3.*") as draws:
        ratio = model[3].bn1.running_mean / before["3.bn1.running_mean"]
        assert float(ratio.std()) == pytest.approx(0, abs=1e-5)  # one δ for the layer
        assert abs(float(ratio.mean()) - 1) > 1e-3
        assert torch.equal(model[1].running_mean, before["1.running_mean"])


def test_the_same_seed_draws_the_same_direction_for_every_delta():
    model: Any = nn.Sequential(nn.BatchNorm1d(3))
    found = []
    for delta in (0.1, 0.4):
        with perturb(model, delta, per="channel"):
            found.append((model[0].running_var - 1) / delta)
    same(found[0], found[1])


def test_statistics_are_put_back_after_an_error():
    model: Any = nn.Sequential(nn.BatchNorm1d(3))

    def interrupted():
        with perturb(model, 0.5):
            assert not torch.equal(model[0].running_var, torch.ones(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with perturb(model, 0.5) as draws:
        pass
    with pytest.raises(anynorm.DiagnosticError, match="has ended"):
        list(draws)
    assert torch.equal(model[0].running_var, torch.ones(3))


def test_a_curve_tells_what_is_lost():
    model = trained(network())
    with torch.no_grad():
        truth = copy.deepcopy(model).eval()(X)
    report = perturbation_curve(model, lambda net: 100 / (1 + float((net(X) - truth).norm())), [0.0, 0.2, 0.6], seeds=3)
    assert model.training  # scored in eval mode, and put back
    assert [row["delta"] for row in report] == [0.0, 0.2, 0.6]
    assert report.rows[0]["score"] == pytest.approx(100)
    assert report.rows[0]["score"] > report.rows[1]["score"] > report.rows[2]["score"]
    assert len(report.rows[2]["scores"]) == 3
    assert report.worst(1).rows[0]["delta"] == 0.6
    assert "6 norms perturbed per layer, 3 draws: score 100 undisturbed" in report.finding


def test_perturbations_that_mean_nothing_are_refused():
    model = nn.Sequential(nn.BatchNorm1d(3))
    with pytest.raises(anynorm.DiagnosticError, match="deltas is empty"):
        perturbation_curve(model, lambda _: 1.0, [])
    with pytest.raises(anynorm.DiagnosticError, match="delta=2 is no relative noise"):
        perturbation_curve(model, lambda _: pytest.fail("scored before the arguments were looked at"), [0.1, 2])
    with pytest.raises(anynorm.DiagnosticError, match="undisturbed model is nan"):
        perturbation_curve(model, lambda _: float("nan"))
    assert "-1 are left" in perturbation_curve(model, lambda _: -1.0, [0.1]).finding
    for options, said in (
        ({"delta": 1.5}, "delta=1.5 is no relative noise"),
        ({"delta": 0.1, "per": "net"}, "none of layer channel"),
        ({"delta": 0.1, "seeds": 0}, "seeds=0"),
    ):
        with pytest.raises(anynorm.DiagnosticError, match=said), perturb(model, **options):
            pass
    with pytest.raises(anynorm.DiagnosticError, match="keeps statistics"), perturb(nn.Sequential(nn.GroupNorm(1, 3)), 0.1):
        pass
