"""sabn Table 1, Figs. 2 and 3: CCBN against SaBN in generators, and the balance of their gradients.

    anynorm reproduce sabn_generation --preset desk

Paper: SNGAN, BigGAN and AutoGAN on CIFAR-10, SNGAN on the 143 classes of dogs and cats of ImageNet at 128 × 128 pixels; FID and
IS, the best of each during training (Table 1). Gradients of classes during training: standard deviation of their norms and cosine
similarity, by stage (Fig. 2). Loss of the generator and IS over steps (Fig. 3).

    smoke  20 s      64 digits, SNGAN, 4 steps; checks that the code works and claims nothing
    desk   16 min    CIFAR-10 at 16 × 16 pixels, generators of 32 channels, 600 steps; SNGAN also with 140 classes
    paper  not run   the published settings; needs the Inception network (`pip install 'anynorm[generation]'`) and a folder
                     imagenet-dogs-cats/ with train/ and test/

Scaled down in `desk`: 600 steps of 50 000, an eighth of the width, 32 images per batch, two updates of the discriminator, so the
claims are about the order of the norms early in training. Distances use the features of a ResNet-20 trained on CIFAR-10 ("FD
(ResNet-20)", not FID) of 2000 generated and 10 000 real images; the value of a run is the mean of its last three evaluations, not
the best one. The learning rate of 4e-4 was chosen with one seed of SNGAN. The 143 classes of ImageNet are replaced by 140
clusters of CIFAR-10 (`support.cifar_clusters`).

Reference images are chosen at random from the training images. The record is older than this choice: its 10 000 are the first
ones of CIFAR-10, which are in random order too.

The gradient balance is measured in train mode and in eval mode, because the paper does not say which it used and the order of the
norms depends on it. The feature network of FID has no logits, so `paper` has FID and KID, but no IS.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import save_figure, select, values_of
from anynorm.lab.recipes.support.runs import make_config, train_run
from anynorm.lab.tasks.generation.feature_networks import distance_name, metric_suffix
from anynorm.lab.training.statistics import mean_sd
from anynorm.lab.training.sweep import Row, grid
from anynorm.table import Table

MODES = ("train", "eval")
NORMS = {"CCBN": "ccbn@K", "SaBN": "sabn@K"}
COMMON: Settings = {"task": "generation", "weight_decay": 0.0, "schedule": "constant"}
DESK: Settings = {
    "train": COMMON | {
        "data": "cifar10@16", "width": 0.125, "num_train": 9600, "epochs": 4, "lr": 4e-4, "ema_decay": 0.99, "num_evals": 6,
    },
    "options": {
        "n_dis": 2, "features": "resnet20", "num_generated": 2000, "num_reference": 10_000,
        "balance_interval": 100, "balance_draws": 2,
    },
    "batch_size": 32, "base_batch_size": 32, "last": 3, "seeds": 3, "norms": NORMS,
    "networks": {
        "SNGAN": {"model": "sngan"},
        "BigGAN": {"model": "biggan"},
        "AutoGAN": {"model": "autogan"},
        "SNGAN, many classes": {"model": "sngan", "data": "anynorm.lab.recipes.support.cifar_clusters:cifar10_140"},
    },
}  # fmt: skip
IMAGENET: Settings = {
    "model": "sngan", "data": "stream:imagenet-dogs-cats", "image_size": 128, "batch_size": 16, "epochs": 194,
    "options": {"generator_batch_size": 32, "num_generated": 20_000},
}  # fmt: skip
"""450 000 steps of five batches of 16 of the 186 000 images of 143 classes."""
PRESETS: dict[str, Settings] = {
    "smoke": DESK
    | {
        "train": DESK["train"] | {"data": "digits", "width": 1 / 32, "num_train": 64, "epochs": 4, "num_evals": 2},
        "options": {
            "n_dis": 2, "num_generated": 100, "num_reference": 200, "intra_class": False,
            "balance_interval": 2, "balance_draws": 1,
        },
        "networks": {"SNGAN": {"model": "sngan"}},
        "seeds": 2,
    },
    "desk": DESK,
    "paper": {
        "train": COMMON | {"data": "cifar10", "epochs": 320, "lr": 2e-4, "ema_decay": 0.999, "num_evals": 16},
        "options": {
            "n_dis": 5, "generator_batch_size": 128, "features": "inception", "num_generated": 50_000, "intra_class": False,
            "balance_interval": 1000,
        },
        "batch_size": 64, "base_batch_size": 64, "last": 1, "seeds": 3, "norms": NORMS,
        "networks": {
            "SNGAN": {"model": "sngan"},
            "BigGAN": {
                "model": "biggan", "batch_size": 50, "epochs": 500, "ema_decay": 0.9999,
                "options": {"n_dis": 4, "generator_batch_size": 50, "beta2": 0.999},
            },
            "AutoGAN": {"model": "autogan"},
            "SNGAN, many classes": IMAGENET,
        },
    },
}  # fmt: skip
FID = {"SNGAN": (10.18, 8.97), "BigGAN": (8.57, 8.03), "AutoGAN": (10.51, 9.11), "SNGAN, many classes": (79.14, 60.38)}
IS = {"SNGAN": (8.76, 8.89), "BigGAN": (8.91, 9.01), "AutoGAN": (8.43, 8.72), "SNGAN, many classes": (16.75, 18.31)}
"""The paper's numbers with CCBN and with SaBN."""


