"""The videos and networks of sn Table 6, and how they are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anynorm.lab.recipes.sn.detectors import IMAGENET_32, SN_8_2
from anynorm.lab.recipes.sn.device_grid import DeviceGrid
from anynorm.lab.recipes.support.settings import Devices, Training
from anynorm.lab.tasks.video.options import VideoOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Step
from anynorm.lab.training.sweep import Cell


@dataclass(frozen=True, kw_only=True)
class VideoSettings(DeviceGrid):
    """Settings of video classification.

    Args:
        folds: data sets.
        weights: paths of the weights that a network with each norm starts from; empty to train from scratch.
        all_folds: whether each seed is measured on all folds; if not, seed k has fold k, modulo their number.
        pretraining: how the classifiers with each norm are trained, one per seed, from which networks start; empty for none.
    """

    folds: tuple[str, ...]
    weights: Mapping[str, str] = field(default_factory=dict)
    all_folds: bool = False
    pretraining: Mapping[str, Training] = field(default_factory=dict)

    @property
    def fold_cells(self) -> list[Cell]:
        """What the cells of one seed add to setting and norm: one entry per fold, or one empty entry if a seed has one fold."""
        return [{"fold": fold} for fold in range(len(self.folds))] if self.all_folds else [{}]


PRESETS = {
    "smoke": VideoSettings(
        seeds=2,
        training=Training(
            Config(
                task="video", model="small", width=0.5, image_size=16, num_train=32, num_test=16, epochs=1, lr=0.05, num_evals=1,
                options=VideoOptions(num_frames=4, norm_modes=True, recalibration_clips=16),
            ),
            base_batch_size=8,
        ),
        folds=("moving", "moving"),
        all_folds=True,
        divisions={"8": Devices(1, 8), "4": Devices(4, 2)},
        gn="gn:4",
        simulate_devices=True,
    ),
    "desk": VideoSettings(
        seeds=4,
        training=Training(
            Config(
                task="video", model="resnet10", width=0.5, image_size=48, flip=True, epochs=25, lr=0.05, num_evals=1,
                options=VideoOptions(num_frames=16, temporal_stride=2, num_clips=3, norm_modes=True, recalibration_clips=90),
            ),
            base_batch_size=8,
        ),
        folds=tuple(f"ut_interaction/{fold}" for fold in range(4)),
        divisions={"8": Devices(1, 8), "4": Devices(4, 2)},
        gn="gn:4",
        simulate_devices=True,
    ),
    "night": VideoSettings(
        seeds=5,
        training=Training(
            Config(
                task="video", model="resnet10", width=0.5, image_size=48, flip=True, epochs=60, lr=0.05, num_evals=10,
                options=VideoOptions(num_frames=16, temporal_stride=2, num_clips=3, norm_modes=True, recalibration_clips=90),
            ),
            base_batch_size=8,
        ),
        folds=tuple(f"ut_interaction/{fold}" for fold in range(4)),
        divisions={"8": Devices(1, 8), "4": Devices(4, 2)},
        gn="gn:4",
        simulate_devices=True,
        all_folds=True,
    ),
    "paper": VideoSettings(
        seeds=3,
        training=Training(
            Config(
                task="video", model="resnet50", image_size=224, flip=True, epochs=107, lr=0.01, weight_decay=1e-4, nesterov=True,
                decay_norms=False, schedule=Step((0.375, 0.75)), num_evals=10,
                options=VideoOptions(
                    num_frames=32, frame_stride=2, loop=True, min_side=256, max_side=320, num_clips=10, num_crops=3,
                    temporal_stride=8, dropout=0.5, norm_modes=True, recalibration_clips=2048,
                ),
            ),
            base_batch_size=64,
        ),
        folds=("videos:kinetics400",),
        divisions={"8": Devices(8, 8), "4": Devices(8, 4)},
        gn="gn:32",
        simulate_devices=False,
        pretraining={"bn": IMAGENET_32, "gn": IMAGENET_32, "sn": SN_8_2},
    ),
}  # fmt: skip
