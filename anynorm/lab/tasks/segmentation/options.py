"""The options of segmentation: the network, its pretrained backbone, the scale of its images and the last evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.errors import SpecError
from anynorm.lab.tasks.segmentation.networks import HEADS
from anynorm.lab.training.norm_modes import NormModeOptions
from anynorm.lab.training.options import option
from anynorm.lab.training.pretrained_backbone import PretrainedOptions


@dataclass(frozen=True)
class SegmentationOptions(NormModeOptions, PretrainedOptions):
    """The options of `anynorm.lab.tasks.segmentation.task.Segmentation`."""

    head: str = option(
        "psp", "head of the network: psp (pyramid pooling) or aspp (atrous spatial pyramid pooling).", choices=tuple(HEADS)
    )
    aux_weight: float = option(0.4, "weight of the loss of the auxiliary head.", minimum=0)
    dropout: float = option(0.1, "probability of dropping a channel before the last convolution of a head.", minimum=0, below=1)
    resize: int = option(
        0, "length of the shorter side of images before they are cropped or tested, in pixels; 0 to leave their size.", minimum=0
    )
    min_scale: float = option(1.0, "minimum of the random factor by which training images are scaled.", above=0)
    max_scale: float = option(1.0, "maximum of the random factor by which training images are scaled.", above=0)
    whole_images: bool = option(
        True, "whether whole test images are evaluated instead of their central squares of `config.image_size`."
    )
    scales: tuple[float, ...] = option(
        (),
        'factors of the image size over which a further evaluation after training averages class probabilities; "" for none.',
        above=0,
        maximum=10,
    )
    flip_test: bool = option(
        False, "whether a further evaluation after training averages class probabilities over images and their mirror images."
    )
    clip_grad_norm: float = option(0.0, "maximum norm of the gradient; 0 for no clipping.", minimum=0)

    def check(self) -> None:
        """Check options that depend on each other."""
        super().check()
        if self.min_scale > self.max_scale:
            raise SpecError(f"scales must be 0 < min_scale <= max_scale; got {self.min_scale} and {self.max_scale}.")
        if self.resize and not self.whole_images:
            raise SpecError(f"central squares are those of images in their own size: resize must be 0; got {self.resize}.")
