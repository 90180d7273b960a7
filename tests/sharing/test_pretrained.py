"""A saved model is loaded with the same norms, the same options and bit-identical outputs, or is refused with the reason."""

import inspect
import json
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import parametrizations

import anynorm
from anynorm.core.update_rules import CumulativeBiased
from anynorm.errors import DataError, SurgeryError
from anynorm.lab.models.cifar_resnet import CifarResNet
from anynorm.layers.norm import Norm
from anynorm.surgery.block_forward import fused_forward
from anynorm.surgery.find import find_norms
from tests.helpers import ROWS, condition_for, data, make, same_state
from tests.surgery.networks import BatchNormAct2d, X, network, trained

OPTIONS = ("spec", "num_features", "eps", "update_rule", "track_running_stats", "activation", "single_value", "channel_axis")
MANY = ["bn", "hn:8", "sn", "sabn@10", "auxbn@2", "0/in", "dyt", "gn:4/en", "rms", "brn", "modenorm:3", "bgn:32"]


def assert_same(loaded, model):
    """Assert that two models have the same classes, options and tensors, and the same tied parameters."""
    assert [type(module).__name__ for module in loaded.modules()] == [type(module).__name__ for module in model.modules()]
    for new, old in zip(loaded.modules(), model.modules(), strict=True):
        if isinstance(old, Norm):
            assert {name: getattr(new, name) for name in OPTIONS} == {name: getattr(old, name) for name in OPTIONS}
            assert new.norm_spec == old.norm_spec
            assert new.takes_mask == old.takes_mask
            assert repr(new) == repr(old)
    assert list(loaded.state_dict()) == list(model.state_dict())
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == tensor.dtype
        assert torch.equal(loaded.state_dict()[name], tensor), name


def round_trip(model, base, folder, **options):
    anynorm.save_pretrained(model, folder, base=base, **options)
    loaded = anynorm.load_pretrained(folder, base=base)
    assert_same(loaded, model)
    return loaded


@pytest.mark.parametrize("spec", ROWS)
def test_every_norm_is_loaded_with_its_tensors_and_gives_the_same_output(spec, tmp_path):
    norm = make(spec, eps=1e-3)
    x = data(4, 16, 4, 4)
    condition = condition_for(norm, x)
    norm.train()(x, condition)
    loaded = round_trip(norm, lambda: nn.BatchNorm2d(16), tmp_path)
    for mode in (False, True):
        norm.train(mode)
        loaded.train(mode)
        assert torch.equal(loaded(x, condition), norm(x, condition))
    same_state(loaded, norm)  # training has changed both in the same way


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("bn", {"momentum": None, "single_value": "running"}),
        ("hn:4", {"momentum": 0.03, "activation": "silu"}),
        ("gn:4", {"channel_axis": -1, "activation": anynorm.make("gn:1", 1, activation="leaky_relu").activation}),
        ("gn:4", {"bias": False}),
        ("sn", {"affine": False, "update_rule": anynorm.Pooled()}),
        ("sn:2", {"update_rule": CumulativeBiased(), "dtype": torch.float64}),
        ("bn", {"track_running_stats": False}),
        ("auxbn", {"num_domains": 2, "affine": False}),
        ("sabn", {"num_classes": 7, "update_rule": anynorm.Frozen()}),
        ("bgn", {"batch_size": 8}),
        ("brn", {"r_max": 2.5, "d_max": 1.5}),
        ("bkn", {"gain": 0.4}),
        ("derf", {"alpha_init_value": 0.8, "affine": False}),
    ],
)
def test_every_option_is_loaded(spec, options, tmp_path):
    norm = anynorm.make(spec, 16, **options)
    loaded = round_trip(norm, lambda: nn.GroupNorm(4, 16), tmp_path)
    norm.reset_parameters()
    loaded.reset_parameters()
    assert repr(loaded) == repr(norm)  # hyperparameters are not only in the buffers


def test_a_config_has_every_option_of_make():
    """A new option of `make` must be saved; these are other names for those that are, or come from the base model."""
    options = {name for name, each in inspect.signature(anynorm.make).parameters.items() if each.kind is each.KEYWORD_ONLY}
    known = {name.removeprefix("_") for name in inspect.signature(anynorm.sharing.norm_config.NormConfig).parameters}
    assert options - known == {"device", "dtype"}


