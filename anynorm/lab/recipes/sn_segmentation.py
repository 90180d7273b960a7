"""sn Table 5: SyncBN, GN and SN in semantic segmentation.

    anynorm reproduce sn_segmentation --preset desk

Paper: DeepLab with a dilated ResNet-50 (stride 8), pretrained on ImageNet with the same norm, on eight devices: ADE20K with two
images each, Cityscapes with one. Learning rate (1 − progress)^0.9, auxiliary loss of weight 0.4, mIoU at one scale and several.

    smoke  10 s      eight generated images, two epochs; checks that the code works and claims nothing
    desk   14 min    nuclei in place of ADE20K, 4 devices × 2 images; CamVid in place of Cityscapes, 8 × 1; ResNet-18 of width 8;
                     needs nuclei/ and camvid/ in the data directory
    paper  not run   the published setting; needs ADEChallengeData2016/, cityscapes/ and pretrained weights, see `PRESETS`

Scaled down in `desk`: other data, a narrow network that is not pretrained, PSPNet's head, crops of 112 pixels in training and
testing, and 248 steps (CamVid: 180). So the claims are about the order of the norms. Devices are simulated: a step accumulates
the gradients of as many forward passes, each with statistics of its own and an update of the running statistics; SyncBN has all
samples of a step in one pass. GN has 8 groups. In `paper`, the head is that of DeepLab v3; the learning rate and the weight
decay, which the paper does not state, are ours (0.02 at 16 images, as usual for these networks); images of ADE20K are cropped
instead of resized to squares; and Cityscapes is tested on its validation split, because labels of its test split are not
public.

Beyond the paper: `bn` without synchronization, and every norm with statistics as in training: those of each test batch, which has
as many images as a training batch of a device, and running statistics estimated again on training crops, in batches of that size.
A norm that is good with batch statistics alone has learned its problem, but not with statistics that are the same for all images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.pictures import draw_pictures, encode_picture
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import save_figure, select, successful, values_of
from anynorm.lab.recipes.support.runs import make_config, train_run
from anynorm.lab.tasks.run import load_run
from anynorm.lab.training.norm_modes import BATCH_STATISTICS, RECALIBRATED
from anynorm.lab.training.statistics import mean_sd
from anynorm.lab.training.sweep import Row, grid
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
"""Metrics of the task by the column of a row."""
MODES = {"miou": "running statistics", "miou_batch_statistics": "batch statistics", "miou_recalibrated": "recalibrated"}
NORMS = {"bn": "bn", "gn": "gn:8", "sn": "sn", "syncbn": "bn"}
OPTIONS: Settings = {"norm_modes": True, "recalibration_images": 64, "scales": "0.75,1,1.25", "whole_images": False}
TRAIN: Settings = {
    "task": "segmentation", "model": "resnet18", "width": 0.125, "image_size": 112, "flip": True, "lr": 0.05,
    "weight_decay": 1e-4, "schedule": "poly", "epochs": 4, "num_evals": 1,
}  # fmt: skip
PAPER_TRAIN: Settings = {
    "task": "segmentation", "model": "resnet50", "flip": True, "weight_decay": 1e-4, "schedule": "poly", "num_evals": 10,
}  # fmt: skip
PRESETS: dict[str, Settings] = {
    # data: by the paper's data set, what it changes in `train` and in the options; devices and samples per device
    "smoke": {
        "train": TRAIN
        | {"data": "shapes", "model": "resnet10", "width": 0.25, "num_train": 8, "num_test": 4, "epochs": 2, "image_size": 32},
        "options": OPTIONS | {"recalibration_images": 8, "scales": "1,1.5"},
        "data": {
            "ADE20K": {"train": {}, "options": {}, "devices": 2, "batch_size": 2},
            "Cityscapes": {"train": {}, "options": {"head": "aspp"}, "devices": 4, "batch_size": 1},
        },
        "norms": NORMS,
        "weights": {},
        "devices_are": "grad_accum_steps",
        "base_batch_size": 4,
        "seeds": 2,
        "num_pictures": 0,
    },
    "desk": {
        "train": TRAIN,
        "options": OPTIONS,
        "data": {
            "ADE20K": {"train": {"data": "nuclei"}, "options": {}, "devices": 4, "batch_size": 2},
            "Cityscapes": {"train": {"data": "camvid", "num_test": 100}, "options": {}, "devices": 8, "batch_size": 1},
        },
        "norms": NORMS,
        "weights": {},
        "devices_are": "grad_accum_steps",
        "base_batch_size": 8,
        "seeds": 3,
        "num_pictures": 3,
    },
    "paper": {
        "train": PAPER_TRAIN,
        "options": OPTIONS | {"head": "aspp", "recalibration_images": 1000, "whole_images": True},
        "data": {
            "ADE20K": {
                "train": {"data": "ade20k:ADEChallengeData2016", "image_size": 450, "epochs": 79, "lr": 0.02},  # 100 000 steps
                "options": {"resize": 450, "scales": "0.667,0.889,1.111,1.333"},  # shorter sides of 300, 400, 500 and 600
                "devices": 8,
                "batch_size": 2,
            },
            "Cityscapes": {
                "train": {"data": "cityscapes:cityscapes", "image_size": 713, "epochs": 700, "lr": 0.02},  # 0.01 at 8 images
                "options": {"scales": "1,1.25,1.5,1.75"},
                "devices": 8,
                "batch_size": 1,
            },
        },
        "norms": NORMS | {"gn": "gn:32"},
        # classifiers of ImageNet, such as the model.pt of runs of `sn_batch_size --preset paper`
        "weights": {name: f"weights/resnet50-{name}.pt" for name in NORMS},
        "devices_are": "devices",
        "base_batch_size": 16,
        "seeds": 3,
        "num_pictures": 0,
    },
}  # fmt: skip


def cells(settings: Settings) -> list[Row]:
    """Return one cell per data set, norm and seed."""
    return grid(settings["seeds"], data=settings["data"], norm=settings["norms"])


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train a network; return its mIoU by mode and, for the first seed and data set, a picture."""
    variant, norm = settings["data"][cell["data"]], cell["norm"]
    devices, samples = variant["devices"], variant["batch_size"]
    placement: Settings = {settings["devices_are"]: devices}
    if norm == "syncbn" and settings["devices_are"] == "devices":
        placement["sync"] = True
    elif norm == "syncbn":
        placement, samples = {}, devices * samples
    options = settings["options"] | variant["options"]
    if settings["weights"]:
        options |= {"weights": settings["weights"][norm]}
    overrides = variant["train"] | placement
    config = make_config(settings, settings["norms"][norm], samples, cell["seed"], **overrides, options=options)
    record = train_run(config, runs)
    row = _metrics(record)
    is_shown = cell["seed"] == 0 and cell["data"] == next(iter(settings["data"])) and not row["failure"]
    count = settings["num_pictures"] if is_shown else 0
    return row | {"picture": _picture(load_run(runs, config.id), count) if count else ""}


