"""Surgery on models with the signatures of torchvision's detectors, detectron2 and mmdetection."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.diagnostics import estimation_shift
from anynorm.surgery.batches import call
from anynorm.surgery.dataflow import tensors_of
from anynorm.surgery.find import find_norms
from anynorm.surgery.inspect import inspect
from tests.helpers import same
from tests.surgery.detectors import (
    BATCHED_INPUTS,
    DATA,
    IMAGES,
    TARGETS,
    BottleneckBlock,
    Detectron,
    MMDetector,
    TorchvisionDetector,
    get_norm,
    pad,
)

MODELS: Any = {
    "torchvision": (TorchvisionDetector, (IMAGES, TARGETS)),
    "torchvision, images only": (TorchvisionDetector, IMAGES),
    "torchvision, tuples": (TorchvisionDetector, (tuple(IMAGES), tuple(TARGETS))),
    "detectron2": (Detectron, BATCHED_INPUTS),
    "detectron2 SyncBN": (lambda: Detectron("SyncBN"), BATCHED_INPUTS),
    "mmdetection": (MMDetector, DATA),
    "mmdetection BN": (lambda: MMDetector({"type": "BN", "requires_grad": False}), DATA),
}


@pytest.fixture(params=MODELS)
def detector(request):
    """A model in eval mode whose norms are not at their start, and a batch of it."""
    torch.manual_seed(0)
    make, batch = MODELS[request.param]
    model = make()
    for site in find_norms(model):
        for name, (low, high) in {
            "weight": (0.5, 1.5),
            "bias": (-0.3, 0.3),
            "running_mean": (-0.3, 0.3),
            "running_var": (0.5, 2),
        }.items():
            nn.init.uniform_(getattr(site.module, name).detach(), low, high)
    return model.eval(), batch


@torch.no_grad()
def outputs(model, batch):
    return torch.stack([tensor for tensor in tensors_of(call(model, batch)) if tensor.is_floating_point()])


def test_converting_keeps_the_outputs_of_bn_and_can_be_undone(detector):
    model, batch = detector
    expected = outputs(model, batch)
    anynorm.convert(model, "bn")
    same(outputs(model, batch), expected, rtol=1e-4, atol=1e-5)
    report = anynorm.convert(model, "gn:4")
    assert {row["new_norm"] for row in report} == {"gn:4"}
    assert not torch.allclose(outputs(model, batch), expected, atol=1e-2)
    report.undo()
    same(outputs(model, batch), expected, rtol=1e-4, atol=1e-5)


def test_fitting_runs_every_image_twice(detector):
    model, batch = detector
    report = anynorm.convert(model, "ln", fit=[batch, batch])
    assert all(row["error_after"] < row["error_before"] for row in report)


def test_the_residual_block_is_found(detector):
    model, _ = detector
    assert "1 of 1 residual blocks is an XBNBlock" in anynorm.xbn(model, "gn:4").finding


def test_synchronized_norms_keep_the_outputs(detector):
    model, batch = detector
    expected = outputs(model, batch)
    assert len(anynorm.sync(model)) == len(find_norms(model))
    same(outputs(model, batch), expected, rtol=1e-4, atol=1e-5)


def test_recalibration_is_exact_and_counts_images_although_the_model_is_in_train_mode(detector):
    model, batch = detector
    norm: Any = find_norms(model)[0].module
    inputs: list[torch.Tensor] = []
    handle = norm.register_forward_hook(lambda _, args, __: inputs.append(args[0]))
    outputs(model, batch)
    handle.remove()
    model.train()
    assert "on 6 samples" in anynorm.recalibrate(model, [batch, batch]).finding
    assert model.training
    same(norm.running_mean, inputs[0].mean((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_folding_keeps_the_outputs(detector):
    model, batch = detector
    expected = outputs(model, batch)
    report = anynorm.fold(model, batch, forward=call)
    assert all(row["into"] for row in report)
    same(outputs(model, batch), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("example", [IMAGES, (IMAGES,), (IMAGES, TARGETS)])
def test_the_example_of_fold_is_an_input_or_a_tuple_of_inputs(example):
    assert "3 of 3 norms folded" in anynorm.fold(TorchvisionDetector(), example).finding
    assert "4 of 4 norms folded" in anynorm.fold(Detectron(), BATCHED_INPUTS).finding


def test_the_estimation_shift_counts_images(detector):
    model, batch = detector
    report = estimation_shift(model, [batch])
    assert report.details["samples"] == 3
    assert all(row["shift"] > 0 for row in report)


def test_an_output_of_another_shape_is_a_change_and_an_empty_one_cannot_be_compared():
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
            self.num_detections = {nn.BatchNorm2d: 0}

        def forward(self, images):
            y = self.norm(self.conv(pad(images))).flatten()
            return y[: self.num_detections.get(type(self.norm), 0)]

    model = Detector()
    assert anynorm.fold(model, IMAGES).finding == "1 of 1 norms folded; the example has no output to compare."
    model = Detector()
    model.num_detections[nn.BatchNorm2d] = 2
    assert "would change the output" in anynorm.fold(model, IMAGES)["norm"]["note"]


class Buffers(nn.Module):
    weight: torch.Tensor
    bias: torch.Tensor
    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, channels):
        super().__init__()
        for name, start in (("weight", 1.5), ("bias", 0.1), ("running_mean", 0.3), ("running_var", 0.02)):
            self.register_buffer(name, torch.full((channels,), start))


class DetrFrozenBatchNorm2d(Buffers):
    """eps is a number inside forward, as in DETR, or there is none, as in early detectors."""

    def __init__(self, channels, value: Any = 1e-3):
        super().__init__(channels)
        self.value = value

    def forward(self, x):
        weight, bias = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        mean, var = self.running_mean.reshape(1, -1, 1, 1), self.running_var.reshape(1, -1, 1, 1)
        scale = weight * (var + self.value).rsqrt()
        return x * scale + (bias - mean * scale)


class FunctionalFrozenBatchNorm2d(Buffers):
    """eps is an attribute, and the forward is torch's batch_norm, as in detectron2."""

    def __init__(self, channels, eps=1e-4):
        super().__init__(channels)
        self.num_features, self.eps = channels, eps
        self.register_buffer("num_batches_tracked", None)

    def forward(self, x):
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


