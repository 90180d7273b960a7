"""Train the detector of a cell, with its pretrained backbone, and return what a row of a record has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from anynorm.lab.recipes.support.backbones import Backbone, train_backbone
from anynorm.lab.recipes.support.detection.settings import DetectionSettings, Detector
from anynorm.lab.recipes.support.learned_weights import layer_weights
from anynorm.lab.recipes.support.pictures import last_artifact
from anynorm.lab.recipes.support.runs import items_of, make_config, run_outcome, train_run
from anynorm.lab.recipes.support.settings import Training, divide_samples
from anynorm.lab.tasks.detection.task import Detection
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.sweep import Cell, Measurement, grid

METRICS = {
    "AP": "ap",
    "AP50": "ap50",
    "AP75": "ap75",
    "AP small": "ap_small",
    "AP medium": "ap_medium",
    "AP large": "ap_large",
    "mask AP": "mask_ap",
    "mask AP50": "mask_ap50",
    "mask AP75": "mask_ap75",
    "AP, batch statistics": "ap_batch_statistics",
    "AP, recalibrated": "ap_recalibrated",
}
"""The column of a row for each metric of the task."""


def cells(settings: DetectionSettings) -> list[Cell]:
    """Return one cell per detector and seed."""
    return grid(settings.seeds, norm=settings.variants)


def measure(settings: DetectionSettings, cell: Cell, runs: Path) -> Measurement:
    """Train the detector of a cell and return its metrics, its curve, the shift and weights of its norms, and a picture.

    Args:
        settings: the settings.
        cell: `norm`, the name of a detector, and `seed`.
        runs: the folder of the run store.
    """
    detector, seed = settings.variants[cell["norm"]], cell["seed"]
    backbone = None
    if detector.pretrained is not None:
        pretraining = detector.pretraining or settings.pretraining
        backbone = train_backbone(pretraining, detector.pretrained, runs, seed if settings.backbone_per_seed else None)
    training = detector.training or settings.training
    lrs = detector.lrs or (training.config.lr,)
    rows = [{"lr": lr} | _train(settings, detector, with_lr(training, lr), backbone, seed, runs) for lr in lrs]
    best = max(rows, key=lambda row: -1.0 if row["ap"] is None else row["ap"])
    row: Measurement = best | {"ap_by_lr": [row["ap"] for row in rows]}
    if backbone is not None:
        row |= {"num_backbones": settings.num_backbones, "backbone_accuracy": backbone.accuracy}
    return row


def with_lr(training: Training, lr: float) -> Training:
    """Return a training with another learning rate."""
    return replace(training, config=replace(training.config, lr=lr))


def _train(
    settings: DetectionSettings, detector: Detector, training: Training, backbone: Backbone | None, seed: int, runs: Path
) -> Measurement:
    """Train a detector with one learning rate."""
    options = replace(
        Detection.options_of(training.config),
        frozen_submodule=detector.frozen_submodule,
        freeze_batch_free=detector.freeze_batch_free,
        norm_free=detector.norm_free,
        fpn=detector.fpn,
        masks=detector.masks,
        weights="" if backbone is None else backbone.weights,
    )
    devices = detector.devices or settings.devices
    config = divide_samples(training.config, devices, simulate=settings.simulate_devices, sync=detector.sync)
    config = make_config(replace(config, norm=detector.norm, seed=seed, options=options), training)
    record = train_run(config, runs)
    return _metrics(record) | {
        "picture": last_artifact(runs, config.id, "detections") if record.done and seed == 0 else "",
    }


def _metrics(record: RunRecord) -> Measurement:
    """Return the metrics of a run; None for those that a detector does not have, and if the run failed."""
    metrics = {column: record.metrics.get(f"test_{name}") if record.done else None for name, column in METRICS.items()}
    shift = [layer.shift for layer in record.shift or ()]
    return {
        **{column: value if value is None else round(value, 3) for column, value in metrics.items()},
        "curve": [{"step": point["step"], "ap": round(point["test_AP"], 3)} for point in record.curve if "test_AP" in point],
        "shift": [None if value is None else round(value, 4) for value in shift],
        "weights": layer_weights(record),
        **items_of(record, {column: name for name, column in METRICS.items()}),
        **run_outcome(record),
    }
