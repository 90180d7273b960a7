"""The options of detection: the detector, its pretrained backbone, its losses and the scale of its images."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.errors import SpecError
from anynorm.lab.tasks.detection.networks.norm_free import PARTS
from anynorm.lab.training.norm_modes import NormModeOptions
from anynorm.lab.training.options import option
from anynorm.lab.training.pretrained_backbone import PretrainedOptions


@dataclass(frozen=True)
class DetectionOptions(NormModeOptions, PretrainedOptions):
    """The options of `anynorm.lab.tasks.detection.task.Detection`."""

    masks: bool = option(False, "whether the detector also predicts masks (Mask R-CNN); if not, it is Faster R-CNN.")
    fpn: bool = option(
        True,
        "whether the detector has a feature pyramid (FPN); if not, it is of type C4, whose box head is the last stage of the "
        "backbone.",
    )
    fpn_channels: int = option(32, "number of channels of the feature pyramid and of the convolutions of the heads.", minimum=1)
    fpn_stages: int = option(
        3, "number of stages of the backbone with a level of the feature pyramid, counted from the last; 0 for all.", minimum=0
    )
    anchor_sizes: tuple[float, ...] = option(
        (8.0, 16.0, 32.0, 64.0),
        "square roots of the areas of anchors in pixels: one per level of the feature pyramid, and possibly one more for an "
        "extra level; without a pyramid, all sizes at each position.",
        above=0,
    )
    anchor_ratios: tuple[float, ...] = option((0.5, 1.0, 2.0), "heights of anchors divided by their widths.", above=0)
    num_candidates: int = option(
        200, "number of boxes per level before non-maximum suppression in the region proposal network (RPN).", minimum=1
    )
    num_proposals: int = option(100, "number of boxes per image after non-maximum suppression in the RPN.", minimum=1)
    anchors_per_image: int = option(
        128, "number of anchors per image in the losses of the RPN.", minimum=1, old_name="rpn_samples"
    )
    regions_per_image: int = option(
        64,
        "number of regions per image in the losses of the box head; the mask loss has those with an object.",
        minimum=1,
        old_name="num_samples",
    )
    positive_fraction: float = option(
        0.5, "maximum fraction of the regions in the losses of the box head that contain an object.", minimum=0, maximum=1
    )
    box_convs: int = option(
        1,
        "number of convolutions with norms in the box head of a network with a feature pyramid; with 0, the head has two hidden "
        "layers and no norm.",
        minimum=0,
    )
    box_features: int = option(128, "size of the hidden layers of the box head with a feature pyramid.", minimum=1)
    mask_convs: int = option(2, "number of convolutions with norms in the mask head with a feature pyramid.", minimum=0)
    norm_free: tuple[str, ...] = option(
        (),
        "parts without norms, whose convolutions have biases: fpn, heads, heads.rpn, heads.box or heads.mask.",
        choices=PARTS,
    )
    score_threshold: float = option(0.05, "minimum score of a detection.")
    max_detections: int = option(
        100, "maximum number of detections per image, from 1 to 100, as many as COCO's AP counts.", minimum=1, maximum=100
    )
    backbone_image_size: int = option(
        64,
        "side of the images for which the backbone is built, those of a pretrained classifier; up to 64, its stem keeps the "
        "resolution.",
        minimum=1,
    )
    clip_grad_norm: float = option(5.0, "maximum norm of the gradient; 0 for no clipping.", minimum=0)
    whole_images: bool = option(False, "whether whole test images are evaluated instead of their central crops.")
    short_side: int = option(
        0,
        "length of the shorter side to which whole images are scaled for training and tests, in pixels; 0 for crops.",
        minimum=0,
    )
    max_side: int = option(
        1333, "maximum length of the longer side of images that are scaled by `short_side`, in pixels.", minimum=1
    )

    def check(self) -> None:
        """Check options that depend on each other."""
        for name in ("anchor_sizes", "anchor_ratios"):
            if not getattr(self, name):
                raise SpecError(f"{name} must be at least one number; got none.")
        if self.fit_images and not self.fpn:
            raise SpecError(
                "fit_images needs fpn=true: without a pyramid, the last stage of the backbone is a part of the box head."
            )
        if self.short_side > self.max_side:
            raise SpecError(f"max_side must be at least short_side={self.short_side} pixels; got {self.max_side}.")
        super().check()
