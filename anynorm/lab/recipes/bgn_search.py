"""bgn Table 3 and Table 4: norms in cells found by DARTS and MANAS.

    anynorm reproduce bgn_search --preset desk

Paper: CIFAR-10 and the DARTS space. Table 3: DARTS searches with each norm (8 cells, C = 16, 50 epochs), and the cells it found
are trained with the same norm (20 cells, C = 36, 600 epochs). Table 4: cells that MANAS found with BN, trained with each norm.

    smoke  10 s      32 digits, a few steps, a table with made-up accuracies; checks that the code works and claims nothing
    desk   14 min    4000 images of CIFAR-10 at 16 × 16 pixels, NAS-Bench-201 space with one cell per stage, C = 8; search and
                     training of 4 epochs each; needs nasbench201/nb201.npz in the data directory
    paper  not run   the published setting; the paper does not say whether its DARTS is of first or second order (here first)

Scaled down in `desk`: space, network, images and epochs, so the claims are about the order of norms early in training. GN has 8
groups (the paper's 32 divide none of its channels: 36, 72, 144, 108), and BGN follows the batch size. The learning rate of α is
0.01, with which α moves in 124 steps. Norms have no affine inside the cells of the search, and found cells never have the
operation none, as in DARTS. The cell of Table 4 is the one that MANAS with least squares recommends on the benchmark. The paper
writes "fails to converge" without a criterion; here a norm fails if its training accuracy in the last epoch is below twice that
of chance (20 %). In `paper`, IN is refused on the map of 1 × 1 pixels in the auxiliary head, where its variance would be 0, and
the groups of BGN end inside channels, as those of the paper must.

Two results are not in the paper: the accuracy of a found cell after 200 epochs of the benchmark's training with BN, which has no
claim, and the policies of MANAS beside random search. These play 2000 rounds on the benchmark: the reward of a cell is the
accuracy on 160 images, binomial with the cell's validation accuracy after 12 epochs; the result is the test accuracy of the
recommended cell after 200. The learning rates of the policies are ours; they were fixed after trials on the same benchmark, so
the comparison with random search, which has nothing to tune, favors them.
"""

from __future__ import annotations

import json
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anynorm.lab.models.search.cells import format_cell, parse_cell
from anynorm.lab.recipes.support import planted_table
from anynorm.lab.recipes.support.bgn_search_results import CHANCE, PAPER, POLICY_PART, plot, tables
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.rows import Values, accuracy_of, select, values_of
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.tasks.search.bandits import POLICIES
from anynorm.lab.tasks.search.nasbench import CellTable, load_table
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Row, grid

NORMS = {"BN": "bn", "IN": "in", "LN": "ln", "GN": "gn:8", "PN": "pn", "BGN": "bgn"}
FAST_NORMS = {name: spec for name, spec in NORMS.items() if name != "PN"}
ORDERS = {
    "Table 3": [("BGN", "BN"), ("BGN", "GN"), ("BGN", "PN"), ("BN", "GN"), ("BN", "PN")],
    "Table 4": [("BN", "BGN"), ("BGN", "GN"), ("BN", "GN")],
}
FAILING = {"Table 3": ["IN", "LN"], "Table 4": ["IN", "LN", "PN"]}
THRESHOLD = 2 * CHANCE
"""Training accuracy in % below which a norm fails: twice that of chance."""
WEIGHTS: Settings = {"lr": 0.025, "momentum": 0.9, "weight_decay": 3e-4, "flip": True}
DESK_TRAIN: Settings = WEIGHTS | {
    "data": "cifar10@16", "width": 0.5, "num_train": 4000, "num_test": 2000, "crop": 2, "epochs": 4, "num_evals": 4,
}  # fmt: skip
DESK_SEARCH: Settings = DESK_TRAIN | {
    "task": "darts", "model": "nasbench201.n1", "num_test": 1000, "num_evals": 1, "schedule": "cosine-to-0.04",
    "options": {"alpha_lr": 0.01},
}  # fmt: skip
MANAS_CELL = "3,3,3,1,3,3"
"""The cell that MANAS with least squares recommends on the benchmark (`play`); its test accuracy is 94.36 %."""
POLICY_OPTIONS: Settings = {"least-squares": {"lr": 0.05}, "exp3": {"lr": 0.01}, "random": {}}
TINY: Settings = {"data": "digits", "num_train": 32, "num_test": 32, "epochs": 1, "crop": 1}
PAPER_TRAIN: Settings = WEIGHTS | {
    "task": "architecture_evaluation", "data": "cifar10", "epochs": 600, "crop": 4, "cutout": 16, "num_evals": 60,
    "options": {"drop_path": 0.2, "auxiliary_weight": 0.4},
}  # fmt: skip
PAPER_SEARCH: Settings = WEIGHTS | {
    "data": "cifar10", "model": "darts", "epochs": 50, "crop": 4, "schedule": "cosine-to-0.04", "num_evals": 10,
}  # fmt: skip


