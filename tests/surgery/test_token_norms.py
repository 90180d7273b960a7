"""Norms over the channels of tokens (n, t, c) are read as what they are, and converted; every operation knows the axis."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.diagnostics import estimation_shift, fluctuation
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.surgery.adapters import UnsupportedNormError, read_norm
from anynorm.surgery.find import find_norms
from anynorm.surgery.inspect import inspect
from tests.helpers import data, same
from tests.surgery.networks import LayerNorm2d

DIGITS = DataShape(1, 8, 8, 10)
IMAGES = data(16, 1, 8, 8)


def encoder_layer(**options) -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, **options)
    with torch.no_grad():
        for norm in (layer.norm1, layer.norm2):
            norm.weight.normal_(1, 0.3), norm.bias.normal_(0, 0.3)
    return layer


def with_random_affine(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for site in find_norms(model):
            for parameter in site.module.parameters():
                parameter.normal_(1, 0.3)
    return model


class LlamaRMSNorm(nn.Module):
    """The class of transformers."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon)).to(dtype)


class T5LayerNorm(LlamaRMSNorm):
    """In spite of its name, without mean and bias."""


class GemmaRMSNorm(nn.Module):
    """The class of transformers, whose γ is 1 + weight."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(dim)), eps

    def forward(self, x):
        output = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (output * (1.0 + self.weight.float())).type_as(x)


class ShiftedRMSNorm(LlamaRMSNorm):
    """With β."""

    def __init__(self, hidden_size):
        super().__init__(hidden_size)
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, hidden_states):
        return super().forward(hidden_states) + self.bias


class RmsNorm2d(nn.Module):
    """The class of timm for (n, c, h, w)."""

    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.normalized_shape, self.eps, self.weight = (channels,), eps, nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return x * (x.square().mean(1, keepdim=True) + self.eps).rsqrt() * self.weight[:, None, None]


class SimpleNorm(RmsNorm2d):
    """The class of timm, which divides by the standard deviation and does not subtract the mean."""

    def forward(self, x):
        return x * (x.var(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class TimmLayerNorm(nn.LayerNorm):
    """The class of timm, with a forward of its own."""

    def forward(self, x):
        return nn.functional.layer_norm(x.float(), self.normalized_shape, self.weight, self.bias, self.eps).to(x.dtype)


class ConvNextLayerNorm(nn.LayerNorm):
    """The class of transformers."""

    def __init__(self, shape, *, data_format="channels_last"):
        super().__init__(shape, eps=1e-6)
        self.data_format = data_format

    def forward(self, features):
        if self.data_format == "channels_first":
            return super().forward(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return super().forward(features)


class DynamicNorm(nn.LayerNorm):
    """Not a LayerNorm alone."""

    def forward(self, x):
        return super().forward(x).tanh()


@pytest.mark.parametrize(
    ("module", "shape", "spec", "axis"),
    [
        (nn.LayerNorm(8), (3, 5, 8), "pn", -1),
        (nn.LayerNorm(8), (6, 8), "pn", -1),
        (nn.LayerNorm(8, eps=1e-3, bias=False), (2, 3, 4, 8), "pn.nobias", -1),
        (nn.LayerNorm(8, elementwise_affine=False), (3, 5, 8), "pn.none", -1),
        (TimmLayerNorm(8), (3, 5, 8), "pn", -1),
        (LayerNorm2d(8), (2, 8, 3, 4), "pn", 1),
        (ConvNextLayerNorm(8), (2, 3, 4, 8), "pn", -1),
        (ConvNextLayerNorm(8, data_format="channels_first"), (2, 8, 3, 4), "pn", 1),
        (nn.RMSNorm(8), (3, 5, 8), "rms", -1),
        (nn.RMSNorm(8, eps=1e-3), (6, 8), "rms", -1),
        (LlamaRMSNorm(8), (3, 5, 8), "rms", -1),
        (T5LayerNorm(8), (3, 5, 8), "rms", -1),
        (GemmaRMSNorm(8), (3, 5, 8), "rms", -1),
        (RmsNorm2d(8), (2, 8, 3, 4), "rms", 1),
        (nn.RMSNorm(8, elementwise_affine=False), (3, 5, 8), "rms.none", -1),
        (ShiftedRMSNorm(8), (3, 5, 8), "0/pn", -1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
@pytest.mark.parametrize("scale", [1.0, 1e-3])  # ε matters for the second
def test_norms_over_channels_are_read_as_what_they_are_and_converting_to_it_keeps_the_output(module, shape, spec, axis, scale):
    old = with_random_affine(nn.Sequential(copy.deepcopy(module)))
    info: Any = read_norm(old[0])
    assert (info.spec, info.channel_axis, info.channels) == (spec, axis, 8)
    new, x = copy.deepcopy(old), scale * data(*shape)
    report = anynorm.convert(new, spec)
    assert new[0].channel_axis == axis
    for mode in (True, False):
        same(new.train(mode)(x), old.train(mode)(x), rtol=1e-4, atol=1e-5)
    report.undo()
    assert type(new[0]) is type(module)


@pytest.mark.parametrize("module", [SimpleNorm(8), nn.RMSNorm((4, 8)), nn.LocalResponseNorm(2)])
def test_norms_that_are_neither_stay_and_say_so(module):
    with pytest.raises(
        UnsupportedNormError, match=f"the class {type(module).__name__} is unknown; anynorm.register adds support"
    ):
        read_norm(module)


def test_a_layer_norm_that_does_more_is_refused():
    with pytest.raises(UnsupportedNormError, match="DynamicNorm has its own forward, which may do more than normalize"):
        read_norm(DynamicNorm(8))


def test_a_norm_on_the_meta_device_is_read_by_the_equation_of_its_forward():
    info: Any = read_norm(GemmaRMSNorm(8).to("meta"))
    assert info.spec == "rms"
    assert info.tensors["weight"].is_meta


def test_frozen_weights_stay_frozen():
    norm = GemmaRMSNorm(8).requires_grad_(False)
    model = nn.Sequential(norm)
    anynorm.convert(model, "pn")
    assert not model[0].weight.requires_grad
    same(model[0].weight.data, torch.ones(8))


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_layer_converted_to_pn_has_equal_outputs_and_gradients_and_undo_restores_it(norm_first):
    old = encoder_layer(norm_first=norm_first)
    new, x = copy.deepcopy(old), data(4, 6, 16)
    report = anynorm.convert(new, "pn")
    assert report.finding == "2 of 2 norms are now pn."
    for training in (True, False):
        y, expected = new.train(training)(x), old.train(training)(x)
        same(y, expected, rtol=1e-4, atol=1e-5)
        y.square().sum().backward(), expected.square().sum().backward()
    for name, parameter in old.named_parameters():
        same(new.get_parameter(name).grad, parameter.grad, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        same(new.eval()(x), old.eval()(x), rtol=1e-4, atol=1e-5)
    report.undo()
    assert isinstance(new.norm1, nn.LayerNorm)
    assert new.activation_relu_or_gelu == old.activation_relu_or_gelu == 1


@pytest.mark.parametrize("spec", ["bn", "hn", "sn"])
def test_inference_of_a_converted_transformer_layer_calls_its_norms(spec):
    """torch's fast path computes LayerNorm with their weight and bias, without calling them."""
    layer, x = encoder_layer(), data(4, 6, 16)
    anynorm.convert(layer, spec)
    layer(x)
    expected = layer.eval()(x).detach()
    with torch.no_grad():
        same(layer(x), expected)
        encoder = nn.TransformerEncoder(encoder_layer(), 2).eval()
        anynorm.convert(encoder, spec)
        padding = torch.zeros(4, 6, dtype=torch.bool)
        padding[1:, 4:] = True
        assert encoder(x, src_key_padding_mask=padding).shape == x.shape


