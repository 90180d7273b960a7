"""bgn Table 7: accuracy on a new domain after adaptation with CAN, by norm.

    anynorm reproduce bgn_adaptation --preset night

Paper: CAN (Kang et al. 2019) on the six tasks of Office-31, ResNet-50 pretrained on ImageNet, statistics and affine of every norm
per domain; batches of 30, Adam 0.001, which is multiplied by 0.1 every 25 updates ("decay rate 0.1 and decay step 25", the
defaults of the exponential schedule in CAN's code); the training stops when the distance between the centers of source and target
is below 0.001. G of BGN differs between tasks (512, 1, 8, 32).

    smoke    digits and faded digits, a few steps; checks that the code works and claims nothing
    desk     USPS to MNIST at 16 × 16 pixels, 2000 images of each, ResNet-8, 372 steps on the source, then 186 of CAN. A
             demonstration; decides nothing unless its controls hold
    night    the same task with 372 steps of CAN, BN, BGN, GN and LN, 15 seeds, the mean of the last 5 evaluations, all 10 000
             test images; G chosen on held-out training images of the target, with their labels, as the paper's G depends on the
             task. Numbers are subject to a pilot until a record exists
    evening  photos to sketches of PACS at 64 × 64 pixels, every norm fitted to a pretrained EfficientNet-lite0
    paper    the published setting, six tasks, at most 50 loops as in CAN's code; needs office31/ with its three domains

Not as published in `paper`: 5 epochs on the source come first, because norms other than BN have no pretrained weights and are
fitted to those of BN; a loop has 90 updates; weight decay is that of CAN's code.

Scaled down in `desk` and `night`: one task with digits, a small network that is trained on the source first, SGD. So the claims
are about the order of the norms in this task. With ten classes, all of which are in each batch, the two readings of CAN's loss
are the same. Norms without statistics of the batch have an affine per domain (`gn:8.cc@2`), the others statistics too
(`bn.aux@2`).

Beyond the paper: "bn, shared" has one BN for both domains, which answers what domain-specific norms contribute; "dsbn" has
pseudo labels instead of CAN's loss, and starts from AdaBN; with CAN, the norms of the target start as copies of the source's.
"Source only" and "AdaBN" are the same networks before adaptation, as they are and with the running statistics of the target.
AdaBN changes nothing for norms without running statistics.

Controls: accuracy on the source (in `desk`, whose record does not have it, accuracy on the target before adaptation), and CAN
must gain on BN without adaptation.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from statistics import mean

from anynorm.lab.recipes.bgn.adaptation.claims import claims, controls
from anynorm.lab.recipes.bgn.adaptation.results import plot, tables
from anynorm.lab.recipes.bgn.adaptation.settings import PRESETS, AdaptationSettings, DomainPair, Method
from anynorm.lab.recipes.bgn.group_choice import choose_groups, with_groups
from anynorm.lab.recipes.bgn.validation_data import is_pilot, validation_data
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.tasks.adaptation.can import CAN
from anynorm.lab.training.config import Config
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.sweep import Cell, Measurement, grid

CAN_ONLY = ("classes_per_batch", "stop_distance")
"""Options of CAN that DSBN does not have, of those that presets set."""


def cells(settings: AdaptationSettings) -> list[Cell]:
    """Return one cell per norm and seed."""
    return grid(settings.seeds, norm=settings.norms)


def measure(settings: AdaptationSettings, cell: Cell, runs: Path) -> Measurement:
    """Train on the source and adapt to the target; return accuracies on the target before and after: means over all pairs."""
    if not settings.pairs:
        return measure_pair(settings, cell, runs)
    return mean_of_pairs({name: measure_pair(settings, cell, runs, pair) for name, pair in settings.pairs.items()})


def mean_of_pairs(rows: dict[str, Measurement]) -> Measurement:
    """Return the row of the means over pairs of domains, with the accuracy of each; None where a pair failed."""
    columns = ("accuracy", "source_accuracy", "adabn_accuracy")
    failures = [f"{name}: {row['failure']}" for name, row in rows.items() if row["failure"]]
    first = next(iter(rows.values()))
    curves = zip(*(row["accuracies"] for row in rows.values()), strict=True)
    return {
        **{name: None if failures else round(mean(row[name] for row in rows.values()), 3) for name in columns},
        "train_accuracy": None if failures else min(row["train_accuracy"] for row in rows.values()),
        "failure": "; ".join(failures),
        "seconds": sum(row["seconds"] for row in rows.values()),
        "commit": first["commit"],
        "epochs": [] if failures else first["epochs"],
        "accuracies": [] if failures else [round(mean(values), 3) for values in curves],
        "by_pair": {name: row["accuracy"] for name, row in rows.items()},
    }


def measure_pair(settings: AdaptationSettings, cell: Cell, runs: Path, pair: DomainPair | None = None) -> Measurement:
    """Return the accuracies of a cell on one pair of domains; choose G first if the sweep of the settings applies to the norm.

    Args:
        settings: of the preset.
        cell: norm and seed.
        runs: the folder of the run store.
        pair: the domains; None for those of the training.
    """
    method, config = settings.norms[cell["norm"]], settings.training.config
    if pair is not None:
        config = replace(config, data=pair.data, options=replace(CAN.options_of(config), target=pair.target))
        method = replace(method, norm=pair.bgn) if pair.bgn and cell["norm"] == "bgn" else method

    def train(norm: str, seed: int) -> RunRecord:
        return _train(settings, config, replace(method, norm=norm), seed, runs)

    if not settings.groups.chooses(method.norm):
        return _metrics(train(method.norm, cell["seed"]), settings.mean_of_last)

    def accuracy(groups: int, seed: int) -> float | None:
        return last_mean(train(with_groups(method.norm, groups), seed), settings.mean_of_last)

    chosen = choose_groups(settings.groups, accuracy)
    record = train(with_groups(method.norm, chosen.groups), cell["seed"])
    return _metrics(record, settings.mean_of_last) | chosen.columns


def _train(settings: AdaptationSettings, config: Config, method: Method, seed: int, runs: Path) -> RunRecord:
    """Train a network; with a pilot seed, it is tested on held-out training images of the target."""
    if is_pilot(seed):
        options = CAN.options_of(config)
        config = replace(config, num_test=None, options=replace(options, target=validation_data(options.target)))
    if method.task == "dsbn":
        config = replace(config, options={k: v for k, v in config.option_values.items() if k not in CAN_ONLY})
    config = replace(config, task=method.task, norm=method.norm, seed=seed)
    config = make_config(config, settings.training)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="clusters? .* no sample")  # usual in first loops of poor features
        return train_run(config, runs)


def last_mean(record: RunRecord, count: int) -> float | None:
    """Return the mean accuracy in % of the last evaluations; None if the run failed."""
    errors = [point["test_error"] for point in record.curve[-count:]]
    return round(100 - mean(errors), 3) if record.done else None


def _metrics(record: RunRecord, mean_of_last: int) -> Measurement:
    """Return the metrics of a run. Test images that are right are those of the last network, also for a mean of evaluations."""
    return run_metrics(record) | {"accuracy": last_mean(record, mean_of_last)} | before_adaptation(record)


def before_adaptation(record: RunRecord) -> Measurement:
    """Return the accuracies at the last evaluation before the adaptation, and the curve of accuracies by epoch.

    `train_accuracy` is that on the source: the adaptation has no labels of the target.
    """
    curve = record.curve
    before = [point for point in curve if "test_adabn_error" in point]
    done = record.done and bool(before)
    return {
        "train_accuracy": round(100 - before[-1]["train_error"], 3) if done else None,
        "source_accuracy": round(100 - before[-1]["test_error"], 3) if done else None,
        "adabn_accuracy": round(100 - before[-1]["test_adabn_error"], 3) if done else None,
        "epochs": [point["epoch"] for point in curve],
        "accuracies": [round(100 - point["test_error"], 3) for point in curve],
    }


RECIPE = Recipe("bgn_adaptation", PRESETS, cells, measure, claims, plot, tables, controls=controls)
