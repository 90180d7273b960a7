"""Encoders, decoder, Johnson's network and the losses of style transfer, against naive references."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anynorm
from anynorm.lab.data.download import fetch_weights
from anynorm.lab.tasks.style.encoders import load_vgg
from anynorm.lab.tasks.style.losses import gram, gram_loss, moment_loss, total_variation
from anynorm.lab.tasks.style.networks.decoder import StyleTransferNetwork, mirror
from anynorm.lab.tasks.style.networks.johnson import JohnsonNetwork
from anynorm.lab.tasks.style.networks.vgg import layer_names
from anynorm.lab.training.norm_layout import Layout
from anynorm.layers.norm import Norm
from tests.helpers import same

VGG_19, VGG_16 = [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8, [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6


@pytest.fixture(scope="module")
def encoder():
    return load_vgg("random")


def small_weights(count=9):
    """Weights of a narrow VGG-19: 4, 4, 8, 8, 12, 12, 12, 12, 16 channels."""
    generator = torch.Generator().manual_seed(0)
    sizes = [3, 4, 4, 8, 8, 12, 12, 12, 12, 16, 16, 16, 16][: count + 1]
    return [
        (torch.randn(b, a, 3, 3, generator=generator) / (4.5 * a) ** 0.5, torch.randn(b, generator=generator))
        for a, b in pairwise(sizes)
    ]


def reference(images, weights):
    """Return relu1_1, relu2_1, relu3_1 and relu4_1 as AdaIN's release computes them."""
    x, features = images, []
    for number, (weight, bias) in enumerate(weights):
        if number in (2, 4, 8):
            x = F.max_pool2d(x, 2, 2, ceil_mode=True)
        x = F.relu(F.conv2d(F.pad(x, (1, 1, 1, 1), "reflect"), weight, bias))
        if number in (0, 2, 4, 8):
            features.append(x)
    return features


@pytest.mark.parametrize("size", [(16, 24), (9, 9), (13, 30)])
def test_features_are_those_of_the_reference_for_the_files_of_adain_and_of_torchvision(tmp_path, size):
    torch.manual_seed(0)
    weights, images = small_weights(), torch.rand(2, 3, *size)
    first = (torch.randn(3, 3, 1, 1), torch.randn(3))
    indices = (2, 5, 9, 12, 16, 19, 22, 25, 29)
    adain = {
        f"{k}.{name}": x
        for k, pair in zip((0, *indices), (first, *weights), strict=True)
        for name, x in zip(("weight", "bias"), pair, strict=True)
    }
    torch.save(adain, tmp_path / "vgg_normalised.pth")
    names = ["relu1_1", "relu2_1", "relu3_1", "relu4_1"]
    actual = load_vgg(str(tmp_path / "vgg_normalised.pth"))(images, names)
    for name, expected in zip(names, reference(F.conv2d(images, *first), weights), strict=True):
        same(actual[name], expected, rtol=1e-4, atol=1e-5)
    arrays: Any = {
        f"conv{k}.{name}": np.asarray(x)
        for k, pair in enumerate((first, *weights))
        for name, x in zip(("weight", "bias"), pair, strict=True)
    }
    np.savez(tmp_path / "adain.npz", **arrays)
    same(load_vgg(str(tmp_path / "adain.npz"))(images)["relu4_1"], actual["relu4_1"])
    mean, std = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    indices = (0, 2, 5, 7, 10, 12, 14, 16, 19)
    torchvision = {
        f"features.{k}.{name}": x
        for k, pair in zip(indices, weights, strict=True)
        for name, x in zip(("weight", "bias"), pair, strict=True)
    }
    torch.save(torchvision | {"classifier.0.weight": torch.zeros(2, 2)}, tmp_path / "vgg19.pth")
    actual = load_vgg(str(tmp_path / "vgg19.pth"))(images, names)
    for name, expected in zip(names, reference((images - mean) / std, weights), strict=True):
        same(actual[name], expected, rtol=1e-4, atol=1e-5)


def test_layers_are_named_by_block_for_vgg_16_and_19():
    assert layer_names(VGG_19)[4:] == [f"relu{block}_{k}" for block in (3, 4) for k in (1, 2, 3, 4)]
    assert layer_names(VGG_16)[4:] == [f"relu{block}_{k}" for block in (3, 4) for k in (1, 2, 3)]


def test_the_encoder_is_fixed_and_stops_at_the_last_layer(encoder):
    assert list(encoder.convolutions)[-1] == "relu4_1"
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    again = load_vgg("random").state_dict()
    assert all(torch.equal(value, again[name]) for name, value in encoder.state_dict().items())
    image = torch.rand(1, 3, 16, 16, requires_grad=True)
    encoder(image)["relu4_1"].sum().backward()
    assert image.grad.abs().sum() > 0


