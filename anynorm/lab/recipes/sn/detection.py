"""sn Table 4, Table 3 and Table 7: detectors with two images per device.

    anynorm reproduce sn_detection --preset night

Paper: Table 3, Faster R-CNN with FPN (schedule 1x), and Table 4, Mask R-CNN with FPN (2x), on COCO, 8 devices with 2 images each.
ResNet-50 is pretrained on ImageNet with its own norm, that of SN with 2 images per device; BN† is BN with frozen statistics and
affine. FPN and heads have GN, SN, or no norm ("bn† + none"). Table 7: Faster R-CNN of type C4, whose head is the last stage of
the backbone, 4 devices with 3 images, fine-tuned or from scratch.

    smoke  generated images, a few steps; checks that the code works and claims nothing
    desk   nuclei (2018 Data Science Bowl), detectors with FPN, a narrow ResNet-10, 4 devices with 2 crops each; a demonstration:
           it decides nothing unless its controls hold
    night  nuclei, the rows of Tables 4 and 7, 744 steps, all 166 test images, six seeds with a backbone each; subject to the
           pilot until it has a record
    paper  the published settings of the three tables; needs coco/ and imagenet/ in the data directory

Scaled down in `desk` and `night`: crops of 96 × 96 pixels with one class, the devices are simulated (a step accumulates the
gradients of four forward passes, each with statistics of its own; running statistics are updated in each pass), AdamW, backbones
pretrained on CIFAR-10 at 32 × 32 pixels. So the claims are about the order of the norms.

`desk` differs from the tables in more: detectors from scratch stand for Table 7, but have an FPN; `bn†` has trainable BN in FPN
and heads, where the paper's has no norm (Table 4) or frozen BN (Table 7); the region proposal network has norms; and one backbone
per norm serves all seeds, which are therefore no replications: its claims about fine-tuned detectors are not a fair test.

Controls: each detector finds objects with the statistics it was trained with (AP with batch statistics, if it has running
statistics); so does the best detector of a table; fine-tuned detectors have at least three backbones per norm, each of which has
learned; SN is compared with GN in Table 7 only if BN is far behind GN; SN's weights have left their start value 1/3. AP has no
interval for the choice of test images.

Beyond the paper: "sync bn" and "xbn" (`desk`); detectors with running statistics are also tested with the statistics of each test
batch, which has as many images as a training pass, and after `anynorm.recalibrate` on training crops.
"""

from __future__ import annotations

from pathlib import Path

from anynorm.lab.recipes.sn.detectors import FASTER, PRESETS
from anynorm.lab.recipes.support.backbones import backbones_requirement
from anynorm.lab.recipes.support.claims import OURS, UNITS, Larger, Level, Published, Source
from anynorm.lab.recipes.support.controls import Control, Requirement
from anynorm.lab.recipes.support.detection.claims import (
    best_requirement,
    data_name,
    higher_ap,
    learned_controls,
    needs_backbones,
)
from anynorm.lab.recipes.support.detection.measure import METRICS, cells, measure
from anynorm.lab.recipes.support.detection.plots import draw_curves, draw_modes, draw_weights, metrics_row
from anynorm.lab.recipes.support.detection.settings import DetectionSettings
from anynorm.lab.recipes.support.learned_weights import MIN_DISTANCE, distance_from_start, weight_of
from anynorm.lab.recipes.support.pictures import draw_pictures
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_table
from anynorm.lab.training.sweep import Row
from anynorm.table import Table

TABLE_3 = {"bn† + none": 36.7, "bn† + gn": 37.2, "bn† + sn": 38.0, "gn + gn": 38.2, "sn + sn": 39.3}
TABLE_4 = {"bn† + none": 38.6, "bn† + gn": 39.5, "bn† + sn": 40.0, "gn + gn": 40.2, "gn + sn": 40.4, "sn + sn": 41.0}
TABLE_4_MASKS = {"bn† + none": 34.2, "bn† + gn": 34.4, "bn† + sn": 34.8, "gn + gn": 35.7, "gn + sn": 36.0, "sn + sn": 36.5}
TABLE_7 = {
    "bn†, C4, pretrained": 29.6, "bn, C4, pretrained": 19.3, "gn, C4, pretrained": 32.7, "sn, C4, pretrained": 33.0,
    "bn, C4": 20.0, "gn, C4": 28.3, "sn, C4": 29.5,
}  # fmt: skip
"""AP in %; box AP and mask AP of Table 4."""
PAIRS_3_4 = [
    ("bn† + gn", "bn† + none"), ("bn† + sn", "bn† + gn"), ("gn + gn", "bn† + sn"), ("gn + gn", "bn† + gn"),
    ("gn + sn", "gn + gn"), ("sn + sn", "gn + gn"),
]  # fmt: skip
PAIRS_7 = [
    ("bn†, C4, pretrained", "bn, C4, pretrained"), ("gn, C4, pretrained", "bn, C4, pretrained"),
    ("sn, C4, pretrained", "bn, C4, pretrained"), ("sn, C4, pretrained", "gn, C4, pretrained"),
    ("gn, C4", "bn, C4"), ("sn, C4", "bn, C4"), ("sn, C4", "gn, C4"),
]  # fmt: skip
DESK_NAMES = {
    "gn + gn": "gn, pretrained", "sn + sn": "sn, pretrained", "bn, C4": "bn", "gn, C4": "gn", "sn, C4": "sn",
    "bn†, C4, pretrained": "bn†", "bn, C4, pretrained": "bn, pretrained", "sn, C4, pretrained": "sn, pretrained",
}  # fmt: skip
"""The detectors of `desk` that stand for rows of the tables."""
SHARED = "gn > bn, detectors from scratch, same runs"
"""The group of a claim of `desk` that `xbn_detection` makes about the same runs."""
WEIGHTS_OF = "sn + sn"
SN_PARTS = {"backbone": "backbone", "box head": "heads.box", "mask head": "heads.mask"}
BEST, BEST_SCRATCH = "AP of the best fine-tuned detector (%)", "AP of the best detector from scratch (%)"
MOVED = "distance of the mixing weights from 1/3"
LARGE = "AP of gn minus that of bn in Table 7 (points)"
MIN_LARGE = {"ellipses": -100.0, "nuclei": 5.0, "coco": 5.0}
PRETRAINING = {"smoke": "digits", "desk": "CIFAR-10", "night": "CIFAR-10", "paper": "ImageNet"}
"""What backbones are pretrained on, by preset."""