@pytest.mark.parametrize("model", ["vit", "convnext"])
@pytest.mark.parametrize("spec", ["bn", "sn", "hn", "ln", "pn", "rms", "gn:8"])
def test_a_network_with_layer_norms_takes_any_norm_and_learns(model, spec):
    torch.manual_seed(0)
    network = build_model(model, DIGITS, 0.5)
    report = anynorm.convert(network, spec)
    assert all(row["new_norm"] == spec for row in report)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    labels = torch.arange(len(IMAGES)) % 10
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(IMAGES), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


def test_by_default_every_norm_is_converted_if_none_pools_over_samples_and_only_those_that_do_otherwise():
    network = build_model("vit", DIGITS, 0.25)
    assert len(anynorm.convert(network, "gn:4")) == 9
    anynorm.convert(network, "bn", where="blocks.0.*")
    report = anynorm.convert(network, "hn")
    assert [row["path"] for row in report if row["new_norm"]] == ["blocks.0.norm1", "blocks.0.norm2"]
    assert "where='all' converts every norm." in report.finding


def test_the_axis_is_that_of_the_old_norm_unless_it_is_given_and_inspect_lists_it():
    model = nn.Sequential(nn.LayerNorm(8), LayerNorm2d(8), anynorm.make("gn:4", 8, channel_axis=2))
    assert [row.get("channel_axis") for row in inspect(model)] == [-1, None, 2]
    anynorm.convert(model, "bn")
    assert [norm.channel_axis for norm in model] == [-1, 1, 2]
    anynorm.convert(model, "gn:4", channel_axis=1)
    assert [norm.channel_axis for norm in model] == [1, 1, 1]


@pytest.mark.parametrize("spec", ["bn", "sn", "gn:4"])
def test_fitting_brings_the_outputs_of_a_transformer_closer(spec):
    network = with_random_affine(build_model("vit", DIGITS, 0.5)).eval()
    expected = network(IMAGES).detach()
    plain, fitted = copy.deepcopy(network), copy.deepcopy(network)
    anynorm.convert(plain, spec)
    report = anynorm.convert(fitted, spec, fit=IMAGES)
    assert all(row["error_after"] <= row["error_before"] * 1.001 for row in report)
    distances = [float((model.eval()(IMAGES) - expected).norm().detach()) for model in (plain, fitted)]
    assert distances[1] < 0.7 * distances[0]


