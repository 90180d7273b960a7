"""sn Table 6: BN, GN and SN in video classification, by clips per device.

    anynorm reproduce sn_video --preset desk

Paper: inflated ResNet-50 (I3D) on Kinetics-400, pretrained on ImageNet with the same norm, clips of 32 frames with an interval of
2, 8 or 4 clips on each of 8 devices with statistics of their own over (T, H, W); 10-clip testing.

    smoke  32 generated videos, one epoch; checks that the code works and claims nothing
    desk   UT-Interaction, 16 frames of 48 × 48 pixels, an inflated ResNet-10 of width 8 from scratch, 275 steps
    paper  the published setting; needs kinetics400/train and kinetics400/test, and networks trained on ImageNet

Scaled down in `desk`: 120 videos of two people in 6 classes, in four folds by sequence (90 videos to train, 30 to test). Seed k
is fold k, so the mean over seeds is the accuracy over all videos, and its spread is that of folds and initial weights together.
A step has 8 clips: one pass of 8 in the place of 8 clips per device, four passes of 2 with statistics of their own (simulated
devices, which update running statistics in each pass) in the place of 4. There are 3 clips and one crop per test video. The
claims are about the order of the norms. Top-5 accuracies of 6 classes say little and are not compared. The machine was busy: a
run takes about 57 CPU seconds, so that two idle cores need about 12 minutes.

The paper does not describe its schedule. `paper` has that of Wang et al. (2018) and their code, whose baseline it follows:
Nesterov momentum, learning rate 0.01 for 64 clips, divided by 10 after 3/8 and 3/4 of 107 epochs (400 000 steps), no weight
decay of norms, dropout 0.5, shorter side 256 to 320, crops of 224 × 224, three crops of 256 × 256 in a test. `weights` are
model.pt of runs of `sn_batch_size`, preset paper: put them at the paths of `PRESETS`, under the data directory.

Beyond the paper: the accuracy of the same networks with statistics of each test batch (as many clips as per device in training),
and with running statistics recalibrated on training clips, which separates what BN has learned from how it is tested.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.sn.device_grid import DeviceGrid
from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import (
    Values,
    accuracy_of,
    differences,
    result_over_seeds,
    result_table,
    save_figure,
    successful,
    values_of,
)
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.recipes.support.settings import Devices, Training
from anynorm.lab.tasks.video.options import VideoOptions
from anynorm.lab.tasks.video.task import VideoClassification
from anynorm.lab.training.config import Config
from anynorm.lab.training.norm_modes import BATCH_STATISTICS, RECALIBRATED
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.schedules import Step
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

TABLE_6: dict[str, dict[str, float]] = {
    "8": {"bn": 73.2, "gn": 73.0, "sn": 73.5},
    "4": {"bn": 72.1, "gn": 72.8, "sn": 73.3},
}
"""The paper's top-1 accuracy in % by clips per device. Top-5: 90.9, 90.6, 91.3 and 90.0, 90.6, 91.2."""
MODES = {"accuracy": "running statistics", "batch_accuracy": BATCH_STATISTICS, "recalibrated_accuracy": RECALIBRATED}
"""What the columns of a row are measured with."""
OURS = "our hypothesis"


@dataclass(frozen=True, kw_only=True)
class VideoSettings(DeviceGrid):
    """Settings of video classification.

    Args:
        folds: data sets; seed k has fold k, modulo their number.
        weights: paths of the weights that a network with each norm starts from; empty to train from scratch.
    """

    folds: tuple[str, ...]
    weights: Mapping[str, str] = field(default_factory=dict)


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
        folds=("moving",),
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
        weights={norm: f"weights/imagenet_resnet50_{norm}.pt" for norm in ("bn", "gn", "sn")},
    ),
}  # fmt: skip


def cells(settings: VideoSettings) -> list[Cell]:
    """Return one cell per setting, norm and seed."""
    return grid(settings.seeds, setting=settings.divisions, norm=["bn", "gn", "sn"])


