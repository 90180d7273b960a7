"""sn Table 2, in the text: SN against IN, LN, BRN and BKN, sparse SN and group SN.

    anynorm reproduce sn_variants --preset night

Paper: ResNet-50 on ImageNet. Sec. 4.1: at (8, 32) IN has 71.6 %, LN 74.7 %, BKN 76.8 % and SN 76.9 %; at (8, 4) BN has 72.7 %,
BRN (r_max 1.5, d_max 0.5) 73.7 % and SN 75.9 %. Sec. 2.1: sparse SN, in which each layer of a trained SN selects only one
normalizer and the network is fine-tuned, has 77.0 %, group SN with two groups 77.2 %.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    night  20 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-8, 15 epochs, 32 samples per step (`support.presets.NIGHT`)
    paper  the published setting (`sn.training.IMAGENET_SN`); needs a folder imagenet/ with train/ and test/

Not in the texts, so chosen here: how sparse SN is fine-tuned (a fifth of the epochs, at a tenth of the learning rate, cosine
schedule, on one device), and the schedule of BRN's limits (that of the layer `brn`). All networks are tested
with moving averages, among which the norms are compared. BKN is what `layers/baselines/kalman.py` says about its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import anynorm
from anynorm import draw
from anynorm.lab.recipes.sn.training import IMAGENET_SN, LEARNED_NIGHT, LEARNED_PAPER
from anynorm.lab.recipes.support.claims import Claim, Equivalent, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.presets import NIGHT, SMOKE
from anynorm.lab.recipes.support.quantities import accuracy_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_cell, train_run
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.tasks.run import load_run, summarize, train
from anynorm.lab.training.config import Config
from anynorm.lab.training.record import DONE, FAILED, RunRecord
from anynorm.lab.training.sweep import Cell, Measurement
from anynorm.table import Table

SPARSE = "sparse sn"
SPECS = {"sn": "sn", "in": "in", "ln": "ln", "bn": "bn", "bkn": "bkn", "brn": "brn", "group sn": "sn:2", SPARSE: "sn"}
PUBLISHED: dict[str, dict[str, float]] = {
    "32": {"sn": 76.9, "in": 71.6, "ln": 74.7, "bkn": 76.8, SPARSE: 77.0, "group sn": 77.2},
    "4": {"sn": 75.9, "bn": 72.7, "brn": 73.7},
}
"""The paper's accuracy in % by samples per device."""


@dataclass(frozen=True, kw_only=True)
class VariantSettings(TrainingSettings):
    """Settings of SN's variants and rivals.

    Args:
        norms: norms by samples per device and forward pass.
        fine_tuning_epochs: number of epochs for which sparse SN is fine-tuned.
        min_train_accuracy: training accuracy in % from which on a network has learned.
    """

    norms: Mapping[str, tuple[str, ...]]
    fine_tuning_epochs: int
    min_train_accuracy: float


NORMS = {size: tuple(accuracies) for size, accuracies in PUBLISHED.items()}
PRESETS = {
    "smoke": VariantSettings(
        seeds=2,
        training=replace(SMOKE, config=replace(SMOKE.config, model="small")),  # IN needs maps of more than one pixel
        norms=NORMS,
        fine_tuning_epochs=1,
        min_train_accuracy=0.0,
    ),
    "night": VariantSettings(seeds=8, training=NIGHT, norms=NORMS, fine_tuning_epochs=3, min_train_accuracy=LEARNED_NIGHT),
    "paper": VariantSettings(seeds=3, training=IMAGENET_SN, norms=NORMS, fine_tuning_epochs=20, min_train_accuracy=LEARNED_PAPER),
}


def cells(settings: VariantSettings) -> list[Cell]:
    """Return one cell per samples per device, norm and seed."""
    return [
        {"samples": size, "norm": norm, "seed": seed}
        for size, norms in settings.norms.items()
        for norm in norms
        for seed in range(settings.seeds)
    ]


