"""LayerNorm as RMSNorm: the same output without subtracting the mean, or the reason why not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import anynorm
from tests.helpers import same
from tests.surgery.transformers import GPT, VOCABULARY, WIDTH, Block, Encoder, ViT, images, randomized, tokens

MODELS = {
    "vit": (ViT, images()),
    "vit, layer scale": (lambda: ViT(layer_scale=True), images()),
    "vit, no biases": (lambda: ViT(bias=False), images()),
    "vit, mean pooling": (lambda: ViT(pool="mean", layer_scale=True), images()),
    "gpt": (GPT, tokens()),
    "gpt, no biases": (lambda: GPT(bias=False), tokens()),
    "nn.TransformerEncoder": (Encoder, tokens()),
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
    model = randomized(make())  # type: ignore[operator]
    original = copy.deepcopy(model)
    assert min(means_of_norm_inputs(model, x)) > 1e-3
    report = anynorm.to_rms(model, x)
    assert rms_norms(model) == layer_norms(original)
    has_beta = original.get_submodule(layer_norms(original)[0]).bias is not None
    assert {report[path]["new_norm"] for path in layer_norms(original)} == {"0/pn" if has_beta else "rms"}
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
    assert model.training
    assert model.blocks[0].norm1.training
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
        h = h if self.first is None else self.first(h)  # type: ignore[operator]
        h = self.block(h)
        h = h if self.last is None else self.last(h)  # type: ignore[operator]
        y = self.head(self.norm(h))
        return y if self.output is None else self.output(self, h, y)  # type: ignore[operator]


class Swap(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


class WithNorm(nn.Module):
    """A second norm of the residual stream."""

    def __init__(self, norm, swap=False):
        super().__init__()
        self.norm, self.swap = norm, swap

    def forward(self, model, h, y):
        return y + (self.norm(h.transpose(1, 2)).transpose(1, 2) if self.swap else self.norm(h))


def write_in_view(h):
    h = h * 1.0
    h[:, 0].mul_(2.0)
    return h


class OneWeight(nn.Module):
    """An embedding whose weight is also that of a linear layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = (
            nn.Embedding(VOCABULARY, VOCABULARY),
            nn.LayerNorm(VOCABULARY),
            nn.Linear(VOCABULARY, 3),
        )

    def forward(self, x):
        h = self.embed(x)
        return self.head(self.norm(h + functional.linear(h.sigmoid(), self.embed.weight)))


CONSTANT = torch.arange(WIDTH)

