"""Our operators of detectors are those of torchvision."""

import torch

from anynorm.lab.tasks.detection.networks.anchors import base_anchors, grid_anchors
from anynorm.lab.tasks.detection.networks.boxes import BOX_HEAD_WEIGHTS, decode, encode
from anynorm.lab.tasks.detection.networks.roi_align import roi_align


def make_boxes(count, size=64.0):
    corners = torch.rand(count, 2, 2) * size
    return torch.cat([corners.amin(1), corners.amax(1) + 1], 1)


def test_roi_align_is_that_of_torchvision():
    """torchvision's wheel has no kernel for the CPU; this is its implementation in Python."""
    from torchvision.ops.roi_align import _roi_align

    torch.manual_seed(0)
    features, boxes = torch.randn(2, 5, 16, 16), torch.cat([torch.randint(2, (20, 1)).float(), make_boxes(20)], 1)
    expected = _roi_align(features, boxes, 0.25, 7, 7, 2, True)
    result = roi_align([features], [4], boxes, 7, torch.zeros(20, dtype=torch.long))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_anchors_are_those_of_torchvision_without_their_rounding():
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.image_list import ImageList

    sizes, ratios = (32.0,), (0.5, 1.0, 2.0)
    generator = AnchorGenerator((sizes,), (ratios,))
    (expected,) = generator(ImageList(torch.zeros(1, 3, 32, 48), [(32, 48)]), [torch.zeros(1, 8, 4, 6)])
    anchors = grid_anchors(base_anchors(sizes, ratios), 4, 6, stride=8)
    # the center of torchvision's first anchor is the corner of the image, that of ours the center of the first position
    torch.testing.assert_close(anchors - 8 / 2, expected, rtol=0.0, atol=0.5)  # torchvision rounds corners to whole pixels


def test_the_box_coder_is_that_of_torchvision():
    from torchvision.models.detection._utils import BoxCoder

    torch.manual_seed(0)
    boxes, references = make_boxes(30), make_boxes(30)
    coder = BoxCoder(BOX_HEAD_WEIGHTS)
    deltas = encode(boxes, references, BOX_HEAD_WEIGHTS)
    torch.testing.assert_close(deltas, coder.encode_single(boxes, references), rtol=1e-4, atol=1e-5)
    expected = coder.decode_single(deltas, references)
    torch.testing.assert_close(decode(deltas[:, None], references, BOX_HEAD_WEIGHTS)[:, 0], expected, rtol=1e-4, atol=1e-3)
