"""Batch Kalman normalization: a chain of layers against loops in float64, its limits, and chains in models."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anynorm
from anynorm.lab.training.norm_layout import Layout
from anynorm.layers.baselines.kalman import BatchKalmanNorm
from tests.helpers import data, same, same_state
from tests.layers.baselines import references

CHANNELS = (6, 6, 9, 4)
SHAPES: list[tuple[int, ...]] = [(3, 4), (5,), ()]


def chain(gain=0.4, channels=CHANNELS, momentum=0.3):
    """Return connected layers whose parameters are not at their start."""
    generator = torch.Generator().manual_seed(0)
    layers: list[Any] = [anynorm.make("bkn", c, gain=gain, momentum=momentum) for c in channels]
    BatchKalmanNorm.connect(layers)
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return layers


def inputs(space, channels=CHANNELS, seed=0):
    return [data(4, c, *space, seed=seed + k) for k, c in enumerate(channels)]


def loss(outputs):
    return sum((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum() for y in outputs)


@pytest.mark.parametrize("space", SHAPES)
def test_a_chain_trains_as_loops_over_channels_and_keeps_its_estimates(space):
    layers = chain()
    xs = [x.requires_grad_() for x in inputs(space)]
    outputs = [layer(x) for layer, x in zip(layers, xs, strict=True)]
    assert all(layer._estimate is None for layer in layers), "no tensor of a pass is kept"
    parameters = [p for layer in layers for p in layer.parameters()]
    gradients = torch.autograd.grad(loss(outputs), [*xs, *parameters])

    wide = [x.detach().double().requires_grad_() for x in xs]
    double = copy.deepcopy(layers)
    for layer in double:
        layer.double()
    estimates = references.kalman_estimates(wide, [layer.transition for layer in double[1:]], 0.4)
    expected = [
        references.kalman_norm(x, estimate, (layer.weight, layer.bias))
        for x, estimate, layer in zip(wide, estimates, double, strict=True)
    ]
    wanted = [*wide, *(p for layer in double for p in layer.parameters())]
    for ours, theirs in zip(outputs, expected, strict=True):
        same(ours, theirs.float(), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(gradients, torch.autograd.grad(loss(expected), wanted), strict=True):
        same(ours, theirs.float(), rtol=1e-3, atol=1e-3)  # float32 sums of both signs through four layers
    for layer, x, (mean, cov) in zip(layers, xs, estimates, strict=True):
        count = x.numel() // x.shape[1]
        same(layer.running_mean, (0.3 * mean).float(), rtol=1e-4, atol=1e-5)
        same(layer.running_var, (0.7 + 0.3 * cov.diagonal() * count / (count - 1)).float(), rtol=1e-4, atol=1e-5)
        assert int(layer.num_batches_tracked) == 1


def test_inference_uses_the_running_averages_of_the_estimates():
    layers = chain()
    for seed in (0, 10):
        for layer, x in zip(layers, inputs((3, 4), seed=seed), strict=True):
            layer(x)
    for layer, x in zip(layers, inputs((3, 4), seed=20), strict=True):
        expected = nn.functional.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias)
        same(layer.eval()(x), expected)


def test_a_gain_of_one_is_bn():
    layers = chain(gain=1.0)
    for layer, x in zip(layers, inputs((3, 4)), strict=True):
        bn = nn.BatchNorm2d(layer.num_features, momentum=0.3)
        bn.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "transition"})
        same(layer(x), bn(x))
        same(layer.running_mean, bn.running_mean)
        same(layer.running_var, bn.running_var)


def test_an_exact_prediction_keeps_the_estimate_and_an_impossible_one_is_not_used():
    x = data(4, 6, 3, 4)
    for factor in (1.0, 1e3):
        layers = [anynorm.make("bkn", 6, gain=0.3) for _ in range(2)]
        BatchKalmanNorm.connect(layers)
        layers[0](x * factor)
        same(layers[1](x), anynorm.make("bn", 6)(x))


def test_the_first_prediction_takes_each_channel_from_the_nearest_one():
    layers: list[Any] = [anynorm.make("bkn", c) for c in (2, 4, 2)]
    BatchKalmanNorm.connect(layers)
    assert layers[0].transition is None
    assert layers[1].transition.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert layers[2].transition.tolist() == [[1, 0, 0, 0], [0, 0, 1, 0]]
    nn.init.zeros_(layers[1].transition)
    layers[1].reset_parameters()
    assert layers[1].transition.sum() == 4


def network(spec="bn"):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)
    )
    return model if spec == "bn" else Layout.parse(spec, 4).apply(model)


X = data(4, 3, 8, 8)


def test_convert_and_the_trainer_connect_the_layers_and_the_optimizer_gets_the_matrices():
    model, trained = network(), network("bkn")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    report = anynorm.convert(model, "bkn", optimizer=optimizer, gain=0.5)
    for each in (model, trained):
        assert each[1].transition is None
        assert each[4].transition.shape == (8, 6)
    assert model[4].gain == 0.5
    assert any(parameter is model[4].transition for group in optimizer.param_groups for parameter in group["params"])
    model(X).square().sum().backward()
    assert float(model[4].transition.grad.abs().sum()) > 0
    assert float(model[0].weight.grad.abs().sum()) > 0
    report.undo()
    assert isinstance(model[4], nn.BatchNorm2d)
    same_state(model, network())


def test_copies_pickles_and_checkpoints_of_a_model_have_chains_of_their_own():
    model = network("bkn")
    with torch.no_grad():
        model[4].transition.add_(0.1 * torch.randn(8, 6))
        model(X)
    model[1](model[0](X))  # a pass that was interrupted
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = network("bkn")
    loaded.load_state_dict(model.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False), loaded):
        same(other(X), copy.deepcopy(model)(X))
        assert other[4]._previous[0] is other[1]


def test_a_frozen_previous_layer_predicts_from_its_running_statistics():
    layers = chain(channels=(6, 6))
    first, x = data(4, 6, 3, 4, seed=1), data(4, 6, 3, 4)
    layers[0](first)
    layers[0].eval()
    layers[0](first)
    mean, var = layers[0].running_mean.double(), layers[0].running_var.double()
    own = references.kalman_estimates([x.double()], [], 0.4)[0]
    matrix = layers[1].transition.detach().double()
    prior, prior_cov = matrix @ mean, matrix @ var.diag() @ matrix.T
    gap = own[0] - prior
    estimate = 0.6 * prior + 0.4 * own[0], 0.6 * prior_cov + 0.4 * own[1] + 0.24 * torch.outer(gap, gap)
    expected = references.kalman_norm(x.double(), estimate, (layers[1].weight.double(), layers[1].bias.double()))
    same(layers[1](x), expected.float(), rtol=1e-4, atol=1e-5)


def test_recalibration_of_a_chain_is_refused_because_it_would_use_batch_statistics_alone():
    model = network("bkn")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(anynorm.SurgeryError, match=r"is one of a chain of \d layers of bkn"):
        anynorm.recalibrate(model, [X])
    for name, value in model.state_dict().items():
        same(value, before[name])
    alone: Any = nn.Sequential(anynorm.make("bkn", X.shape[1]))
    anynorm.recalibrate(alone, [X])
    same(alone[0].running_mean, X.transpose(0, 1).flatten(1).mean(1))


def test_a_model_trains_and_folds():
    model = network("bkn")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for _ in range(20):
        value = (model(X) - 1).square().mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < losses[0] / 2
    expected = model.eval()(X)
    anynorm.fold(model, X)
    same(model(X), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_and_memory_format_are_kept_in_a_chain(dtype):
    for layer, x in zip(chain(), inputs((3, 4)), strict=True):
        y = layer(x.to(dtype).to(memory_format=torch.channels_last))
        assert y.dtype == dtype
        assert y.is_contiguous(memory_format=torch.channels_last)


MISSING = "bkn must run once per forward pass, after the previous layer of its chain; that layer has no statistics of this pass"


def test_a_layer_without_statistics_of_the_previous_one_is_refused():
    layers, xs = chain(), inputs((3, 4))
    with pytest.raises(anynorm.SpecError, match=MISSING):
        layers[1](xs[1])
    layers[0](xs[0])
    layers[1](xs[1])
    with pytest.raises(anynorm.SpecError, match=MISSING):
        layers[1](xs[1])
    BatchKalmanNorm.connect([layers[1]])
    same(layers[1](xs[1]), layers[1](xs[1]))
    model = network("bkn")
    y = checkpoint(model[3:], model[:3](X), use_reentrant=False)
    with pytest.raises(anynorm.SpecError, match=MISSING):
        y.sum().backward()


def test_chains_of_other_norms_and_synchronized_chains_are_refused():
    with pytest.raises(anynorm.SpecError, match="a chain must be made of different layers of bkn; got bkn bn"):
        BatchKalmanNorm.connect([anynorm.make("bkn", 4), anynorm.make("bn", 4)])
    layer = anynorm.make("bkn", 4)
    with pytest.raises(anynorm.SpecError, match="must be made of different layers of bkn; got bkn bkn"):
        BatchKalmanNorm.connect([layer, layer])

    class Synchronized:
        is_synchronized, name = True, "x"

    layers = chain()
    layers[0].sync_group = Synchronized()
    with pytest.raises(anynorm.SpecError, match="connected layers of bkn cannot be synchronized"):
        layers[0](inputs((3, 4))[0])


def test_the_text_of_a_layer_has_its_gain():
    assert repr(anynorm.make("bkn", 8, gain=0.1)) == "BatchKalmanNorm('bkn', 8, eps=1e-05, momentum=0.1, gain=0.1)"