REFUSED = {
    "the stream is returned": (lambda: Stream(output=lambda m, h, y: (h, y)), "the residual stream is an output of the model"),
    "a returned weight": (lambda: Stream(output=lambda m, h, y: (y, m.embed.weight)), "'embed.weight' is an output of the model"),
    "one weight, two axes": (OneWeight, "embed.weight would have to be centered in two ways"),
    "a second head": (
        lambda: Stream(output=lambda m, h, y: y + m.head(h)),
        r"'head' \(Linear\), addmm, reads the residual stream",
    ),
    "a product": (lambda: Stream(last=lambda h: h * h.sigmoid()), "mul, multiplies channels of the residual stream"),
    "a tie in one module": (
        lambda: Stream(output=lambda m, h, y: functional.linear(y, m.embed.weight)),
        "reads the residual stream, or a tensor that writes it",
    ),
    "a grouped convolution": (
        lambda: Stream(first=nn.Sequential(Swap(), nn.Conv1d(WIDTH, WIDTH, 1, groups=2), Swap())),
        "writes the residual stream in groups of channels",
    ),
    "an activation": (lambda: Stream(first=nn.GELU()), r"'first' \(GELU\), gelu, computes a part of the residual stream"),
    "a number": (lambda: Stream(first=lambda h: h + 1), "adds the same number to all channels"),
    "a channel for all": (lambda: Stream(first=lambda h: h + h[..., :1]), "mixes channels, or adds the same number to all"),
    "a mask of channels": (
        lambda: Stream(first=lambda h: h.masked_fill(torch.arange(WIDTH) > 3, 0.0)),
        "treats channels of the residual stream differently",
    ),
    "a constant": (lambda: Stream(first=lambda h: h + CONSTANT), "an input of the model, or a constant, is added"),
    "computed positions": (lambda: Stream(first=lambda h: h + torch.arange(WIDTH).sin()), "Stream, sin, computes a part"),
    "a norm before": (lambda: Stream(first=nn.LayerNorm(WIDTH)), "the output of the norm 'first' is part of the residual stream"),
    "a GroupNorm": (
        lambda: Stream(output=WithNorm(nn.GroupNorm(2, WIDTH), swap=True)),
        r"'output.norm' \(GroupNorm\), norm, reads the residual stream",
    ),
    "an RMSNorm": (lambda: Stream(output=WithNorm(nn.RMSNorm(WIDTH))), "norm, reads the residual stream"),
    "a write in a view": (lambda: Stream(first=write_in_view), "a write in place, computes a part of the residual stream"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_norm_stays_if_something_else_reads_or_writes_its_residual_stream(name):
    make, reason = REFUSED[name]
    model, x = randomized(make()), tokens()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(anynorm.SurgeryError, match=f"(?s)No norm can become an RMSNorm; nothing was changed.*norm.*{reason}"):
        anynorm.to_rms(model, x, where="norm", untie=True)
    assert not rms_norms(model)
    same(model.state_dict(), before, rtol=0, atol=0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_post_norm_transformers_and_streams_from_outside_are_refused():
    with pytest.raises(
        anynorm.SurgeryError, match=r"(?s)norm1 .*self_attn' .*reads the residual stream.*norm2 .*'encoder.layers.0.norm1'"
    ):
        anynorm.to_rms(randomized(Encoder(norm_first=False)), tokens())
    block = randomized(Block(WIDTH))
    with pytest.raises(anynorm.SurgeryError, match="an input of the model, or a constant"):
        anynorm.to_rms(block, torch.randn(2, 3, WIDTH, dtype=torch.float64))


def test_norms_that_cannot_be_changed_stay_beside_those_that_can():
    model = randomized(ViT(qk_norm=True))
    expected = model(images()).detach()
    report = anynorm.to_rms(model, images())
    assert len(rms_norms(model)) == 5
    assert len(layer_norms(model)) == 4
    assert "not changed: " in report["blocks.0.attn.q_norm"]["note"]
    same(model(images()), expected, rtol=1e-10, atol=1e-10)


def test_norms_without_a_mean_that_do_not_run_or_are_unknown_are_refused():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rms, self.unused = nn.Embedding(9, 8), nn.RMSNorm(8), nn.LayerNorm(8)
            self.bn = nn.BatchNorm1d(8)

        def forward(self, x):
            return self.rms(self.embed(x))

    with pytest.raises(anynorm.SurgeryError, match="This Linear has no norm that anynorm recognizes: there is no LayerNorm"):
        anynorm.to_rms(nn.Linear(3, 3), torch.ones(2, 3))
    with pytest.raises(anynorm.SurgeryError) as error:
        anynorm.to_rms(Unused().eval(), torch.arange(4)[None])
    assert "rms (RMSNorm): rms does not subtract the mean over the channels of each position" in str(error.value)
    assert "unused (LayerNorm): it does not run on the example" in str(error.value)
    assert "bn (BatchNorm1d): bn does not subtract" in str(error.value)


def test_gamma_of_a_layer_scale_that_is_also_read_elsewhere_is_refused():
    class Model(Stream):
        def __init__(self):
            super().__init__()
            self.block = Block(WIDTH, layer_scale=True)
            self.output = lambda m, h, y: y + m.block.ls1.gamma

    with pytest.raises(anynorm.SurgeryError, match=r"block.ls1.gamma of a LayerScale is also read in Model, add"):
        anynorm.to_rms(randomized(Model()), tokens(), where="norm")


def test_a_shared_norm_buffers_slices_masks_and_padding_keep_the_output():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
            self.mix = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("positions", torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(3)).double())

        def forward(self, x):
            h = self.embed(x) * WIDTH**0.5 + self.positions[: x.shape[1]]  # type: ignore[index]
            h = h.masked_fill((x == 3)[..., None], 0.0).roll(1, 1)
            h = nn.functional.pad(h, (0, 0, 1, 0))
            h += self.mix(self.norm(h))
            h = torch.where((torch.arange(h.shape[1]) > 2)[:, None], h, h / 2)
            return self.head(self.norm(h[:, torch.tensor([0, 2, 4])].mean(1)))

    model = randomized(Mixed())
    expected = model(tokens()).detach()
    report = anynorm.to_rms(model, tokens())
    assert rms_norms(model) == ["norm"]
    assert report["positions"]["note"] == "centered over axis 1"
    assert not isinstance(model.positions, nn.Parameter)
    same(model(tokens()), expected, rtol=1e-10, atol=1e-10)


def test_norms_with_channels_in_axis_1_become_rms():
    def block():
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), anynorm.make("pn", 8), nn.Conv2d(8, 5, 1))

    model, x = randomized(block()), images()
    expected = model(x).detach()
    anynorm.to_rms(model, x)
    assert (model[1].spec, model[1].channel_axis) == ("0/pn", 1)
    same(model(x), expected, rtol=1e-10, atol=1e-10)


def test_dtypes_are_kept_in_models_of_mixed_precision():
    model = randomized(ViT()).to(torch.bfloat16)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.float()
    model.norm.register_forward_pre_hook(lambda _, args: (args[0].float(),))
    model.head.float()
    for block in model.blocks:
        for norm in (block.norm1, block.norm2):
            norm.register_forward_pre_hook(lambda _, args: (args[0].float(),))
            norm.register_forward_hook(lambda _, args, y: y.bfloat16())
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    x = images().bfloat16()
    expected = model(x).detach()
    anynorm.to_rms(model, x)
    assert len(rms_norms(model)) == 5
    assert {name: tensor.dtype for name, tensor in model.state_dict().items()} == dtypes
    same(model(x), expected, rtol=0.05, atol=0.05)  # weights are rounded to bfloat16 again


def test_a_change_of_the_output_that_the_graph_does_not_show_is_undone():
    model = randomized(Stream(output=lambda m, h, y: y * m.embed.weight.detach().numpy().sum().item()))
    before = dict(model.named_parameters())
    with pytest.raises(anynorm.SurgeryError, match=r"Centering changed the output by .* nothing was changed"):
        anynorm.to_rms(model, tokens())
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert not rms_norms(model)


def test_changed_norms_fold_and_folded_norms_change():
    x = images()
    for steps in ((anynorm.to_rms, anynorm.fold), (anynorm.fold, anynorm.to_rms)):
        model = randomized(ViT(layer_scale=True))
        expected = model(x).detach()
        reports = [step(model, x) for step in steps]
        assert {module.spec for module in model.modules() if isinstance(module, anynorm.Norm)} <= {"rms.none", "0/pn.none"}
        assert len(rms_norms(model)) == 5
        same(model(x), expected, rtol=1e-10, atol=1e-10)
        for report in reversed(reports):
            report.undo()
        assert len(layer_norms(model)) == 5
        same(model(x), expected, rtol=0, atol=0)
