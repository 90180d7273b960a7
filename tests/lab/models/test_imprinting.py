"""Imprinted weights: classes added to a trained classifier, and removed again."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.models.classifier import extract_features, find_classifier
from anynorm.lab.models.cosine import CosineLinear
from anynorm.lab.models.imprinting import class_weights, imprint, reimprint
from tests.helpers import same

SHAPE = DataShape(1, 8, 8, 3)
IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    """A user's model: its classifier `fc` is defined before another linear layer, and followed by a softmax."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))

    def forward(self, x):
        return self.fc(self.body(x)).softmax(1)


def model(name="resnet12") -> Any:
    torch.manual_seed(0)
    network = Network() if name == "user" else build_model(name, SHAPE, 0.125)
    for _ in range(2):
        network.train()(torch.randn(8, 1, 8, 8))
    return network


def features_of(network, layer, images):
    """Return the inputs of a layer, seen by a hook of this test."""
    seen = []
    handle = layer.register_forward_hook(lambda _, args, output: seen.append(args[0]))
    with torch.no_grad():
        copy_of_mode = network.training
        network.eval()(images)
        network.train(copy_of_mode)
    handle.remove()
    return seen[0]


def test_the_imprint_of_one_shot_is_its_normalized_feature():
    network = model()
    feature = features_of(network, network[-1], IMAGES[:1])[0]
    imprint(network, IMAGES[:1], ["new"])
    same(network[-1].weight[3], feature / feature.norm())
    logits = network.eval()(IMAGES[:1])
    same(logits[0, 3], network[-1].scale)  # cos = 1
    assert logits.argmax() == 3


def test_the_imprint_of_several_shots_is_the_normalized_mean_of_normalized_features():
    network = model()
    features = features_of(network, network[-1], IMAGES).double()
    before = network[-1].weight.detach().clone()
    report = imprint(network, IMAGES, torch.tensor([7, 2, 7, 7, 2, 2]))
    for output, members in ((3, (1, 4, 5)), (4, (0, 2, 3))):  # classes in the order of their labels
        total = sum(features[k] / features[k].norm() for k in members)
        same(network[-1].weight[output].double(), total / total.norm(), rtol=1e-5, atol=1e-6)
    same(network[-1].weight[:3], before)
    assert [row["label"] for row in report] == [2, 7]
    assert [(row["output"], row["images"]) for row in report] == [(3, 3), (4, 3)]
    assert report.finding == "2 classes added to '6': outputs 3 to 4 of 5."
    nearest = nn.functional.cosine_similarity(network[-1].weight[3:4].detach(), before)
    assert report.rows[0]["nearest output"] == int(nearest.argmax())
    assert report.rows[0]["cosine"] == pytest.approx(float(nearest.max()), abs=1e-4)


def test_rows_of_a_linear_layer_get_the_mean_norm_and_the_mean_bias_of_the_other_classes():
    network = model("user")
    layer = network.fc
    norms, bias = layer.weight.detach().norm(dim=1), layer.bias.detach().clone()
    feature = features_of(network, layer, IMAGES[:1])[0]
    imprint(network, IMAGES[:1], [0], classifier="fc")
    same(layer.weight[3], feature / feature.norm() * norms.mean())
    same(layer.bias, torch.cat([bias, bias.mean()[None]]))
    assert layer.out_features == 4
    assert network(IMAGES).shape == (6, 4)


@pytest.mark.parametrize("name", ["resnet12", "resnet10", "mobilenetv2"])
def test_models_of_anynorm_and_their_norms_are_unchanged_but_for_the_classifier(name):
    network = model(name)
    network[0].eval()
    modes = [module.training for module in network.modules()]
    before = copy.deepcopy(network.state_dict())
    path = find_classifier(network).path
    report = imprint(network, IMAGES, list("aabbcc"))
    assert [module.training for module in network.modules()] == modes
    assert all(not module._forward_pre_hooks for module in network.modules())
    for key, value in network.state_dict().items():
        assert key.startswith(path) or torch.equal(value, before[key])
    assert network.eval()(IMAGES).shape == (6, 6)
    assert report.undo() is network
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert network(IMAGES).shape == (6, 3)


