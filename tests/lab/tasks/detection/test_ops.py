"""Boxes, anchors, suppression, RoIAlign, matching and pasting against loops over single values."""

import itertools
import math
import sys
from types import SimpleNamespace

import pytest
import torch

from anynorm.lab.tasks.detection.networks import ops
from anynorm.lab.tasks.detection.networks.anchors import base_anchors, grid_anchors
from anynorm.lab.tasks.detection.networks.boxes import BOX_HEAD_WEIGHTS, box_iou, clip_boxes, decode, encode
from anynorm.lab.tasks.detection.networks.losses import mask_targets
from anynorm.lab.tasks.detection.networks.matching import BACKGROUND, IGNORE, match, sample
from anynorm.lab.tasks.detection.networks.nms import nms
from anynorm.lab.tasks.detection.networks.paste import paste_masks
from anynorm.lab.tasks.detection.networks.roi_align import assign_levels, roi_align
from tests.helpers import same


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make_boxes(count: int, size: float = 30.0) -> torch.Tensor:
    corner = size * torch.rand(count, 2)
    return torch.cat([corner, corner + 1 + size / 2 * torch.rand(count, 2)], 1)


def naive_iou(a, b):
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def test_iou_is_that_of_single_boxes_and_0_for_empty_ones():
    a, b = make_boxes(12), make_boxes(9)
    same(box_iou(a, b), torch.tensor([[naive_iou(x, y) for y in b.tolist()] for x in a.tolist()]))
    assert box_iou(torch.zeros(1, 4), torch.zeros(1, 4)) == 0


def test_coordinates_are_relative_to_reference_boxes_and_decoded_exactly():
    boxes, references = make_boxes(10), make_boxes(10)
    for box, reference, deltas in zip(
        boxes.tolist(), references.tolist(), encode(boxes, references, BOX_HEAD_WEIGHTS), strict=True
    ):
        w, h, w_ref, h_ref = box[2] - box[0], box[3] - box[1], reference[2] - reference[0], reference[3] - reference[1]
        dx, dy = (box[0] + w / 2 - reference[0] - w_ref / 2) / w_ref, (box[1] + h / 2 - reference[1] - h_ref / 2) / h_ref
        same(deltas, torch.tensor([10 * dx, 10 * dy, 5 * math.log(w / w_ref), 5 * math.log(h / h_ref)]), rtol=1e-4, atol=1e-5)
    same(decode(encode(boxes, references, BOX_HEAD_WEIGHTS), references, BOX_HEAD_WEIGHTS), boxes, rtol=1e-4, atol=1e-4)
    per_class = decode(torch.zeros(10, 3, 4), references, BOX_HEAD_WEIGHTS)
    same(per_class, references[:, None].expand(-1, 3, -1))
    assert decode(torch.full((1, 4), 1e6), references[:1], BOX_HEAD_WEIGHTS).isfinite().all()


def test_boxes_are_clipped_to_their_own_image():
    boxes = torch.tensor([[[-3.0, -2.0, 50.0, 60.0]], [[5.0, 6.0, 7.0, 90.0]]])
    clipped = clip_boxes(boxes, torch.tensor([[40.0], [30.0]]), torch.tensor([[20.0], [10.0]]))
    assert clipped.tolist() == [[[0, 0, 20, 40]], [[5, 6, 7, 30]]]


def test_anchors_have_their_area_ratio_and_place():
    anchors = grid_anchors(base_anchors([8, 16], [0.5, 2.0]), 3, 5, 4)
    expected = []
    for y, x, size, ratio in itertools.product(range(3), range(5), (8, 16), (0.5, 2.0)):
        w, h = size / math.sqrt(ratio), size * math.sqrt(ratio)
        cx, cy = 4 * (x + 0.5), 4 * (y + 0.5)
        expected.append([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2])
    same(anchors, torch.tensor(expected))


def naive_nms(boxes, scores, groups, threshold):
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        overlaps = (groups[index] == groups[other] and naive_iou(boxes[index], boxes[other]) > threshold for other in kept)
        if not any(overlaps):
            kept.append(index)
    return kept


