"""Detectors from options, with BatchNorm in all parts that have norms; `anynorm.lab.training.norm_layout.Layout` replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from anynorm.errors import SpecError
from anynorm.lab.models.backbone import Backbone, load_backbone
from anynorm.lab.tasks.detection.networks.detector import Detector
from anynorm.lab.tasks.detection.networks.fpn import FPN
from anynorm.lab.tasks.detection.networks.heads import Heads, MaskHead, make_box_head, make_c4_box_head
from anynorm.lab.tasks.detection.networks.norm_free import remove_norms
from anynorm.lab.tasks.detection.networks.rpn import RPN
from anynorm.lab.tasks.detection.options import DetectionOptions


def make_detector(backbone: Backbone, num_classes: int, options: DetectionOptions) -> Detector:
    """Build a detector; without a pyramid, it takes the last stage out of the backbone.

    Args:
        backbone: the backbone.
        num_classes: number of classes without background.
        options: the options of the task.

    Raises:
        SpecError: if the number of anchor sizes does not match the backbone, or a part without norms does not exist.
    """
    make = _make_fpn_detector if options.fpn else _make_c4_detector
    detector = make(backbone, num_classes, options)
    for path in options.norm_free:
        remove_norms(detector, path)
    return detector


def _make_fpn_detector(backbone: Backbone, num_classes: int, options: DetectionOptions) -> Detector:
    num_stages, sizes = options.fpn_stages or len(backbone.strides), options.anchor_sizes
    if not 0 < num_stages <= len(backbone.strides):
        raise SpecError(f"fpn_stages must be from 1 to {len(backbone.strides)}, or 0 for all; got {num_stages}.")
    num_extra = len(sizes) - num_stages
    if num_extra not in (0, 1):
        raise SpecError(
            f"anchor_sizes must be one per level of the pyramid, {num_stages}, or one more for an extra level; got {len(sizes)}."
        )
    used = backbone.strides[-num_stages:]
    strides = [*used, *[2 * used[-1]] * num_extra]
    channels = options.fpn_channels
    fpn = FPN(backbone.channels[-num_stages:], channels, num_extra)
    box = make_box_head(channels, num_classes, num_convs=options.box_convs, num_features=options.box_features)
    mask = MaskHead(channels, channels, num_classes, options.mask_convs) if options.masks else None
    rpn = _make_rpn(channels, strides, [[size] for size in sizes], options)
    return _assemble(backbone, fpn, Heads(rpn, box, mask, mask_after_box=False), used, options)


def _make_c4_detector(backbone: Backbone, num_classes: int, options: DetectionOptions) -> Detector:
    *earlier, last = backbone
    trunk, channels = Backbone(*earlier), backbone.channels[-1]
    rpn = _make_rpn(trunk.channels[-1], trunk.strides[-1:], [list(options.anchor_sizes)], options)
    box = make_c4_box_head(last, channels, num_classes)
    mask = MaskHead(channels, options.fpn_channels, num_classes, 0) if options.masks else None
    return _assemble(trunk, None, Heads(rpn, box, mask, mask_after_box=True), trunk.strides[-1:], options)


def _make_rpn(channels: int, strides: list[int], sizes: list[list[float]], options: DetectionOptions) -> RPN:
    return RPN(
        channels,
        strides,
        sizes=sizes,
        ratios=options.anchor_ratios,
        num_candidates=options.num_candidates,
        num_proposals=options.num_proposals,
        anchors_per_image=options.anchors_per_image,
    )


def _assemble(backbone: Backbone, fpn: nn.Module | None, heads: Heads, strides: list[int], options: DetectionOptions) -> Detector:
    return Detector(
        backbone,
        fpn,
        heads,
        strides=strides,
        regions_per_image=options.regions_per_image,
        positive_fraction=options.positive_fraction,
        score_threshold=options.score_threshold,
        max_detections=options.max_detections,
    )


def load_weights(network: Any, weights: Mapping[str, Tensor], source: str) -> None:
    """Load the weights of a classifier into the backbone of a detector and, without a pyramid, the last stage in its box head.

    Raises:
        DataError: if they do not fit.
    """
    load_backbone(network.backbone, weights, source)
    if network.fpn is None:
        prefix = f"{len(list(network.backbone.children()))}."
        stage = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        load_backbone(network.heads.box.body, stage, f"stage {prefix[:-1]} of {source}")
