"""sn Table 6: BN, GN and SN in video classification, by clips per device.

    anynorm reproduce sn_video --preset desk

Paper: inflated ResNet-50 (I3D) on Kinetics-400, pretrained on ImageNet with the same norm, clips of 32 frames with an interval of
2, 8 or 4 clips on each of 8 devices with statistics of their own over (T, H, W); 10-clip testing.

    smoke  32 generated videos, one epoch; checks that the code works and claims nothing
    desk   UT-Interaction, 16 frames of 48 × 48 pixels, an inflated ResNet-10 of width 8 from scratch, 275 steps; a demonstration:
           it decides nothing unless its controls hold
    night  the same videos and network, 660 steps, each of five seeds on all four folds; subject to the pilot until it has a
           record
    paper  the published setting; needs kinetics400/train, kinetics400/test and imagenet/ in the data directory

Scaled down in `desk` and `night`: 120 videos of two people in 6 classes, in four folds by sequence (90 videos to train, 30 to
test). Folds share training videos, so they are no replications: a value is the mean over the four folds of one seed, the accuracy
over all videos, and its spread is that over seeds. In `desk`, seed k is fold k, so that no seed has such a value: its claims are
not a fair test. A step has 8 clips: one pass of 8 in the place of 8 clips per device, four passes of 2 with statistics of their
own (simulated devices, which update running statistics in each pass) in the place of 4. There are 3 clips and one crop per test
video. The claims are about the order of the norms. Top-5 accuracies of 6 classes say little and are compared in `paper` only.

The paper does not describe its schedule. `paper` has that of Wang et al. (2018) and their code, whose baseline it follows:
Nesterov momentum, learning rate 0.01 for 64 clips, divided by 10 after 3/8 and 3/4 of 107 epochs (400 000 steps), no weight
decay of norms, dropout 0.5, shorter side 256 to 320, crops of 224 × 224, three crops of 256 × 256 in a test. Each seed
starts from a backbone of its own, that of SN pretrained with two images per device.

Control: training accuracy, with the statistics of training, is at least `MIN_TRAIN_ACCURACY`.

Beyond the paper: the accuracy of the same networks with statistics of each test batch (as many clips as per device in training),
and with running statistics recalibrated on training clips, which separates what BN has learned from how it is tested.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.sn.clips import PRESETS, VideoSettings
from anynorm.lab.recipes.support.backbones import backbones_requirement, train_backbone
from anynorm.lab.recipes.support.claims import OURS, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.quantities import Linear, Measured, mean_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_table, save_figure
from anynorm.lab.recipes.support.runs import items_of, make_config, run_metrics, train_run
from anynorm.lab.tasks.video.task import VideoClassification
from anynorm.lab.training.norm_modes import BATCH_STATISTICS, RECALIBRATED
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.result import Result
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

TABLE_6: dict[str, dict[str, float]] = {
    "8": {"bn": 73.2, "gn": 73.0, "sn": 73.5},
    "4": {"bn": 72.1, "gn": 72.8, "sn": 73.3},
}
TABLE_6_TOP_5: dict[str, dict[str, float]] = {
    "8": {"bn": 90.9, "gn": 90.6, "sn": 91.3},
    "4": {"bn": 90.0, "gn": 90.6, "sn": 91.2},
}
"""The paper's top-1 and top-5 accuracies in % by clips per device."""
MODES = {"accuracy": "running statistics", "batch_accuracy": BATCH_STATISTICS, "recalibrated_accuracy": RECALIBRATED}
"""What the columns of a row are measured with."""
ERRORS = {
    "batch_accuracy": f"error, {BATCH_STATISTICS}",
    "recalibrated_accuracy": f"error, {RECALIBRATED}",
    "top5_accuracy": "top-5 error",
}
"""The metric of the task by column, besides that of `accuracy`."""
MIN_TRAIN_ACCURACY = {"moving": 0.0, "ut_interaction": 50.0, "videos": 40.0}
"""Training accuracy in % from which a network has learned; chance is 16.7 on UT-Interaction and 0.25 on Kinetics-400."""
ALL_FOLDS, BACKBONES = "folds on which each seed is measured", "backbones per norm"


