"""sn Table 5: SyncBN, GN and SN in semantic segmentation.

    anynorm reproduce sn_segmentation --preset desk

Paper: DeepLab with a dilated ResNet-50 (stride 8), pretrained on ImageNet with the same norm, on eight devices: ADE20K with two
images each, Cityscapes with one. Learning rate (1 − progress)^0.9, auxiliary loss of weight 0.4, mIoU at one scale and several.

    smoke  eight generated images, two epochs; checks that the code works and claims nothing
    desk   nuclei in place of ADE20K, 4 devices × 2 images; CamVid in place of Cityscapes, 8 × 1; ResNet-18 of width 8;
           needs nuclei/ and camvid/ in the data directory
    paper  the published setting; needs ADEChallengeData2016/, cityscapes/ and pretrained weights, see `PRESETS`

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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.claims import NOT_IN_PAPER, Claim
from anynorm.lab.recipes.support.pictures import draw_pictures, encode_picture
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, successful, values_of
from anynorm.lab.recipes.support.runs import make_config, run_outcome, train_run
from anynorm.lab.recipes.support.settings import Devices, Settings, Training, divide_samples
from anynorm.lab.tasks.run import load_run
from anynorm.lab.tasks.segmentation.options import SegmentationOptions
from anynorm.lab.tasks.segmentation.task import Segmentation
from anynorm.lab.training.config import Config
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
NORMS = {"bn": "bn", "gn": "gn:8", "sn": "sn", "syncbn": "bn"}


@dataclass(frozen=True)
class SegmentationData:
    """How networks are trained on a data set.

    Args:
        training: how networks are trained.
        devices: number of devices and of samples per device.
    """

    training: Training
    devices: Devices


@dataclass(frozen=True, kw_only=True)
class SegmentationSettings(Settings):
    """Settings of segmentation.

    Args:
        data: data sets by the name of the paper's data set.
        norms: specs by label; "syncbn" pools the samples of all devices.
        simulate_devices: see `divide_samples`.
        weights: paths of the weights that a network with each norm starts from; empty to train from scratch.
        num_pictures: number of test images that are shown.
    """

    data: Mapping[str, SegmentationData]
    norms: Mapping[str, str]
    simulate_devices: bool
    weights: Mapping[str, str] = field(default_factory=dict)
    num_pictures: int = 0

    @property
    def num_devices(self) -> int:
        """The largest number of devices that train one run together."""
        return 1 if self.simulate_devices else max(entry.devices.num_devices for entry in self.data.values())


OPTIONS = SegmentationOptions(norm_modes=True, recalibration_images=64, scales=(0.75, 1, 1.25), whole_images=False)
DESK = Config(
    task="segmentation", model="resnet18", width=0.125, image_size=112, flip=True, lr=0.05, weight_decay=1e-4, schedule="poly",
    epochs=4, num_evals=1, options=OPTIONS,
)  # fmt: skip
SMOKE_OPTIONS = replace(OPTIONS, recalibration_images=8, scales=(1, 1.5))
SMOKE = replace(
    DESK, data="shapes", model="resnet10", width=0.25, num_train=8, num_test=4, epochs=2, image_size=32,
    options=SMOKE_OPTIONS,
)  # fmt: skip
PAPER_OPTIONS = replace(OPTIONS, head="aspp", recalibration_images=1000, whole_images=True)
PAPER = Config(
    task="segmentation", model="resnet50", flip=True, lr=0.02, weight_decay=1e-4, schedule="poly", num_evals=10,
)  # fmt: skip
PRESETS = {
    "smoke": SegmentationSettings(
        seeds=2,
        data={
            "ADE20K": SegmentationData(Training(SMOKE, base_batch_size=4), Devices(2, 2)),
            "Cityscapes": SegmentationData(
                Training(replace(SMOKE, options=replace(SMOKE_OPTIONS, head="aspp")), base_batch_size=4), Devices(4, 1)
            ),
        },
        norms=NORMS,
        simulate_devices=True,
    ),
    "desk": SegmentationSettings(
        seeds=3,
        data={
            "ADE20K": SegmentationData(Training(replace(DESK, data="nuclei"), base_batch_size=8), Devices(4, 2)),
            "Cityscapes": SegmentationData(
                Training(replace(DESK, data="camvid", num_test=100), base_batch_size=8), Devices(8, 1)
            ),
        },
        norms=NORMS,
        simulate_devices=True,
        num_pictures=3,
    ),
    "paper": SegmentationSettings(
        seeds=3,
        data={
            "ADE20K": SegmentationData(
                Training(
                    replace(
                        PAPER, data="ade20k:ADEChallengeData2016", image_size=450, epochs=79,  # 100 000 steps
                        # shorter sides of 300, 400, 500 and 600
                        options=replace(PAPER_OPTIONS, resize=450, scales=(0.667, 0.889, 1.111, 1.333)),
                    ),
                    base_batch_size=16,
                ),
                Devices(8, 2),
            ),
            "Cityscapes": SegmentationData(
                Training(
                    replace(
                        PAPER, data="cityscapes:cityscapes", image_size=713, epochs=700,  # lr 0.01 at 8 images
                        options=replace(PAPER_OPTIONS, scales=(1, 1.25, 1.5, 1.75)),
                    ),
                    base_batch_size=16,
                ),
                Devices(8, 1),
            ),
        },
        norms=NORMS | {"gn": "gn:32"},
        # classifiers of ImageNet, such as the model.pt of runs of `sn_batch_size --preset paper`
        weights={name: f"weights/resnet50-{name}.pt" for name in NORMS},
        simulate_devices=False,
    ),
}  # fmt: skip


def cells(settings: SegmentationSettings) -> list[Cell]:
    """Return one cell per data set, norm and seed."""
    return grid(settings.seeds, data=settings.data, norm=settings.norms)


def measure(settings: SegmentationSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network; return its mIoU by mode and, for the first seed and data set, a picture."""
    data, norm = settings.data[cell["data"]], cell["norm"]
    config = replace(data.training.config, seed=cell["seed"])
    config = divide_samples(config, data.devices, simulate=settings.simulate_devices, sync=norm == "syncbn")
    if settings.weights:
        config = replace(config, options=replace(Segmentation.options_of(config), weights=settings.weights[norm]))
    config = make_config(replace(config, norm=settings.norms[norm]), data.training.base_batch_size)
    record = train_run(config, runs)
    row = _metrics(record)
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


