"""xbn Table 4, Table 5 and Table 6: XBN blocks in detectors, fine-tuned and from scratch.

    anynorm reproduce xbn_detection --preset night

Paper: Mask R-CNN (Table 4) and Faster R-CNN (Table 5) with FPN on COCO, 8 devices with 2 images each, schedule 1x. BN of the
backbone is frozen (BN†), or the backbone has GN or XBN blocks; heads are "2fc", without norms, or "4conv1fc", with GN in FPN and
heads of GN and XBN but not of BN†. In the authors' code, the other BNs of XBN blocks are frozen too. From scratch (Table 6):
Faster R-CNN, 2, 4 and 8 images per device, 90 000 steps each, the best of three learning rates, BN is not frozen.

    smoke  generated images, a few steps; checks that the code works and claims nothing
    desk   nuclei (2018 Data Science Bowl), detectors with FPN, a narrow ResNet-10, 8 crops per step; a demonstration: it decides
           nothing unless its controls hold
    night  nuclei, 744 steps, all 166 test images, six seeds with a backbone each; subject to the pilot until it has a record
    paper  the published settings with ResNet-50; needs coco/ and imagenet/ in the data directory. ResNeXt-101 is not among them

In `night` and `paper`, the rows of Table 6 have the same norms in FPN and heads (GN): the paper does not say what those of its BN
have. `desk` compares BN everywhere with XBN blocks that have GN in FPN and heads; about two thirds of that difference are due to
FPN and heads. Its BN† has GN there, its XBN blocks are not frozen, and all seeds share one backbone per norm: its claims about
XBN against BN and about fine-tuned detectors are not a fair test.

Scaled down in `desk` and `night` as in `sn_detection`, with which `desk` shares runs: a step has 8 crops at every number of crops
per device and one learning rate, where the paper keeps the number of devices and searches the learning rate. The box head has one
convolution. ResNet-10 has basic blocks: XBN replaces their first BN. The stem has BN; in `paper`
it has GN, as in the authors' code.

Controls are those of `sn_detection`; GN and XBN at 8 images per device are compared only if BN loses AP from 8 to 2.
"""

from __future__ import annotations

from pathlib import Path

from anynorm.lab.recipes.sn import detection as sn_detection
from anynorm.lab.recipes.support.backbones import backbones_requirement
from anynorm.lab.recipes.support.claims import OURS, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Requirement
from anynorm.lab.recipes.support.detection.claims import (
    best_requirement,
    data_name,
    higher_ap,
    learned_controls,
    needs_backbones,
)
from anynorm.lab.recipes.support.detection.measure import cells, measure
from anynorm.lab.recipes.support.detection.plots import draw_modes
from anynorm.lab.recipes.support.detection.settings import DetectionSettings
from anynorm.lab.recipes.support.quantities import Linear, Measured
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.xbn.detectors import PRESETS

TABLE_6 = {
    2: {"bn": 25.35, "gn": 28.19, "xbn": 27.45},
    4: {"bn": 29.33, "gn": 27.36, "xbn": 30.51},
    8: {"bn": 29.56, "gn": 28.22, "xbn": 30.58},
}
"""AP by images per device."""
TABLE_4 = {"": {"bn†": 37.51, "gn": 39.02, "xbn": 39.57}, ", 2fc": {"bn†": 37.40, "gn": 37.55, "xbn": 38.19}}
TABLE_4_MASKS = {"": {"bn†": 33.68, "gn": 34.37, "xbn": 34.86}, ", 2fc": {"bn†": 34.01, "gn": 34.06, "xbn": 34.57}}
TABLE_5 = {
    ", Faster R-CNN": {"bn†": 36.85, "gn": 37.86, "xbn": 38.47},
    ", Faster R-CNN, 2fc": {"bn†": 36.31, "gn": 36.62, "xbn": 37.17},
}
"""AP by head; ResNet-50."""
BEST, BEST_SCRATCH = "AP of the best fine-tuned detector (%)", "AP of the best detector from scratch (%)"
XBN_AND_BN = "xbn_detection, xbn and bn, 2 per device"
"""The group of the claims about these two detectors."""
SAME_HEADS = "bn and xbn have the same norms in FPN and heads (1: yes)"
LARGE = "AP that bn loses from 8 to 2 images per device (points)"
MIN_LARGE = {"ellipses": -100.0, "nuclei": 2.0, "coco": 2.0}
"""The paper's BN loses 4.2 points."""


def claims(settings: DetectionSettings) -> list[Larger]:
    """Return the orders of the tables, and whether XBN's gain is one of its running statistics."""
    result = _from_scratch(settings)
    for table, place, masks in ((TABLE_4, "Table 4", False), (TABLE_4_MASKS, "Table 4", True), (TABLE_5, "Table 5", False)):
        for head, published in table.items():
            for better, worse in (("xbn", "bn†"), ("xbn", "gn"), ("gn", "bn†")):
                names = f"{better}, pretrained{head}", f"{worse}, pretrained{head}"
                if settings.variants.keys() >= set(names):
                    numbers, requires = Published(published[better], published[worse]), (BEST, needs_backbones(*names))
                    group = f"xbn {place}{head}, {better} > {worse}" if place == "Table 4" else ""
                    source = Source("xbn", place)
                    result.append(higher_ap(*names, source, numbers, masks=masks, group=group, requires=requires))
    name = "bn† + gn, pretrained"
    if name in settings.variants:
        result.append(higher_ap("xbn, pretrained", name, OURS, requires=(BEST, needs_backbones("xbn, pretrained", name))))
    return [*result, _about_statistics()]


