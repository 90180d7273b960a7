"""Recipes of detection: train detectors with variants of norms and pretrained backbones, and plot them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.errors import DataError
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.pictures import last_artifact
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, save_figure, select, successful, values_of
from anynorm.lab.recipes.support.runs import make_config, run_outcome, train_run
from anynorm.lab.recipes.support.settings import Devices, Training, TrainingSettings, divide_samples
from anynorm.lab.tasks.detection.task import Detection
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid


@dataclass(frozen=True)
class Detector:
    """The norms of a detector, and the division of samples over devices.

    Args:
        norm: layout of the norms, such as "bn;fpn=gn:8;heads=gn:8".
        devices: number of devices and of samples per device; None for that of the settings.
        sync: whether norms pool the samples of all devices; simulated devices are then replaced by one with all samples.
        pretrained: norms of the classifier from which the backbone is initialized; None to train from scratch.
        frozen_submodule: path of the submodule of the detector whose norms are frozen; "" for none.
        masks: whether the detector is Mask R-CNN instead of Faster R-CNN.
    """

    norm: str
    devices: Devices | None = None
    sync: bool = False
    pretrained: str | None = None
    frozen_submodule: str = ""
    masks: bool = False


@dataclass(frozen=True, kw_only=True)
class DetectionSettings(TrainingSettings):
    """Settings of detection.

    Args:
        pretraining: how the classifiers are trained from which backbones are initialized.
        variants: detectors by name.
        devices: number of devices and of samples per device.
        simulate_devices: see `divide_samples`.
    """

    pretraining: Training
    variants: Mapping[str, Detector]
    devices: Devices
    simulate_devices: bool

    @property
    def num_devices(self) -> int:
        """The largest number of devices that train one run together."""
        divisions = [self.devices, *(variant.devices for variant in self.variants.values() if variant.devices)]
        return 1 if self.simulate_devices else max(devices.num_devices for devices in divisions)


METRICS = {
    "AP": "ap",
    "AP50": "ap50",
    "AP75": "ap75",
    "mask AP": "mask_ap",
    "AP, batch statistics": "ap_batch_statistics",
    "AP, recalibrated": "ap_recalibrated",
}
"""The column of a row for each metric of the task."""


def cells(settings: DetectionSettings) -> list[Cell]:
    """Return one cell per detector and seed."""
    return grid(settings.seeds, norm=settings.variants)


def measure(settings: DetectionSettings, cell: Cell, runs: Path) -> Measurement:
    """Train the detector of a cell and return its metrics, the estimation shift of its norms and, for seed 0, a picture.

    Args:
        settings: the settings.
        cell: `norm`, the name of a detector, and `seed`.
        runs: the folder of the run store.
    """
    detector, config = settings.variants[cell["norm"]], settings.training.config
    options = replace(Detection.options_of(config), frozen_submodule=detector.frozen_submodule, masks=detector.masks)
    if detector.pretrained is not None:
        options = replace(options, weights=train_backbone(settings.pretraining, detector.pretrained, runs))
    devices = detector.devices or settings.devices
    config = divide_samples(config, devices, simulate=settings.simulate_devices, sync=detector.sync)
    config = replace(config, norm=detector.norm, seed=cell["seed"], options=options)
    config = make_config(config, settings.training.base_batch_size)
    record = train_run(config, runs)
    done = record.done
    metrics = {column: record.metrics.get(f"test_{name}") if done else None for name, column in METRICS.items()}
    shift = [layer.shift for layer in record.shift or ()]
    return {
        **{column: value if value is None else round(value, 3) for column, value in metrics.items()},
        "shift": [None if value is None else round(value, 4) for value in shift],
        **run_outcome(record),
        "picture": last_artifact(runs, config.id, "detections") if done and cell["seed"] == 0 else "",
    }


def train_backbone(pretraining: Training, norm: str, runs: Path) -> str:
    """Return the path of the weights of a classifier that initializes the backbone of a detector; train it if it is not stored.

    All seeds of a detector start from the same classifier, as in the papers.

    Raises:
        DataError: if the classifier cannot be trained.
    """
    config = make_config(replace(pretraining.config, norm=norm), pretraining.base_batch_size)
    record = train_run(config, runs)
    if not record.done:
        raise DataError(f"the classifier with {norm} that a detector starts from could not be trained: {record.note}.")
    return str(Store(runs).folder(config.id) / "model.pt")


def higher_ap(norm: str, other: str, paper: str, column: str = "ap", metric: str = "AP") -> Claim:
    """Return the claim that a detector has a higher AP than another.

    Args:
        norm: the name of the better detector.
        other: the name of the other one.
        paper: the numbers in the paper, see `Claim`.
        column: the column of the record.
        metric: the name of the column in the statement.
    """
    statement = f"`{norm}` has a higher {metric} than `{other}`"
    return Claim(statement, paper, values_of(column, norm=norm), values_of(column, norm=other))


def metrics_row(record: RecipeRecord[DetectionSettings], norm: str, columns: dict[str, str]) -> Row:
    """Return metrics of a detector by title: results over seeds, "–" for a metric that the detector does not have.

    Args:
        record: the record of the recipe.
        norm: the name of the detector.
        columns: the columns of the rows, by title.
    """
    has_failed = any(row["failure"] for row in record.rows if row["norm"] == norm)
    return {
        title: result_over_seeds(record.rows, column, norm=norm)
        if has_failed or None not in select(record.rows, column, norm=norm)
        else "–"
        for title, column in columns.items()
    }


MODES = {"ap": "running statistics", "ap_recalibrated": "recalibrated", "ap_batch_statistics": "batch statistics"}
"""The label in plots of each column: the statistics that the norms use in evaluation."""


def draw_modes(record: RecipeRecord[DetectionSettings], path: Path, titles: dict[str, str], shifts: dict[str, str]) -> list[Path]:
    """Plot the AP of variants with running, recalibrated and batch statistics, and their estimation shift by layer.

    Args:
        record: the record of the recipe.
        path: the path without the extension.
        titles: the label of each variant in the plot of AP.
        shifts: the label of each variant in the plot of estimation shift.
    """
    fig = Figure(figsize=(12, 4.2), layout="constrained")
    bars, layers = fig.subplots(1, 2, width_ratios=(1.5, 1))
    for index, norm in enumerate(titles):
        modes = [column for column in MODES if successful(record.rows, column, norm=norm)]
        for k, column in enumerate(modes):
            values = successful(record.rows, column, norm=norm)
            position = index + 0.26 * (k - (len(modes) - 1) / 2)
            color = draw.COLORS[list(MODES).index(column)]
            bars.bar(position, sum(values) / len(values), 0.24, color=color, alpha=0.85)
            bars.plot([position] * len(values), values, ".", color="black", ms=4)
    for k, label in enumerate(MODES.values()):
        bars.bar(0, 0, color=draw.COLORS[k], label=label, alpha=0.85)
    bars.set_xticks(range(len(titles)), list(titles.values()))
    bars.set(ylabel="box AP (%)", title="AP on test images, mean and every seed")
    bars.set_ylim(0, 1.25 * bars.get_ylim()[1])
    bars.legend(frameon=False, loc="upper center", ncols=3)
    for (norm, label), color in zip(shifts.items(), draw.COLORS, strict=False):
        rows = [row["shift"] for row in record.rows if row["norm"] == norm and row["shift"]]
        if rows:
            means = [sum(values) / len(values) for values in zip(*rows, strict=True)]
            layers.plot(range(1, len(means) + 1), means, "o-", ms=3, color=color, label=label)
    layers.set(xlabel="norm with running statistics, from first to last", ylabel="estimation shift", ylim=(0, None))
    layers.set_title("Estimation shift by layer, mean over seeds")
    layers.set_ylim(0, 1.25 * layers.get_ylim()[1])
    layers.legend(frameon=False, loc="upper center", ncols=3 if len(shifts) < 4 else 2)
    return save_figure(fig, path)