@pytest.mark.parametrize("num_groups", [1, 3])
def test_suppression_is_greedy_in_each_group(num_groups):
    boxes, scores, groups = make_boxes(120), torch.rand(120), torch.randint(num_groups, (120,))
    kept = nms(boxes, scores, groups, 0.4)
    assert kept.tolist() == naive_nms(boxes.tolist(), scores.tolist(), groups.tolist(), 0.4)
    assert nms(boxes[:0], scores[:0], groups[:0], 0.4).tolist() == []


def test_a_chain_of_overlaps_is_suppressed_alternately():
    starts = torch.arange(9.0)[:, None] * 4
    boxes = torch.cat([starts, torch.zeros(9, 1), starts + 10, torch.ones(9, 1)], 1)
    assert nms(boxes, torch.arange(9, 0, -1).float(), torch.zeros(9), 0.3).tolist() == [0, 2, 4, 6, 8]


def naive_point(image, y, x):
    """Bilinear interpolation with the border rule of RoIAlign."""
    height, width = image.shape[1:]
    if y < -1 or y > height or x < -1 or x > width:
        return torch.zeros(len(image), dtype=image.dtype)
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    top = image[:, y0, x0] * (1 - x + x0) + image[:, y0, x1] * (x - x0)
    bottom = image[:, y1, x0] * (1 - x + x0) + image[:, y1, x1] * (x - x0)
    return top * (1 - y + y0) + bottom * (y - y0)


def naive_roi_align(image, box, stride, bins):
    x1, y1, x2, y2 = (value / stride - 0.5 for value in box)
    result = torch.zeros(len(image), bins, bins, dtype=image.dtype)
    for i, j, dy, dx in itertools.product(range(bins), range(bins), (0.25, 0.75), (0.25, 0.75)):
        y, x = y1 + (i + dy) * (y2 - y1) / bins, x1 + (j + dx) * (x2 - x1) / bins
        result[:, i, j] += naive_point(image, y, x) / 4
    return result


