"""The detectors of sn Tables 3, 4 and 7, and how they are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anynorm.lab.recipes.support.detection.settings import DetectionSettings, Detector
from anynorm.lab.recipes.support.presets import IMAGENET_100
from anynorm.lab.recipes.support.settings import Devices, Training, divide_samples
from anynorm.lab.tasks.detection.options import DetectionOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Step

FASTER = ", Faster R-CNN"
"""What the names of the detectors of Table 3 end with."""
RPN = ("heads.rpn",)
"""The region proposal network of the published detectors has no norm."""


def fine_tuned(gn: str, sn_pretraining: Training) -> dict[str, Detector]:
    """Return the rows of Table 4: Mask R-CNN with FPN, named by the norms of backbone + FPN and heads.

    Args:
        gn: the spec of GN.
        sn_pretraining: how the backbone with SN is pretrained, with two images per device.
    """
    frozen = Detector("bn", pretrained="bn", frozen_submodule="backbone", masks=True, norm_free=RPN)
    trained = Detector(gn, pretrained=gn, masks=True, norm_free=RPN)
    return {
        "bn† + none": replace(frozen, norm_free=("fpn", "heads")),
        "bn† + gn": replace(frozen, norm=f"bn;fpn={gn};heads={gn}"),
        "bn† + sn": replace(frozen, norm="bn;fpn=sn;heads=sn"),
        "gn + gn": trained,
        "gn + sn": replace(trained, norm=f"{gn};fpn=sn;heads=sn"),
        "sn + sn": replace(trained, norm="sn", pretrained="sn", pretraining=sn_pretraining),
    }


def faster(detectors: Mapping[str, Detector], training: Training) -> dict[str, Detector]:
    """Return the rows of Table 3: Faster R-CNN with FPN; it has no row "gn + sn"."""
    return {
        f"{name}{FASTER}": replace(detector, masks=False, training=training)
        for name, detector in detectors.items()
        if name != "gn + sn"
    }


def without_pyramid(gn: str, sn_pretraining: Training, training: Training, devices: Devices | None = None) -> dict[str, Detector]:
    """Return the rows of Table 7: Faster R-CNN of type C4, fine-tuned and from scratch.

    Args:
        gn: the spec of GN.
        sn_pretraining: see `fine_tuned`.
        training: how the detectors are trained.
        devices: number of devices and of images per device; None for that of the settings.
    """
    base = Detector("bn", norm_free=RPN, fpn=False, training=training, devices=devices)
    scratch = {"bn, C4": base, "gn, C4": replace(base, norm=gn), "sn, C4": replace(base, norm="sn")}
    pretrained = {f"{name}, pretrained": replace(detector, pretrained=detector.norm) for name, detector in scratch.items()}
    pretrained["sn, C4, pretrained"] = replace(pretrained["sn, C4, pretrained"], pretraining=sn_pretraining)
    frozen = replace(pretrained["bn, C4, pretrained"], frozen_submodule="backbone")
    return scratch | {"bn†, C4, pretrained": frozen} | pretrained


DETECTOR = Config(
    task="detection", data="nuclei", model="resnet10", width=0.5, image_size=96, num_train=480, flip=True, epochs=4,
    optimizer="adamw", lr=3e-3, weight_decay=1e-4, decay_norms=False, schedule=Step((2 / 3, 8 / 9)), warmup_epochs=0.4,
    num_evals=1,
)  # fmt: skip
CIFAR10 = Training(
    Config(
        data="cifar10", model="resnet10", width=0.5, num_train=10000, num_test=2000, crop=4, flip=True, epochs=4, lr=0.1,
        weight_decay=5e-4, num_evals=1, batch_size=64,
    ),
    base_batch_size=64,
)  # fmt: skip
COCO_OPTIONS = DetectionOptions(
    fpn_channels=256, fpn_stages=4, anchor_sizes=(32, 64, 128, 256, 512), num_candidates=1000, num_proposals=1000,
    positive_fraction=0.25, recalibration_images=1000,
    anchors_per_image=256, regions_per_image=512, box_convs=4, box_features=1024, mask_convs=4, clip_grad_norm=0.0,
    short_side=800, max_side=1333, whole_images=True, backbone_image_size=224, norm_modes=True,
)  # fmt: skip
COCO = Config(
    task="detection", data="coco:coco", model="resnet50", flip=True, epochs=24, lr=0.02, weight_decay=1e-4, decay_norms=False,
    schedule=Step((2 / 3, 8 / 9)), warmup_epochs=0.07, num_evals=24, options=COCO_OPTIONS,
)  # fmt: skip
"""The published setting of Table 4: the schedule "2x", 180 000 steps of 16 images."""
COCO_1X = replace(COCO, epochs=12, num_evals=12)
"""The published setting of Table 3: the schedule "1x", 90 000 steps of 16 images."""
COCO_C4 = replace(
    COCO_1X, lr=0.01, schedule=Step((2 / 3,)),
    options=replace(
        COCO_OPTIONS, anchor_sizes=(64, 128, 256, 512), num_candidates=6000, num_proposals=300, regions_per_image=128,
        short_side=600, max_side=1000,
    ),
)  # fmt: skip
"""The published setting of Table 7: 120 000 steps of 12 images. Anchors and numbers of regions, which the paper does not state,
are those of the code it uses (Yang et al. 2017)."""
SCRATCH = {
    "bn": Detector("bn"),
    "gn": Detector("gn:8"),
    "sn": Detector("sn"),
    "sync bn": Detector("bn", sync=True),
    "xbn": Detector("xbn=gn:8;fpn=gn:8;heads=gn:8"),
}
PRETRAINED = {
    "bn, pretrained": Detector("bn", pretrained="bn", masks=True),
    "bn†": Detector("bn", pretrained="bn", frozen_submodule="backbone", masks=True),
    "bn† + gn": Detector("bn;fpn=gn:8;heads=gn:8", pretrained="bn", frozen_submodule="backbone", masks=True),
    "gn, pretrained": Detector("gn:8", pretrained="gn:8", masks=True),
    "sn, pretrained": Detector("sn", pretrained="sn", masks=True),
}
"""The detectors of `desk`."""
SMOKE_TRAINING = Training(
    replace(
        DETECTOR, data="ellipses", image_size=64, num_train=16, num_test=4, epochs=1, num_evals=2,
        options=DetectionOptions(fpn_channels=16, norm_modes=True, recalibration_images=8),
    ),
    base_batch_size=4,
)  # fmt: skip
SMOKE_PRETRAINING = Training(
    Config(
        data="anynorm.lab.recipes.support.pretrained:rgb_digits", model="resnet10", width=0.5, num_train=64, num_test=32,
        epochs=1, num_evals=1, batch_size=32,
    ),
    base_batch_size=32,
)  # fmt: skip
NIGHT_TRAINING = Training(
    replace(
        DETECTOR, num_train=None, epochs=12, warmup_epochs=1.0, num_evals=12,
        options=DetectionOptions(fpn_channels=32, clip_grad_norm=5.0, norm_modes=True),
    ),
    base_batch_size=8,
)  # fmt: skip
"""All 498 training images and 166 test images of nuclei, 744 steps of 8 crops."""


def two_per_device(pretraining: Training, num_devices: int, *, simulate: bool) -> Training:
    """Return a pretraining with two images on each of several devices, as that of all SN backbones."""
    return replace(pretraining, config=divide_samples(pretraining.config, Devices(num_devices, 2), simulate=simulate))


def _variants(gn: str, pretraining: Training, training: Training) -> dict[str, Detector]:
    """Return the detectors of Tables 4 and 7 with simulated devices."""
    sn = two_per_device(pretraining, 8, simulate=True)
    return fine_tuned(gn, sn) | without_pyramid(gn, sn, training)


IMAGENET_32 = replace(IMAGENET_100, config=replace(IMAGENET_100.config, batch_size=32))
"""Pretraining with 32 images on each of eight devices."""
SN_8_2 = two_per_device(IMAGENET_32, 8, simulate=False)
PUBLISHED = fine_tuned("gn:32", SN_8_2)
PRESETS = {
    "smoke": DetectionSettings(
        seeds=2,
        training=SMOKE_TRAINING,
        pretraining=SMOKE_PRETRAINING,
        devices=Devices(2, 2),
        simulate_devices=True,
        variants={
            name: detector
            for name, detector in _variants("gn:8", SMOKE_PRETRAINING, SMOKE_TRAINING).items()
            if name in ("bn† + none", "bn† + gn", "sn + sn", "bn, C4", "gn, C4", "sn, C4")
        },
        backbone_per_seed=True,
        has_weights=True,
    ),
    "desk": DetectionSettings(
        seeds=3,
        training=Training(
            replace(DETECTOR, num_test=80, options=DetectionOptions(fpn_channels=32, clip_grad_norm=5.0, norm_modes=True)),
            base_batch_size=8,
        ),
        pretraining=CIFAR10,
        devices=Devices(4, 2),
        simulate_devices=True,
        variants=SCRATCH | PRETRAINED,
    ),
    "night": DetectionSettings(
        seeds=6,
        training=NIGHT_TRAINING,
        pretraining=CIFAR10,
        devices=Devices(4, 2),
        simulate_devices=True,
        variants=_variants("gn:8", CIFAR10, NIGHT_TRAINING),
        backbone_per_seed=True,
        has_weights=True,
    ),
    "paper": DetectionSettings(
        seeds=3,
        training=Training(COCO, base_batch_size=16),
        pretraining=IMAGENET_32,
        devices=Devices(8, 2),
        simulate_devices=False,
        variants=PUBLISHED
        | faster(PUBLISHED, Training(COCO_1X, base_batch_size=16))
        | without_pyramid("gn:32", SN_8_2, Training(COCO_C4, base_batch_size=12), Devices(4, 3)),
        backbone_per_seed=True,
        has_weights=True,
    ),
}  # fmt: skip
