"""Balance of class gradients against backward, and errors."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import anynorm
from anynorm.diagnostics import gradient_balance
from anynorm.diagnostics.gradient_balance import stage_of
from tests.helpers import data


def hooks(model):
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


def loss(model, x, label):
    return nn.functional.cross_entropy(model(x), torch.full((len(x),), label))


def classifier(norm=nn.BatchNorm1d):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), norm(8), nn.ReLU(), nn.Linear(8, 8), norm(8), nn.ReLU(), nn.Linear(8, 3))


def test_norms_and_cosines_of_class_gradients_equal_those_of_backward():
    model = classifier()
    draws = [{label: data(5, 6, seed=10 * draw + label) for label in range(3)} for draw in range(2)]
    report = gradient_balance(model, draws, loss, stage=str)
    assert [row["stage"] for row in report] == ["0", "3"]  # no norm follows the last linear layer
    norms, cosines = [], []
    for draw in draws:
        gradients = []
        for label, x in draw.items():
            model.zero_grad()
            loss(model, x, label).backward()
            gradients.append(model[3].weight.grad.flatten().double())
        norms.append(torch.stack([gradient.norm() for gradient in gradients]))
        pairs = [(0, 1), (0, 2), (1, 2)]
        pairwise = [nn.functional.cosine_similarity(gradients[a], gradients[b], dim=0) for a, b in pairs]
        cosines.append(torch.stack(pairwise).mean())
    by_class = torch.stack(norms).mean(0)
    assert report["3"]["grad_norm_std"] == pytest.approx(float(by_class.std()), rel=1e-4)
    assert report["3"]["grad_norm_mean"] == pytest.approx(float(by_class.mean()), rel=1e-4)
    assert report["3"]["g_inter"] == pytest.approx(float(torch.stack(cosines).mean()), rel=1e-3, abs=1e-5)


def test_a_generator_can_be_measured_with_the_same_latents_for_every_class_and_is_unchanged():
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


def test_equal_gradients_have_cosine_one_and_standard_deviation_zero():
    x = data(8, 6)
    report = gradient_balance(classifier(), {"a": x, "b": x.clone()}, lambda net, batch, _: net(batch).square().mean())
    assert report["0"]["g_inter"] == pytest.approx(1)
    assert report["0"]["grad_norm_std"] == pytest.approx(0, abs=1e-9)


def test_stages_follow_the_path():
    assert [stage_of(path) for path in ("layer1.0.conv1", "features.3", "conv1", "a.b.c")] == [
        "layer1.0",
        "features",
        "conv1",
        "a",
    ]


def test_unusable_draws_and_losses_raise():
    model, x = classifier(), data(4, 6)
    loss_function: Any
    for draws, loss_function, message in (
        ([], loss, "got none"),
        ({0: x}, loss, "at least 2 classes to compare; the first has 1"),
        ([{0: x, 1: x}, {0: x, 2: x}], loss, r"draw 1 has \[0, 2\]"),
        ({0: x, 1: x}, lambda net, batch, _: net(batch), r"got a tensor of shape \(4, 3\)"),
        ({0: x, 1: x}, lambda net, batch, _: 3.0, "got a float"),
    ):
        with pytest.raises(anynorm.DiagnosticError, match=message):
            gradient_balance(model, draws, loss_function)
    model[0].weight.requires_grad_(False)
    with pytest.raises(anynorm.DiagnosticError, match="'0' does not require a gradient"):
        gradient_balance(model, {0: x, 1: x}, loss)
    model[0].weight.requires_grad_()
    with pytest.raises(anynorm.DiagnosticError, match="must depend on the model"):
        gradient_balance(model, {0: x, 1: x}, lambda net, batch, label: loss(net, batch, label).detach())
    with pytest.raises(anynorm.DiagnosticError, match="loss of class 1 must be finite; got nan"):
        gradient_balance(model, {0: x, 1: x * float("nan")}, loss)
    with pytest.raises(anynorm.DiagnosticError, match="No convolution or linear layer ran before any norm"):
        gradient_balance(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), {0: x, 1: x}, loss)


def test_the_layer_before_a_norm_is_the_one_that_produces_its_input():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.norm_a, self.norm_b = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6)

        def forward(self, x):
            a, b = self.a(x), self.b(x)
            return self.norm_a(a.relu()) + self.norm_b(b)

    x = data(8, 6)
    with torch.no_grad():  # gradients are computed anyway
        report = gradient_balance(Crossed(), {0: x, 1: 2 * x}, lambda net, batch, _: net(batch).square().sum())
    assert [row["stage"] for row in report] == ["a", "b"]


@pytest.mark.parametrize("wrap", [parametrizations.spectral_norm, parametrizations.weight_norm, nn.utils.spectral_norm])
def test_computed_weights_are_measured_through_their_parameters(wrap):
    model = classifier()
    model[0] = wrap(model[0])
    compiled: Any = torch.compile(model, backend="eager")
    report = gradient_balance(compiled, {0: data(8, 6), 1: 3 + data(8, 6)}, loss)
    assert report.rows[0]["grad_norm_mean"] > 0