def _tables(search: Settings, training: Settings, batch_size: int, norms: dict[str, str]) -> Settings:
    """Return the settings of both tables on the NAS-Bench-201 space."""
    stage = {"space": "nasbench201.n1", "training": training, "batch_size": batch_size, "norms": norms}
    return {
        "Table 3": stage | {"search": search, "search_norm": "{norm}.none", "search_batch_size": batch_size},
        "Table 4": stage | {"architecture": MANAS_CELL},
    }


PRESETS: dict[str, Settings] = {
    "smoke": {
        "tables": _tables(DESK_SEARCH | TINY, DESK_TRAIN | TINY, 16, FAST_NORMS),
        "seeds": 2,
        "benchmark": planted_table.NAME,
        "policies": POLICY_OPTIONS,
        "policy_seeds": 2,
        "rounds": 40,
        "reward_images": 160,
    },
    "desk": {
        "tables": _tables(DESK_SEARCH, DESK_TRAIN, 64, NORMS),
        "seeds": 3,
        "benchmark": "nasbench201/nb201.npz",
        "policies": POLICY_OPTIONS,
        "policy_seeds": 20,
        "rounds": 2000,
        "reward_images": 160,
    },
    "paper": {
        "tables": {
            "Table 3": {
                "search": PAPER_SEARCH | {"task": "darts"}, "search_norm": "{norm}", "search_batch_size": 64,
                "space": "darts", "training": PAPER_TRAIN, "batch_size": 96,
                "norms": NORMS | {"GN": "gn:32", "BGN": "[1,256]"},
            },
            "Table 4": {
                "search": PAPER_SEARCH | {"task": "manas_least_squares"}, "search_norm": "bn", "search_batch_size": 64,
                "space": "darts", "training": PAPER_TRAIN, "batch_size": 64,
                "norms": NORMS | {"GN": "gn:32", "BGN": "[1,64]"},
            },
        },
        "seeds": 3,
        "benchmark": "",
        "policies": {},
    },
}  # fmt: skip


