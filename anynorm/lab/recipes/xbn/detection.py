"""xbn Table 4 and Table 6: XBN blocks in detectors, fine-tuned and from scratch.

    anynorm reproduce xbn_detection --preset desk

Paper: Faster R-CNN and Mask R-CNN with FPN on COCO, ResNet-50 and ResNeXt-101 backbones, 8 devices with 2 images each. Fine-tuned
(Table 4, and Table 5 for Faster R-CNN): BN of the backbone is frozen (BN†), or the backbone has GN or XBN blocks, together with
GN in FPN and heads. From scratch (Table 6): 2, 4 and 8 images per device, BN is not frozen.

    smoke  generated images, a few steps; checks that the code works and claims nothing
    desk   nuclei (2018 Data Science Bowl), detectors with FPN, a narrow ResNet-10, 8 crops per step
    paper  the published setting of Tables 4 and 6 with ResNet-50; needs coco/ and imagenet/ in the data directory

Scaled down in `desk` as in `sn_detection`, with which it shares runs. From scratch: 4 devices with 2 crops and 1 device with 8,
all with 8 crops per step and one learning rate, where the paper keeps the number of devices and searches the learning rate. The
box head has one convolution with a norm (the paper: none, or four). ResNet-10 has basic blocks: XBN replaces their first BN.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from anynorm.lab.recipes.sn import detection as sn_detection
from anynorm.lab.recipes.support.claims import NOT_IN_PAPER, Claim
from anynorm.lab.recipes.support.detection import DetectionSettings, Detector, cells, draw_modes, higher_ap, measure
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import Values, differences, values_of
from anynorm.lab.recipes.support.settings import Devices, Training

XBN = "xbn=gn:8;fpn=gn:8;heads=gn:8"
VARIANTS = {
    "bn, 2 per device": Detector("bn"),
    "gn, 2 per device": Detector("gn:8"),
    "xbn, 2 per device": Detector(XBN),
    "bn, 8 per device": Detector("bn", devices=Devices(1, 8)),
    "gn, 8 per device": Detector("gn:8"),  # GN does not depend on the division: the run of 2 per device
    "xbn, 8 per device": Detector(XBN, devices=Devices(1, 8)),
    "bn†, pretrained": Detector("bn;fpn=gn:8;heads=gn:8", pretrained="bn", frozen_submodule="backbone", masks=True),
    "gn, pretrained": Detector("gn:8", pretrained="gn:8", masks=True),
    "xbn, pretrained": Detector(XBN, pretrained="xbn=gn:8", masks=True),
}
SCRATCH = {2: {"bn": 25.35, "gn": 28.19, "xbn": 27.45}, 8: {"bn": 29.56, "gn": 28.22, "xbn": 30.58}}
"""AP of Table 6 by images per device."""
BOX_AP = {"bn†, pretrained": 37.51, "gn, pretrained": 39.02, "xbn, pretrained": 39.57}
MASK_AP = {"bn†, pretrained": 33.68, "gn, pretrained": 34.37, "xbn, pretrained": 34.86}
"""Table 4, ResNet-50 with the head "4conv1fc"."""
PRESETS = {
    "smoke": replace(
        sn_detection.PRESETS["smoke"],
        variants={name: VARIANTS[name] for name in list(VARIANTS)[:3] + list(VARIANTS)[6:]},
    ),
    "desk": replace(sn_detection.PRESETS["desk"], variants=VARIANTS),
    "paper": replace(
        sn_detection.PRESETS["paper"],
        training=Training(replace(sn_detection.COCO, epochs=12, num_evals=12), base_batch_size=16),
        variants={
            name: replace(detector, devices=Devices(8, 8)) if "8 per device" in name else detector
            for name, detector in sn_detection.with_32_groups(VARIANTS).items()
        },
    ),
}


def claims(settings: DetectionSettings) -> list[Claim]:
    """Return the orders of Tables 4 and 6, and whether XBN's gain is one of its running statistics."""
    variants, result = settings.variants, []
    for count, published in SCRATCH.items():
        for pair in (("xbn", "bn"), ("gn", "bn"), ("xbn", "gn")):
            better, worse = sorted(pair, key=lambda norm: -published[norm])
            names = [f"{norm}, {count} per device" for norm in (better, worse)]
            if variants.keys() >= set(names):
                result.append(higher_ap(names[0], names[1], paper=f"{published[better]} and {published[worse]}"))
    for better, worse in (("xbn, pretrained", "bn†, pretrained"), ("xbn, pretrained", "gn, pretrained")):
        result.append(higher_ap(better, worse, paper=f"{BOX_AP[better]} and {BOX_AP[worse]}"))
        result.append(
            higher_ap(better, worse, paper=f"{MASK_AP[better]} and {MASK_AP[worse]}", column="mask_ap", metric="mask AP")
        )
    statement = "the AP that `bn` gains from batch statistics is larger than what `xbn` gains, 2 per device"
    gains = [_gain(f"{norm}, 2 per device") for norm in ("bn", "xbn")]
    return [*result, Claim(statement, NOT_IN_PAPER, *gains)]


def _gain(norm: str) -> Values:
    """Return a function that computes the points of AP that batch statistics add to those with running statistics."""
    with_batch, with_running = (values_of(column, norm=norm) for column in ("ap_batch_statistics", "ap"))
    return differences(with_batch, with_running)


def plot(record: RecipeRecord[DetectionSettings], path: Path) -> list[Path]:
    """Plot AP by variant and kind of statistics, with the estimation shift by layer."""
    titles = {
        norm: norm.replace(", ", "\n").replace("per ", "per\n").replace("pre", "pre-\n") for norm in record.settings.variants
    }
    shifts = {norm: norm for norm in titles if "per device" in norm and "gn" not in norm}
    return draw_modes(record, path, titles, shifts)


RECIPE = Recipe("xbn_detection", PRESETS, cells, measure, claims, plot, sn_detection.tables)