def _metrics(record: dict[str, Any]) -> Row:
    """Return the metrics of a run; None for a mode that a norm does not have, and if the run failed."""
    done = record["status"] == "done"
    last = record["curve"][-1] if done else {}
    values = {column: last.get(f"test_{name}") for column, name in COLUMNS.items()}
    return {
        **{column: None if value is None else round(value, 3) for column, value in values.items()},
        "failure": "" if done else record["note"],
        "seconds": record["seconds"],
        "commit": record["provenance"]["commit"],
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


def claims(settings: Settings) -> list[Claim]:
    """Return the orders of Table 5, and where BN without synchronization stands."""
    result, ours = [], "not in the paper"
    for data, variant in settings["data"].items():
        where = _describe(data, variant)
        for column, paper in TABLE_5[data].items():
            for pair in (("sn", "syncbn"), ("sn", "gn"), ("syncbn", "gn")):
                better, worse = sorted(pair, key=lambda norm: -paper[norm])
                quantity = "mIoU" if column == "miou" else "multi-scale mIoU"
                statement = f"`{better}` has a higher {quantity} than `{worse}` ({where})"
                numbers = f"{paper[better]} and {paper[worse]}"
                result.append(_higher(statement, numbers, (better, column), (worse, column), data))
        for norm in ("sn", "gn", "syncbn"):
            statement = f"`{norm}` has a higher mIoU than `bn` without synchronization ({where})"
            result.append(_higher(statement, ours, (norm, "miou"), ("bn", "miou"), data))
        statement = f"`bn` has a higher mIoU with batch statistics than with running statistics ({where})"
        result.append(_higher(statement, ours, ("bn", "miou_batch_statistics"), ("bn", "miou"), data))
    return result


def _higher(statement: str, paper: str, better: tuple[str, str], worse: tuple[str, str], data: str) -> Claim:
    larger, smaller = (values_of(column, norm=norm, data=data) for norm, column in (better, worse))
    return Claim(statement, paper, larger, smaller)


def _describe(data: str, variant: dict[str, Any]) -> str:
    """Return the data set of a run, and that of the paper if it is another one."""
    name = variant["train"].get("data", "shapes").partition(":")[0]
    return data if name == data.lower() else f"{name} for {data}"


def tables(record: Record) -> list[Table]:
    """Return mIoU by norm, testing and statistics, one table per data set."""
    result = []
    for data, variant in record.settings["data"].items():
        rows = []
        for norm in record.settings["norms"]:
            columns = {}
            for column, name in COLUMNS.items():
                values = select(record.rows, column, norm=norm, data=data)
                has_mode = norm != "gn" or column not in ("miou_batch_statistics", "miou_recalibrated")
                columns[name] = mean_sd(values, ".1f", ".1f") if has_mode else "as mIoU"
            paper = TABLE_5[data]["miou"].get(norm)
            rows.append({"norm": norm, **columns, "paper": "not in it" if paper is None else f"{paper}"})
        setting = f"{variant['devices']} devices × {variant['batch_size']}"
        finding = f"{_describe(data, variant)}, {setting}: metrics in %, mean ± sd over seeds; paper: mIoU at one scale. "
        result.append(Table(rows, finding + "A norm without running statistics has one mode."))
    return result


def plot(record: Record, path: Path) -> list[Path]:
    """Plot the mIoU of each norm by the statistics it is tested with, and pictures of wrong pixels."""
    settings = record.settings
    norms = list(settings["norms"])
    fig = Figure(figsize=(5.2 * len(settings["data"]) + 1.5, 4.0), layout="constrained")
    axes = fig.subplots(1, len(settings["data"]), squeeze=False)[0]
    for ax, (data, variant) in zip(axes, settings["data"].items(), strict=True):
        for number, (column, label) in enumerate(MODES.items()):
            color = draw.COLORS[number]
            for place, norm in enumerate(norms):
                values = successful(record.rows, column, norm=norm, data=data)
                x = place + 0.27 * (number - 1)
                if values:
                    ax.bar(x, sum(values) / len(values), 0.25, color=color, alpha=0.75, label=label if place == 0 else None)
                    ax.plot([x] * len(values), values, "o", color="black", markersize=3)
        ax.set_xticks(range(len(norms)), norms)
        ax.set(ylabel="mIoU (%)", title=f"{_describe(data, variant)}, {variant['devices']} × {variant['batch_size']} images")
    fig.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside right upper")
    return save_figure(fig, path, dpi=110) + draw_pictures(record, path)


RECIPE = Recipe("sn_segmentation", PRESETS, cells, measure, claims, plot, tables)