def name_in(settings: DetectionSettings, row: str) -> str | None:
    """Return the name of the detector that measures a row of a table; None if there is none."""
    names = (row, DESK_NAMES.get(row, row))
    return next((name for name in names if name in settings.variants), None)


def claims(settings: DetectionSettings) -> list[Larger]:
    """Return the orders of the tables and of Fig. 1a and, beyond them, what BN loses by its running statistics."""
    result: list[Larger] = []
    for better, worse in PAIRS_3_4:
        if better in TABLE_3 and worse in TABLE_3:
            published = Published(TABLE_3[better], TABLE_3[worse])
            result += _compare(settings, f"{better}{FASTER}", f"{worse}{FASTER}", Source("sn", "Table 3"), published)
        source, group = Source("sn", "Table 4"), f"sn Table 4, {better} > {worse}"
        published = Published(TABLE_4[better], TABLE_4[worse])
        result += _compare(settings, better, worse, source, published, group=group)
        published = Published(TABLE_4_MASKS[better], TABLE_4_MASKS[worse])
        result += _compare(settings, better, worse, source, published, group=group, masks=True)
    for better, worse in PAIRS_7:
        group, published = f"sn Table 7, {better} > {worse}", Published(TABLE_7[better], TABLE_7[worse])
        result += _compare(settings, better, worse, Source("sn", "Table 7"), published, group=group)
    if "sync bn" in settings.variants:
        result.append(higher_ap("sync bn", "bn", OURS))
    return result + _about_curves(settings) + _about_statistics(settings) + _about_weights(settings)


def _compare(
    settings: DetectionSettings,
    better: str,
    worse: str,
    source: Source,
    published: Published,
    *,
    group: str = "",
    masks: bool = False,
) -> list[Larger]:
    """Return the claim that a row of a table has a higher AP than another; none if the settings do not have both."""
    names = [name for row in (better, worse) if (name := name_in(settings, row)) is not None]
    if len(names) < 2:
        return []
    is_pretrained = settings.variants[names[0]].pretrained is not None
    requires = [BEST, needs_backbones(*names)] if is_pretrained else [BEST_SCRATCH]
    if source.place == "Table 7" and worse.startswith("gn"):
        requires.append(LARGE)
    group = SHARED if names == ["gn", "bn"] else group
    return [higher_ap(names[0], names[1], source, published, masks=masks, group=group, requires=requires)]


def _about_curves(settings: DetectionSettings) -> list[Larger]:
    """Return the claims of Fig. 8: the AP curves of SN and GN are above that of BN. They have the runs of Table 7."""
    return [
        Larger(
            statement=f"the mean AP of `{better}` during training is higher than that of `{worse}`",
            source=Source("sn", "Fig. 8a" if worse.endswith("pretrained") else "Fig. 8b"),
            larger=Measured(_curve_mean, {"norm": better}),
            smaller=Measured(_curve_mean, {"norm": worse}),
            group=f"sn Table 7, {better} > {worse}",
        )
        for better, worse in PAIRS_7
        if worse.startswith("bn") and settings.has_weights and {better, worse} <= settings.variants.keys()
    ]


def _curve_mean(row: Row) -> float | None:
    """Return the mean AP over the evaluations of a run; None if it failed."""
    return None if row["failure"] else sum(point["ap"] for point in row["curve"]) / len(row["curve"])


