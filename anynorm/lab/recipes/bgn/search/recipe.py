"""bgn Table 3 and Table 4: norms in cells found by DARTS and MANAS.

    anynorm reproduce bgn_search --preset night

Paper: CIFAR-10 and the DARTS space. Table 3: DARTS searches with each norm (8 cells, C = 16, 50 epochs), and the cells it found
are trained with the same norm (20 cells, C = 36, 600 epochs). Table 4: cells that MANAS found with BN, trained with each norm.

    smoke  32 digits, a few steps, a table with synthetic accuracies; checks that the code works and claims nothing
    desk   4000 images of CIFAR-10 at 16 × 16 pixels, NAS-Bench-201 space with one cell per stage, C = 8; search and
           training of 4 epochs each; needs nasbench201/nb201.npz in the data directory. A demonstration; decides nothing unless
           its controls hold
    night  the DARTS space with 3 cells, C = 4 in the search and 8 in the network, 4000 and 10 000 images at 16 × 16 pixels, 8 and
           12 epochs. Table 4 has the cells DARTS (v2) published. Numbers are subject to a pilot until a record exists
    paper  the published setting; the paper does not say whether its DARTS is of first or second order (here first)

Scaled down in `desk` and `night`: network, images and epochs, in `desk` also the space.

The paper writes that norms "fail to converge" in networks of 20 cells in 600 epochs, without a criterion. A small network that
learns in a few epochs, as LN and PN do in `desk`, does not refute this, so the statement is tested in `paper` alone: a norm fails
if it does not reach the training accuracy that all compared networks must reach. In `night`, the claim is that such a norm is
below BGN, as in the tables; it may fail. `desk` has no claim about LN and PN in this respect. Networks of NAS-Bench-201 end with
norm, ReLU and mean over positions: IN there makes all images alike, so that "IN fails" in `desk` has a cause that the paper's
networks do not have, and is counted as ours.

The paper's 32 groups of GN divide none of its channels (36, 72, 144, 108). The nearest divisor of 36 would be 36, which is IN.
`paper` has 18 groups, two channels or more in each, and 8 in the search (channels 16 to 64, 48). `desk` has 8, and BGN follows
the batch size; `night` has 4 of 8 to 32 channels. The learning rate of α is 0.01 in `desk` and `night`, with which α moves in
hundreds of steps. Norms have no affine inside the cells of the search, and found cells never have the operation none, as in
DARTS. The cell of Table 4 in `desk` is the one that MANAS with least squares recommends on the benchmark. In `paper`, IN would be
refused on the map of 1 × 1 pixels in the auxiliary head, where its variance is 0: the head has LN instead. The groups of BGN end
inside channels, as those of the paper must.

Controls: training accuracy, and the distance of softmax(α) from uniform, without which a search has chosen nothing.

Two results are not in the paper: the accuracy of a found cell after 200 epochs of the benchmark's training with BN, which has no
claim, and the policies of MANAS beside random search. These play 2000 rounds on the benchmark: the reward of a cell is the
accuracy on 160 images, binomial with the cell's validation accuracy after 12 epochs; the result is the test accuracy of the
recommended cell after 200. The learning rates of the policies are ours; they were fixed after trials on the same benchmark, so
the comparison with random search, which has nothing to tune, favors them.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anynorm.lab.models.search.nasbench201.notation import format_cell, parse_cell
from anynorm.lab.recipes.bgn.search.claims import claims, controls
from anynorm.lab.recipes.bgn.search.results import plot, tables
from anynorm.lab.recipes.bgn.search.settings import POLICY_PART, PRESETS, Search, SearchSettings
from anynorm.lab.recipes.support import synthetic_table
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.runs import make_config, run_metrics, run_outcome, train_run
from anynorm.lab.tasks.search.bandits import POLICIES
from anynorm.lab.tasks.search.nasbench import CellTable, load_table
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Cell, Measurement, grid


def cells(settings: SearchSettings) -> list[Cell]:
    """Return one cell per table, norm and seed, and one per policy and seed."""
    result = []
    for name, table in settings.tables.items():
        result += grid(settings.seeds, part=[name], norm=table.norms)
    return result + grid(settings.policy_seeds, part=[POLICY_PART], policy=settings.policies)


def measure(settings: SearchSettings, cell: Cell, runs: Path) -> Measurement:
    """Search for a cell and train it, or play the rounds of a policy; return the accuracy."""
    if settings.benchmark == synthetic_table.NAME:
        settings = replace(settings, benchmark=str(synthetic_table.write_synthetic_table(runs / "synthetic.npz")))
    if cell["part"] == POLICY_PART:
        return play(settings, cell["policy"], cell["seed"])
    table = settings.tables[cell["part"]]
    norm = table.norms[cell["norm"]]
    search = _search(table.search, cell, norm, runs) if table.search else {"architecture": table.architecture}
    architecture = search["architecture"]
    result = {"supernet_accuracy": None, **search, "benchmark_accuracy": _benchmark_accuracy(settings.benchmark, architecture)}
    if search.get("failure"):
        return {**result, "accuracy": None, "train_accuracy": None}
    config = replace(table.training.config, model=f"{table.space}:{architecture}", norm=norm, seed=cell["seed"])
    metrics = run_metrics(train_run(make_config(config, table.training), runs))
    return {**result, **metrics, "seconds": round(metrics["seconds"] + search.get("seconds", 0.0), 3)}


def _search(search: Search, cell: Cell, norm: str, runs: Path) -> Measurement:
    """Return the architecture that a search finds ("" if it diverged), accuracy and α of its supernet, and its outcome."""
    spec = search.spec(cell["norm"], norm)
    config = make_config(replace(search.training.config, norm=spec, seed=cell["seed"]), search.training)
    record = train_run(config, runs)
    done = record.done
    file = Store(runs).folder(config.id) / "artifacts" / "architecture.json"
    return {
        "architecture": _derive(json.loads(file.read_text())) if done else "",
        "supernet_accuracy": round(100 - record.curve[-1]["test_error"], 3) if done else None,
        "alpha_distance": round(record.curve[-1]["test_alpha distance"], 4) if done else None,
        **run_outcome(record),
    }


def _derive(content: dict[str, Any]) -> str:
    """Return the architecture of a search from its artifact; as in DARTS, no edge has the operation none."""
    if "cell" not in content["probabilities"]:
        return str(content["architecture"])
    probabilities = torch.tensor(content["probabilities"]["cell"])
    probabilities[:, content["operations"].index("none")] = 0
    return format_cell(probabilities.argmax(1))


_load_table = lru_cache(load_table)


def _benchmark_accuracy(benchmark: str, architecture: str) -> float | None:
    """Return the accuracy in % of a cell in the benchmark; None without a benchmark or a cell."""
    if not benchmark or not architecture:
        return None
    table = _load_table(benchmark)
    return round(float(table.accuracy("cifar10")[table.index(parse_cell(architecture))]), 3)


def play(settings: SearchSettings, name: str, seed: int) -> Measurement:
    """Play the rounds of a policy on the benchmark and return the accuracy in % of the recommended cell after 200 epochs."""
    start = time.perf_counter()
    table: CellTable = _load_table(settings.benchmark)
    rewards = (table.accuracy("cifar10", 12, "valid") / 100).numpy()
    lr = settings.policies[name]
    policy = POLICIES[name](table.num_edges, len(table.op_names), **({} if lr is None else {"lr": lr}))
    generator, noise = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    for _ in range(settings.rounds):
        choice = policy.sample(generator)
        correct = noise.binomial(settings.reward_images, rewards[int(table.index(choice))])
        policy.update(choice, 1 - correct / settings.reward_images)
    accuracy = table.accuracy("cifar10")[table.index(policy.recommend())]
    return {"accuracy": round(float(accuracy), 3), "seconds": round(time.perf_counter() - start, 2)}


RECIPE = Recipe("bgn_search", PRESETS, cells, measure, claims, plot, tables, controls=controls)