def _from_scratch(settings: DetectionSettings) -> list[Larger]:
    result = []
    for count, published in TABLE_6.items():
        for pair in (("xbn", "bn"), ("gn", "bn"), ("xbn", "gn")):
            better, worse = sorted(pair, key=lambda norm: -published[norm])
            names = f"{better}, {count} per device", f"{worse}, {count} per device"
            if settings.variants.keys() >= set(names):
                numbers, source = Published(published[better], published[worse]), Source("xbn", "Table 6")
                requires = [BEST_SCRATCH] + [SAME_HEADS] * ("bn" in pair)
                requires += [LARGE] * (_loses(settings) and count > 2 and "xbn" in pair)
                group = _groups(settings).get(names, "")
                result.append(higher_ap(*names, source, numbers, group=group, requires=requires))
    if "bn everywhere, 2 per device" in settings.variants:
        result.append(higher_ap("bn, 2 per device", "bn everywhere, 2 per device", OURS, requires=(BEST_SCRATCH,)))
    return result


def _groups(settings: DetectionSettings) -> dict[tuple[str, str], str]:
    """Return the groups of the pairs of detectors that other claims are about, here or in `sn_detection`."""
    groups = {("xbn, 2 per device", "bn, 2 per device"): XBN_AND_BN}
    return groups | ({} if _same_heads(settings) else {("gn, 2 per device", "bn, 2 per device"): sn_detection.SHARED})


def _same_heads(settings: DetectionSettings) -> bool:
    """Whether BN and XBN have the same norms in FPN and heads; in `desk`, BN is everywhere."""
    layouts = [settings.variants[f"{norm}, 2 per device"].norm for norm in ("bn", "xbn")]
    return len({layout.partition(";")[2] for layout in layouts}) == 1


def _loses(settings: DetectionSettings) -> bool:
    """Whether BN was trained with 2 and with 8 images per device."""
    return settings.variants.keys() >= {"bn, 2 per device", "bn, 8 per device"}


def _about_statistics() -> Larger:
    """Return the claim that batch statistics add more to the AP of BN than to that of XBN."""
    gains = [_gain(f"{norm}, 2 per device") for norm in ("bn", "xbn")]
    statement = "the AP that `bn` gains from batch statistics is larger than what `xbn` gains, 2 per device"
    requires = (BEST_SCRATCH, SAME_HEADS)
    return Larger(statement=statement, source=OURS, larger=gains[0], smaller=gains[1], group=XBN_AND_BN, requires=requires)


def _gain(norm: str) -> Linear:
    """Return the points of AP that batch statistics add to the AP with running statistics."""
    return Measured("ap_batch_statistics", {"norm": norm}) - Measured("ap", {"norm": norm})


def controls(settings: DetectionSettings) -> list[Control]:
    """Return when detectors have learned, and what must be there before claims are tested."""
    result = learned_controls(settings)
    fine_tuned = {needs_backbones(*_norms(claim)): _norms(claim)[0] for claim in claims(settings) if BEST in claim.requires}
    result += [backbones_requirement(name, {"norm": norm}, settings.seeds) for name, norm in fine_tuned.items()]
    result.append(best_requirement(settings, "xbn, 2 per device", BEST_SCRATCH))
    result.append(best_requirement(settings, "xbn, pretrained", BEST))
    is_same = float(_same_heads(settings))
    result.append(Requirement(SAME_HEADS, Measured(lambda _: is_same, {"norm": "bn, 2 per device"}), 1.0))
    if _loses(settings):
        loss = Measured("ap", {"norm": "bn, 8 per device"}) - Measured("ap", {"norm": "bn, 2 per device"})
        result.append(Requirement(LARGE, loss, MIN_LARGE[data_name(settings)]))
    return result


def _norms(claim: Larger) -> list[str]:
    return [side.cells[0]["norm"] for side in claim.sides]


def plot(record: RecipeRecord[DetectionSettings], path: Path) -> list[Path]:
    """Plot AP by variant and kind of statistics, with the estimation shift by layer."""
    measured = [norm for norm in record.settings.variants if any(row["norm"] == norm for row in record.rows)]
    titles = {norm: norm.replace(", ", "\n").replace("per ", "per\n").replace("pre", "pre-\n") for norm in measured}
    shifts = {norm: norm for norm in titles if "per device" in norm and "gn" not in norm}
    return draw_modes(record, path, titles, shifts)


RECIPE = Recipe("xbn_detection", PRESETS, cells, measure, claims, plot, sn_detection.tables, controls)
