"""Detectors from their settings, with BatchNorm everywhere; `anynorm.lab.training.norm_layout.Layout` replaces it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from anynorm.errors import SpecError
from anynorm.lab.models.backbone import Backbone
from anynorm.lab.tasks.detection.networks.detector import Detector
from anynorm.lab.tasks.detection.networks.fpn import FPN
from anynorm.lab.tasks.detection.networks.heads import Heads, MaskHead, make_box_head, make_c4_box_head
from anynorm.lab.tasks.detection.networks.rpn import RPN


@dataclass(frozen=True)
class DetectorSettings:
    """The settings of a detector; the defaults are those of the papers.

    Args:
        num_classes: number of classes without background.
        has_fpn: whether the detector has a feature pyramid; otherwise it is of type C4.
        has_masks: whether it predicts masks.
        fpn_channels: channels of the pyramid, and of the convolutions of the heads.
        fpn_stages: number of stages of the backbone, counted from the last, with a pyramid level; 0 for all.
        anchor_sizes: square roots of areas, in pixels; with a pyramid one per level, and possibly one more for an extra level.
        anchor_ratios: height over width.
        num_candidates: candidate boxes per level before non-maximum suppression.
        num_proposals: proposals per image.
        rpn_samples: sampled anchors per image in the RPN losses.
        box_convs: convolutions with norms of the box head with a pyramid; 0 for two hidden layers without norms.
        box_features: size of the hidden layers of the box head.
        mask_convs: convolutions with norms of the mask head with a pyramid.
        num_samples: sampled regions per image in the losses.
        positive_fraction: maximum fraction of positive regions.
        score_threshold: minimum score of a detection.
        max_detections: maximum number of detections per image.
    """

    num_classes: int
    has_fpn: bool = True
    has_masks: bool = False
    fpn_channels: int = 256
    fpn_stages: int = 0
    anchor_sizes: tuple[float, ...] = (32.0, 64.0, 128.0, 256.0, 512.0)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    num_candidates: int = 1000
    num_proposals: int = 1000
    rpn_samples: int = 256
    box_convs: int = 4
    box_features: int = 1024
    mask_convs: int = 4
    num_samples: int = 512
    positive_fraction: float = 0.25
    score_threshold: float = 0.05
    max_detections: int = 100


def make_detector(backbone: Backbone, settings: DetectorSettings) -> Detector:
    """Build a detector; without a pyramid, it takes the last stage out of the backbone.

    Raises:
        SpecError: if the number of anchor sizes does not match the backbone.
    """
    return _make_fpn_detector(backbone, settings) if settings.has_fpn else _make_c4_detector(backbone, settings)


def _make_fpn_detector(backbone: Backbone, settings: DetectorSettings) -> Detector:
    num_stages, sizes = settings.fpn_stages or len(backbone.strides), settings.anchor_sizes
    if not 0 < num_stages <= len(backbone.strides):
        raise SpecError(f"fpn_stages must be from 1 to {len(backbone.strides)}, or 0 for all; got {num_stages}.")
    num_extra = len(sizes) - num_stages
    if num_extra not in (0, 1):
        raise SpecError(
            f"anchor_sizes must be one per level of the pyramid, {num_stages}, or one more for an extra level; got {len(sizes)}."
        )
    used = backbone.strides[-num_stages:]
    strides = [*used, *[2 * used[-1]] * num_extra]
    channels, num_classes = settings.fpn_channels, settings.num_classes
    fpn = FPN(backbone.channels[-num_stages:], channels, num_extra)
    box = make_box_head(channels, num_classes, num_convs=settings.box_convs, num_features=settings.box_features)
    mask = MaskHead(channels, channels, num_classes, settings.mask_convs) if settings.has_masks else None
    rpn = _make_rpn(channels, strides, [[size] for size in sizes], settings)
    return _assemble(backbone, fpn, Heads(rpn, box, mask, mask_after_box=False), used, settings)


def _make_c4_detector(backbone: Backbone, settings: DetectorSettings) -> Detector:
    *earlier, last = backbone
    trunk, channels = Backbone(*earlier), backbone.channels[-1]
    rpn = _make_rpn(trunk.channels[-1], trunk.strides[-1:], [list(settings.anchor_sizes)], settings)
    box = make_c4_box_head(last, channels, settings.num_classes)
    mask = MaskHead(channels, settings.fpn_channels, settings.num_classes, 0) if settings.has_masks else None
    return _assemble(trunk, None, Heads(rpn, box, mask, mask_after_box=True), trunk.strides[-1:], settings)


def _make_rpn(channels: int, strides: list[int], sizes: list[list[float]], settings: DetectorSettings) -> RPN:
    return RPN(
        channels,
        strides,
        sizes=sizes,
        ratios=settings.anchor_ratios,
        num_candidates=settings.num_candidates,
        num_proposals=settings.num_proposals,
        num_samples=settings.rpn_samples,
    )


def _assemble(
    backbone: Backbone, fpn: nn.Module | None, heads: Heads, strides: list[int], settings: DetectorSettings
) -> Detector:
    return Detector(
        backbone,
        fpn,
        heads,
        strides=strides,
        num_samples=settings.num_samples,
        positive_fraction=settings.positive_fraction,
        score_threshold=settings.score_threshold,
        max_detections=settings.max_detections,
    )