@pytest.mark.parametrize(("height", "width"), [(9, 9), (16, 24), (17, 33)])
def test_the_decoder_mirrors_the_encoder_for_any_size(encoder, height, width):
    features = encoder(torch.rand(2, 3, height, width))["relu4_1"]
    image = mirror(encoder)(features)
    assert image.shape == (2, 3, 8 * -(-height // 8), 8 * -(-width // 8))
    channels = [(layer.in_channels, layer.out_channels) for layer in mirror(encoder) if isinstance(layer, nn.Conv2d)]
    assert channels == [tuple(layer.weight.shape[:2]) for layer in reversed(encoder.convolutions.values())]
    assert not any(isinstance(layer, Norm | nn.BatchNorm2d) for layer in mirror(encoder))


def test_alpha_blends_the_features_of_content_and_style(encoder):
    network = StyleTransferNetwork(anynorm.make("adain", encoder.num_features), mirror(encoder))
    content, style = (encoder(torch.rand(1, 3, *size))["relu4_1"] for size in ((16, 16), (24, 40)))
    full, half, none = (network.target(content, style, alpha) for alpha in (1.0, 0.5, 0.0))
    assert torch.equal(full, network.norm(content, style))
    same(half, (full + content) / 2)
    assert torch.equal(none, content)
    same(full.mean((2, 3)), style.mean((2, 3)))


@pytest.mark.parametrize("spec", ["adain", "saadain", "ilmadain", "gn:8.style", "ln.sastyle"])
def test_any_norm_with_a_style_fits(encoder, spec):
    network = StyleTransferNetwork(anynorm.make(spec, encoder.num_features), mirror(encoder))
    content, style = (encoder(torch.rand(2, 3, 16, 16))["relu4_1"] for _ in range(2))
    assert network(content, style).shape == (2, 3, 16, 16)


@pytest.mark.parametrize("size", [(9, 9), (16, 16), (21, 34)])
def test_johnsons_network_keeps_the_size_and_the_range_of_images(size):
    images = JohnsonNetwork(0.25)(torch.rand(2, 3, *size))
    assert images.shape == (2, 3, *size)
    assert 0 <= images.min() <= images.max() <= 1


def test_a_norm_follows_every_convolution_of_johnsons_network_but_the_last():
    network = Layout.parse("in", batch_size=4).apply(JohnsonNetwork())
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    norms = [layer for layer in network.modules() if isinstance(layer, Norm)]
    assert [layer.out_channels for layer in convolutions] == [32, 64, 128, *[128] * 10, 64, 32, 3]
    assert [norm.num_features for norm in norms] == [layer.out_channels for layer in convolutions[:-1]]
    assert [layer.kernel_size[0] for layer in convolutions] == [9, *[3] * 14, 9]


def test_the_losses_are_those_of_naive_loops():
    generator = torch.Generator().manual_seed(0)
    shapes = {"relu1_1": (2, 3, 4, 5), "relu2_1": (2, 6, 2, 3)}
    features, style = ({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()} for _ in range(2))
    moments: Any = 0.0
    grams: Any = 0.0
    for name, (n, c, h, w) in shapes.items():
        for i in range(n):
            f, s = features[name][i].flatten(1), style[name][i].flatten(1)
            for k in range(c):
                std = [(x[k].var() + 1e-5).sqrt() for x in (f, s)]
                moments += ((f[k].mean() - s[k].mean()) ** 2 + (std[0] - std[1]) ** 2) / (n * c)
                for j in range(c):
                    grams += (((f[k] * f[j]).sum() - (s[k] * s[j]).sum()) / (c * h * w)) ** 2 / n
    same(moment_loss(features, style).mean(), moments, rtol=1e-4, atol=1e-6)
    same(gram_loss(features, {name: gram(value) for name, value in style.items()}).mean(), grams, rtol=1e-4, atol=1e-6)
    one_style = {name: value[:1] for name, value in style.items()}
    same(
        moment_loss(features, one_style),
        moment_loss(features, {name: value.expand(2, -1, -1, -1) for name, value in one_style.items()}),
    )
    image = torch.tensor([[[[0.0, 1.0], [3.0, 3.0]]]])
    assert total_variation(image.expand(4, 1, 2, 2)).tolist() == [9 + 4 + 1 + 0] * 4


def test_what_is_wrong_with_an_encoder_is_said(tmp_path, monkeypatch, encoder):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    torch.save({"0.weight": torch.zeros(8, 4, 3, 3), "0.bias": torch.zeros(8)}, tmp_path / "other.pth")
    for name, message in {
        "vgg19-normalised": r"needs .* or vgg_normalised\.pth under .*\. Put .* there, set ANYNORM_DATA .* encoder=vgg19",
        "vgg11": r"encoder must be vgg19-normalised, vgg19, vgg16, random, or an existing file; got 'vgg11'",
        str(tmp_path / "other.pth"): r"encoder must be the file of a VGG network: 3 × 3 convolutions in order, from 3 channels",
    }.items():
        with pytest.raises(anynorm.DataError, match=message):
            load_vgg(name)
    (tmp_path / "bad.npz").write_text("not an archive")
    with pytest.raises(anynorm.DataError, match=r"cannot read .*bad\.npz"):
        load_vgg(str(tmp_path / "bad.npz"))
    with pytest.raises(anynorm.DataError, match=r"the layer must be one of .* relu1_1 .*; got 'relu5_1'"):
        load_vgg("random", "relu5_1")
    with pytest.raises(anynorm.ShapeError, match=r"images must have at least 9 × 9 pixels for this encoder; got 8 × 20"):
        encoder(torch.rand(1, 3, 8, 20))


def test_weights_are_downloaded_once_and_checked_against_the_digits_in_their_name(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path / "data"))
    source = tmp_path / "vgg-2cf24dba.pth"  # the SHA-256 of "hello" starts with 2cf24dba
    source.write_text("hello")
    url = source.as_uri()
    path = fetch_weights(url)
    assert path == tmp_path / "data" / "weights" / source.name
    assert path.read_text() == "hello"
    source.unlink()
    assert fetch_weights(url) == path
    path.unlink()
    with pytest.raises(anynorm.DataError, match=rf"cannot download {url}: .* put the file at {path}"):
        fetch_weights(url)
    source.write_text("damaged")
    with pytest.raises(anynorm.DataError, match="invalid hash value"):
        fetch_weights(url)
    assert not path.exists()


def test_a_small_last_layer_makes_gray_pictures_at_the_start():
    torch.manual_seed(0)
    network = JohnsonNetwork(0.25)
    network.scale_last_layer(0.0)
    assert bool((network(torch.rand(1, 3, 16, 16)) == 0.5).all())
