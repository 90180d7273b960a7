"""The options of video classification: clips and views, the network, and the last evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.errors import SpecError
from anynorm.lab.training.options import Options, option


@dataclass(frozen=True)
class VideoOptions(Options):
    """The options of `anynorm.lab.tasks.video.task.VideoClassification`."""

    num_frames: int = option(8, "number of frames of a clip.", minimum=1)
    frame_stride: int = option(1, "distance between consecutive frames of a clip, in frames of the video.", minimum=1)
    loop: bool = option(
        False,
        "whether the frames of videos that are shorter than a clip are repeated; if not, such videos raise an error.",
    )
    min_side: int = option(
        0,
        "minimum of the random length to which the shorter side of training frames is resized, in pixels; also the side of test "
        "crops. 0 for `image_size`.",
        minimum=0,
    )
    max_side: int = option(
        0,
        "maximum of the random length to which the shorter side of training frames is resized, in pixels; 0 for `min_side`.",
        minimum=0,
    )
    num_clips: int = option(2, "number of clips per test video, at regular positions in time.", minimum=1)
    num_crops: int = option(1, "number of crops per test clip: 1 (center) or 3 (along the longer side).", choices=(1, 3))
    temporal_blocks: int = option(
        2, "every how many residual blocks one has a kernel of length 3 in time; 0 for none, also in the stem.", minimum=0
    )
    temporal_stride: int = option(
        1, "number of frames per frame of the features: 1, 2 or 4; with the stem of large images also 8."
    )
    dropout: float = option(0.0, "probability of dropping a feature before the last layer.", minimum=0, below=1)
    weights: str = option(
        "", 'path of `model.pt` of a classification run with the same network and norms; "" for none. Its last layer is new.'
    )
    freeze_norms: bool = option(
        False,
        "whether the norms keep their running statistics, γ and β, as for pretrained networks.",
        old_name="frozen",
    )
    clip_grad_norm: float = option(0.0, "maximum norm of the gradient; 0 for no clipping.", minimum=0)
    norm_modes: bool = option(
        False,
        "whether the last evaluation is repeated with batch statistics, and with recalibrated running statistics; see "
        "`anynorm.lab.training.norm_modes`.",
    )
    recalibration_clips: int = option(
        64,
        "number of training clips on which running statistics are recalibrated with `norm_modes`.",
        minimum=1,
        old_name="recalibration_images",
    )

    def sides(self, image_size: int) -> tuple[int, int]:
        """Return the smallest and the largest length of the shorter side of training frames.

        Raises:
            SpecError: if a side is too short.
        """
        min_side = self.min_side or image_size
        if min_side < image_size:
            raise SpecError(f"min_side must be at least image_size={image_size}; got {min_side}.")
        if self.max_side and self.max_side < min_side:
            raise SpecError(f"max_side must be at least min_side={min_side}; got {self.max_side}.")
        return min_side, max(self.max_side, min_side)
