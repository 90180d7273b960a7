"""Inflated networks are the 2-D networks whose weights they have."""

from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.errors import DataError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.tasks.video.networks import inflate, load_inflated, make_video_model
from tests.helpers import same


def make_network(name, size=32, width=0.5, norm="bn"):
    """Return a network in eval mode whose norms have statistics and γ, β of their own."""
    torch.manual_seed(0)
    network = anynorm.convert(build_model(name, DataShape(3, size, size, 5), width), norm).model.train()
    for parameter in network.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    network(torch.randn(4, 3, size, size))
    return network.eval()


def repeat_frame(image, length):
    return image[:, :, None].expand(-1, -1, length, -1, -1).contiguous()


@pytest.mark.parametrize(("name", "size"), [("resnet10", 32), ("resnet26", 32), ("resnet10", 72)])
def test_inner_frames_of_a_constant_video_have_the_features_of_the_frame(name, size):
    network: Any = make_network(name, size)
    inflated: Any = inflate(network)
    image = torch.randn(2, 3, size, size)
    features, expected = inflated[:-1](repeat_frame(image, 17)), network[:-1](image)
    same(features[:, :, 8], expected, rtol=1e-4, atol=1e-5)
    assert (features[:, :, 0] - expected).abs().max() > 1e-3  # the ends are padded with zeros


@pytest.mark.parametrize("norm", ["bn", "sn", "gn:4"])
def test_without_kernels_in_time_a_constant_video_has_the_logits_of_the_frame(norm):
    network: Any = make_network("resnet10", norm=norm)
    image = torch.randn(2, 3, 32, 32)
    same(inflate(network, temporal_blocks=0)(repeat_frame(image, 4)), network(image), rtol=1e-4, atol=1e-5)


def test_a_kernel_is_repeated_over_time_and_divided_by_its_length():
    network: Any = make_network("resnet10")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    inflated: Any = inflate(network)
    for name, expected in before.items():
        value = inflated.state_dict()[name]
        assert torch.equal(network.state_dict()[name], expected)
        if value.dim() == 5:
            same(value.sum(2), expected)
            assert all(torch.equal(value[:, :, 0], value[:, :, k]) for k in range(value.shape[2]))
        else:
            assert torch.equal(value, expected)


def kernels(model):
    return {name: conv.kernel_size for name, conv in model.named_modules() if isinstance(conv, nn.Conv3d)}


def test_every_second_block_has_a_kernel_of_three_frames_in_its_first_convolution():
    sizes = kernels(make_video_model("resnet50", DataShape(3, 224, 224, 400), width=0.125))
    long = [name for name, size in sizes.items() if size[0] > 1]
    assert sizes["0.0"] == (5, 7, 7)
    # blocks 0, 2, 4, … of 3 + 4 + 6 + 3
    expected = ["1.0", "1.2", "2.1", "2.3", "3.1", "3.3", "3.5", "4.1"]
    assert long == ["0.0", *(f"{block}.conv1" for block in expected)]
    assert all(sizes[name] == (3, 1, 1) for name in long[1:])
    sizes = kernels(make_video_model("resnet10", DataShape(3, 32, 32, 4), width=0.5))
    assert {name: size for name, size in sizes.items() if size[0] > 1} == {
        "0.0": (3, 3, 3),
        "1.0.conv1": (3, 3, 3),
        "3.0.conv1": (3, 3, 3),
    }
    every = kernels(make_video_model("resnet10", DataShape(3, 32, 32, 4), width=0.5, temporal_blocks=1))
    assert sum(size[0] == 3 for size in every.values()) == 5


@pytest.mark.parametrize(("size", "stride"), [(32, 1), (32, 2), (32, 4), (72, 8)])
def test_time_is_reduced_by_the_temporal_stride_and_space_as_before(size, stride):
    model: Any = make_video_model("resnet10", DataShape(3, size, size, 5), width=0.5, temporal_stride=stride)
    plain: Any = build_model("resnet10", DataShape(3, size, size, 5), 0.5)
    features = model[:-1](torch.randn(1, 3, 16, size, size))
    assert features.shape[2] == 16 // stride
    assert features.shape[3:] == plain[:-1](torch.randn(1, 3, size, size)).shape[2:]
    assert model(torch.randn(2, 3, 16, size, size)).shape == (2, 5)


@pytest.mark.parametrize("norm", ["bn", "sn", "xbn=gn:4"])
def test_weights_of_a_classifier_are_those_of_inflating_it(norm):
    from anynorm.lab.training.norm_layout import Layout

    shape = DataShape(3, 32, 32, 7)
    classifier: Any = Layout.parse(norm, 2).apply(build_model("resnet10", shape, 0.5))
    model: Any = Layout.parse(norm, 2).apply(make_video_model("resnet10", shape._replace(num_classes=3), 0.5, dropout=0.5))
    last = {name: value.clone() for name, value in model[-1].state_dict().items()}
    load_inflated(model, classifier.state_dict())
    video = torch.randn(2, 3, 6, 32, 32)
    reference: Any = inflate(classifier).eval()
    same(model.eval()[:-1](video), reference[:-1](video))
    assert all(torch.equal(value, last[name]) for name, value in model[-1].state_dict().items())


def test_weights_that_do_not_fit_are_refused():
    model: Any = make_video_model("resnet10", DataShape(3, 32, 32, 3), 0.5)
    wide = build_model("resnet10", DataShape(3, 32, 32, 3), 1.0).state_dict()
    with pytest.raises(
        DataError, match=r"first '0\.0\.weight': expected shape \(8, 3, 3, 3, 3\) after inflation, got shape \(16"
    ):
        load_inflated(model, wide, "model.pt")
    with pytest.raises(DataError, match=r"model\.pt must be those of a classifier .* 72 tensors do not fit.* got none"):
        load_inflated(model, {}, "model.pt")
    plain: Any = anynorm.convert(model, "gn:4").model
    with pytest.raises(DataError, match=r"must have the norms of the network; they have 36 further tensors, first '0\.1\."):
        load_inflated(plain, build_model("resnet10", DataShape(3, 32, 32, 3), 0.5).state_dict())


def test_dropout_acts_in_training_alone():
    model: Any = make_video_model("small", DataShape(3, 8, 8, 3), 0.5, dropout=0.5)
    x = torch.randn(2, 3, 4, 8, 8)
    model.eval()
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_networks_that_cannot_be_inflated_are_refused():
    with pytest.raises(DataError, match=r"only a residual network of anynorm\.lab\.models can be inflated"):
        make_video_model("mlp", DataShape(3, 8, 8, 3))
    with pytest.raises(DataError, match=r"temporal_stride of this network must be one of 1 2 4; got 8"):
        make_video_model("resnet10", DataShape(3, 32, 32, 3), temporal_stride=8)
    with pytest.raises(DataError, match=r"temporal_blocks must be 0 or more; got -1"):
        make_video_model("resnet10", DataShape(3, 32, 32, 3), temporal_blocks=-1)
    network: Any = build_model("resnet10", DataShape(3, 32, 32, 3))
    network[0].append(nn.Dropout2d())
    with pytest.raises(DataError, match=r"'0\.3' cannot be inflated: Dropout2d"):
        inflate(network)