def cells(settings: VideoSettings) -> list[Cell]:
    """Return one cell per setting, norm and seed, and per fold if each seed is measured on all folds."""
    axes: dict[str, Iterable[Any]] = {"setting": settings.divisions, "norm": ["bn", "gn", "sn"]}
    if settings.all_folds:
        axes["fold"] = range(len(settings.folds))
    return grid(settings.seeds, **axes)


def measure(settings: VideoSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracies by norm mode."""
    norm = settings.gn if cell["norm"] == "gn" else cell["norm"]
    data = settings.folds[cell.get("fold", cell["seed"] % len(settings.folds))]
    config = replace(settings.cell_config(cell, norm), data=data)
    weights = settings.weights.get(cell["norm"], "")
    row: Measurement = {"num_folds": len(settings.fold_cells)}
    if settings.pretraining:
        weights, accuracy = train_backbone(settings.pretraining[cell["norm"]], norm, runs, cell["seed"])
        row |= {"num_backbones": settings.seeds, "backbone_accuracy": accuracy}
    if weights:
        config = replace(config, options=replace(VideoClassification.options_of(config), weights=weights))
    record = train_run(make_config(config, settings.training), runs)
    return row | run_metrics(record) | mode_accuracies(record)


def mode_accuracies(record: RunRecord) -> Measurement:
    """Return the accuracies with other statistics, and the top-5 accuracy; None where a network has none, or its run failed."""
    last = record.curve[-1] if record.done else {}
    errors = {name: last.get(f"test_{error}") for name, error in ERRORS.items()}
    accuracies = {name: None if error is None else round(100 - error, 3) for name, error in errors.items()}
    return accuracies | items_of(record, ERRORS)


def claims(settings: VideoSettings) -> list[Larger]:
    """Return the order of the norms by clips per device, what BN loses, and that its running statistics are why."""
    result = []
    metrics = {"accuracy": ("accurate", TABLE_6)}
    if settings.pretraining:
        metrics["top5_accuracy"] = ("accurate among five classes", TABLE_6_TOP_5)
    for setting in settings.divisions:
        for column, (adjective, table) in metrics.items():
            paper = table[setting]
            for pair in (("sn", "bn"), ("sn", "gn"), ("gn", "bn")):
                better, worse = sorted(pair, key=lambda norm: -paper[norm])
                result.append(
                    Larger(
                        statement=f"`{better}` is more {adjective} than `{worse}` (setting {setting})",
                        source=Source("sn", "Table 6"),
                        published=Published(paper[better], paper[worse]),
                        larger=_over_folds(settings, column, norm=better, setting=setting),
                        smaller=_over_folds(settings, column, norm=worse, setting=setting),
                        group=f"sn Table 6, setting {setting}, {' and '.join(sorted(pair))}",
                        requires=_requirements(settings),
                    )
                )
    for norm in ("gn", "sn"):
        losses = [TABLE_6["8"][name] - TABLE_6["4"][name] for name in ("bn", norm)]
        result.append(
            Larger(
                statement=f"`bn` loses more points from 8 to 4 clips per device than `{norm}`",
                source=Source("sn", "Table 6"),
                published=Published(round(losses[0], 1), round(losses[1], 1)),
                larger=_loss(settings, "bn"),
                smaller=_loss(settings, norm),
                requires=_requirements(settings),
            )
        )
    for column in ("batch_accuracy", "recalibrated_accuracy"):
        result.append(
            Larger(
                statement=f"`bn` is more accurate with {_describe(column)} than with running statistics (setting 4)",
                source=OURS,
                larger=_over_folds(settings, column, norm="bn", setting="4"),
                smaller=_over_folds(settings, "accuracy", norm="bn", setting="4"),
                requires=_requirements(settings),
            )
        )
    return result


def _requirements(settings: VideoSettings) -> tuple[str, ...]:
    """Return the names of what all claims require."""
    return (ALL_FOLDS, BACKBONES) if settings.pretraining else (ALL_FOLDS,)


def _over_folds(settings: VideoSettings, column: str, **cell: Any) -> Linear:
    """Return the mean of a column over the folds of a seed."""
    return mean_of([Measured(column, cell | fold) for fold in settings.fold_cells])


def _describe(column: str) -> str:
    return "recalibrated statistics" if MODES[column] == RECALIBRATED else MODES[column]


def _loss(settings: VideoSettings, norm: str) -> Linear:
    """Return the points of accuracy lost from 8 to 4 clips per device."""
    large, small = (_over_folds(settings, "accuracy", norm=norm, setting=setting) for setting in ("8", "4"))
    return large - small


def controls(settings: VideoSettings) -> list[Control]:
    """Return when networks have learned, that a seed has all folds, and that pretrained networks have several backbones."""
    kind = settings.folds[0].partition("/")[0].partition(":")[0]
    cell = {"norm": "sn", "setting": next(iter(settings.divisions))} | settings.fold_cells[0]
    folds = Measured(lambda row: row.get("num_folds"), cell)
    result: list[Control] = [Learned(MIN_TRAIN_ACCURACY[kind]), Requirement(ALL_FOLDS, folds, len(settings.folds))]
    if settings.pretraining:
        result.append(backbones_requirement(BACKBONES, cell, settings.seeds))
    return result


def _by_seed(record: RecipeRecord[VideoSettings], column: str, **cell: Any) -> list[float | None]:
    """Return the mean of a column over folds, for each seed that has all folds; None where a run failed."""
    quantity = _over_folds(record.settings, column, **cell)
    return [quantity.at(record.rows, seed) for seed in sorted(quantity.seeds(record.rows) or ())]


def tables(record: RecipeRecord[VideoSettings]) -> list[Table]:
    """Return the accuracy by setting, norm and statistics."""
    rows = []
    for setting, (devices, clips) in record.settings.divisions.items():
        for norm in ("bn", "gn", "sn"):
            accuracies = {
                mode: "no running statistics"
                if norm == "gn" and column != "accuracy"
                else Result.of(_by_seed(record, column, norm=norm, setting=setting))
                for column, mode in MODES.items()
            }
            rows.append({"setting": setting, "devices": devices, "clips per device": clips, "norm": norm, **accuracies})
    return [
        result_table(
            rows, "Test accuracy in %, mean ± sd over seeds (`desk`: over folds). Setting: clips per device of the paper."
        )
    ]


def plot(record: RecipeRecord[VideoSettings], path: Path) -> list[Path]:
    """Plot the accuracy by setting, norm and statistics: bars are means, points are seeds, in `desk` folds."""
    divisions = record.settings.divisions
    fig = Figure(figsize=(8, 4), layout="constrained")
    axes = fig.subplots(1, len(divisions), sharey=True, squeeze=False)[0]
    for ax, (setting, (devices, clips)) in zip(axes, divisions.items(), strict=True):
        for k, (column, mode) in enumerate(MODES.items()):
            for position, norm in enumerate(("bn", "gn", "sn")):
                values = [value for value in _by_seed(record, column, norm=norm, setting=setting) if value is not None]
                if not values:
                    continue
                center = position + 0.27 * (k - 1) if norm != "gn" else position
                ax.bar(
                    center, statistics.fmean(values), 0.25, color=draw.COLORS[k], alpha=0.8, label=mode if norm == "bn" else ""
                )
                offsets = [center + 0.03 * (i - (len(values) - 1) / 2) for i in range(len(values))]
                ax.plot(offsets, values, "o", color="black", ms=3)
        ax.set_xticks(range(3), ["bn", record.settings.gn, "sn"])
        ax.set_title(f"{devices} × {clips} clips per step", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test accuracy (%)")
    axes[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    fig.suptitle("sn Table 6: devices × clips per device", fontsize=11)
    return save_figure(fig, path)


RECIPE = Recipe("sn_video", PRESETS, cells, measure, claims, plot, tables, controls)