def claims(settings: SegmentationSettings) -> list[Claim]:
    """Return the orders of Table 5, and where BN without synchronization stands."""
    result = []
    for data in settings.data:
        where = _describe(data, settings)
        for column, paper in TABLE_5[data].items():
            for pair in (("sn", "syncbn"), ("sn", "gn"), ("syncbn", "gn")):
                better, worse = sorted(pair, key=lambda norm: -paper[norm])
                quantity = "mIoU" if column == "miou" else "multi-scale mIoU"
                statement = f"`{better}` has a higher {quantity} than `{worse}` ({where})"
                numbers = f"{paper[better]} and {paper[worse]}"
                result.append(_higher(statement, numbers, (better, column), (worse, column), data))
        for norm in ("sn", "gn", "syncbn"):
            statement = f"`{norm}` has a higher mIoU than `bn` without synchronization ({where})"
            result.append(_higher(statement, NOT_IN_PAPER, (norm, "miou"), ("bn", "miou"), data))
        statement = f"`bn` has a higher mIoU with batch statistics than with running statistics ({where})"
        result.append(_higher(statement, NOT_IN_PAPER, ("bn", "miou_batch_statistics"), ("bn", "miou"), data))
    return result


def _higher(statement: str, paper: str, better: tuple[str, str], worse: tuple[str, str], data: str) -> Claim:
    larger, smaller = (values_of(column, norm=norm, data=data) for norm, column in (better, worse))
    return Claim(statement, paper, larger, smaller)


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
    return save_figure(fig, path, dpi=110) + draw_pictures(record, path, norms)


RECIPE = Recipe("sn_segmentation", PRESETS, cells, measure, claims, plot, tables)
