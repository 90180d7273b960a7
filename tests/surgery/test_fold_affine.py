"""Folding of γ and β into the layers that read a norm: the same output, or the reason why not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import anynorm
from tests.helpers import same
from tests.surgery.transformers import GPT, WIDTH, Encoder, ViT, images, randomized, tokens

MODELS = {
    "vit": (lambda: ViT(layer_scale=True), images(), 5),
    "vit, no biases": (lambda: ViT(bias=False), images(), 5),
    "vit, mean pooling": (lambda: ViT(pool="mean"), images(), 5),
    "vit, anynorm layers": (lambda: ViT(norm=lambda c: anynorm.make("pn", c, channel_axis=-1)), images(), 5),
    "gpt": (GPT, tokens(), 5),
    "gpt, RMSNorm": (lambda: GPT(norm=nn.RMSNorm), tokens(), 5),
    "nn.TransformerEncoder": (Encoder, tokens(), 5),
    "nn.TransformerEncoder, no biases": (lambda: Encoder(bias=False), tokens(), 5),
    "nn.TransformerEncoder, tokens first": (lambda: Encoder(batch_first=False), tokens(), 5),
}


def affine_norms(model):
    """The paths of the norms with γ or β."""
    sites = [(path, anynorm.read_norm(module)) for path, module in model.named_modules()]
    return [path for path, info in sites if info is not None and info.tensors]


@pytest.mark.parametrize("name", MODELS)
def test_gamma_and_beta_of_every_token_norm_go_into_the_layers_that_read_it(name):
    make, x, count = MODELS[name]
    model = randomized(make())  # type: ignore[operator]
    with torch.no_grad():
        expected = model(x)
    norms = affine_norms(model)
    assert len(norms) == count
    report = anynorm.fold(model, x)
    assert not affine_norms(model)
    assert all(row["layer_position"] == "after" and "only γ and β" in row["note"] for row in report)
    assert f"0 of {count} norms folded, γ and β of {count} others" in report.finding
    with torch.no_grad():
        same(model(x), expected, rtol=1e-10, atol=1e-10)
        report.undo()
        assert affine_norms(model) == norms
        same(model(x), expected, rtol=0, atol=0)


def test_the_report_names_the_layers_and_torch_norms_stay_torch_norms():
    model = randomized(ViT())
    report = anynorm.fold(model, images())
    assert report["blocks.0.norm1"]["into"] == "blocks.0.attn.qkv"
    assert report["norm"]["into"] == "head"
    norm = model.blocks[0].norm1
    assert (type(norm), norm.weight, norm.bias, norm.elementwise_affine) == (nn.LayerNorm, None, None, False)


def test_a_bias_is_added_only_for_a_beta_that_is_not_zero():
    for zero in (True, False):
        model = randomized(ViT(bias=False))
        if zero:
            with torch.no_grad():
                for module in model.modules():
                    if isinstance(module, nn.LayerNorm):
                        module.bias.zero_()
        expected = model(images()).detach()
        anynorm.fold(model, images())
        assert (model.blocks[0].attn.qkv.bias is None) == zero
        same(model(images()), expected, rtol=1e-10, atol=1e-10)


class Norms(nn.Module):
    """A norm and a function of it and a second layer."""

    def __init__(self, function, norm=None, layer=None):
        super().__init__()
        self.norm, self.layer = norm or nn.LayerNorm(WIDTH), layer or nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


class Projections(nn.Module):
    """q of one norm, k and v of another, with a packed weight."""

    def __init__(self):
        super().__init__()
        self.norm, self.memory_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x, memory):
        memory = self.memory_norm(memory)
        return self.attention(self.norm(x), memory, memory, need_weights=False)[0]


class Conv1D(nn.Module):
    """The linear layer of GPT-2 in transformers: a weight (in, out)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(*x.shape[:-1], -1)


def x3(width=WIDTH):
    return torch.randn(2, 5, width, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def swapped(m, x):
    return m.layer(m.norm(x.transpose(1, 2)))


def twice(m, x):
    y = m.norm(x)
    return m.layer(y[:, 0]) * m.layer(y[:, 1])


def added(m, x):
    y = m.norm(x)
    return y + m.layer(y)


def both(m, x):
    y = m.norm(x)
    return y, m.layer(y)


FOLDED = {
    "cross-attention": (Projections, (x3(), x3().flip(0, 1))),
    "weight (in, out)": (lambda: Norms(lambda m, x: m.layer(m.norm(x)), layer=Conv1D(WIDTH, 7)), x3()),
    "channels in axis 1": (lambda: Norms(swapped, anynorm.make("pn", WIDTH), nn.Conv1d(WIDTH, 4, 2, groups=2)), x3()),
    "GroupNorm": (lambda: Norms(swapped, nn.GroupNorm(4, WIDTH), nn.Conv1d(WIDTH, 4, 1, bias=False)), x3()),
    "padding, no β": (lambda: Norms(swapped, anynorm.make("rms", WIDTH), nn.Conv1d(WIDTH, 4, 3, padding=1)), x3()),
    "one layer for two parts": (lambda: Norms(twice), x3()),
}


@pytest.mark.parametrize("name", FOLDED)
def test_readers_of_other_kinds_take_gamma_and_beta(name):
    make, x = FOLDED[name]
    model = randomized(make())
    inputs = x if isinstance(x, tuple) else (x,)
    expected = model(*inputs).detach()
    report = anynorm.fold(model, x)
    assert not affine_norms(model), report
    same(model(*inputs), expected, rtol=1e-10, atol=1e-10)


def shares(m, x):
    return functional.linear(x, m.layer.weight) + m.layer(m.norm(x))


def parametrized():
    layer = nn.Linear(WIDTH, WIDTH)
    nn.utils.parametrizations.weight_norm(layer)
    return layer


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) + float((self.weight.detach().numpy() ** 2).sum())


