"""sn Table 4 and Table 7: detectors with two images per device.

    anynorm reproduce sn_detection --preset desk

Paper: Faster R-CNN and Mask R-CNN with ResNet-50 and FPN on COCO, 8 devices with 2 images each (Table 7: without FPN, 4 devices
with 3 images). Backbones are pretrained on ImageNet with their own norm; BN† is BN with frozen statistics and affine. FPN and
heads have GN, SN, or no norm.

    smoke  generated images, a few steps; checks that the code works and claims nothing
    desk   nuclei (2018 Data Science Bowl), detectors with FPN, a narrow ResNet-10, 4 devices with 2 crops each
    paper  the published setting of Table 4; needs coco/ and imagenet/ in the data directory

Scaled down in `desk`: crops of 96 × 96 pixels with one class, the devices are simulated (a step accumulates the gradients of
four forward passes, each with statistics of its own), backbones are pretrained on CIFAR-10 at 32 × 32 pixels, one per norm for
all seeds. So the claims are about the order of the norms. Pretrained detectors are Mask R-CNN (Table 4), the others Faster R-CNN.
The machine was busy with other work: a run of Faster R-CNN took 79 CPU seconds, and 105 to 239 seconds in all.

Beyond the paper: "sync bn" has the eight images of a step in one pass; "xbn" has GN in the place of one BN of each block, and in
FPN and heads. Every network with running statistics is also tested with the statistics of each test batch, which has as many
images as a training pass, and after `anynorm.recalibrate` on 64 training crops: how much depends on the kind of statistics.
Running statistics are updated in each pass, four times per step; with real devices once, and those of the first are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from anynorm.lab.recipes.support.claims import NOT_IN_PAPER, Claim
from anynorm.lab.recipes.support.detection import (
    METRICS,
    DetectionSettings,
    Detector,
    cells,
    draw_modes,
    higher_ap,
    measure,
    metrics_row,
)
from anynorm.lab.recipes.support.pictures import draw_pictures
from anynorm.lab.recipes.support.presets import IMAGENET_100
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_table, values_of
from anynorm.lab.recipes.support.settings import Devices, Training
from anynorm.lab.tasks.detection.options import DetectionOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Step
from anynorm.table import Table

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
BOX_AP = {"bn† + gn": 39.5, "gn, pretrained": 40.2, "sn, pretrained": 41.0}
MASK_AP = {"bn† + gn": 34.4, "gn, pretrained": 35.7, "sn, pretrained": 36.5}
"""AP of boxes and of masks in Table 4."""
PRETRAINING = {"smoke": "digits", "desk": "CIFAR-10", "paper": "ImageNet"}
"""What backbones are pretrained on, by preset."""
FROM_SCRATCH = {"bn": 20.0, "gn": 28.3, "sn": 29.5}
"""AP of Table 7, lower part."""
DETECTOR = Config(
    task="detection", data="nuclei", model="resnet10", width=0.5, image_size=96, num_train=480, flip=True, epochs=4,
    optimizer="adamw", lr=3e-3, weight_decay=1e-4, decay_norms=False, schedule=Step((2 / 3, 8 / 9)), warmup_epochs=0.4,
    num_evals=1,
)  # fmt: skip
COCO = Config(
    task="detection", data="coco:coco", model="resnet50", flip=True, epochs=24, lr=0.02, weight_decay=1e-4, decay_norms=False,
    schedule=Step((2 / 3, 8 / 9)), warmup_epochs=0.07, num_evals=24,
    options=DetectionOptions(
        fpn_channels=256, fpn_stages=4, anchor_sizes=(32, 64, 128, 256, 512), num_candidates=1000, num_proposals=1000,
        positive_fraction=0.25, recalibration_images=1000,
        anchors_per_image=256, regions_per_image=512, box_convs=4, box_features=1024, mask_convs=4, clip_grad_norm=0.0,
        short_side=800, max_side=1333, whole_images=True, backbone_image_size=224, norm_modes=True,
    ),
)  # fmt: skip
"""The published setting of Table 4: the schedule "2x", 180 000 steps of 16 images."""


def with_32_groups(variants: Mapping[str, Detector]) -> dict[str, Detector]:
    """Return detectors with the groups of the published networks."""
    return {
        name: replace(
            detector,
            norm=detector.norm.replace("gn:8", "gn:32"),
            pretrained=detector.pretrained and detector.pretrained.replace("gn:8", "gn:32"),
        )
        for name, detector in variants.items()
    }


PRESETS = {
    "smoke": DetectionSettings(
        seeds=2,
        training=Training(
            replace(
                DETECTOR, data="ellipses", image_size=64, num_train=16, num_test=4, epochs=1,
                options=DetectionOptions(fpn_channels=16, norm_modes=True, recalibration_images=8),
            ),
            base_batch_size=4,
        ),
        pretraining=Training(
            Config(
                data="anynorm.lab.recipes.support.pretrained:rgb_digits", model="resnet10", width=0.5, num_train=64, num_test=32,
                epochs=1, num_evals=1, batch_size=32,
            ),
            base_batch_size=32,
        ),
        devices=Devices(2, 2),
        simulate_devices=True,
        variants={name: (SCRATCH | PRETRAINED)[name] for name in ("bn", "gn", "sn", "bn† + gn", "sn, pretrained")},
    ),
    "desk": DetectionSettings(
        seeds=3,
        training=Training(
            replace(DETECTOR, num_test=80, options=DetectionOptions(fpn_channels=32, clip_grad_norm=5.0, norm_modes=True)),
            base_batch_size=8,
        ),
        pretraining=Training(
            Config(
                data="cifar10", model="resnet10", width=0.5, num_train=10000, num_test=2000, crop=4, flip=True, epochs=4, lr=0.1,
                weight_decay=5e-4, num_evals=1, batch_size=64,
            ),
            base_batch_size=64,
        ),
        devices=Devices(4, 2),
        simulate_devices=True,
        variants=SCRATCH | PRETRAINED,
    ),
    "paper": DetectionSettings(
        seeds=1,
        training=Training(COCO, base_batch_size=16),
        pretraining=replace(IMAGENET_100, config=replace(IMAGENET_100.config, batch_size=32)),
        devices=Devices(8, 2),
        simulate_devices=False,
        variants=with_32_groups(SCRATCH | PRETRAINED),
    ),
}  # fmt: skip


def claims(settings: DetectionSettings) -> list[Claim]:
    """Return the orders of Tables 4 and 7 and, beyond them, what BN loses by its running statistics."""
    variants, result = settings.variants, []
    for better, worse in (("sn", "bn"), ("gn", "bn"), ("sn", "gn")):
        result.append(higher_ap(better, worse, f"{FROM_SCRATCH[better]} and {FROM_SCRATCH[worse]}"))
    for better, worse in (("sn, pretrained", "gn, pretrained"), ("gn, pretrained", "bn† + gn")):
        if {better, worse} <= variants.keys():
            result.append(higher_ap(better, worse, f"{BOX_AP[better]} and {BOX_AP[worse]}"))
            result.append(higher_ap(better, worse, f"{MASK_AP[better]} and {MASK_AP[worse]}", "mask_ap", "mask AP"))
    if "bn, pretrained" in variants:
        result.append(higher_ap("sn, pretrained", "bn, pretrained", "33.0 and 19.3"))
    if "bn†" in variants:
        result.append(higher_ap("bn†", "bn, pretrained", "29.6 and 19.3"))
    for other in ("sync bn", "xbn"):
        if other in variants:
            result.append(higher_ap(other, "bn", NOT_IN_PAPER))
    for column, mode in (
        ("ap_batch_statistics", "statistics of each test batch"),
        ("ap_recalibrated", "recalibrated statistics"),
    ):
        statement = f"`bn` has a higher AP with {mode} than with its running statistics"
        result.append(Claim(statement, NOT_IN_PAPER, values_of(column, norm="bn"), values_of("ap", norm="bn")))
    return result


def tables(record: RecipeRecord[DetectionSettings]) -> list[Table]:
    """Return the metrics of each detector."""
    rows = []
    for norm, detector in record.settings.variants.items():
        devices, samples = detector.devices or record.settings.devices
        start = "scratch" if detector.pretrained is None else f"{PRETRAINING[record.preset]}, {detector.pretrained}"
        division = f"{devices} × {samples}" + (", sync" if detector.sync else "")
        row = {"norm": norm, "layout": detector.norm, "devices × samples": division, "backbone from": start}
        rows.append(row | metrics_row(record, norm, METRICS))
    return [result_table(rows, "Test AP in %, mean ± sd over seeds. †: statistics and affine of the backbone are frozen.")]


def plot(record: RecipeRecord[DetectionSettings], path: Path) -> list[Path]:
    """Plot AP by variant and kind of statistics with the estimation shift by layer, and detections on images."""
    names = {"bn": "BN", "xbn": "XBN", "sync bn": "SyncBN", "gn": "GN", "sn": "SN"}
    titles = {norm: name for norm, name in names.items() if norm in record.settings.variants}
    shifts = {norm: name for norm, name in titles.items() if norm in ("bn", "xbn", "sync bn")}
    return draw_modes(record, path, titles, shifts) + draw_pictures(record, path, list(titles))


RECIPE = Recipe("sn_detection", PRESETS, cells, measure, claims, plot, tables)
