"""bgn Table 6: six norms in few-shot classification by imprinted weights.

    anynorm reproduce bgn_few_shot --preset night

Paper: miniImageNet (84 × 84 pixels), ResNet-12 with a cosine classifier, trained on 64 base classes as by Gidaris & Komodakis
(2018): SGD with Nesterov momentum, batch size 256, 60 epochs; mean accuracy of 600 episodes of 5 novel classes, with 1 and with 5
shots.

    smoke  digits 0 to 5 as base classes, 6 to 9 as novel ones; checks that the code works and claims nothing
    desk   200 background characters of Omniglot (32 × 32 pixels), ResNet-12 of an eighth of the width, 10 epochs; 300
           episodes of 5 characters of one alphabet of the evaluation set; needs omniglot/ in the data directory. A
           demonstration; decides nothing unless its controls hold
    night  the same network and characters, 32 epochs (2000 steps) with a cosine schedule and a learning rate per norm, which also
           train GN, LN and PN; 600 episodes; G chosen on validation characters. Numbers are subject to a pilot until a record
           exists
    paper  the published setting; needs miniimagenet/ in the data directory; G chosen on its validation classes

Scaled down in `desk` and `night`: other images, a small network and 620 or 2000 steps instead of 60 000. In `desk`, the published
schedule divides the learning rate by 17 after 206 steps (in the paper after 20 000): LN, GN and PN have learned nothing by then.
Images are padded from 28 to 32 pixels: the groups of BGN divide maps of 32, 16, 8
and 4 pixels, but not those of 7. Channels are 8 to 64, so GN has 8 groups. A seed chooses the base characters, too.

The paper gives the confidence interval over the episodes of one training. This interval does not contain the spread over
trainings. The record has both, and the claims are tested over trainings, with the same episodes for all; their intervals contain
the noise of the draw of the episodes, not that of the choice of the novel classes. Accuracies of the
nearest class mean (prototypes, Snell et al. 2017) with the same features are in the record too.

Not in the paper, so chosen here: an epoch has 1000 steps, as in the protocol that it follows; GN has 32 groups. The number of
groups of BGN is not given, and 512, its number for large batches, does not divide maps of 21 × 21 pixels: it is chosen among 256,
64, 16 and 1 on validation classes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from anynorm.lab.recipes.bgn.few_shot.results import SHOTS, claims, controls, plot, tables
from anynorm.lab.recipes.bgn.few_shot.settings import PRESETS, FewShotSettings
from anynorm.lab.recipes.bgn.group_choice import choose_groups, with_groups
from anynorm.lab.recipes.bgn.validation_data import is_pilot, validation_data
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.runs import items_of, last_accuracy, make_config, run_outcome, train_run
from anynorm.lab.tasks.few_shot.task import SCORES, metric_name
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.sweep import Cell, Measurement, grid


def cells(settings: FewShotSettings) -> list[Cell]:
    """Return one cell per norm and seed."""
    return grid(settings.seeds, norm=settings.norms)


def measure(settings: FewShotSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network on the base classes; return its accuracies by episodes of novel classes."""
    spec = settings.norms[cell["norm"]]
    if not settings.groups.chooses(spec):
        return _metrics(_train(settings, cell, spec, runs))

    def accuracy(groups: int, seed: int) -> float | None:
        record = _train(settings, cell | {"seed": seed}, with_groups(spec, groups), runs)
        return record.metrics[f"test_{metric_name(SHOTS[0])}"] if record.done else None

    chosen = choose_groups(settings.groups, accuracy)
    return _metrics(_train(settings, cell, with_groups(spec, chosen.groups), runs)) | chosen.columns


def _train(settings: FewShotSettings, cell: Cell, spec: str, runs: Path) -> RunRecord:
    """Train the network of a cell with a spec instead of its norm; with a pilot seed, it is tested on validation classes."""
    config = settings.training.config
    lr = settings.lrs.get(cell["norm"], config.lr)
    data = validation_data(config.data) if is_pilot(cell["seed"]) else config.data
    config = replace(config, norm=spec, lr=lr, seed=cell["seed"], data=data)
    return train_run(make_config(config, settings.training), runs)


def _metrics(record: RunRecord) -> Measurement:
    names = [metric_name(shots, suffix) + interval for shots in SHOTS for suffix in SCORES for interval in ("", ", 95 % CI")]
    values = {name: record.metrics[f"test_{name}"] if record.done else None for name in names}
    error = f"test_{metric_name(SHOTS[0])}"
    curve = [[point["epoch"], round(point["train_error"], 2), round(100 - point[error], 2)] for point in record.curve]
    return {
        **{name: None if value is None else round(value, 3) for name, value in values.items()},
        "train_accuracy": last_accuracy(record, "train_error"),
        "curve": curve,
        **items_of(record, {name: name for name in map(metric_name, SHOTS)}),
        **run_outcome(record),
    }


RECIPE = Recipe("bgn_few_shot", PRESETS, cells, measure, claims, plot, tables, controls=controls)
