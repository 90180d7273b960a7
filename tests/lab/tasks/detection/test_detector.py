"""Detectors: parts, losses, detections, images of several sizes, and training to the exact objects."""

from typing import Any

import pytest
import torch

from anynorm.errors import SpecError
from anynorm.lab.models.backbone import make_backbone
from anynorm.lab.tasks.detection.metrics import coco_metrics, encode_detections, encode_objects
from anynorm.lab.tasks.detection.networks.build import make_detector
from anynorm.lab.tasks.detection.networks.detector import stack_images
from anynorm.lab.tasks.detection.options import DetectionOptions
from anynorm.lab.training.norm_layout import Layout
from anynorm.surgery.find import find_norms
from tests.helpers import same

SMALL: dict[str, Any] = {
    "fpn_channels": 16,
    "fpn_stages": 2,
    "anchor_sizes": (8.0, 16.0),
    "anchor_ratios": (1.0,),
    "num_candidates": 50,
    "num_proposals": 30,
    "anchors_per_image": 32,
    "regions_per_image": 32,
    "positive_fraction": 0.5,
    "box_convs": 1,
    "box_features": 32,
    "mask_convs": 1,
}


def make_small(**changes):
    torch.manual_seed(0)
    return make_detector(make_backbone("small", 3, 0.5, 32), 2, DetectionOptions(**SMALL | changes))


def make_targets(*counts):
    """Bright squares of class 0 and flat rectangles of class 1 on a dark ground."""
    generator = torch.Generator().manual_seed(0)
    images, targets = 0.1 * torch.randn(len(counts), 3, 32, 32, generator=generator), []
    for image, count in zip(images, counts, strict=True):
        boxes, masks = [], torch.zeros(count, 32, 32, dtype=torch.bool)
        for number in range(count):
            height, width = ((8, 8), (5, 12))[number % 2]
            top, left = 1 + 15 * (number // 2), 1 + 16 * (number % 2)
            boxes.append([left, top, left + width, top + height])
            masks[number, top : top + height, left : left + width] = True
            image[number % 2, masks[number]] += 2
        box = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
        targets.append({"boxes": box, "labels": torch.arange(count) % 2, "masks": masks})
    return images, targets


@pytest.mark.parametrize("has_fpn", [True, False])
@pytest.mark.parametrize("counts", [(3, 0), (0, 0)])
def test_losses_are_finite_and_every_parameter_has_a_gradient_with_and_without_objects(has_fpn, counts):
    detector = make_small(fpn=has_fpn, masks=True)
    losses = detector(*make_targets(*counts))
    assert list(losses) == ["loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg", "loss_mask"]
    sum(losses.values()).backward()
    assert all(bool(loss.isfinite()) for loss in losses.values())
    assert all(parameter.grad is not None for parameter in detector.parameters())
    assert [bool(losses[name] > 0) for name in losses] == [True, bool(counts[0]), True, bool(counts[0]), bool(counts[0])]


@pytest.mark.parametrize("has_fpn", [True, False])
def test_detections_lie_in_images_of_any_size_and_repeat(has_fpn):
    detector = make_small(fpn=has_fpn, masks=True, score_threshold=0.0, max_detections=7).eval()
    images = [torch.randn(3, 32, 20), torch.randn(3, 17, 40)]
    detections = detector(images)
    for image, each in zip(images, detections, strict=True):
        height, width = image.shape[1:]
        assert {name: tuple(value.shape) for name, value in each.items()} == {
            "boxes": (7, 4),
            "labels": (7,),
            "scores": (7,),
            "masks": (7, 1, height, width),
        }
        assert bool((each["boxes"] >= 0).all())
        assert bool((each["boxes"] <= torch.tensor([width, height] * 2)).all())
        assert bool((each["scores"].diff() <= 0).all())
        assert set(each["labels"].tolist()) <= {0, 1}
    torch.manual_seed(5)
    assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(detections, detector(images), strict=True))


def test_no_detection_has_empty_masks_of_the_size_of_the_image():
    detector = make_small(masks=True, score_threshold=1.0).eval()
    (each,) = detector(torch.zeros(1, 3, 32, 32))
    assert [tuple(value.shape) for value in each.values()] == [(0, 4), (0,), (0,), (0, 1, 32, 32)]


def test_a_batch_is_padded_to_multiples_of_the_stride_and_equals_a_list():
    x = torch.randn(2, 3, 32, 32)
    batch, sizes = stack_images(x, 16)
    assert batch is x
    assert sizes.tolist() == [[32, 32], [32, 32]]
    batch, _ = stack_images(list(x[..., :30]), 16)
    same(batch[..., :30], x[..., :30])
    assert not bool(batch[..., 30:].any())


@pytest.mark.parametrize(("has_fpn", "steps", "box_ap", "mask_ap"), [(True, 120, 90, 95), (False, 120, 70, 85)])
def test_a_detector_learns_the_objects_of_its_images(has_fpn, steps, box_ap, mask_ap):
    detector = Layout.parse("gn:4", 2).apply(make_small(fpn=has_fpn, masks=True))
    images, targets = make_targets(4, 3)
    optimizer = torch.optim.AdamW(detector.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-2, steps)
    torch.manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        sum(detector(images, targets).values()).backward()
        optimizer.step()
        schedule.step()
    objects = [encode_objects({**target, "is_crowd": target["labels"] < 0}) for target in targets]
    detections = [encode_detections(each) for each in detector.eval()(images)]
    assert coco_metrics(objects, detections, 2)["AP"] > box_ap
    assert coco_metrics(objects, detections, 2, masks=True)["AP"] > mask_ap


def test_a_layout_has_a_norm_per_part():
    detector = Layout.parse("backbone=xbn=gn:4;fpn=in;heads=gn:8;heads.mask=ln", 2).apply(make_small(masks=True))
    norms: dict[str, set[str]] = {}
    for site in find_norms(detector):
        norms.setdefault(".".join(site.path.split(".")[: 2 if "heads" in site.path else 1]), set()).add(site.label)
    assert norms == {
        "backbone": {"bn", "gn:4"},
        "fpn": {"in"},
        "heads.rpn": {"gn:8"},
        "heads.box": {"gn:8"},
        "heads.mask": {"ln"},
    }
    losses = detector(*make_targets(2, 1))
    assert all(bool(loss.isfinite()) for loss in losses.values())


def test_a_box_head_without_convolutions_has_no_norm_and_c4_has_the_last_stage():
    assert not find_norms(make_small(box_convs=0).heads.box)
    c4 = make_small(fpn=False)
    assert c4.fpn is None
    assert len(list(c4.backbone)) == 3
    assert len(find_norms(c4.heads.box.body)) == 3
    with pytest.raises(SpecError, match=r"has no submodule 'fpn'\. Submodules with norms: backbone heads"):
        Layout.parse("bn;fpn=gn:4", 2).apply(c4)


def test_the_number_of_anchor_sizes_must_fit():
    assert make_small(anchor_sizes=(8.0, 16.0, 32.0)).heads.rpn.strides == (2, 4, 8)
    with pytest.raises(
        SpecError, match="anchor_sizes must be one per level of the pyramid, 2, or one more for an extra level; got 4"
    ):
        make_small(anchor_sizes=(1.0, 2.0, 3.0, 4.0))
    with pytest.raises(SpecError, match="fpn_stages must be from 1 to 3, or 0 for all; got 4"):
        make_small(fpn_stages=4)
