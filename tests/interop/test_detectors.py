"""Surgery on detectors, segmentation networks and video networks of torchvision and segmentation_models_pytorch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import segmentation_models_pytorch as smp
import torch
from torch import nn
from torchvision.models.detection import FasterRCNN, fasterrcnn_resnet50_fpn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.segmentation import deeplabv3_resnet50
from torchvision.models.video import r3d_18
from torchvision.ops import FrozenBatchNorm2d

import anynorm
from anynorm.diagnostics import estimation_shift
from anynorm.surgery.dataflow import tensors_of
from anynorm.surgery.find import find_norms
from anynorm.surgery.inspect import inspect
from tests.helpers import same

# torch itself, when torchvision's detectors trace or script
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
# few proposals: the nms of these tests is a loop in Python
SMALL: Any = {"num_classes": 3, "min_size": 64, "max_size": 96, "rpn_pre_nms_top_n_test": 40, "rpn_post_nms_top_n_test": 10}
SMALL |= {"rpn_pre_nms_top_n_train": 40, "rpn_post_nms_top_n_train": 10, "box_detections_per_img": 5}


class Case(NamedTuple):
    """A model, a batch of it, its input, and its numbers of norms and residual blocks."""

    make: Callable[[], nn.Module]
    batch: Any
    x: Any
    num_norms: int
    num_blocks: int


def images(*sizes: tuple[int, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(3, *size, generator=generator) for size in sizes]


def targets(count: int) -> list[dict[str, torch.Tensor]]:
    box = torch.tensor([[5.0, 5.0, 40.0, 45.0]])
    return [{"boxes": box, "labels": torch.tensor([1])} for _ in range(count)]


IMAGES = images((50, 70), (64, 60))
SQUARES = torch.stack(images((64, 64), (64, 64)))
CLIPS = torch.rand(2, 3, 8, 32, 32, generator=torch.Generator().manual_seed(0))


def faster_rcnn() -> nn.Module:
    model: nn.Module = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, **SMALL)
    return model


def frozen_faster_rcnn() -> nn.Module:
    """The norms of a pretrained backbone of torchvision: FrozenBatchNorm2d."""
    model: nn.Module = FasterRCNN(resnet_fpn_backbone(backbone_name="resnet18", weights=None), **SMALL)
    return model


CASES = {
    "fasterrcnn_resnet50_fpn": Case(faster_rcnn, (IMAGES, targets(2)), IMAGES, 53, 16),
    "deeplabv3_resnet50": Case(
        lambda: deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=4), [SQUARES, torch.zeros(2)], SQUARES, 60, 16
    ),
    "r3d_18": Case(lambda: r3d_18(num_classes=5), [CLIPS, torch.zeros(2)], CLIPS, 20, 8),
    "smp.Unet": Case(lambda: smp.Unet("resnet18", encoder_weights=None), [SQUARES, torch.zeros(2)], SQUARES, 30, 8),
}


def trained(model: nn.Module) -> nn.Module:
    """Set the affine and the running statistics of all norms to random values."""
    generator = torch.Generator().manual_seed(1)
    ranges = {"weight": (0.5, 1.0), "bias": (-0.1, 0.1), "running_mean": (-0.1, 0.1), "running_var": (0.5, 2.0)}
    with torch.no_grad():
        for site in find_norms(model):
            for name, (low, high) in ranges.items():
                getattr(site.module, name).uniform_(low, high, generator=generator)
    return model.eval()


def build(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return trained(case.make())


@torch.no_grad()
def outputs(model: nn.Module, x: Any) -> list[torch.Tensor]:
    return tensors_of(model.eval()(x))


def same_outputs(model: nn.Module, x: Any, expected: list[torch.Tensor], tolerance: float = 1e-4) -> None:
    for new, old in zip(outputs(model, x), expected, strict=True):
        same(new, old, rtol=tolerance, atol=tolerance * float(old.abs().max()))


def class_names(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules()]


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_every_norm_is_listed(case):
    report = inspect(case.make())
    assert len(report) == case.num_norms
    assert {row["spec"] for row in report} == {"bn"}


def test_converting_to_bn_keeps_the_outputs(case):
    model = build(case)
    expected = outputs(model, case.x)
    assert len(anynorm.convert(model, "bn")) == case.num_norms
    same_outputs(model, case.x, expected)


def test_converting_to_gn_changes_every_norm_and_can_be_undone(case):
    model = build(case)
    expected, classes = outputs(model, case.x), class_names(model)
    report = anynorm.convert(model, "gn:8", groups="nearest")
    assert [row["new_norm"] for row in report] == ["gn:8"] * case.num_norms
    outputs(model, case.x)
    report.undo()
    assert class_names(model) == classes
    same_outputs(model, case.x, expected, tolerance=0)


def test_one_norm_of_each_residual_block_is_replaced(case):
    model = build(case)
    report = anynorm.xbn(model, "gn:8")
    assert f"{case.num_blocks} of {case.num_blocks} residual blocks are XBNBlocks" in report.finding
    outputs(model, case.x)


def test_synchronized_norms_keep_the_outputs(case):
    model = build(case)
    expected = outputs(model, case.x)
    report = anynorm.sync(model)
    assert len(report) == case.num_norms
    same_outputs(model, case.x, expected)
    report.undo()
    same_outputs(model, case.x, expected, tolerance=0)


def test_recalibration_estimates_the_statistics_of_the_first_norm_exactly_without_targets(case):
    model = build(case)
    first: Any = find_norms(model)[0].module
    inputs: list[torch.Tensor] = []
    handle = first.register_forward_hook(lambda _, args, __: inputs.append(args[0]))
    outputs(model, case.x)
    handle.remove()
    expected = outputs(model, case.x)
    report = anynorm.recalibrate(model, [case.batch, case.batch])
    assert f"{case.num_norms} of {case.num_norms} norms recalibrated on 4 samples" in report.finding
    same(first.running_mean, inputs[0].transpose(0, 1).flatten(1).mean(1), rtol=1e-4, atol=1e-5)
    report.undo()
    same_outputs(model, case.x, expected, tolerance=0)


def test_folding_keeps_the_outputs_and_can_be_undone(case):
    model = build(case)
    expected = outputs(model, case.x)
    report = anynorm.fold(model, case.x)
    assert all(row["into"] for row in report)
    same_outputs(model, case.x, expected, tolerance=1e-3)
    report.undo()
    same_outputs(model, case.x, expected, tolerance=0)


def test_fitting_ln_to_the_images_of_a_detector_brings_its_outputs_closer():
    case = CASES["fasterrcnn_resnet50_fpn"]
    report = anynorm.convert(build(case), "ln", fit=[case.batch])
    assert sum(row["error_after"] for row in report) < 0.8 * sum(row["error_before"] for row in report)


def test_the_estimation_shift_of_a_detector_is_measured_on_its_images():
    case = CASES["fasterrcnn_resnet50_fpn"]
    report = estimation_shift(build(case), [case.batch], trial_samples=0)
    assert report.details["samples"] == 2
    assert len(report) == 53


def test_a_converted_detector_trains():
    model = CASES["fasterrcnn_resnet50_fpn"].make()
    anynorm.convert(model, "gn:8")
    losses = model.train()(IMAGES, targets(2))
    sum(losses.values()).backward()
    norm: Any = model.get_submodule("backbone.body.layer4.2.bn3")
    assert float(norm.weight.grad.abs().sum()) > 0


def test_frozen_batch_norms_of_torchvision_are_read_converted_and_folded():
    case = Case(frozen_faster_rcnn, None, IMAGES, 20, 8)
    report = inspect(build(case))
    assert {(row["class"], row["spec"], row["eps"]) for row in report} == {("FrozenBatchNorm2d", "bn", 1e-5)}
    for change in (lambda model: anynorm.convert(model, "bn"), lambda model: anynorm.fold(model, IMAGES)):
        model = build(case)
        expected = outputs(model, IMAGES)
        assert len(change(model)) == 20
        same_outputs(model, IMAGES, expected, tolerance=1e-3)
    report = anynorm.convert(build(case), "gn:8", fit=[(IMAGES, None)])
    assert [row["new_norm"] for row in report] == ["gn:8"] * 20


def test_frozen_batch_norms_of_torchvision_can_be_unfrozen_and_then_recalibrated():
    model = build(Case(frozen_faster_rcnn, None, IMAGES, 20, 8))
    expected = outputs(model, IMAGES)
    with pytest.raises(anynorm.SurgeryError, match="no norm with running statistics that are not frozen"):
        anynorm.recalibrate(model, [(IMAGES, None)])
    report = anynorm.unfreeze(model)
    assert "20 of 20 norms unfrozen" in report.finding
    same_outputs(model, IMAGES, expected)
    assert "20 of 20 norms recalibrated on 2 samples" in anynorm.recalibrate(model, [(IMAGES, None)]).finding
    norm: Any = model.get_submodule("backbone.body.bn1")
    assert norm.weight.requires_grad
    report.undo()
    assert isinstance(model.get_submodule("backbone.body.bn1"), FrozenBatchNorm2d)
