"""LayerNorm as RMSNorm: the same output without subtracting the mean, or the reason why not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import anynorm
from tests.helpers import same
from tests.surgery.transformers import GPT, VOCABULARY, WIDTH, Attention, Block, Encoder, LayerScale, ViT, images, randomized, tokens

MODELS = {
    "vit": (lambda: ViT(), images()),
    "vit, layer scale": (lambda: ViT(layer_scale=True), images()),
    "vit, no biases": (lambda: ViT(bias=False), images()),
    "vit, mean pooling": (lambda: ViT(pool="mean", layer_scale=True), images()),
    "gpt": (lambda: GPT(), tokens()),
    "gpt, no biases": (lambda: GPT(bias=False), tokens()),
    "nn.TransformerEncoder": (lambda: Encoder(), tokens()),
    "nn.TransformerEncoder, no biases": (lambda: Encoder(bias=False), tokens()),
    "nn.TransformerEncoder, tokens first": (lambda: Encoder(batch_first=False), tokens()),
}


def rms_norms(model):
    """The paths of the norms of a model that do not subtract a mean."""
    return [path for path, module in model.named_modules() if isinstance(module, anynorm.Norm) and not module.norm_spec.mean]


def layer_norms(model):
    return [path for path, module in model.named_modules() if isinstance(module, nn.LayerNorm)]


@torch.no_grad()
def means_of_norm_inputs(model, x):
    """The largest absolute mean over channels of the input of each norm."""
    means = []
    handles = [
        module.register_forward_pre_hook(lambda _, args: means.append(float(args[0].mean(-1).abs().max())))
        for module in model.modules()
        if isinstance(module, nn.LayerNorm | anynorm.Norm)
    ]
    model(x)
    for handle in handles:
        handle.remove()
    return means


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_norm_of_a_pre_norm_transformer_becomes_rms_norm_with_the_same_output(name):
    make, x = MODELS[name]
    model = randomized(make())
    original = copy.deepcopy(model)
    assert min(means_of_norm_inputs(model, x)) > 1e-3
    report = anynorm.to_rms(model, x)
    assert rms_norms(model) == layer_norms(original)
    assert {report[path]["new_norm"] for path in layer_norms(original)} == {"rms" if "no biases" in name and "vit" not in name and "gpt" not in name else "0/pn"}
    assert max(means_of_norm_inputs(model, x)) < 1e-12
    with torch.no_grad():
        same(model(x), original(x), rtol=1e-10, atol=1e-10)
        other = images(3) + 1 if x.is_floating_point() else tokens(3, 5) * 7 % VOCABULARY
        same(model(other), original(other), rtol=1e-10, atol=1e-10)


def test_undo_restores_the_model():
    model = randomized(ViT(layer_scale=True)).train()
    parameters, modes = dict(model.named_parameters()), [module.training for module in model.modules()]
    values = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    report = anynorm.to_rms(model, images())
    assert model.training and model.blocks[0].norm1.training
    assert not torch.equal(model.pos_embed, values["pos_embed"])
    assert report.undo() is model
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    same(dict(model.named_parameters()), values, rtol=0, atol=0)
    assert [module.training for module in model.modules()] == modes


def test_the_report_lists_norms_and_changed_tensors():
    report = anynorm.to_rms(randomized(ViT(layer_scale=True)), images())
    assert report["blocks.0.norm1"] == {"path": "blocks.0.norm1", "norm": "LayerNorm", "new_norm": "0/pn", "note": None}
    notes = {row["path"]: row["note"] for row in report if row["norm"] is None}
    assert notes["patch_embed.weight"] == notes["patch_embed.bias"] == "centered over axis 0"
    assert notes["cls_token"] == notes["pos_embed"] == "centered over axis 2"
    assert notes["blocks.1.fc2.weight"] == "times blocks.1.ls2.gamma, centered over axis 0"
    assert notes["blocks.1.ls2.gamma"] == "set to 1"
    assert not {"head.weight", "blocks.0.fc1.weight", "blocks.0.attn.qkv.weight"} & notes.keys()
    assert "5 of 5 norms changed, 16 tensors" in report.finding


def test_a_tied_embedding_is_centered_only_if_it_may_be_untied():
    model = randomized(GPT(tied=True))
    expected = model(tokens()).detach()
    with pytest.raises(anynorm.SurgeryError, match=r"wte.weight, which is centered, is tied to lm_head.weight.*untie=True"):
        anynorm.to_rms(model, tokens())
    assert model.wte.weight is model.lm_head.weight
    report = anynorm.to_rms(model, tokens(), untie=True)
    assert len(rms_norms(model)) == 5
    assert model.wte.weight is not model.lm_head.weight
    same(model(tokens()), expected, rtol=1e-10, atol=1e-10)
    report.undo()
    assert model.wte.weight is model.lm_head.weight


def test_a_tie_between_two_centered_embeddings_is_kept():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Embedding(9, WIDTH), nn.Embedding(9, WIDTH)
            self.b.weight = self.a.weight
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, x):
            return self.head(self.norm(self.a(x) + self.b(x.flip(1))))

    model, x = randomized(Two()), tokens() % 9
    expected = model(x).detach()
    anynorm.to_rms(model, x)
    assert model.a.weight is model.b.weight
    same(model(x), expected, rtol=1e-10, atol=1e-10)


class Stream(nn.Module):
    """An embedding, an operation on the residual stream, a block, an operation on its output, a norm, a head."""

    def __init__(self, first=None, last=None, output=None):
        super().__init__()
        self.embed, self.block = nn.Embedding(VOCABULARY, WIDTH), Block(WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        for name, value in (("first", first), ("last", last), ("output", output)):
            setattr(self, name, value)

    def forward(self, x):
        h = self.embed(x)
        h = h if self.first is None else self.first(h)
        h = self.block(h)
        h = h if self.last is None else self.last(h)
        y = self.head(self.norm(h))
        return y if self.output is None else self.output(self, h, y)


def swap(x):
    return x.transpose(1, 2)


REFUSED = {
    "returned hidden states": (lambda: Stream(output=lambda m, h, y: (h, y)), "the residual stream is an output of the model"),
    "head without a norm": (lambda: Stream(output=lambda m, h, y: m.head(h)), "is not used"),
    "second head": (lambda: Stream(output=lambda m, h, y: y + m.head(h)), r"'head' \(Linear\), addmm, reads the residual stream"),
    "multiplied": (lambda: Stream(last=lambda h: h * h.sigmoid()), "sigmoid, reads|mul, multiplies channels"),
    "tied in one module": (
        lambda: Stream(output=lambda m, h, y: functional.linear(y, m.embed.weight)),
        "addmm|mm, reads the residual stream, or a tensor that writes it",
    ),
    "grouped convolution": (
        lambda: Stream(first=nn.Sequential(Swap(), nn.Conv1d(WIDTH, WIDTH, 1, groups=2), Swap())),
        "writes the residual stream in groups of channels",
    ),
    "activation": (lambda: Stream(first=nn.GELU()), r"'first' \(GELU\), gelu, computes a part of the residual stream"),
    "number": (lambda: Stream(first=lambda h: h + 1), "adds the same number to all channels"),
    "channel of another kind": (lambda: Stream(first=lambda h: h + h[..., :1]), "mixes channels, or adds the same number to all"),
    "mask of channels": (
        lambda: Stream(first=lambda h: h.masked_fill(torch.arange(WIDTH) > 3, 0.0)),
        "treats channels of the residual stream differently",
    ),
    "constant": (lambda: Stream(first=lambda h: h + torch.arange(WIDTH)), "an input of the model, or a constant"),
    "norm before the blocks": (lambda: Stream(first=nn.LayerNorm(WIDTH)), "the output of the norm 'first' is part of the residual"),
    "RMSNorm of the stream": (lambda: Stream(last=lambda h: h, output=None, first=nn.RMSNorm(WIDTH)), "of the norm 'first' is part"),
    "GroupNorm of the stream": (lambda: Stream(output=WithNorm(nn.GroupNorm(2, WIDTH))), "norm, reads the residual stream"),
    "second RMSNorm": (lambda: Stream(output=WithNorm(nn.RMSNorm(WIDTH))), "norm, reads the residual stream"),
    "gamma of a LayerScale": (
        lambda: Stream(output=lambda m, h, y: y + m.block.ls1.gamma),
        "ls1.gamma of a LayerScale is also read in Stream, add",
    ),
    "view written in place": (lambda: Stream(first=written), "a write in place, computes a part"),
}