DetrFrozenBatchNorm2d.__name__ = FunctionalFrozenBatchNorm2d.__name__ = "FrozenBatchNorm2d"


@pytest.mark.parametrize(
    ("norm", "eps"),
    [
        (DetrFrozenBatchNorm2d, 1e-3),
        (lambda channels: DetrFrozenBatchNorm2d(channels, 1e-5), 1e-5),
        (lambda channels: DetrFrozenBatchNorm2d(channels, 0.0), 0.0),
        (FunctionalFrozenBatchNorm2d, 1e-4),
        (lambda channels: get_norm("FrozenBN", channels), 1e-5),
    ],
)
def test_frozen_norms_of_all_packages_are_read_converted_folded_and_unfrozen(norm, eps):
    torch.manual_seed(0)
    model = TorchvisionDetector(norm).eval()
    expected = outputs(model, IMAGES)
    assert {(row["class"], row["spec"], row["eps"]) for row in inspect(model)} == {("FrozenBatchNorm2d", "bn", eps)}
    for change in (
        lambda model: anynorm.convert(model, "bn"),
        lambda model: anynorm.fold(model, IMAGES),
        anynorm.unfreeze,
    ):
        changed = copy.deepcopy(model)
        report = change(changed)
        same(outputs(changed, IMAGES), expected, rtol=1e-4, atol=1e-5)
        report.undo()
        assert type(changed.body.norm1).__name__ == "FrozenBatchNorm2d"
    assert len(anynorm.convert(copy.deepcopy(model), "gn:4")) == 3
    assert anynorm.convert(copy.deepcopy(model).to("meta"), "bn")["body.norm1"]["new_norm"] == "bn"


def test_unfrozen_norms_are_trained_and_only_what_is_asked_is_unfrozen():
    model: Any = TorchvisionDetector(lambda channels: get_norm("FrozenBN", channels))
    report = anynorm.unfreeze(model, "body.norm1", statistics=False)
    assert [row["changed"] for row in report] == [["weight", "bias"]]
    anynorm.unfreeze(model, "body.norm2", affine=False)
    anynorm.unfreeze(model, "body.stem_norm")
    frozen = model.body.norm1.running_mean.clone()
    losses = model.train()(IMAGES, TARGETS)
    sum(loss["scores"].sum() for loss in losses).backward()
    same(model.body.norm1.running_mean, frozen)
    assert model.body.norm1.weight.grad is not None
    assert not model.body.norm2.weight.requires_grad
    for norm in (model.body.norm2, model.body.stem_norm):
        assert not torch.allclose(norm.running_mean, torch.full((8,), 0.3))


def test_freezing_leaves_norms_that_are_frozen_already():
    model: Any = TorchvisionDetector(lambda channels: get_norm("FrozenBN", channels))
    assert "0 of 3 norms frozen" in anynorm.freeze(model).finding
    assert type(model.body.norm1).__name__ == "FrozenBatchNorm2d"


def test_a_frozen_norm_whose_forward_raises_is_not_supported():
    class Broken(DetrFrozenBatchNorm2d):
        pass

    Broken.__name__ = "FrozenBatchNorm2d"
    model: Any = nn.Sequential(Broken(8), nn.BatchNorm2d(8))
    model[0].value = "text"
    assert "has no attribute eps, and its forward raised TypeError" in anynorm.convert(model, "gn:4")["0"]["note"]


def test_a_layer_function_is_a_norm_of_detectron2():
    model = Detectron(anynorm.layer("gn:4"))
    assert {row["spec"] for row in inspect(model)} == {"gn:4"}
    assert isinstance(model.block, BottleneckBlock)
    assert len(outputs(model.eval(), BATCHED_INPUTS)) == 3


def test_norm_properties_of_mmdetection_return_the_new_norm():
    model = MMDetector()
    keys = list(model.state_dict())
    anynorm.convert(model, "bn")
    assert model.block.norm1 is model.block.bn1
    assert isinstance(model.block.norm1, anynorm.BatchNorm)
    assert list(model.state_dict()) == keys
    model.block.add_module(model.block.norm1_name, nn.Identity())
    assert isinstance(model.block.norm1, nn.Identity)


def test_norm_eval_of_mmdetection_is_freeze_after_a_conversion():
    model = MMDetector(norm_eval=True)
    anynorm.convert(model, "bn")
    anynorm.freeze(model, affine=False)
    before = copy.deepcopy(model.block.norm1.running_mean)
    model.train()(pad(IMAGES)).sum().backward()
    same(model.block.norm1.running_mean, before)
    assert model.block.norm1.weight.grad is not None