@pytest.mark.parametrize("spec", MANY)
@pytest.mark.parametrize("base", [network, partial(network, anynorm.layer("gn:2"))], ids=["bn", "gn"])
def test_a_network_gives_bit_identical_outputs(spec, base, tmp_path):
    model = network()
    anynorm.convert(model, spec, "all", eps=2e-5)
    with anynorm.condition(model, 1, strict=False):
        trained(model)
    loaded = round_trip(model, base, tmp_path)
    for mode in (False, True):
        with anynorm.condition(model, 1, strict=False), anynorm.condition(loaded, 1, strict=False):
            assert torch.equal(loaded.train(mode)(X), model.train(mode)(X))


def test_a_network_with_a_norm_of_its_own_per_layer(tmp_path):
    model = CifarResNet(20, norm=nn.BatchNorm2d)
    sites = [site.path for site in find_norms(model)]
    assert len(sites) == 19
    for index, path in enumerate(sites[1:]):  # the first norm stays one of torch
        spec = MANY[index % len(MANY)]
        anynorm.convert(model, spec, path, activation="relu" if index % 4 == 2 else None)
    x = data(4, 3, 16, 16)
    with anynorm.condition(model, 1, strict=False):
        model.train()(x)
    loaded = round_trip(model, lambda: CifarResNet(20, norm=nn.BatchNorm2d), tmp_path)
    assert type(loaded.get_submodule(sites[0])) is nn.BatchNorm2d
    for mode in (False, True):
        with anynorm.condition(model, 0, strict=False), anynorm.condition(loaded, 0, strict=False):
            assert torch.equal(loaded.train(mode)(x), model.train(mode)(x))


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@pytest.mark.parametrize("spec", ["rms", "dyt", "bn", "gn:4", "hn:4"])
def test_a_transformer_gives_bit_identical_outputs(spec, tmp_path):
    torch.manual_seed(0)
    model = encoder()
    anynorm.convert(model, spec)
    x = data(4, 5, 16)
    model(x)
    padding = torch.arange(5) >= torch.tensor([5, 3, 4, 5])[:, None]
    loaded = round_trip(model, encoder, tmp_path)
    assert loaded.layers[0].norm1.channel_axis == -1
    assert not loaded.use_nested_tensor  # into which torch converts padded inputs; norms do not take them
    for mode in (False, True):
        loaded.train(mode)
        model.train(mode)
        assert torch.equal(loaded(x, src_key_padding_mask=padding), model(x, src_key_padding_mask=padding))
        with torch.no_grad():  # the fast path of torch for inference would not call the norms
            assert torch.equal(loaded(x), model(x))


class Tied(nn.Module):
    """A language model: tied weights, a norm that is used twice, buffers in and outside of the state_dict."""

    scale: torch.Tensor
    positions: torch.Tensor

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.norm = self.final = nn.LayerNorm(8)
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("positions", torch.linspace(0, 1, 8), persistent=False)

    def forward(self, x):
        return self.head(self.final(self.norm(self.embed(x) + self.positions) * self.scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tied_weights_shared_norms_buffers_and_dtypes_are_kept(dtype, tmp_path):
    model = Tied().to(dtype)
    anynorm.convert(model, "rms")
    model.scale.uniform_()
    loaded = round_trip(model, Tied, tmp_path)
    assert loaded.head.weight is loaded.embed.weight
    assert loaded.norm is loaded.final
    assert loaded.positions.dtype == dtype
    assert set(load_file(tmp_path / "model.safetensors")) == {"embed.weight", "scale", "norm.weight"}
    x = torch.arange(6).reshape(2, 3)
    assert torch.equal(loaded(x), model(x))


def test_mixed_dtypes_and_views_of_one_tensor_are_kept(tmp_path):
    def base():
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))

    model = base()
    anynorm.convert(model, "hn")
    both = torch.randn(2, 4, 4)
    model[0].weight, model[2].weight = nn.Parameter(both[0]), nn.Parameter(both[1].T)
    round_trip(model, base, tmp_path)
    model[0].weight, model[2].weight = nn.Parameter(both[0]), nn.Parameter(both[0])  # the same memory, two parameters
    assert round_trip(model, base, tmp_path)[0].weight.dtype == torch.float32
    model[2].half()
    loaded = round_trip(model, base, tmp_path)
    assert (loaded[0].weight.dtype, loaded[2].weight.dtype) == (torch.float32, torch.float16)


