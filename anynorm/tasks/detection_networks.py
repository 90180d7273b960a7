"""The detector of a run: its settings, norms and pretrained weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from anynorm.errors import SpecError, SurgeryError
from anynorm.models.backbone import load_backbone, make_backbone
from anynorm.models.detection.build import DetectorSettings, make_detector
from anynorm.models.detection.detector import Detector
from anynorm.surgery.batches import calibration
from anynorm.surgery.find import find_norms
from anynorm.surgery.freeze import freeze
from anynorm.training.config import Config
from anynorm.training.norm_layout import apply_norms, split_parts

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


def make_network(config: Config, num_classes: int, options: Mapping[str, Any]) -> Detector:
    """Return the detector of a run, with BatchNorm."""
    settings = DetectorSettings(
        num_classes,
        has_fpn=options["fpn"],
        has_masks=options["masks"],
        anchor_sizes=read_numbers("anchor_sizes", options["anchor_sizes"]),
        anchor_ratios=read_numbers("anchor_ratios", options["anchor_ratios"]),
        **{name: options[name] for name in SAME_NAMES},
    )
    for name in ("fpn_channels", "num_candidates", "num_proposals", "rpn_samples", "num_samples", "box_features"):
        if options[name] < 1:
            raise SpecError(f"the option {name} must be at least 1; got {options[name]}.")
    return make_detector(make_backbone(config.model, 3, config.width, options["backbone_image_size"]), settings)


def read_numbers(name: str, text: str) -> tuple[float, ...]:
    """Return the positive numbers of a comma-separated list.

    Raises:
        SpecError: if it cannot be read.

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


def replace_norms(network: Detector, config: Config, images: Tensor | None) -> Detector:
    """Replace the norms of a detector by those of a run.

    Args:
        network: the detector.
        config: the run.
        images: on which γ and β of the backbone's new norms are fitted to its old ones; None to copy them.
    """
    if images is not None:
        layout = [layout for part, layout in split_parts(config.norm) if part in ("", "backbone")][-1]
        backbone: Any = apply_norms(network.backbone, layout, config.batch_size, fit=calibration(images, None))
        network.backbone = backbone
    result: Any = apply_norms(network, config.norm, config.batch_size)
    detector: Detector = result
    return detector


def load_weights(network: Detector, weights: Mapping[str, Tensor], source: str) -> None:
    """Load the weights of a classifier into the backbone of a detector and, without a pyramid, the last stage in its box head.

    Raises:
        DataError: if they do not fit.
    """
    load_backbone(network.backbone, weights, source)
    if network.fpn is None:
        prefix = f"{len(list(network.backbone.children()))}."
        stage = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        load_backbone(network.heads.box.body, stage, f"stage {prefix[:-1]} of {source}")


def freeze_part(network: nn.Module, part: str) -> None:
    """Freeze the norms of a part of a network.

    Raises:
        SpecError: if it has no such part, or the part has no norms.
    """
    try:
        freeze(network.get_submodule(part))
    except (AttributeError, SurgeryError):
        usable = " ".join(name for name, child in network.named_children() if find_norms(child))
        raise SpecError(f"frozen must be a part of the detector that has norms, such as {usable}; got {part!r}.") from None
