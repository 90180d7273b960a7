"""sn Table 5: SyncBN, GN and SN in semantic segmentation.

    anynorm reproduce sn_segmentation --preset desk

Paper: DeepLab with a dilated ResNet-50 (stride 8), pretrained on ImageNet with the same norm, on eight devices: ADE20K with two
images each, Cityscapes with one. Learning rate (1 − progress)^0.9, auxiliary loss of weight 0.4, mIoU at one scale and several.

    smoke  eight generated images, two epochs; checks that the code works and claims nothing
    desk   nuclei in place of ADE20K, 4 devices × 2 images; CamVid in place of Cityscapes, 8 × 1; ResNet-18 of width 8;
           needs nuclei/ and camvid/ in the data directory; a demonstration: it decides nothing unless its controls hold
    night  the same data and network, 12 epochs of nuclei, 40 of CamVid, all test images, six seeds; subject to the pilot until it
           has a record
    paper  the published setting; needs ADEChallengeData2016/, cityscapes/ and imagenet/ in the data directory

Scaled down in `desk` and `night`: other data, a narrow network that is not pretrained, PSPNet's head, crops of 112 pixels (CamVid
in `night`: 96) in training and testing, and 248 steps in `desk` (CamVid: 180). So the claims are about the order of the norms.
Devices are simulated: a step accumulates the gradients of as many forward passes, each with statistics of its own and an update
of the running statistics; SyncBN has all samples of a step in one pass. GN has 8 groups. In `paper`, the head is that of DeepLab
v3; the learning rate and the weight decay, which the paper does not state, are ours (0.02 at 16 images, as usual for these
networks); images of ADE20K are cropped instead of resized to squares; and Cityscapes is tested on its validation split, because
labels of its test split are not public. Each seed starts from a backbone of its own, that of SN pretrained with two images per
device.

Control: mIoU with the statistics of training (those of each batch, if a norm has running statistics) is at least `MIN_MIOU`. The
networks of `desk` on CamVid do not reach it. mIoU has no interval for the choice of test images.

Beyond the paper: `bn` without synchronization, and every norm with statistics as in training: those of each test batch, which has
as many images as a training batch of a device, and running statistics estimated again on training crops, in batches of that size.
A norm that is good with batch statistics alone has learned its problem, but not with statistics that are the same for all images.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.sn.segmenters import PRESETS, SegmentationSettings
from anynorm.lab.recipes.support.backbones import backbones_requirement, train_backbone
from anynorm.lab.recipes.support.claims import OURS, UNITS, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.learned_weights import (
    MIN_DISTANCE,
    WeightDistance,
    distance_from_start,
    draw_layer_weights,
    layer_weights,
)
from anynorm.lab.recipes.support.pictures import draw_pictures, encode_picture
from anynorm.lab.recipes.support.quantities import Measured, mean_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import items_of, make_config, run_outcome, train_run
from anynorm.lab.recipes.support.settings import divide_samples
from anynorm.lab.tasks.run import load_run
from anynorm.lab.tasks.segmentation.task import Segmentation
from anynorm.lab.training.norm_modes import BATCH_STATISTICS, RECALIBRATED
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid
from anynorm.table import Table

TABLE_5: dict[str, dict[str, dict[str, float]]] = {
    "ADE20K": {"miou": {"syncbn": 36.4, "gn": 35.7, "sn": 38.7}, "miou_multi_scale": {"syncbn": 37.7, "gn": 36.3, "sn": 39.2}},
    "Cityscapes": {
        "miou": {"syncbn": 69.7, "gn": 68.4, "sn": 71.2},
        "miou_multi_scale": {"syncbn": 73.0, "gn": 73.1, "sn": 75.1},
    },
}
"""The paper's mIoU in % by data set and testing."""
COLUMNS = {
    "miou": "mIoU",
    "miou_multi_scale": "mIoU, multi-scale",
    "miou_batch_statistics": f"mIoU, {BATCH_STATISTICS}",
    "miou_recalibrated": f"mIoU, {RECALIBRATED}",
    "pixel_accuracy": "pixel accuracy",
}
"""Measurement of the task by the column of a row."""
MODES = {"miou": "running statistics", "miou_batch_statistics": "batch statistics", "miou_recalibrated": "recalibrated"}
MIN_MIOU = {"shapes": 0.0, "nuclei": 60.0, "camvid": 30.0, "ade20k": 20.0, "cityscapes": 50.0}
"""mIoU in % from which a network has learned, by data set. The best constant prediction has 43.5 on nuclei, and 2.6 on CamVid."""
BACKBONES, MOVED = "backbones per norm", "distance of the mixing weights from 1/3"


