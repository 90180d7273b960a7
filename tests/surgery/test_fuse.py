"""`fuse` keeps outputs, gradients and statistics, leaves alone what it cannot fuse, and can be undone."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional

import anynorm
from anynorm.layers.norm import Norm
from anynorm.surgery.block_forward import BlockForward
from tests.helpers import data, same
from tests.surgery.fusable_networks import fusable_network
from tests.surgery.networks import trained

X = data(6, 3, 12, 12)
NORMS = {
    "torch bn": nn.BatchNorm2d,
    "torch gn": lambda channels: nn.GroupNorm(4, channels),
    "bn": anynorm.layer("bn"),
    "hn:4": anynorm.layer("hn:4"),
    "brn": anynorm.layer("brn"),
}


def gradients(model, x):
    """Return the output, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    (y * torch.arange(y.numel()).reshape(y.shape).cos()).sum().backward()
    return [y.detach(), x.grad, *(parameter.grad.clone() for parameter in model.parameters())]


def fused_blocks(model):
    """Return the modules whose forward was replaced."""
    return [module for module in model.modules() if isinstance(vars(module).get("forward"), BlockForward)]


def activations_seen(model, x, monkeypatch):
    """Return the names of the activations that norms get in a forward pass, and the number of residuals."""
    seen: list[str] = []
    residuals = []
    normalize = Norm.normalize

    def spy(self, x, condition=None, residual=None, activation=None):
        seen.extend([activation.name] if activation else [])
        residuals.extend([residual] if residual is not None else [])
        return normalize(self, x, condition, residual, activation)

    with monkeypatch.context() as patch:
        patch.setattr(Norm, "normalize", spy)
        model(x)
    return seen, len(residuals)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [True, False])
def test_a_fused_network_has_the_outputs_gradients_and_statistics_of_the_original(norm, training):
    model = trained(fusable_network(NORMS[norm])).train(training)
    fused = copy.deepcopy(model)
    state = copy.deepcopy(fused.state_dict())
    report = anynorm.fuse(fused, X)
    assert report.finding.startswith("11 of 11 activations and 4 additions fused; outputs changed by ")
    same(fused.state_dict(), state, rtol=0, atol=0)
    assert list(fused.state_dict()) == list(model.state_dict())
    for mode in (training, not training):
        for actual, expected in zip(gradients(fused.train(mode), X), gradients(model.train(mode), X), strict=True):
            same(actual, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()) + 1e-6)
        same(fused.state_dict(), model.state_dict(), rtol=1e-4, atol=1e-5)


def test_norms_get_the_activations_and_residuals(monkeypatch):
    model = fusable_network()
    assert activations_seen(model, X, monkeypatch) == ([], 0)
    report = anynorm.fuse(model, X)
    expected = ["hardswish", "relu", "relu", "relu", "relu", "relu", "relu", "relu6", "leaky_relu", "gelu_tanh", "silu"]
    # silu after an addition is a separate operation in the layer
    assert activations_seen(model, X, monkeypatch) == (expected, 4)
    assert report["3.bn3"]["fused"] == ["add", "relu"]
    assert report["5.norm"]["fused"] == ["add"]
    assert report["6.norm1"]["fused"] == ["leaky_relu"]
    assert report["7.norm1"]["note"] == "not fused: its output is added to that of another norm, which is fused"
    assert report["7.norm2"] == {"path": "7.norm2", "norm": "BatchNorm2d", "fused": ["add", "silu"], "block": "7"}
    assert report["3.downsample.1"]["note"] == "not fused: no addition or activation follows it"
    assert isinstance(model[3].downsample[1], nn.BatchNorm2d)  # a norm that is not fused is not replaced


def test_undo_restores_modules_forward_and_outputs():
    model = trained(fusable_network())
    modules, state = list(model.modules()), copy.deepcopy(model.state_dict())
    expected = model.eval()(X)
    report = anynorm.fuse(model, X)
    assert fused_blocks(model)
    assert report.undo() is model
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert not [module for module in model.modules() if "forward" in vars(module)]
    same(model.state_dict(), state, rtol=0, atol=0)
    same(model(X), expected, rtol=0, atol=0)


def test_training_a_fused_network_also_trains_the_norms_that_undo_restores():
    model = trained(fusable_network())
    old = model[1]
    report = anynorm.fuse(model, X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients(model, X)
    optimizer.step()
    weight, mean = model[1].weight.clone(), model[1].running_mean.clone()
    report.undo()
    assert model[1] is old
    same(old.weight, weight, rtol=0, atol=0)
    same(old.running_mean, mean, rtol=0, atol=0)


def test_a_copy_of_a_fused_network_uses_its_own_modules():
    model = fusable_network().eval()
    anynorm.fuse(model, X)
    expected = model(X)
    other = copy.deepcopy(model)
    assert all(vars(block)["forward"].block is block for block in fused_blocks(other))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    same(model(X), expected, rtol=0, atol=0)
    assert not other(X).any()


def test_a_fused_network_can_be_saved_and_loaded(monkeypatch):
    model = fusable_network().eval()
    anynorm.fuse(model, X)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    same(loaded(X), model(X), rtol=0, atol=0)
    assert activations_seen(loaded, X, monkeypatch) == activations_seen(model, X, monkeypatch)
    assert activations_seen(loaded, X, monkeypatch)[1] == 4


@pytest.mark.slow
def test_a_fused_network_can_be_compiled():
    model = trained(fusable_network()).eval()
    anynorm.fuse(model, X)
    expected = model(X)
    torch.compiler.reset()
    same(torch.compile(model, backend="eager", fullgraph=True)(X), expected, rtol=1e-4, atol=1e-5)


def test_a_fused_network_trains_like_the_original():
    model = fusable_network()
    fused = copy.deepcopy(model)
    anynorm.fuse(fused, X)
    images, labels = data(32, 3, 12, 12, seed=3), torch.arange(32) % 4
    losses = []
    for network in (model, fused):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        for _ in range(30):
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    same(losses[30:], losses[:30], rtol=2e-2, atol=2e-3)  # rounding errors grow from step to step
    assert losses[-1] < 0.5 * losses[30]