def cells(settings: Settings) -> list[Row]:
    """Return one cell per network, norm and seed."""
    return grid(settings["seeds"], network=settings["networks"], norm=settings["norms"])


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train a GAN and return its distances, scores, loss and gradient balance."""
    overrides = dict(settings["networks"][cell["network"]])
    size = overrides.pop("batch_size", settings["batch_size"])
    options = settings["options"] | overrides.pop("options", {})
    at_own_size = settings | {"base_batch_size": size}  # Adam's learning rate does not follow the batch size
    config = make_config(at_own_size, settings["norms"][cell["norm"]], size, cell["seed"], **overrides, options=options)
    record = train_run(config, runs)
    common = {"seconds": record["seconds"], "commit": record["provenance"]["commit"]}
    if record["status"] != "done":
        empty = dict.fromkeys(
            ["fd", "best_fd", "class_score", "generator_loss", *(f"{m} {mode}" for m in BALANCE for mode in MODES)]
        )
        return {**empty, "curves": {}, "failure": record["note"], **common}
    return {**summarize(record["curve"], str(options.get("features", "classifier")), settings["last"]), "failure": "", **common}


BALANCE = ("grad_norm_std", "g_inter")


def summarize(curve: list[dict[str, float]], features: str, last: int) -> Row:
    """Return the metrics of a run from its curve.

    Args:
        curve: the points of the evaluations.
        features: the feature network.
        last: number of last evaluations whose mean is the value of the run.

    Returns:
        Values (`fd`, `best_fd`, `class_score`, `generator_loss`, and the gradient balance by mode, as means over stages and
        evaluations) and `curves`, the series of all of them with the gradient balance by stage.
    """
    names = {
        "fd": f"test_{distance_name(features)}",
        "class_score": f"test_class score{metric_suffix(features)}",
        "generator_loss": "train_generator_loss",
    }
    curves: dict[str, list[Any]] = {name: [point.get(key) for point in curve] for name, key in names.items()}
    stages = {key.removeprefix("train_"): key for key in curve[-1] if any(f"train_{metric} " in key for metric in BALANCE)}
    curves |= {name: [point.get(key) for point in curve] for name, key in stages.items()}
    values: Row = {name: _mean(curves[name][-last:]) for name in names}
    values["best_fd"] = min(curves["fd"])
    for metric in BALANCE:
        for mode in MODES:
            series = [series for name, series in curves.items() if name.startswith(metric) and name.endswith(f"({mode} mode)")]
            values[f"{metric} {mode}"] = _mean([value for column in series for value in column])
    digits = {name: [None if value is None else float(f"{value:.5g}") for value in column] for name, column in curves.items()}
    return {**values, "curves": {"step": [point["step"] for point in curve], **digits}}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(f"{statistics.fmean(known):.6g}") if known else None


def claims(settings: Settings) -> list[Claim]:
    """Return the order of the norms in Table 1 for each network, and in Figs. 2 and 3 for SNGAN with few and many classes."""
    result = []
    features = settings["options"].get("features", "classifier")
    for network in settings["networks"]:
        paper = FID[network]
        statement = f"{distance_name(features)} of CCBN is larger than of SaBN ({network})"
        result.append(_compare(statement, f"{paper[0]} and {paper[1]} (FID)", "fd", network, "CCBN"))
        if features != "inception":
            paper = IS[network]
            statement = f"class score{metric_suffix(features)} of SaBN is larger than of CCBN ({network})"
            result.append(_compare(statement, f"{paper[1]} and {paper[0]} (IS)", "class_score", network, "SaBN"))
    for network in settings["networks"]:
        if not network.startswith("SNGAN"):
            continue
        for mode in MODES:
            for metric, name in (
                ("grad_norm_std", "standard deviation of class gradient norms"),
                ("g_inter", "cosine of class gradients"),
            ):
                statement = f"the {name} of CCBN is larger than of SaBN in {mode} mode ({network})"
                result.append(_compare(statement, "Fig. 2", f"{metric} {mode}", network, "CCBN"))
        result.append(_compare(f"L_G of CCBN is larger than of SaBN ({network})", "Fig. 3", "generator_loss", network, "CCBN"))
    return result


def _compare(statement: str, paper: str, column: str, network: str, larger: str) -> Claim:
    smaller = "SaBN" if larger == "CCBN" else "CCBN"
    return Claim(
        statement, paper, values_of(column, network=network, norm=larger), values_of(column, network=network, norm=smaller)
    )


def tables(record: Record) -> list[Table]:
    """Return the distances, scores and losses by network and norm."""
    features = record.settings["options"].get("features", "classifier")
    columns = {
        "fd": distance_name(features),
        "best_fd": f"best {distance_name(features)}",
        "class_score": f"class score{metric_suffix(features)}",
        "generator_loss": "L_G",
    }
    rows = [
        {"network": network, "norm": norm}
        | {
            name: mean_sd(select(record.rows, column, network=network, norm=norm), ".3g", ".2g")
            for column, name in columns.items()
            if any(row[column] is not None for row in record.rows)
        }
        for network in record.settings["networks"]
        for norm in record.settings["norms"]
    ]
    last = record.settings["last"]
    return [Table(rows, f"Mean of the last {last} evaluations; best: the best of all. Mean ± sd over seeds.")]


def plot(record: Record, path: Path) -> list[Path]:
    """Plot distance, loss and gradient balance over steps, one row per network."""
    networks = list(record.settings["networks"])
    label = distance_name(record.settings["options"].get("features", "classifier"))
    fig = Figure(figsize=(17, 2.9 * len(networks)), layout="constrained")
    axes = fig.subplots(len(networks), 4, squeeze=False)
    for network, row in zip(networks, axes, strict=True):
        draw.lines(_by_step(record, network, "fd"), row[0], xlabel="step", ylabel=label, title=f"{network}: distance")
        draw.lines(
            _by_step(record, network, "generator_loss"), row[1], xlabel="step", ylabel="L_G", title="loss of the generator"
        )
        for mode, ax in zip(MODES, row[2:], strict=True):
            labels = {"xlabel": "stage", "ylabel": "sd of class gradient norms", "title": f"gradient balance, {mode} mode"}
            draw.lines(_by_stage(record, network, mode), ax, **labels)
        for ax in row:
            ax.legend(frameon=False, fontsize="small")
    return save_figure(fig, path, dpi=90)


def _by_step(record: Record, network: str, name: str) -> dict[str, dict[int, list[float]]]:
    result: dict[str, dict[int, list[float]]] = {}
    for norm in record.settings["norms"]:
        points: dict[int, list[float]] = {}
        for curves in select(record.rows, "curves", network=network, norm=norm):
            for step, value in zip(curves.get("step", ()), curves.get(name, ()), strict=True):
                points.setdefault(step, []).append(value)
        result[norm] = points
    return result


def _by_stage(record: Record, network: str, mode: str) -> dict[str, dict[str, list[float]]]:
    """Return the standard deviation of gradient norms by norm and stage, means over steps, one per seed."""
    result: dict[str, dict[str, list[float]]] = {}
    for norm in record.settings["norms"]:
        stages: dict[str, list[float]] = {}
        for curves in select(record.rows, "curves", network=network, norm=norm):
            for name, values in curves.items():
                if name.startswith("grad_norm_std") and name.endswith(f"({mode} mode)"):
                    stage = name.removeprefix("grad_norm_std ").removesuffix(f" ({mode} mode)")
                    stages.setdefault(stage, []).append(statistics.fmean(value for value in values if value is not None))
        result[norm] = stages
    return result


RECIPE = Recipe("sabn_generation", PRESETS, cells, measure, claims, plot, tables)
