"""sabn Table 2: CCBN and SaBN in architecture search by DARTS on NAS-Bench-201.

    anynorm reproduce sabn_search --preset night

Paper: first-order DARTS with four kinds of norms in the operations of the supernet: batch norm without affine (DARTS), with
affine, CCBN and SaBN; the last two are conditioned on operations drawn from softmax(α) for the edges before them. Accuracy of the
cell of the largest α per edge, from the benchmark's table, on CIFAR-100 and ImageNet16-120.

    smoke  32 digits, 2 steps, a table with synthetic accuracies; checks that the code works and claims nothing
    desk   CIFAR-10 at 16 × 16 pixels, 8 channels, one cell per stage, 600 steps; needs nasbench201/nb201.npz in the data
           directory (`anynorm.lab.tasks.search.nasbench`); a demonstration, which decides nothing unless its controls hold
    night  the supernet of `desk`, 3000 steps, weights before α, accuracies on CIFAR-100, 12 seeds; subject to a pilot until its
           record exists
    paper  the published setting; needs the table, CIFAR-100, and a folder imagenet16-120/ with train/ and test/

Controls: α is far from uniform, since otherwise the search has chosen nothing; the supernet has learned; and DARTS fails, which
SaBN repairs: its cell is at least half as far below the best cell as in the paper (29.46 points on CIFAR-100, 10.84 on
ImageNet16-120).

Scaled down in `desk` and `night`: the search is on CIFAR-10 instead of the two data sets whose accuracies are reported; the
supernet has half of the channels and a fifth of the cells; fewer steps, of 32 images; α learns with 1e-2 instead of 3e-4, a rate
chosen by a few single runs. `desk` updates α before the weights, as Algorithm 1 of DARTS does; `night` and `paper` update it
after the weights, as the public code does.

The paper has the accuracy of the cell of the largest α. One edge of a cell may change it by more than 10 points, so it is noisy.
Two metrics of ours are less so: the expected accuracy of cells drawn from softmax(α), exact, and the rank correlation of
log p(cell) with accuracy over all 15 625 cells. The metrics and the columns of one search are counted once. The row "random cell"
is a uniformly random one: it has 61.41 % on CIFAR-100, and the paper's DARTS with affine (63.46) and with CCBN (62.16) are close
to it. "DARTS-SaBN, class 0" is an ablation: the class is always 0, so nothing is drawn.

Statistics are those of the batch throughout, as in the paper's code. A batch has one class, so norms with statistics per class
(`auxbn@K`, `saauxbn@K`) compute the same as CCBN and SaBN here, and are not measured apart.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from anynorm.lab.recipes.sabn.search.claims import METRICS, claims, controls
from anynorm.lab.recipes.sabn.search.results import plot, tables
from anynorm.lab.recipes.sabn.search.settings import PRESETS, SearchSettings
from anynorm.lab.recipes.support import synthetic_table
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.runs import last_accuracy, make_config, run_outcome, train_run
from anynorm.lab.tasks.search.darts import DifferentiableSearch
from anynorm.lab.tasks.search.nasbench import load_table
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Cell, Measurement, grid


def cells(settings: SearchSettings) -> list[Cell]:
    """Return one cell per search, method and seed."""
    return grid(settings.seeds, search=settings.searches, method=settings.methods)


def measure(settings: SearchSettings, cell: Cell, runs: Path) -> Measurement:
    """Search, and return the metrics of the architecture at the end, their curves, and the table's mean and maximum."""
    method, search = settings.methods[cell["method"]], settings.searches[cell["search"]]
    config = search.training.config
    options = replace(DifferentiableSearch.options_of(config), sample_conditions=method.sample_conditions)
    if options.table == synthetic_table.NAME:
        options = replace(options, table=str(synthetic_table.write_synthetic_table(runs / "synthetic.npz")))
    config = replace(config, norm=method.norm, seed=cell["seed"], options=options)
    config = make_config(config, search.training)
    record = train_run(config, runs)
    done, curve = record.done, record.curve
    names = [f"{metric} {data_set}" for metric in METRICS for data_set in search.accuracies]
    names += ["skips", "error", "alpha distance"]
    artifact = Store(runs).folder(config.id) / "artifacts" / "architecture.json"
    return {
        **{name: float(f"{record.metrics[f'test_{name}']:.6g}") if done else None for name in names},
        "supernet_accuracy": last_accuracy(record, "test_error"),
        "cell": json.loads(artifact.read_text())["architecture"] if done else "",
        "curves": {"step": [point["step"] for point in curve]}
        | {name: [float(f"{point[f'test_{name}']:.5g}") for point in curve] for name in names},
        "table": {data_set: describe_table(options.table, data_set) for data_set in search.accuracies},
        **run_outcome(record),
    }


def describe_table(path: str, data_set: str) -> dict[str, float]:
    """Return mean, standard deviation and maximum of the accuracies of all cells."""
    accuracy = load_table(path).accuracy(data_set)
    values = {"mean": accuracy.mean(), "sd": accuracy.std(correction=0), "best": accuracy.max()}
    return {name: round(float(value), 3) for name, value in values.items()}


RECIPE = Recipe("sabn_search", PRESETS, cells, measure, claims, plot, tables, controls)