def cells(settings: Settings) -> list[Row]:
    """Return one cell per table, norm and seed, and one per policy and seed."""
    result = []
    for name, table in settings["tables"].items():
        result += grid(settings["seeds"], part=[name], norm=table["norms"])
    return result + grid(settings.get("policy_seeds", 0), part=[POLICY_PART], policy=settings["policies"])


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Search for a cell and train it, or play the rounds of a policy; return the accuracy."""
    benchmark = settings["benchmark"]
    if benchmark == planted_table.NAME:
        benchmark = str(planted_table.write_planted_table(runs / "planted.npz"))
    if cell["part"] == POLICY_PART:
        return play(settings | {"benchmark": benchmark}, cell["policy"], cell["seed"])
    table = settings["tables"][cell["part"]]
    search = _search(table, cell, runs) if "search" in table else {"architecture": table["architecture"]}
    architecture = search["architecture"]
    result = {"supernet_accuracy": None, **search, "benchmark_accuracy": _benchmark_accuracy(benchmark, architecture)}
    if search.get("failure"):
        return {**result, "accuracy": None, "train_accuracy": None}
    model, size = f"{table['space']}:{architecture}", table["batch_size"]
    config = make_config(
        {"train": table["training"], "base_batch_size": size}, table["norms"][cell["norm"]], size, cell["seed"], model=model
    )
    metrics = run_metrics(train_run(config, runs))
    return {**result, **metrics, "seconds": round(metrics["seconds"] + search.get("seconds", 0.0), 3)}


def _search(table: Settings, cell: Row, runs: Path) -> Row:
    """Return the architecture that a search finds ("" if it diverged), the accuracy of its supernet, seconds, and the commit."""
    size = table["search_batch_size"]
    norm = table["search_norm"].format(norm=table["norms"][cell["norm"]])
    config = make_config({"train": table["search"], "base_batch_size": size}, norm, size, cell["seed"])
    record = train_run(config, runs)
    done = record["status"] == "done"
    file = Store(runs).folder(config.id) / "artifacts" / "architecture.json"
    return {
        "architecture": _derive(json.loads(file.read_text())) if done else "",
        "supernet_accuracy": round(100 - record["curve"][-1]["test_error"], 3) if done else None,
        "failure": "" if done else record["note"],
        "seconds": record["seconds"],
        "commit": record["provenance"]["commit"],
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


def play(settings: Settings, name: str, seed: int) -> Row:
    """Play the rounds of a policy on the benchmark and return the accuracy in % of the recommended cell after 200 epochs."""
    start = time.perf_counter()
    table: CellTable = _load_table(settings["benchmark"])
    rewards = (table.accuracy("cifar10", 12, "valid") / 100).numpy()
    policy = POLICIES[name](table.num_edges, len(table.op_names), **settings["policies"][name])
    generator, noise = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    for _ in range(settings["rounds"]):
        choice = policy.sample(generator)
        correct = noise.binomial(settings["reward_images"], rewards[int(table.index(choice))])
        policy.update(choice, 1 - correct / settings["reward_images"])
    accuracy = table.accuracy("cifar10")[table.index(policy.recommend())]
    return {"accuracy": round(float(accuracy), 3), "seconds": round(time.perf_counter() - start, 2)}


def claims(settings: Settings) -> list[Claim]:
    """Return the orders and the failing norms of both tables, and MANAS beside random search."""
    result = []
    for part, table in settings["tables"].items():
        for norm, other in (pair for pair in ORDERS[part] if table["norms"].keys() >= set(pair)):
            statement = f"{norm} is more accurate than {other} ({part})"
            paper = f"{PAPER[part][norm]:.2f} and {PAPER[part][other]:.2f}"
            result.append(Claim(statement, paper, *(accuracy_of(part=part, norm=name) for name in (norm, other))))
        for norm in (norm for norm in FAILING[part] if norm in table["norms"]):
            statement = f"{norm} fails: its training accuracy is below {THRESHOLD:g} % ({part})"
            training = values_of("train_accuracy", part=part, norm=norm)
            result.append(Claim(statement, "fails to converge", _threshold(part, norm), training))
    for policy in settings["policies"]:
        if policy != "random":
            statement = f"MANAS with {policy} recommends a more accurate cell than random search"
            values = [accuracy_of(part=POLICY_PART, policy=name) for name in (policy, "random")]
            result.append(Claim(statement, "not in the paper", *values))
    return result


def _threshold(part: str, norm: str) -> Values:
    return lambda rows: [THRESHOLD for _ in select(rows, "train_accuracy", part=part, norm=norm)]


RECIPE = Recipe("bgn_search", PRESETS, cells, measure, claims, plot, tables)
