"""The detector of a run: its settings and its pretrained weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from anynorm.errors import SpecError
from anynorm.lab.models.backbone import load_backbone, make_backbone
from anynorm.lab.tasks.detection.networks.build import DetectorSettings, make_detector
from anynorm.lab.tasks.detection.networks.detector import Detector
from anynorm.lab.training.config import Config

SAME_NAMES = (
    "fpn_channels",
    "fpn_stages",
    "num_candidates",
    "num_proposals",
    "rpn_samples",
    "num_samples",
    "positive_fraction",
    "box_convs",
    "box_features",
    "mask_convs",
    "score_threshold",
    "max_detections",
)
"""Options that are settings of a detector."""


def make_network(config: Config, num_classes: int, options: Any) -> Detector:
    """Return the detector of a run, with BatchNorm."""
    settings = DetectorSettings(
        num_classes,
        has_fpn=options["fpn"],
        has_masks=options["masks"],
        anchor_sizes=read_numbers("anchor_sizes", options["anchor_sizes"]),
        anchor_ratios=read_numbers("anchor_ratios", options["anchor_ratios"]),
        **{name: options[name] for name in SAME_NAMES},
    )
    names = (
        "fpn_channels",
        "num_candidates",
        "num_proposals",
        "rpn_samples",
        "num_samples",
        "box_features",
        "recalibration_images",
    )
    for name in names:
        if options[name] < 1:
            raise SpecError(f"the option {name} must be at least 1; got {options[name]}.")
    if not 1 <= options["max_detections"] <= 100:
        raise SpecError(
            f"the option max_detections must be from 1 to 100, as many as COCO's AP counts; got {options['max_detections']}."
        )
    if options["fit_images"] and not options["fpn"]:
        raise SpecError("fit_images needs fpn=true: without a pyramid, the last stage of the backbone is a part of the box head.")
    return make_detector(make_backbone(config.model, 3, config.width, options["backbone_image_size"]), settings)


def read_numbers(name: str, text: str) -> tuple[float, ...]:
    """Parse a comma-separated list of positive numbers.

    Raises:
        SpecError: if the list is invalid.

    >>> read_numbers("anchor_ratios", "0.5,1,2")
    (0.5, 1.0, 2.0)
    """
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) <= 0:
        raise SpecError(f"the option {name} must be comma-separated positive numbers such as 0.5,1,2; got {text!r}.")
    return numbers


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