def measure(settings: VariantSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracy; fine-tune it if it is a sparse SN."""
    config = replace(settings.training.config, norm=SPECS[cell["norm"]], batch_size=int(cell["samples"]), seed=cell["seed"])
    if cell["norm"] != SPARSE:
        return train_cell(config, settings.training, runs)
    config = make_config(config, settings.training)
    record = train_run(config, runs)
    if not record.done:
        return run_metrics(record) | {"chosen": {}, "hardened_accuracy": None}
    return fine_tune_sparse(config, settings.fine_tuning_epochs, runs)


def fine_tune_sparse(config: Config, epochs: int, runs: Path) -> Measurement:
    """Select one normalizer per layer of a stored SN, fine-tune the network, and return its metrics.

    Args:
        config: the configuration of the run with SN, which is in the store.
        epochs: number of epochs, at a tenth of the learning rate.
        runs: the folder of the run store.

    Returns:
        The metrics of a run; `chosen`, the normalizer of each layer; `hardened_accuracy`, the accuracy before fine-tuning.
    """
    task = load_run(runs, config.id)
    report = anynorm.harden(task.network, same_cut=True)
    with torch.no_grad():
        before = round(100 - task.eval().evaluate()["error"], 3)
    tuning = replace(config, epochs=epochs, stop_epoch=None, lr=config.lr / 10, schedule="cosine", devices=1)
    trainer, failure = train(tuning, task=task.train())
    record = RunRecord(config.id, vars(tuning), FAILED if failure else DONE, failure, provenance={"commit": ""})
    metrics = run_metrics(summarize(record, trainer))
    metrics = {name: value for name, value in metrics.items() if name not in ("commit", "seconds")}
    return metrics | {"chosen": {row["path"]: row["new_norm"] for row in report.rows}, "hardened_accuracy": before}


def controls(settings: VariantSettings) -> list[Control]:
    """Return when a network has learned."""
    return [Learned(settings.min_train_accuracy)]


def claims(_: VariantSettings) -> list[Claim]:
    """Return SN's order with IN, LN, BRN and group SN, and that BKN and sparse SN are comparable to it."""
    rivals, brn = Source("sn", "sec. 4.1, SN v.s. IN and LN"), Source("sn", "sec. 4.1, SN v.s. BRN and BKN")
    group = Source("sn", "sec. 2.1, group SN")
    result: list[Claim] = [
        _larger("sn", "in", "32", rivals),
        _larger("sn", "ln", "32", rivals),
        _larger("sn", "brn", "4", brn),
        _larger("brn", "bn", "4", brn),
        _larger("group sn", "sn", "32", group),
    ]
    sparse = Source("sn", "sec. 2.1, sparse SN", "comparable to 76.9% of SN without sparsity")
    for norm, source in (("bkn", brn._replace(quote="comparable to 76.9% of SN")), (SPARSE, sparse)):
        result.append(
            Equivalent(
                statement=f"`{norm}` is as accurate as `sn` (32 samples)",
                source=source,
                published=Published(PUBLISHED["32"][norm], PUBLISHED["32"]["sn"]),
                first=accuracy_of(norm=norm, samples="32"),
                second=accuracy_of(norm="sn", samples="32"),
                delta=0.5,
            )
        )
    return result


def _larger(norm: str, other: str, samples: str, source: Source) -> Larger:
    return Larger(
        statement=f"`{norm}` is more accurate than `{other}` ({samples} samples)",
        source=source,
        published=Published(PUBLISHED[samples][norm], PUBLISHED[samples][other]),
        larger=accuracy_of(norm=norm, samples=samples),
        smaller=accuracy_of(norm=other, samples=samples),
    )


def tables(record: RecipeRecord[VariantSettings]) -> list[Table]:
    """Return the accuracies by samples per device and norm."""
    rows = []
    for samples, norms in record.settings.norms.items():
        for norm in norms:
            columns = {"accuracy": "accuracy", "training accuracy": "train_accuracy"}
            results = {
                title: result_over_seeds(record.rows, column, samples=samples, norm=norm) for title, column in columns.items()
            }
            rows.append({"samples per device": samples, "norm": norm, "paper": PUBLISHED[samples][norm], **results})
    return [result_table(rows, "Accuracy in %, mean ± sd over seeds.")]


def plot(record: RecipeRecord[VariantSettings], path: Path) -> list[Path]:
    """Plot the accuracies by norm."""
    lines = {
        f"{samples} samples": {norm: values for norm in norms if (values := successful(record.rows, samples=samples, norm=norm))}
        for samples, norms in record.settings.norms.items()
    }
    fig, ax = draw.lines(lines, xlabel="norm", ylabel="test accuracy (%)", title="sn, in the text of Table 2")
    for points in ax.containers:
        points[0].set_linestyle("none")
    return save_figure(fig, path)


RECIPE = Recipe("sn_variants", PRESETS, cells, measure, claims, plot, tables, controls)