def test_roi_align_of_several_levels_is_that_of_single_points_with_its_gradient():
    features = [torch.randn(2, 3, side, side, requires_grad=True) for side in (8, 4)]
    boxes = torch.cat([make_boxes(6), torch.tensor([[-9.0, -9.0, 50.0, 50.0], [3.0, 3.0, 3.0, 3.0]])])
    images, levels = torch.randint(2, (8,)), torch.randint(2, (8,))
    pooled = roi_align(features, [4, 8], torch.cat([images[:, None].float(), boxes], 1), 3, levels)
    cases = zip(boxes.tolist(), images, levels, strict=True)
    expected = torch.stack([naive_roi_align(features[level][image], box, (4, 8)[level], 3) for box, image, level in cases])
    same(pooled, expected, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(pooled)
    gradients = [torch.autograd.grad((each * weight).sum(), features) for each in (pooled, expected)]
    for got, wanted in zip(*gradients, strict=True):
        same(got, wanted, rtol=1e-4, atol=1e-5)


def test_regions_belong_to_the_level_of_their_size():
    sides = [1.0, 55.0, 56.0, 111.0, 112.0, 223.0, 224.0, 447.0, 448.0, 5000.0]
    boxes = torch.tensor([[0.0, 0.0, side, side] for side in sides])
    assert assign_levels(boxes, [4, 8, 16, 32]).tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_candidates_belong_to_the_object_they_overlap_most():
    iou = torch.tensor([[0.9, 0.2], [0.5, 0.45], [0.1, 0.6], [0.0, 0.0]])
    assert match(iou, high=0.7, low=0.3, allow_low_quality_matches=False).tolist() == [0, IGNORE, IGNORE, BACKGROUND]
    assert match(iou, high=0.7, low=0.3, allow_low_quality_matches=True).tolist() == [0, IGNORE, 1, BACKGROUND]
    assert match(iou[:, :0], high=0.7, low=0.3, allow_low_quality_matches=True).tolist() == [BACKGROUND] * 4


def test_samples_are_candidates_with_and_without_an_object_and_depend_on_the_seed():
    matched = torch.tensor([0] * 10 + [BACKGROUND] * 10 + [IGNORE] * 10)
    torch.manual_seed(1)
    positive, negative = sample(matched, 8, 0.25)
    assert (len(positive), len(negative)) == (2, 6)
    assert bool((matched[positive] == 0).all())
    assert bool((matched[negative] == BACKGROUND).all())
    torch.manual_seed(1)
    assert torch.equal(sample(matched, 8, 0.25)[1], negative)
    torch.manual_seed(2)
    assert not torch.equal(sample(matched, 8, 0.25)[1], negative)
    few = sample(matched[8:], 100, 0.25)
    assert [each.tolist() for each in few] == [[0, 1], list(range(2, 12))]


def test_a_mask_resized_to_its_box_and_pasted_back_is_the_mask():
    mask = torch.zeros(1, 40, 40, dtype=torch.bool)
    mask[:, 8:24, 5:33] = True
    mask[:, 8:16, 5:19] = False
    box = torch.tensor([[5.0, 8.0, 33.0, 24.0]])
    target = mask_targets(mask, box, 28)
    assert 0.7 < float(target.mean()) < 0.8
    pasted = paste_masks(target, box, 40, 40) >= 0.5
    assert int((pasted ^ mask).sum()) <= 8  # the corner, which bilinear interpolation rounds
    assert paste_masks(target[:0], box[:0], 40, 30).shape == (0, 40, 30)


def test_torchvision_is_used_where_it_works_and_gives_the_same(monkeypatch):
    """A stand-in with torchvision's signatures, because torchvision itself has no kernels here."""
    calls = []

    def batched_nms(boxes, scores, groups, threshold):
        calls.append("nms")
        return torch.tensor(naive_nms(boxes.tolist(), scores.tolist(), groups.tolist(), threshold))

    def torchvision_roi_align(x, regions, size, scale, sampling_ratio, *, aligned):
        calls.append("roi_align")
        assert sampling_ratio == 2
        assert aligned
        maps = [naive_roi_align(x[int(row[0])], row[1:], 1 / scale, size) for row in regions.tolist()]
        return torch.stack(maps) if maps else x.new_zeros(0, x.shape[1], size, size)

    features, boxes = [torch.randn(1, 2, 8, 8), torch.randn(1, 2, 4, 4)], make_boxes(6)
    arguments = (features, [4, 8], torch.cat([torch.zeros(6, 1), boxes], 1), 2, torch.tensor([0, 1, 1, 0, 0, 1]))
    scores, groups = torch.rand(6), torch.zeros(6)
    own = ops.roi_align(*arguments), ops.nms(boxes, scores, groups, 0.3)
    stand_in = SimpleNamespace(batched_nms=batched_nms, roi_align=torchvision_roi_align)
    monkeypatch.setattr(ops, "torchvision_ops", lambda _: stand_in)
    same(ops.roi_align(*arguments), own[0], rtol=1e-4, atol=1e-5)
    assert ops.nms(boxes, scores, groups, 0.3).tolist() == own[1].tolist()
    assert calls == ["roi_align", "roi_align", "nms"]
    in_16_bits = ([each.bfloat16() for each in features], *arguments[1:])
    expected = roi_align(*in_16_bits)
    same(ops.roi_align(*in_16_bits), expected, rtol=1e-2, atol=1e-2)  # coordinates are not rounded


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_a_broken_torchvision_is_not_used(error, monkeypatch):
    def fail(_):
        raise error("operator torchvision::nms does not exist")

    monkeypatch.setattr(ops, "import_module", fail)
    ops.torchvision_ops.cache_clear()
    try:
        assert ops.torchvision_ops("cpu") is None
    finally:
        ops.torchvision_ops.cache_clear()
    assert "torchvision" not in sys.modules