def measure(settings: VideoSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracies by norm mode."""
    norm = settings.gn if cell["norm"] == "gn" else cell["norm"]
    config = replace(settings.cell_config(cell, norm), data=settings.folds[cell["seed"] % len(settings.folds)])
    if settings.weights:
        options = replace(VideoClassification.options_of(config), weights=settings.weights[cell["norm"]])
        config = replace(config, options=options)
    record = train_run(make_config(config, settings.training.base_batch_size), runs)
    return run_metrics(record) | mode_accuracies(record)


def mode_accuracies(record: RunRecord) -> Measurement:
    """Return the accuracies with other statistics, and the top-5 accuracy; None where a network has none, or its run failed."""
    last = record.curve[-1] if record.done else {}
    errors = {
        "batch_accuracy": last.get(f"test_error, {BATCH_STATISTICS}"),
        "recalibrated_accuracy": last.get(f"test_error, {RECALIBRATED}"),
        "top5_accuracy": last.get("test_top-5 error"),
    }
    return {name: None if error is None else round(100 - error, 3) for name, error in errors.items()}


def claims(settings: VideoSettings) -> list[Claim]:
    """Return the order of the norms by clips per device, what BN loses, and that its running statistics are why."""
    result = []
    for setting in settings.divisions:
        paper = TABLE_6[setting]
        for pair in (("sn", "bn"), ("sn", "gn"), ("gn", "bn")):
            better, worse = sorted(pair, key=lambda norm: -paper[norm])
            result.append(more_accurate(better, worse, f"{paper[better]} and {paper[worse]}", setting=setting))
    for norm in ("gn", "sn"):
        losses = [TABLE_6["8"][name] - TABLE_6["4"][name] for name in ("bn", norm)]
        statement = f"`bn` loses more points from 8 to 4 clips per device than `{norm}`"
        result.append(Claim(statement, f"{losses[0]:.1f} and {losses[1]:.1f}", _loss("bn"), _loss(norm)))
    for column in ("batch_accuracy", "recalibrated_accuracy"):
        statement = f"`bn` is more accurate with {_describe(column)} than with running statistics (setting 4)"
        larger, smaller = (values_of(name, norm="bn", setting="4") for name in (column, "accuracy"))
        result.append(Claim(statement, OURS, larger, smaller))
    return result


def _describe(column: str) -> str:
    return "recalibrated statistics" if MODES[column] == RECALIBRATED else MODES[column]


def _loss(norm: str) -> Values:
    """Return a function that computes the points of accuracy lost from 8 to 4 clips per device."""
    return differences(*(accuracy_of(norm=norm, setting=setting) for setting in ("8", "4")))


def tables(record: RecipeRecord[VideoSettings]) -> list[Table]:
    """Return the accuracy by setting, norm and statistics."""
    rows = []
    for setting, (devices, clips) in record.settings.divisions.items():
        for norm in ("bn", "gn", "sn"):
            accuracies = {
                mode: "no running statistics"
                if norm == "gn" and column != "accuracy"
                else result_over_seeds(record.rows, column, norm=norm, setting=setting)
                for column, mode in MODES.items()
            }
            rows.append({"setting": setting, "devices": devices, "clips per device": clips, "norm": norm, **accuracies})
    return [result_table(rows, "Test accuracy in %, mean ± sd over folds or seeds. Setting: clips per device of the paper.")]


def plot(record: RecipeRecord[VideoSettings], path: Path) -> list[Path]:
    """Plot the accuracy by setting, norm and statistics: bars are means, points are folds or seeds."""
    divisions = record.settings.divisions
    fig = Figure(figsize=(8, 4), layout="constrained")
    axes = fig.subplots(1, len(divisions), sharey=True, squeeze=False)[0]
    for ax, (setting, (devices, clips)) in zip(axes, divisions.items(), strict=True):
        for k, (column, mode) in enumerate(MODES.items()):
            for position, norm in enumerate(("bn", "gn", "sn")):
                values = successful(record.rows, column, norm=norm, setting=setting)
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


RECIPE = Recipe("sn_video", PRESETS, cells, measure, claims, plot, tables)
