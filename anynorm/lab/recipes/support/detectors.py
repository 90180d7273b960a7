"""Functions shared by the recipes of detection: train detectors with variants of norms and pretrained backbones, and plot them.

A variant is a dictionary that defines the norms of a detector and the division of samples over devices:

    norm         layout of the norms, such as "bn;fpn=gn:8;heads=gn:8"
    devices      number of devices and of samples per device; default: `devices` of the settings
    sync         whether norms pool the samples of all devices; simulated devices are then replaced by one with all samples
    pretrained   norms of the classifier from which the backbone is initialized; default: train from scratch
    frozen       the part of the detector whose norms are frozen; default: none
    masks        whether the detector is Mask R-CNN instead of Faster R-CNN; default: false
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.errors import DataError
from anynorm.lab.recipes.support.pictures import last_artifact
from anynorm.lab.recipes.support.recipe import Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import save_figure, select, successful
from anynorm.lab.recipes.support.runs import make_config, train_run
from anynorm.lab.training.statistics import mean_sd
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Row

METRICS = {
    "AP": "ap",
    "AP50": "ap50",
    "AP75": "ap75",
    "mask AP": "mask_ap",
    "AP, batch statistics": "ap_batch_statistics",
    "AP, recalibrated": "ap_recalibrated",
}
"""The column of a row for each metric of the task."""


def measure_detector(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train the detector of a cell and return its metrics, the estimation shift of its norms and, for seed 0, a picture.

    Args:
        settings: `train`, `options`, `base_batch_size` (see `make_config`), `devices`, `devices_are` (the field of `Config` that
            is set to the number of devices), `variants` by name, and `pretraining` if a variant is pretrained.
        cell: `norm`, the name of a variant, and `seed`.
        runs: the folder of the run store.
    """
    variant: dict[str, Any] = settings["variants"][cell["norm"]]
    options = settings["options"] | {name: variant[name] for name in ("frozen", "masks") if name in variant}
    if "pretrained" in variant:
        options = options | {"weights": train_backbone(settings, variant["pretrained"], runs)}
    devices, samples = divide_samples(settings, variant)
    fields: dict[str, Any] = {settings["devices_are"]: devices}
    if variant.get("sync", False) and settings["devices_are"] == "devices":
        fields["sync"] = True
    config = make_config(settings, variant["norm"], samples, cell["seed"], options=options, **fields)
    record = train_run(config, runs)
    done = record["status"] == "done"
    metrics = {column: record.get(f"test_{name}") if done else None for name, column in METRICS.items()}
    shift = [entry["shift"] for entry in record.get("shift") or []]
    return {
        **{column: value if value is None else round(value, 3) for column, value in metrics.items()},
        "shift": [None if value is None else round(value, 4) for value in shift],
        "failure": "" if done else record["note"],
        "seconds": record["seconds"],
        "commit": record["provenance"]["commit"],
        "picture": last_artifact(runs, config.id, "detections") if done and cell["seed"] == 0 else "",
    }


def divide_samples(settings: Settings, variant: dict[str, Any]) -> tuple[int, int]:
    """Return the number of devices of a variant and the number of samples per forward pass and device."""
    devices, samples = variant.get("devices") or settings["devices"]
    if variant.get("sync", False) and settings["devices_are"] != "devices":
        return 1, devices * samples  # simulated devices that pool their samples are equivalent to one device
    return devices, samples


def train_backbone(settings: Settings, norm: str, runs: Path) -> str:
    """Return the path of the weights of a classifier that initializes the backbone of a detector; train it if it is not stored.

    All seeds of a detector start from the same classifier, as in the papers.

    Raises:
        DataError: if the classifier cannot be trained.
    """
    config = make_config(settings["pretraining"], norm, settings["pretraining"]["batch_size"], seed=0)
    record = train_run(config, runs)
    if record["status"] != "done":
        raise DataError(f"the classifier with {norm} that a detector starts from could not be trained: {record['note']}.")
    return str(Store(runs).folder(config.id) / "model.pt")


def metrics_row(record: Record, norm: str, columns: dict[str, str]) -> Row:
    """Return metrics of a variant, by title, formatted as mean ± sd over seeds.

    Args:
        record: a record with rows of `measure_detector`.
        norm: the name of the variant.
        columns: the columns of the rows, by title.
    """
    titles = {}
    for title, column in columns.items():
        values = select(record.rows, column, norm=norm)
        failed = any(row["failure"] for row in record.rows if row["norm"] == norm)
        titles[title] = mean_sd(values, ".1f", ".1f") if failed or None not in values else "–"
    return titles


MODES = {"ap": "running statistics", "ap_recalibrated": "recalibrated", "ap_batch_statistics": "batch statistics"}
"""The label in plots of each column: the statistics that the norms use in evaluation."""


def draw_modes(record: Record, path: Path, titles: dict[str, str], shifts: dict[str, str]) -> list[Path]:
    """Plot the AP of variants with running, recalibrated and batch statistics, and their estimation shift by layer.

    Args:
        record: a record with rows of `measure_detector`.
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