def _about_statistics(settings: DetectionSettings) -> list[Larger]:
    """Return the claims that BN has a higher AP with other statistics than its running statistics."""
    name = name_in(settings, "bn, C4")
    columns = {"ap_batch_statistics": "statistics of each test batch", "ap_recalibrated": "recalibrated statistics"}
    return [
        Larger(
            statement=f"`{name}` has a higher AP with {mode} than with its running statistics",
            source=OURS,
            larger=Measured(column, {"norm": name}),
            smaller=Measured("ap", {"norm": name}),
            group="detectors with bn and other statistics",
        )
        for column, mode in columns.items()
        if name is not None
    ]


def _about_weights(settings: DetectionSettings) -> list[Larger]:
    """Return the claims of Fig. 1a: SN selects BN in the backbone, LN in the heads."""
    quote = (
        "SN chooses BN more than IN and LN in … the backbone network of object detection, while LN has larger weights in the box "
        "and mask heads"
    )
    if not settings.has_weights or WEIGHTS_OF not in settings.variants:
        return []
    return [
        Larger(
            statement=f"SN weights {cut.upper()} more than {other.upper()} in the {part} of `{WEIGHTS_OF}`",
            source=Source("sn", "Fig. 1a", quote),
            larger=weight_of(cut, prefix, norm=WEIGHTS_OF),
            smaller=weight_of(other, prefix, norm=WEIGHTS_OF),
            scale=UNITS,
            delta=0.02,
            level=Level.STAGE,
            group=f"sn Fig. 1a, {part}",
            requires=(BEST, MOVED),
        )
        for part, prefix in SN_PARTS.items()
        for cut in ["bn" if part == "backbone" else "ln"]
        for other in ("in", "ln", "bn")
        if other != cut
    ]


def controls(settings: DetectionSettings) -> list[Control]:
    """Return when detectors have learned, and what must be there before claims are tested."""
    required = {name: claim for claim in claims(settings) for name in claim.requires}
    result = learned_controls(settings)
    for name, claim in required.items():
        norms = [side.cells[0]["norm"] for side in claim.sides]
        if name == needs_backbones(*norms):
            result.append(backbones_requirement(name, {"norm": norms[0]}, settings.seeds))
    fine_tuned, scratch = name_in(settings, "sn + sn"), name_in(settings, "sn, C4")
    gn, bn = name_in(settings, "gn, C4"), name_in(settings, "bn, C4")
    if fine_tuned is not None:
        result.append(best_requirement(settings, fine_tuned, BEST))
    if settings.has_weights and WEIGHTS_OF in settings.variants:
        distance = 0.0 if data_name(settings) == "ellipses" else MIN_DISTANCE
        result.append(Requirement(MOVED, distance_from_start(norm=WEIGHTS_OF), distance))
    if scratch is not None:
        result.append(best_requirement(settings, scratch, BEST_SCRATCH))
    if gn is not None and bn is not None:
        difference = Measured("ap", {"norm": gn}) - Measured("ap", {"norm": bn})
        result.append(Requirement(LARGE, difference, MIN_LARGE[data_name(settings)]))
    return result


def tables(record: RecipeRecord[DetectionSettings]) -> list[Table]:
    """Return the metrics of each detector."""
    rows = []
    for norm, detector in record.settings.variants.items():
        if not any(row["norm"] == norm for row in record.rows):
            continue
        devices, samples = detector.devices or record.settings.devices
        start = "scratch" if detector.pretrained is None else f"{PRETRAINING[record.preset]}, {detector.pretrained}"
        division = f"{devices} × {samples}" + (", sync" if detector.sync else "")
        layout = detector.norm + "".join(f";{part}=none" for part in detector.norm_free)
        row = {"norm": norm, "layout": layout, "devices × samples": division, "backbone from": start}
        rows.append(row | metrics_row(record, norm, METRICS))
    return [result_table(rows, "Test AP in %, mean ± sd over seeds. †: statistics and affine of the backbone are frozen.")]


def plot(record: RecipeRecord[DetectionSettings], path: Path) -> list[Path]:
    """Plot AP by variant and kind of statistics with the estimation shift by layer; detections, AP curves and SN's weights."""
    measured = {row["norm"] for row in record.rows}
    names = {"bn": "BN", "xbn": "XBN", "sync bn": "SyncBN", "gn": "GN", "sn": "SN"}
    names |= {name: name.replace(", ", "\n") for name in TABLE_7}
    titles = {norm: name for norm, name in names.items() if norm in measured}
    shifts = {norm: name for norm, name in titles.items() if norm in ("bn", "xbn", "sync bn", "bn, C4", "bn, C4, pretrained")}
    panels = {
        "Fine-tuned": [norm for norm in measured & TABLE_7.keys() if norm.endswith("pretrained")],
        "From scratch": [norm for norm in measured & TABLE_7.keys() if not norm.endswith("pretrained")],
    }
    pictures = draw_modes(record, path, titles, shifts) + draw_pictures(record, path, list(titles))
    pictures += draw_curves(record, path, {title: sorted(norms) for title, norms in panels.items()})
    return pictures + draw_weights(record, path, WEIGHTS_OF, SN_PARTS)


RECIPE = Recipe("sn_detection", PRESETS, cells, measure, claims, plot, tables, controls)