KEPT = {
    "an addition": (lambda: Norms(added), "its output is also read in Norms, add"),
    "an output": (lambda: Norms(both), "its output is an output of the model"),
    "an activation": (lambda: Norms(lambda m, x: m.layer(m.norm(x).relu())), "also read in Norms, relu"),
    "two calls": (lambda: Norms(lambda m, x: m.layer(m.norm(m.norm(x)))), "it runs 2 times on the example"),
    "no call": (lambda: Norms(lambda m, x: m.layer(x)), "it does not run on the example"),
    "a shared weight": (lambda: Norms(shares), "layer.weight is also read in Norms, mm"),
    "a computed weight": (lambda: Norms(lambda m, x: m.layer(m.norm(x)), layer=parametrized()), "is computed from other tensors"),
    "padding": (
        lambda: Norms(swapped, nn.GroupNorm(4, WIDTH), nn.Conv1d(WIDTH, 4, 3, padding=1)),
        "pads with zeros, and the padding would have to be β of the norm",
    ),
    "a transposed convolution": (
        lambda: Norms(swapped, nn.GroupNorm(4, WIDTH), nn.ConvTranspose1d(WIDTH, 4, 3)),
        "is transposed, so its output at the borders depends on fewer inputs",
    ),
    "no γ and β": (
        lambda: Norms(lambda m, x: m.layer(m.norm(x)), nn.LayerNorm(WIDTH, elementwise_affine=False)),
        "it has no γ and β per channel",
    ),
    "a residual": (
        lambda: Norms(lambda m, x: m.layer(m.norm(x, residual=x)), anynorm.make("pn", WIDTH, channel_axis=-1)),
        "it is called with further arguments, such as a residual",
    ),
    "an activation of the norm": (
        lambda: Norms(lambda m, x: m.layer(m.norm(x)), anynorm.make("pn", WIDTH, channel_axis=-1, activation="relu")),
        "it does more than normalize",
    ),
    "split channels": (
        lambda: Norms(lambda m, x: m.layer(m.norm(x)[..., : WIDTH // 2]), layer=nn.Linear(WIDTH // 2, 3)),
        "its channels are split or mixed in Norms, slice",
    ),
    "a layer without a place for a bias": (
        lambda: Norms(lambda m, x: m.norm(x) @ m.layer.weight, layer=Conv1D(WIDTH, 5)),
        "has no bias, and β of the norm is not 0",
    ),
    "a weight that is not dense": (
        lambda: Norms(lambda m, x: m.layer(m.norm(x)), layer=strided()),
        "the entries of layer.weight are not contiguous in memory",
    ),
    "more than the graph shows": (
        lambda: Norms(lambda m, x: m.layer(m.norm(x)), layer=Doubled(WIDTH, 3)),
        "folding it into 'layer' would change the output",
    ),
}


def strided():
    layer = nn.Linear(WIDTH, 5)
    layer.weight = nn.Parameter(torch.zeros(10, WIDTH, dtype=torch.float64)[::2])
    return layer


@pytest.mark.parametrize("name", KEPT)
def test_the_report_says_why_gamma_and_beta_stay(name):
    make, reason = KEPT[name]
    model, x = randomized(make()), x3()
    before = copy.deepcopy(model.state_dict())
    report = anynorm.fold(model, x)
    assert reason in report["norm"]["note"]
    assert "not folded" in report["norm"]["note"]
    same(model.state_dict(), before, rtol=0, atol=0)


def test_a_tied_classifier_keeps_gamma_and_beta_in_the_last_norm():
    model = randomized(GPT(tied=True))
    expected = model(tokens()).detach()
    report = anynorm.fold(model, tokens())
    assert affine_norms(model) == ["ln_f"]
    assert "lm_head.weight is shared with wte.weight" in report["ln_f"]["note"]
    assert model.lm_head.weight is model.wte.weight
    same(model(tokens()), expected, rtol=1e-10, atol=1e-10)


def test_a_folded_encoder_layer_of_torch_runs_in_inference_without_gradients():
    model = randomized(Encoder())
    model.requires_grad_(False)
    fused = model(tokens())
    anynorm.fold(model, tokens())
    same(model(tokens()), fused, rtol=1e-10, atol=1e-10)
    assert torch.backends.mha.get_fastpath_enabled()


def test_float16_models_fold_into_parameters_of_their_dtype():
    model = randomized(ViT()).half()
    expected = model(images().half())
    report = anynorm.fold(model, images().half())
    assert "γ and β of 5 others" in report.finding
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    same(model(images().half()), expected, rtol=0.05, atol=0.05)  # weights are rounded to float16 again