def cells(settings: SegmentationSettings) -> list[Cell]:
    """Return one cell per data set, norm and seed."""
    return grid(settings.seeds, data=settings.data, norm=settings.norms)


def measure(settings: SegmentationSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network; return its mIoU by mode and, for the first seed and data set, a picture."""
    data, norm = settings.data[cell["data"]], cell["norm"]
    config = replace(data.training.config, seed=cell["seed"])
    config = divide_samples(config, data.devices, simulate=settings.simulate_devices, sync=norm == "syncbn")
    weights, backbone = settings.weights.get(norm, ""), {}
    if settings.pretraining:
        weights, accuracy = train_backbone(settings.pretraining[norm], settings.norms[norm], runs, cell["seed"])
        backbone = {"num_backbones": settings.seeds, "backbone_accuracy": accuracy}
    if weights:
        config = replace(config, options=replace(Segmentation.options_of(config), weights=weights))
    config = make_config(replace(config, norm=settings.norms[norm]), data.training)
    record = train_run(config, runs)
    row = _metrics(record) | backbone
    is_shown = cell["seed"] == 0 and cell["data"] == next(iter(settings.data)) and not row["failure"]
    count = settings.num_pictures if is_shown else 0
    return row | {"picture": _picture(load_run(runs, config.id), count) if count else ""}


def _metrics(record: RunRecord) -> Measurement:
    """Return the metrics of a run; None for a mode that a norm does not have, and if the run failed."""
    done = record.done
    last = record.curve[-1] if done else {}
    values = {column: last.get(f"test_{name}") for column, name in COLUMNS.items()}
    return {
        **{column: None if value is None else round(value, 3) for column, value in values.items()},
        "train_pixel_accuracy": record.metrics.get("train_pixel accuracy"),
        "curve": [
            {"step": point["step"], "miou": round(point["test_mIoU"], 3)} for point in record.curve if "test_mIoU" in point
        ],
        "weights": layer_weights(record),
        **items_of(record, COLUMNS),
        **run_outcome(record),
    }


def _picture(task: Any, count: int) -> str:
    """Return test images of one size, one below the other, with wrong pixels in red."""
    size = task.data.test[0][1].shape
    shown = [sample for sample in task.data.test if sample[1].shape == size][:count]
    pictures = []
    with torch.no_grad():
        for image, labels in shown:
            is_wrong = (task.predict(image) != labels) & (labels != 255)
            red = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None]
            pictures.append(torch.where(is_wrong, red, image))
    return encode_picture(torch.cat(pictures, 1))


def claims(settings: SegmentationSettings) -> list[Larger]:
    """Return the orders of Table 5, whether data choose the norms of SN, and where BN without synchronization stands."""
    result = []
    for data in settings.data:
        where = _describe(data, settings)
        for column, paper in TABLE_5[data].items():
            for pair in (("sn", "syncbn"), ("sn", "gn"), ("syncbn", "gn")):
                better, worse = sorted(pair, key=lambda norm: -paper[norm])
                quantity = "mIoU" if column == "miou" else "multi-scale mIoU"
                result.append(
                    Larger(
                        statement=f"`{better}` has a higher {quantity} than `{worse}` ({where})",
                        source=Source("sn", "Table 5"),
                        published=Published(paper[better], paper[worse]),
                        larger=Measured(column, {"norm": better, "data": data}),
                        smaller=Measured(column, {"norm": worse, "data": data}),
                        group=f"sn Table 5, {data}, {' and '.join(sorted(pair))}",
                        requires=(BACKBONES,) if settings.pretraining else (),
                    )
                )
        for norm in ("sn", "gn", "syncbn"):
            statement = f"`{norm}` has a higher mIoU than `bn` without synchronization ({where})"
            result.append(_ours(statement, (norm, "miou"), ("bn", "miou"), data))
        for column, mode in (("miou_batch_statistics", "batch"), ("miou_recalibrated", "recalibrated")):
            statement = f"`bn` has a higher mIoU with {mode} statistics than with running statistics ({where})"
            result.append(_ours(statement, ("bn", column), ("bn", "miou"), data))
    return result + _about_weights(settings)


def _ours(statement: str, better: tuple[str, str], worse: tuple[str, str], data: str) -> Larger:
    larger, smaller = (Measured(column, {"norm": norm, "data": data}) for norm, column in (better, worse))
    return Larger(statement=statement, source=OURS, larger=larger, smaller=smaller)


def _about_weights(settings: SegmentationSettings) -> list[Larger]:
    """Return the claim of Fig. 9: networks trained on different data differ more in their weights than those of other seeds."""
    if not settings.has_weights or len(settings.data) < 2:
        return []
    first, second = ({"norm": "sn", "data": data} for data in list(settings.data)[:2])
    within = [WeightDistance(cell, cell, next_seed=True) for cell in (first, second)]
    return [
        Larger(
            statement="the mixing weights of SN differ more between data sets than between seeds",
            source=Source("sn", "Fig. 9", "different training data encourage SN to choose different normalizers"),
            larger=WeightDistance(first, second),
            smaller=mean_of(within),
            scale=UNITS,
            delta=0.01,
            requires=(MOVED,),
        )
    ]


def controls(settings: SegmentationSettings) -> list[Control]:
    """Return when networks have learned, and that pretrained ones have several backbones per norm."""
    result: list[Control] = []
    for data, entry in settings.data.items():
        at_least = MIN_MIOU[entry.training.config.data.partition(":")[0]]
        for norm in settings.norms:
            column = "miou" if norm == "gn" else "miou_batch_statistics"
            name = "mIoU with the statistics of training (%)"
            result.append(Learned(at_least, column, name, {"norm": norm, "data": data}))
    if settings.has_weights:
        distance = mean_of([distance_from_start(norm="sn", data=data) for data in settings.data])
        is_smoke = any(entry.training.config.data == "shapes" for entry in settings.data.values())
        result.append(Requirement(MOVED, distance, 0.0 if is_smoke else MIN_DISTANCE))
    if settings.pretraining:
        result.append(backbones_requirement(BACKBONES, {"norm": "sn", "data": next(iter(settings.data))}, settings.seeds))
    return result


def _describe(data: str, settings: SegmentationSettings) -> str:
    """Return the data set of a run, and that of the paper if it is another one."""
    name = settings.data[data].training.config.data.partition(":")[0]
    return data if name == data.lower() else f"{name} for {data}"


def tables(record: RecipeRecord[SegmentationSettings]) -> list[Table]:
    """Return mIoU by norm, testing and statistics, one table per data set."""
    parts = []
    for data, entry in record.settings.data.items():
        rows = []
        for norm in record.settings.norms:
            columns: Row = {}
            for column, name in COLUMNS.items():
                has_mode = norm != "gn" or column not in ("miou_batch_statistics", "miou_recalibrated")
                columns[name] = result_over_seeds(record.rows, column, norm=norm, data=data) if has_mode else "as mIoU"
            paper = TABLE_5[data]["miou"].get(norm)
            rows.append({"norm": norm, **columns, "paper": "not in it" if paper is None else f"{paper}"})
        setting = f"{entry.devices.num_devices} devices × {entry.devices.samples}"
        finding = f"{_describe(data, record.settings)}, {setting}: metrics in %, mean ± sd over seeds; paper: mIoU at one scale. "
        parts.append(result_table(rows, finding + "A norm without running statistics has one mode."))
    return parts


def plot(record: RecipeRecord[SegmentationSettings], path: Path) -> list[Path]:
    """Plot the mIoU of each norm by the statistics it is tested with, and pictures of wrong pixels."""
    settings = record.settings
    norms = list(settings.norms)
    fig = Figure(figsize=(5.2 * len(settings.data) + 1.5, 4.0), layout="constrained")
    axes = fig.subplots(1, len(settings.data), squeeze=False)[0]
    for ax, (data, entry) in zip(axes, settings.data.items(), strict=True):
        for index, (column, label) in enumerate(MODES.items()):
            color = draw.COLORS[index]
            for position, norm in enumerate(norms):
                values = successful(record.rows, column, norm=norm, data=data)
                x = position + 0.27 * (index - 1)
                if values:
                    ax.bar(x, sum(values) / len(values), 0.25, color=color, alpha=0.75, label=label if position == 0 else None)
                    ax.plot([x] * len(values), values, "o", color="black", markersize=3)
        ax.set_xticks(range(len(norms)), norms)
        ax.set(
            ylabel="mIoU (%)", title=f"{_describe(data, settings)}, {entry.devices.num_devices} × {entry.devices.samples} images"
        )
    fig.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside right upper")
    rows = {data: [row for row in record.rows if row["norm"] == "sn" and row["data"] == data] for data in settings.data}
    pictures = save_figure(fig, path, dpi=110) + draw_pictures(record, path, norms)
    return pictures + draw_layer_weights({_describe(data, settings): each for data, each in rows.items()}, path)


RECIPE = Recipe("sn_segmentation", PRESETS, cells, measure, claims, plot, tables, controls)