def test_the_least_squares_solution_is_that_of_the_permuted_problem():
    tokens = data(32, 8, 5)
    old = with_random_affine(nn.Sequential(nn.LayerNorm(8)))
    first = with_random_affine(nn.Sequential(LayerNorm2d(8)))
    last = copy.deepcopy(old)
    anynorm.convert(last, "bn", fit=tokens.movedim(1, -1).contiguous())
    anynorm.convert(first, "bn", fit=tokens[..., None])
    for key, value in first.state_dict().items():
        same(last.state_dict()[key], value, rtol=1e-4, atol=1e-5)


def test_statistics_are_measured_recalibrated_and_mixed_on_the_channels():
    tokens = data(64, 8, 5).movedim(1, -1).contiguous()
    model = nn.Sequential(anynorm.make("bn", 8, channel_axis=-1))
    assert max(row["shift"] for row in estimation_shift(model, tokens.split(16))) > 0.1
    anynorm.recalibrate(model, tokens.split(16))
    same(model[0].running_mean, tokens.mean((0, 1)))
    same(model[0].running_var, tokens.flatten(0, 1).var(0))
    assert max(row["shift"] for row in estimation_shift(model, tokens.split(16))) < 1e-5
    anynorm.recalibrate(model, (tokens + 1).split(16), source_weight=0.5)
    same(model[0].running_mean, tokens.mean((0, 1)) + 0.5)


def test_the_estimation_shift_of_a_converted_transformer_is_measured_per_norm():
    network = build_model("vit", DIGITS, 0.25)
    anynorm.convert(network, "bn")
    report = estimation_shift(network.eval(), IMAGES.split(8))
    assert len([row for row in report if row["shift"] is not None]) == 9
    anynorm.recalibrate(network, IMAGES.split(8))
    with fluctuation(network.train(), last=2) as recorder:
        for batch in IMAGES.split(8):
            network(batch)
    assert len(recorder.report()) == 9
    assert recorder.series("norm")["bn_mean"].shape == (2, 16)


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_token_norm_with_fixed_statistics_folds_into_a_linear_layer(order):
    norm = with_random_affine(nn.Sequential(anynorm.make("bn", 8, channel_axis=-1)))[0]
    layers = [nn.Linear(8, 8), norm] if order == "before" else [norm, nn.Linear(8, 6)]
    model, x = nn.Sequential(*layers), data(4, 8, 5).movedim(1, -1).contiguous()
    model(x)
    expected = model.eval()(x).detach()
    report = anynorm.fold(model, x)
    assert [row["layer_position"] for row in report] == [order]
    same(model(x), expected, rtol=1e-4, atol=1e-5)


def test_a_norm_with_channels_in_another_axis_than_those_of_the_layer_is_not_folded():
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), anynorm.make("bn", 6, channel_axis=-1)).eval(), data(2, 3, 6, 6)
    model[1].running_var.uniform_(1, 2)  # type: ignore[operator]
    expected = model(x).detach()
    assert "no convolution or linear layer is directly before or after it" in anynorm.fold(model, x)["1"]["note"]
    same(model(x), expected)
    model = nn.Sequential(nn.Linear(6, 6), anynorm.make("bn", 5)).eval()
    assert "no convolution or linear layer" in anynorm.fold(model, data(2, 5, 6))["1"]["note"]


def test_a_token_norm_is_fused_with_the_activation_after_it():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x):
            return (self.norm(self.linear(x)) + x).relu()

    block, x = Block(), data(4, 8, 5).movedim(1, -1).contiguous()
    expected = block(x)
    report = anynorm.fuse(block, x)
    assert report["norm"]["fused"] == ["add", "relu"]
    same(block(x), expected, rtol=1e-4, atol=1e-5)
    assert block.norm.channel_axis == -1


def test_other_operations_know_the_axis():
    model = nn.Sequential(anynorm.make("bn", 8, channel_axis=-1), nn.LayerNorm(8))
    anynorm.freeze(model)
    anynorm.unfreeze(model)
    anynorm.sync(model)
    assert [getattr(module, "channel_axis", None) for module in model] == [-1, None]
    domains = nn.Sequential(anynorm.make("auxbn@2", 8, channel_axis=-1))
    with anynorm.condition(domains, torch.tensor([0, 1, 1, 0])):
        x = data(4, 8, 5).movedim(1, -1).contiguous()
        domains(x)
        same(domains[0].running_mean[1], 0.1 * x[1:3].mean((0, 1)))  # type: ignore[index]
        assert len(estimation_shift(domains.eval(), [x])) == 1
    anynorm.copy_domain(domains, 1)
    same(domains[0].running_mean[0], domains[0].running_mean[1])  # type: ignore[index]