@pytest.mark.parametrize("name", ["resnet12", "user"])
def test_weights_of_classes_can_be_replaced_by_imprints_like_those_of_new_classes(name):
    network: Any = model(name)
    other: Any = model(name)
    path = "fc" if name == "user" else None
    layer: Any = find_classifier(network, path).module
    before = copy.deepcopy(network.state_dict())
    report = reimprint(network, IMAGES, [2, 0, 0, 2, 0, 2], classifier=path)
    imprint(other, IMAGES, [2, 0, 0, 2, 0, 2], classifier=path)
    appended: Any = find_classifier(other, path).module
    same(layer.weight[[0, 2]], appended.weight[3:])
    if name == "user":
        same(layer.bias[[0, 2]], appended.bias[3:])
    assert torch.equal(layer.weight[1], appended.weight[1])
    assert layer.out_features == len(layer.weight) == 3
    assert [(row["output"], row["images"]) for row in report] == [(0, 3), (2, 3)]
    cosine = nn.functional.cosine_similarity(layer.weight[2].detach(), appended.weight[2].detach(), dim=0)
    assert report.rows[1]["cosine"] == pytest.approx(float(cosine), abs=1e-4)
    report.undo()
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    wrong: list[Any] = [[0] * 5 + [3], [-1] * 6, ["a"] * 6]
    for labels in wrong:
        with pytest.raises(
            anynorm.SurgeryError, match=r"labels must be outputs of '\w+', 0 to 2; got \[.*\]\. imprint\(\) adds classes"
        ):
            reimprint(network, IMAGES, labels, classifier=path)


@pytest.mark.parametrize("kind", [torch.tensor, np.array, lambda labels: list(np.array(labels)), lambda x: list(torch.tensor(x))])
@pytest.mark.parametrize("method", [imprint, reimprint])
def test_labels_may_be_integers_of_any_library(method, kind):
    networks = [model(), model()]
    reports = [
        method(network, IMAGES, labels)
        for network, labels in zip(networks, ([2, 0, 0, 2, 0, 2], kind([2, 0, 0, 2, 0, 2])), strict=True)
    ]
    assert reports[1].rows == reports[0].rows
    assert torch.equal(networks[1][-1].weight, networks[0][-1].weight)


def test_gradients_reach_the_new_rows_and_a_frozen_classifier_stays_frozen():
    network = model()
    imprint(network, IMAGES, list("aabbcc"))
    network(IMAGES).logsumexp(1).sum().backward()
    assert network[-1].weight.grad[3:].abs().sum() > 0
    frozen = model()
    frozen[-1].weight.requires_grad_(False)
    imprint(frozen, IMAGES, list("aabbcc"))
    assert not frozen[-1].weight.requires_grad


def test_imprints_are_undone_in_reverse_order():
    network = model()
    first, second = imprint(network, IMAGES[:1], ["a"]), imprint(network, IMAGES[1:2], ["b"])
    with pytest.raises(anynorm.SurgeryError, match=r"'6' have been replaced again since: undo the later operation first"):
        first.undo()
    assert network[-1].out_features == 5
    second.undo()
    first.undo()
    first.undo()  # a second time changes nothing
    assert network[-1].out_features == len(network[-1].weight) == 3


def test_features_do_not_depend_on_the_batch_size():
    network = model()
    expected = features_of(network, network[-1], IMAGES)
    same(extract_features(network, IMAGES), expected)
    same(extract_features(network, IMAGES, batch_size=4), expected, rtol=1e-4, atol=1e-6)  # sums in another order


def test_the_classifier_is_the_last_linear_layer_among_the_modules():
    assert find_classifier(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))).path == "2"
    assert find_classifier(Network()).path == "body.1"
    assert find_classifier(Network(), "fc").path == "fc"


def test_class_weights_do_not_depend_on_the_scale_of_features():
    features, labels = torch.randn(6, 4).double(), torch.tensor([0, 1, 0, 1, 1, 0])
    scaled = features * torch.rand(6, 1).double().add(0.1)
    same(class_weights(features, labels, 2), class_weights(scaled, labels, 2))
    same(class_weights(features, labels, 2).norm(dim=1), torch.ones(2).double())


