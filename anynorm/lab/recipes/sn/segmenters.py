"""The networks of sn Table 5, and how they are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anynorm.lab.recipes.sn.detectors import IMAGENET_32, SN_8_2
from anynorm.lab.recipes.support.settings import Devices, Settings, Training
from anynorm.lab.tasks.segmentation.options import SegmentationOptions
from anynorm.lab.training.config import Config

NORMS = {"bn": "bn", "gn": "gn:8", "sn": "sn", "syncbn": "bn"}


@dataclass(frozen=True)
class SegmentationData:
    """How networks are trained on a data set.

    Args:
        training: how networks are trained.
        devices: number of devices and of samples per device.
    """

    training: Training
    devices: Devices


@dataclass(frozen=True, kw_only=True)
class SegmentationSettings(Settings):
    """Settings of segmentation.

    Args:
        data: data sets by the name of the paper's data set.
        norms: specs by label; "syncbn" pools the samples of all devices.
        simulate_devices: see `divide_samples`.
        weights: paths of the weights that a network with each norm starts from; empty to train from scratch.
        num_pictures: number of test images that are shown.
        pretraining: how the classifiers with each norm are trained, one per seed, from which networks start; empty for none.
        has_weights: whether rows have the mixing weights of SN, layer by layer.
    """

    data: Mapping[str, SegmentationData]
    norms: Mapping[str, str]
    simulate_devices: bool
    weights: Mapping[str, str] = field(default_factory=dict)
    num_pictures: int = 0
    pretraining: Mapping[str, Training] = field(default_factory=dict)
    has_weights: bool = False

    @property
    def num_devices(self) -> int:
        """The largest number of devices that train one run together."""
        return 1 if self.simulate_devices else max(entry.devices.num_devices for entry in self.data.values())


OPTIONS = SegmentationOptions(norm_modes=True, recalibration_images=64, scales=(0.75, 1, 1.25), whole_images=False)
DESK = Config(
    task="segmentation", model="resnet18", width=0.125, image_size=112, flip=True, lr=0.05, weight_decay=1e-4, schedule="poly",
    epochs=4, num_evals=1, options=OPTIONS,
)  # fmt: skip
SMOKE_OPTIONS = replace(OPTIONS, recalibration_images=8, scales=(1, 1.5))
SMOKE = replace(
    DESK, data="shapes", model="resnet10", width=0.25, num_train=8, num_test=4, epochs=2, image_size=32,
    options=SMOKE_OPTIONS,
)  # fmt: skip
PAPER_OPTIONS = replace(OPTIONS, head="aspp", recalibration_images=1000, whole_images=True)
PAPER = Config(
    task="segmentation", model="resnet50", flip=True, lr=0.02, weight_decay=1e-4, schedule="poly", num_evals=10,
)  # fmt: skip
PRESETS = {
    "smoke": SegmentationSettings(
        seeds=2,
        data={
            "ADE20K": SegmentationData(Training(SMOKE, base_batch_size=4), Devices(2, 2)),
            "Cityscapes": SegmentationData(
                Training(replace(SMOKE, options=replace(SMOKE_OPTIONS, head="aspp")), base_batch_size=4), Devices(4, 1)
            ),
        },
        norms=NORMS,
        simulate_devices=True,
        has_weights=True,
    ),
    "desk": SegmentationSettings(
        seeds=3,
        data={
            "ADE20K": SegmentationData(Training(replace(DESK, data="nuclei"), base_batch_size=8), Devices(4, 2)),
            "Cityscapes": SegmentationData(
                Training(replace(DESK, data="camvid", num_test=100), base_batch_size=8), Devices(8, 1)
            ),
        },
        norms=NORMS,
        simulate_devices=True,
        num_pictures=3,
    ),
    "night": SegmentationSettings(
        seeds=6,
        data={
            "ADE20K": SegmentationData(
                Training(replace(DESK, data="nuclei", epochs=12, num_evals=12), base_batch_size=8), Devices(4, 2)
            ),
            "Cityscapes": SegmentationData(
                Training(replace(DESK, data="camvid", image_size=96, epochs=40, num_evals=10), base_batch_size=8), Devices(8, 1)
            ),
        },
        norms=NORMS,
        simulate_devices=True,
        num_pictures=3,
        has_weights=True,
    ),
    "paper": SegmentationSettings(
        seeds=3,
        data={
            "ADE20K": SegmentationData(
                Training(
                    replace(
                        PAPER, data="ade20k:ADEChallengeData2016", image_size=450, epochs=79,  # 100 000 steps
                        # shorter sides of 300, 400, 500 and 600
                        options=replace(PAPER_OPTIONS, resize=450, scales=(0.667, 0.889, 1.111, 1.333)),
                    ),
                    base_batch_size=16,
                ),
                Devices(8, 2),
            ),
            "Cityscapes": SegmentationData(
                Training(
                    replace(
                        PAPER, data="cityscapes:cityscapes", image_size=713, epochs=700,  # lr 0.01 at 8 images
                        options=replace(PAPER_OPTIONS, scales=(1, 1.25, 1.5, 1.75)),
                    ),
                    base_batch_size=16,
                ),
                Devices(8, 1),
            ),
        },
        norms=NORMS | {"gn": "gn:32"},
        pretraining={"bn": IMAGENET_32, "gn": IMAGENET_32, "sn": SN_8_2, "syncbn": IMAGENET_32},
        simulate_devices=False,
        has_weights=True,
    ),
}  # fmt: skip