def test_activations_of_a_base_class_stay_and_fused_ones_are_options(tmp_path):
    def base():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3), BatchNormAct2d(8), nn.Conv2d(8, 8, 3), BatchNormAct2d(8))

    model = base()
    anynorm.convert(model, "gn:2")
    assert model[1].post_modules == ("drop", "act")
    assert torch.equal(round_trip(model, base, tmp_path)(X), model(X))
    anynorm.fuse(model, X)
    assert (model[1].post_modules, model[1].activation.name) == ((), "relu")
    assert torch.equal(round_trip(model, base, tmp_path)(X), model(X))


def test_a_model_with_fused_blocks_is_loaded_without_fusion_and_says_so(tmp_path):
    model = trained(network())
    expected = model.eval()(X)
    anynorm.fuse(model.train(), X)
    anynorm.save_pretrained(model, tmp_path, base=network)
    with pytest.warns(UserWarning, match=r"^3 blocks of this model ran with fused activations .* anynorm.fuse\(model, example\)"):
        loaded = anynorm.load_pretrained(tmp_path, base=network)
    assert [type(module).__name__ for module in loaded] == [type(module).__name__ for module in model]
    assert not any(fused_forward(module) for module in loaded.modules())
    same_state(loaded, model)
    torch.testing.assert_close(loaded.eval()(X), expected)
    anynorm.fuse(loaded, X)
    assert torch.equal(loaded(X), model.eval()(X))


def test_frozen_norms_and_a_mode_are_those_of_the_model_and_of_the_base(tmp_path):
    model = trained(network())
    anynorm.convert(model, "ssn", "1")
    anynorm.freeze(model)
    loaded = round_trip(model, network, tmp_path)
    assert not loaded[1].schedule_enabled
    assert loaded.training
    assert torch.equal(loaded(X), model(X))
    assert not anynorm.load_pretrained(tmp_path, base=lambda: network().eval())[1].training


def test_a_base_on_another_device_or_with_hooks_keeps_both(tmp_path):
    calls = []

    def base():
        model = network()
        model[1].register_forward_hook(lambda *_: calls.append(1))
        return model

    model = network()
    anynorm.convert(model, "gn:4")
    anynorm.save_pretrained(model, tmp_path)
    assert torch.equal(anynorm.load_pretrained(tmp_path, base=base)(X), model(X))
    assert calls == [1]


def test_connected_norms_are_connected_again(tmp_path):
    model = network()
    anynorm.convert(model, "bkn")
    trained(model)
    loaded = round_trip(model, network, tmp_path)
    assert torch.equal(loaded.train()(X), model.train()(X))
    norms: list[Any] = [anynorm.make("bkn", 8) for _ in range(3)]
    anynorm.BatchKalmanNorm.connect(norms[::-1])
    anynorm.save_pretrained(nn.Sequential(*norms[::-1]), tmp_path)
    norms[0], norms[1] = norms[1], norms[0]
    with pytest.raises(SurgeryError, match=r"(its tensors differ|it is connected to other layers)"):
        anynorm.save_pretrained(nn.Sequential(*norms[::-1]), tmp_path)
    rings: list[Any] = [anynorm.make("bkn", 8) for _ in range(3)]
    anynorm.BatchKalmanNorm.connect(rings)
    rings[2]._previous = (rings[0],)
    with pytest.raises(SurgeryError, match=r"it is connected to other layers than anynorm.convert would connect it to"):
        anynorm.save_pretrained(nn.Sequential(*rings), tmp_path)


# What is refused


def refused(model, match, tmp_path, base=None, error=SurgeryError):
    with pytest.raises(error, match=match):
        anynorm.save_pretrained(model, tmp_path / "new", base=base)
    assert not (tmp_path / "new").exists()


def test_models_that_cannot_be_loaded_again_are_not_saved(tmp_path):
    folded = trained(network()).eval()
    anynorm.fold(folded, X)
    refused(folded, r"^6 norms of this model were folded .*1, 3.bn1.*, … *\), so .* fold after loading", tmp_path)
    compiled = torch.compile(network(), backend="eager")
    refused(compiled, r"torch.compile.*model._orig_mod", tmp_path)
    model = network()
    anynorm.convert(model, "gn:4")
    parametrizations.spectral_norm(model[0])
    refused(model, r"the folder lacks 0.weight.*|the model lacks 0.parametrizations", tmp_path, base=network, error=DataError)
    norms = nn.Sequential(nn.Conv2d(3, 8, 1), anynorm.make("bn", 8))
    parametrizations.weight_norm(norms[1], "weight", dim=None)
    refused(norms, r"^the norm at '1' \(bn\) cannot be saved: its class is Parametrized", tmp_path)
    refused(nn.Sequential(nn.LazyLinear(3)), "run the model once", tmp_path, error=DataError)
    refused(nn.Sequential(nn.Linear(3, 3, device="meta")), "meta device", tmp_path, error=DataError)