class Shared(nn.Module):
    """A model that calls its classifier twice."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 3)

    def forward(self, x):
        return self.fc(x.flatten(1)) + self.fc(-x.flatten(1))


BATCH_DEPENDENT = nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(64, 3))
ZEROS = IMAGES.index_fill(0, torch.tensor([2, 3]), 0)


def parametrized():
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 3)))


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (nn.Conv2d(1, 3, 8), {}, r"This Conv2d has no classifier: no module is an nn\.Linear or .*CosineLinear"),
        (Network(), {"classifier": "body"}, r"classifier must be the path of an nn\.Linear or CosineLinear; 'body' is a Seq"),
        (Network(), {"classifier": "head"}, r"'head' is no module"),
        (
            Shared(),
            {},
            r"'fc' must be called once per forward pass, with features of shape \(6, 64\); got \(6, 64\), \(6, 64\)\. N",
        ),
        (nn.Sequential(nn.Linear(8, 3)), {}, r"features of shape \(6, 8\); got \(6, 1, 8, 8\)"),
        (parametrized(), {}, r"the weights of '1' are parametrized .* Remove the parametrization first"),
        ("model", {}, r"model must be an nn\.Module; got a str"),
        (Network(), {"labels": [0, 1]}, r"one label per image, and at least one image; got 6 images, 2 labels"),
        (Network(), {"labels": torch.zeros(6, 1)}, r"labels must be numbers, or names, one per image; got labels of type Tensor"),
        (Network(), {"labels": np.zeros((6, 1))}, r"one per image; got labels of type ndarray"),
        (Network(), {"labels": [0, "a"] * 3}, r"one per image; got labels of type int and str"),
        (Network(), {"images": IMAGES[:0], "labels": []}, r"got 0 images, 0 labels"),
        (BATCH_DEPENDENT, {}, r"must not depend on the other images of its batch in eval mode; they differ by .* %\. Use norms"),
        (BATCH_DEPENDENT, {"images": IMAGES[:1], "labels": [0]}, r"must not depend on the other images of its batch"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), {"images": ZEROS}, r"must not all be 0; got 0 for \['b'\]"),
        (Network(), {"images": IMAGES * torch.nan, "classifier": "fc"}, r"features of the images must be finite; got NaN"),
    ],
)
def test_a_model_that_cannot_be_extended_is_refused_and_unchanged(network, options, message):
    arguments = {"images": IMAGES, "labels": list("aabbcc")} | options
    before = copy.deepcopy(network.state_dict()) if isinstance(network, nn.Module) else {}
    with pytest.raises(anynorm.SurgeryError, match=message):
        imprint(network, **arguments)
    for key, value in before.items():
        assert torch.equal(network.state_dict()[key], value)


def test_the_cosine_classifier_is_the_scaled_cosine_of_torch_without_a_bias():
    layer, x = CosineLinear(4, 3), torch.randn(5, 4)
    expected = 10 * nn.functional.cosine_similarity(x[:, None], layer.weight[None], dim=2)
    same(layer(x), expected)
    same(layer(7 * x), expected)  # the scale of a feature has no effect
    assert {name for name, _ in layer.named_parameters()} == {"weight", "scale"}


def test_resnet12_has_the_blocks_of_the_paper_and_features_of_both_signs():
    network: Any = build_model("resnet12", DataShape(3, 84, 84, 64))
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert [conv.out_channels for conv in convolutions] == [width for width in (64, 128, 256, 512) for _ in range(4)]
    assert len([module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]) == 16
    sizes = []
    for block in network[:4]:
        block.pool.register_forward_hook(lambda _, args, output: sizes.append((args[0].shape[-1], output.shape[-1])))
    with torch.no_grad():
        assert network(torch.randn(2, 3, 84, 84)).shape == (2, 64)
    assert sizes == [(84, 42), (42, 21), (21, 10), (10, 5)]
    features = extract_features(model(), IMAGES)
    assert features.min() < 0 < features.max()
