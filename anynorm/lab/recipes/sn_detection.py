"""sn Table 4 and Table 7: detectors with two images per device.

    anynorm reproduce sn_detection --preset desk

Paper: Faster R-CNN and Mask R-CNN with ResNet-50 and FPN on COCO, 8 devices with 2 images each (Table 7: without FPN, 4 devices
with 3 images). Backbones are pretrained on ImageNet with their own norm; BN† is BN with frozen statistics and affine. FPN and
heads have GN, SN, or no norm.

    smoke  10 s      generated images, a few steps; checks that the code works and claims nothing
    desk   41 min    nuclei (2018 Data Science Bowl), detectors with FPN, a narrow ResNet-10, 4 devices with 2 crops each
    paper  not run   the published setting of Table 4; needs coco/ and imagenet/ in the data directory

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

from pathlib import Path

from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.detectors import draw_modes, measure_detector, metrics_row
from anynorm.lab.recipes.support.pictures import draw_pictures
from anynorm.lab.recipes.support.presets import IMAGENET_100
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import values_of
from anynorm.lab.training.sweep import Row, grid
from anynorm.table import Table

SCRATCH: dict[str, Settings] = {
    "bn": {"norm": "bn"},
    "gn": {"norm": "gn:8"},
    "sn": {"norm": "sn"},
    "sync bn": {"norm": "bn", "sync": True},
    "xbn": {"norm": "xbn=gn:8;fpn=gn:8;heads=gn:8"},
}
PRETRAINED: dict[str, Settings] = {
    "bn, pretrained": {"norm": "bn", "pretrained": "bn", "masks": True},
    "bn†": {"norm": "bn", "pretrained": "bn", "frozen": "backbone", "masks": True},
    "bn† + gn": {"norm": "bn;fpn=gn:8;heads=gn:8", "pretrained": "bn", "frozen": "backbone", "masks": True},
    "gn, pretrained": {"norm": "gn:8", "pretrained": "gn:8", "masks": True},
    "sn, pretrained": {"norm": "sn", "pretrained": "sn", "masks": True},
}
BOX_AP = {"bn† + gn": 39.5, "gn, pretrained": 40.2, "sn, pretrained": 41.0}
MASK_AP = {"bn† + gn": 34.4, "gn, pretrained": 35.7, "sn, pretrained": 36.5}
"""AP of boxes and of masks in Table 4."""
PRETRAINING = {"smoke": "digits", "desk": "CIFAR-10", "paper": "ImageNet"}
"""What backbones are pretrained on, by preset."""
FROM_SCRATCH = {"bn": 20.0, "gn": 28.3, "sn": 29.5}
"""AP of Table 7, lower part."""
DETECTOR: Settings = {
    "task": "detection", "data": "nuclei", "model": "resnet10", "width": 0.5, "image_size": 96, "num_train": 480, "flip": True,
    "epochs": 4, "optimizer": "adamw", "lr": 3e-3, "weight_decay": 1e-4, "decay_norms": False, "schedule": "step-67-89",
    "warmup_epochs": 0.4, "num_evals": 1,
}  # fmt: skip
COCO: Settings = {
    "train": {
        "task": "detection", "data": "coco:coco", "model": "resnet50", "flip": True, "epochs": 24, "lr": 0.02,
        "weight_decay": 1e-4, "decay_norms": False, "schedule": "step-67-89", "warmup_epochs": 0.07, "num_evals": 24,
    },
    "options": {
        "fpn_channels": 256, "fpn_stages": 4, "anchor_sizes": "32,64,128,256,512", "num_candidates": 1000, "num_proposals": 1000,
        "positive_fraction": 0.25, "recalibration_images": 1000,
        "rpn_samples": 256, "num_samples": 512, "box_convs": 4, "box_features": 1024, "mask_convs": 4, "clip_grad_norm": 0.0,
        "short_side": 800, "max_side": 1333, "whole_images": True, "backbone_image_size": 224, "norm_modes": True,
    },
    "pretraining": IMAGENET_100 | {"batch_size": 32},
    "devices": [8, 2],
    "devices_are": "devices",
    "base_batch_size": 16,
    "seeds": 1,
}  # fmt: skip
"""The published setting of Table 4: the schedule "2x", 180 000 steps of 16 images."""


def with_32_groups(variants: dict[str, Settings]) -> dict[str, Settings]:
    """Return variants with the groups of the published networks."""
    return {
        name: {key: value.replace("gn:8", "gn:32") if isinstance(value, str) else value for key, value in variant.items()}
        for name, variant in variants.items()
    }


PRESETS: dict[str, Settings] = {
    "smoke": {
        "train": DETECTOR | {"data": "ellipses", "image_size": 64, "num_train": 16, "num_test": 4, "epochs": 1},
        "options": {"fpn_channels": 16, "norm_modes": True, "recalibration_images": 8},
        "pretraining": {
            "train": {
                "data": "anynorm.lab.recipes.support.pretrained:rgb_digits", "model": "resnet10", "width": 0.5,
                "num_train": 64, "num_test": 32, "epochs": 1, "num_evals": 1,
            },
            "batch_size": 32,
            "base_batch_size": 32,
        },
        "devices": [2, 2],
        "devices_are": "grad_accum_steps",
        "base_batch_size": 4,
        "seeds": 2,
        "variants": {name: (SCRATCH | PRETRAINED)[name] for name in ("bn", "gn", "sn", "bn† + gn", "sn, pretrained")},
    },
    "desk": {
        "train": DETECTOR | {"num_test": 80},
        "options": {"fpn_channels": 32, "clip_grad_norm": 5.0, "norm_modes": True},
        "pretraining": {
            "train": {
                "data": "cifar10", "model": "resnet10", "width": 0.5, "num_train": 10000, "num_test": 2000, "crop": 4,
                "flip": True, "epochs": 4, "lr": 0.1, "weight_decay": 5e-4, "num_evals": 1,
            },
            "batch_size": 64,
            "base_batch_size": 64,
        },
        "devices": [4, 2],
        "devices_are": "grad_accum_steps",
        "base_batch_size": 8,
        "seeds": 3,
        "variants": SCRATCH | PRETRAINED,
    },
    "paper": COCO | {"variants": with_32_groups(SCRATCH | PRETRAINED)},
}  # fmt: skip


def cells(settings: Settings) -> list[Row]:
    """Return one cell per variant and seed."""
    return grid(settings["seeds"], norm=settings["variants"])


def claims(settings: Settings) -> list[Claim]:
    """Return the orders of Tables 4 and 7 and, beyond them, what BN loses by its running statistics."""
    variants, result = settings["variants"], []
    for better, worse in (("sn", "bn"), ("gn", "bn"), ("sn", "gn")):
        result.append(_larger(better, worse, f"{FROM_SCRATCH[better]} and {FROM_SCRATCH[worse]}"))
    for better, worse in (("sn, pretrained", "gn, pretrained"), ("gn, pretrained", "bn† + gn")):
        if {better, worse} <= variants.keys():
            result.append(_larger(better, worse, f"{BOX_AP[better]} and {BOX_AP[worse]}"))
            result.append(_larger(better, worse, f"{MASK_AP[better]} and {MASK_AP[worse]}", "mask_ap", "mask AP"))
    if "bn, pretrained" in variants:
        result.append(_larger("sn, pretrained", "bn, pretrained", "33.0 and 19.3"))
    if "bn†" in variants:
        result.append(_larger("bn†", "bn, pretrained", "29.6 and 19.3"))
    ours = "not in the paper"
    for other in ("sync bn", "xbn"):
        if other in variants:
            result.append(_larger(other, "bn", ours))
    for column, mode in (
        ("ap_batch_statistics", "statistics of each test batch"),
        ("ap_recalibrated", "recalibrated statistics"),
    ):
        statement = f"`bn` has a higher AP with {mode} than with its running statistics"
        result.append(Claim(statement, ours, values_of(column, norm="bn"), values_of("ap", norm="bn")))
    return result


def _larger(norm: str, other: str, paper: str, column: str = "ap", metric: str = "AP") -> Claim:
    statement = f"`{norm}` has a higher {metric} than `{other}`"
    return Claim(statement, paper, values_of(column, norm=norm), values_of(column, norm=other))


def tables(record: Record) -> list[Table]:
    """Return the metrics of each variant."""
    columns = {
        "AP": "ap", "AP50": "ap50", "AP75": "ap75", "mask AP": "mask_ap",
        "AP, batch statistics": "ap_batch_statistics", "AP, recalibrated": "ap_recalibrated",
    }  # fmt: skip
    rows = []
    for norm, variant in record.settings["variants"].items():
        devices, samples = variant.get("devices", record.settings["devices"])
        start = f"{PRETRAINING[record.preset]}, {variant['pretrained']}" if "pretrained" in variant else "scratch"
        division = f"{devices} × {samples}" + (", sync" if variant.get("sync", False) else "")
        row = {"norm": norm, "layout": variant["norm"], "devices × samples": division, "backbone from": start}
        rows.append(row | metrics_row(record, norm, columns))
    return [Table(rows, "Test AP in %, mean ± sd over seeds. †: statistics and affine of the backbone are frozen.")]


def plot(record: Record, path: Path) -> list[Path]:
    """Plot AP by variant and kind of statistics with the estimation shift by layer, and detections on images."""
    names = {"bn": "BN", "xbn": "XBN", "sync bn": "SyncBN", "gn": "GN", "sn": "SN"}
    titles = {norm: name for norm, name in names.items() if norm in record.settings["variants"]}
    shifts = {norm: name for norm, name in titles.items() if norm in ("bn", "xbn", "sync bn")}
    return draw_modes(record, path, titles, shifts) + draw_pictures(record, path, [*titles])


RECIPE = Recipe("sn_detection", PRESETS, cells, measure_detector, claims, plot, tables)