def test_gamma_folded_away_shows_when_the_base_is_given(tmp_path):
    def base():
        return nn.Sequential(nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1, bias=False))

    model = trained_affine(base())
    anynorm.fold(model, data(2, 8, 4, 4))
    refused(model, r"the model lacks 1.bias", tmp_path, base=base, error=DataError)


def trained_affine(model):
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.normal_()
    return model


def test_a_norm_without_a_spec_is_refused(tmp_path):
    definition = anynorm.NormSpec((anynorm.Cut(1, 2, 1),), (anynorm.Cut(1, 2, 1),), affine=anynorm.parse("sabn@3").affine)
    assert round_trip(anynorm.Norm(definition, 8), lambda: nn.BatchNorm2d(8), tmp_path).spec == "[1,2,1].sa@3"
    stages = type(definition.affine)(definition.affine.stages * 2)
    norm = anynorm.Norm(anynorm.NormSpec(definition.mean, definition.var, affine=stages), 8)
    with pytest.raises(SurgeryError, match=r"^the norm at '' cannot be saved: The affine stages must be"):
        anynorm.save_pretrained(norm, tmp_path / "new")


@pytest.mark.parametrize(
    ("base", "match"),
    [
        ("tests.sharing.bomb:factory", r"got the name 'tests.sharing.bomb:factory'. Names are not imported"),
        (network(), "got a Sequential"),
        (lambda: 3, r"base\(\) must return an nn.Module; got a int"),
        (lambda: nn.Sequential(nn.Linear(2, 2, device="meta")), "meta device"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 16, 3)),
            r"norm at '1' \(gn:4\); the model of base\(\).*has no norm there. It has no norms",
        ),
        (lambda: network()[:4], r"norm at '4.bn1' .* Its norms: 1 3.bn1 3.bn2"),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), *network()[2:]), "16 channels in norms.json, and 8 in"),
        (lambda: nn.Sequential(*network()[:5], nn.Linear(3, 3)), r"the folder lacks 5.weight, 5.bias. base must make"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 16, 5, bias=False), *network()[1:]),
            r"'0.weight' has shape \(16, 3, 3, 3\) .* \(16, 3, 5, 5\)",
        ),
        (lambda: nn.Sequential(*network(), anynorm.make("bn", 3)), r"has bn at '6', where norms.json has no norm"),
    ],
)
def test_a_base_that_does_not_fit_is_an_error_with_the_reason(base, match, tmp_path):
    model = network()
    anynorm.convert(model, "gn:4")
    anynorm.save_pretrained(model, tmp_path, base="my.networks:network")
    with pytest.raises(DataError, match=match):
        anynorm.load_pretrained(tmp_path, base=base)


def test_the_name_of_the_base_is_information_only(tmp_path):
    model = network()
    anynorm.save_pretrained(model, tmp_path, base="tests.sharing.bomb:factory")
    anynorm.load_pretrained(tmp_path, base=network)
    assert json.loads((tmp_path / "norms.json").read_text())["base"] == "tests.sharing.bomb:factory"
    anynorm.save_pretrained(model, tmp_path, base=network)
    assert json.loads((tmp_path / "norms.json").read_text())["base"] == "tests.surgery.networks:network"


def test_a_folder_that_was_not_completely_written_is_not_loaded(tmp_path, monkeypatch):
    anynorm.save_pretrained(network(), tmp_path)
    other = network()
    anynorm.convert(other, "gn:4")
    monkeypatch.setattr("anynorm.sharing.pretrained.write_config", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        anynorm.save_pretrained(other, tmp_path)
    with pytest.raises(DataError, match=r"cannot read .*norms.json: No such file"):
        anynorm.load_pretrained(tmp_path, base=network)


def test_loading_warns_of_nothing(tmp_path):
    model = network()
    anynorm.convert(model, "sn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        round_trip(model, network, tmp_path)
