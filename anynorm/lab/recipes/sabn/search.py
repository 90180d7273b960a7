"""sabn Table 2: CCBN and SaBN in architecture search by DARTS on NAS-Bench-201.

    anynorm reproduce sabn_search --preset night

Paper: first-order DARTS with four kinds of norms in the operations of the supernet: batch norm without affine (DARTS), with
affine, CCBN and SaBN; the last two are conditioned on operations drawn from softmax(α) for the edges before them. Accuracy of the
cell of the largest α per edge, from the benchmark's table, on CIFAR-100 and ImageNet16-120.

    smoke  32 digits, 2 steps, a table with synthetic accuracies; checks that the code works and claims nothing
    desk   CIFAR-10 at 16 × 16 pixels, 8 channels, one cell per stage, 600 steps; needs nasbench201/nb201.npz in the data
           directory (`anynorm.lab.tasks.search.nasbench`); a demonstration, which decides nothing unless its controls hold
    night  the supernet of `desk`, 3000 steps, weights before α, accuracies on CIFAR-100; subject to a pilot until its record
           exists
    paper  the published setting; needs the table, CIFAR-100, and a folder imagenet16-120/ with train/ and test/

Controls: α is far from uniform, since otherwise the search has chosen nothing; the supernet has learned; and DARTS collapses to
skip connections, the failure that SaBN repairs in the paper (44.05 %, below a random cell).

Scaled down in `desk` and `night`: the search is on CIFAR-10 instead of the two data sets whose accuracies are reported; the
supernet has half of the channels and a fifth of the cells; fewer steps, of 32 images; α learns with 1e-2 instead of 3e-4, a rate
chosen by a few single runs. `desk` updates α before the weights, as Algorithm 1 of DARTS does; `night` and `paper` update it
after the weights, as the public code does.

One edge of a cell may change its accuracy by more than 10 points, so the accuracy of one cell is mostly noise, and `night` leaves
it out. The recipe also has the expected accuracy of cells drawn from softmax(α), exact, and the rank correlation of log p(cell)
with accuracy over all 15 625 cells. The metrics and the columns of one search are not independent: they are counted once. The row
"random cell" is a uniformly random one: it has 61.41 % on CIFAR-100, and the paper's DARTS with affine (63.46) and with CCBN
(62.16) are close to it. "DARTS-SaBN, class 0" is an ablation: the class is always 0, so nothing is drawn.

Statistics are those of the batch throughout, as in the paper's code. A batch has one class, so norms with statistics per class
(`auxbn@K`, `saauxbn@K`) compute the same as CCBN and SaBN here, and are not measured apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from anynorm.lab.recipes.sabn.search_results import DATA_SETS, METRICS, TABLE_2, plot, tables
from anynorm.lab.recipes.support import synthetic_table
from anynorm.lab.recipes.support.claims import OURS, POINTS, UNITS, Claim, Equivalent, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.runs import last_accuracy, make_config, run_outcome, train_run
from anynorm.lab.recipes.support.settings import Settings, Training
from anynorm.lab.tasks.search.darts import DifferentiableSearch
from anynorm.lab.tasks.search.nasbench import load_table
from anynorm.lab.tasks.search.options import DartsOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Cosine
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Cell, Measurement, grid

TABLE = "nasbench201/nb201.npz"


@dataclass(frozen=True)
class Method:
    """The norms of a supernet.

    Args:
        norm: the spec; K is the number of operations.
        sample_conditions: whether the classes of the norms are drawn from softmax(α), or always 0.
    """

    norm: str
    sample_conditions: bool = True


@dataclass(frozen=True)
class Search:
    """A search.

    Args:
        training: how the supernet is trained.
        accuracies: the data sets of the benchmark whose accuracies are reported.
    """

    training: Training
    accuracies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SearchSettings(Settings):
    """Settings of searches with several norms.

    Args:
        searches: searches by the name of their data set.
        methods: norms by the name of the method.
        metrics: the metrics that are compared, names of `METRICS`.
        min_alpha_distance: distance of softmax(α) from uniform below which a search has chosen nothing; at most 0.8.
        min_accuracy: accuracy of the supernet in % below which it has not learned.
    """

    searches: Mapping[str, Search]
    methods: Mapping[str, Method]
    metrics: tuple[str, ...] = ("cell accuracy", "expected accuracy", "rank correlation")
    min_alpha_distance: float = 0.2
    min_accuracy: float = 25.0


METHODS = {
    "DARTS": Method("bn.none"),
    "DARTS-affine": Method("bn"),
    "DARTS-CCBN": Method("ccbn@K"),
    "DARTS-SaBN": Method("sabn@K"),
    "DARTS-SaBN, class 0": Method("sabn@K", sample_conditions=False),
}
COMMON = Config(task="darts", lr=0.025, schedule=Cosine(0.04), momentum=0.9, nesterov=True, weight_decay=5e-4, flip=True)
DESK = replace(
    COMMON, data="cifar10@16", model="nasbench201.n1", width=0.5, num_train=38_400, num_test=1000, epochs=1, crop=2, num_evals=6,
    batch_size=32, options=DartsOptions(alpha_lr=0.01, table=TABLE),
)  # fmt: skip
SMOKE = replace(
    DESK, data="digits", num_train=32, num_test=32, crop=1, num_evals=2, batch_size=8,
    options=DartsOptions(alpha_lr=0.01, table=synthetic_table.NAME),
)  # fmt: skip
NIGHT = replace(DESK, num_test=None, epochs=5, num_evals=10, options=DartsOptions(alpha_lr=0.01, weights_first=True, table=TABLE))
"""3000 steps: 5 epochs of 600 steps."""
PAPER = replace(
    COMMON, model="nasbench201", epochs=50, stop_epoch=35, num_evals=50, batch_size=64,
    options=DartsOptions(alpha_lr=3e-4, alpha_from_test=True, weights_first=True, table=TABLE),
)  # fmt: skip
CIFAR_100 = replace(PAPER, data="cifar100", crop=4)
IMAGENET_16 = replace(PAPER, data="folder:imagenet16-120", image_size=16, crop=2)
PRESETS = {
    "smoke": SearchSettings(
        seeds=2,
        searches={"digits": Search(Training(SMOKE, base_batch_size=8), ("cifar100", "imagenet16"))},
        methods=METHODS,
        min_alpha_distance=0.0,
        min_accuracy=0.0,
    ),
    "desk": SearchSettings(
        seeds=3,
        searches={"CIFAR-10": Search(Training(DESK, base_batch_size=32), ("cifar100", "imagenet16"))},
        methods=METHODS,
    ),
    "night": SearchSettings(
        seeds=12,
        searches={"CIFAR-10": Search(Training(NIGHT, base_batch_size=32), ("cifar100",))},
        methods=METHODS,
        metrics=("expected accuracy", "rank correlation"),
        min_accuracy=50.0,
    ),
    "paper": SearchSettings(
        seeds=3,
        searches={
            "CIFAR-100": Search(Training(CIFAR_100, base_batch_size=64), ("cifar100",)),
            "ImageNet16-120": Search(Training(IMAGENET_16, base_batch_size=64), ("imagenet16",)),
        },
        methods=METHODS,
        min_accuracy=10.0,
    ),
}
OPTIMUM = {"cifar100": 73.51, "imagenet16": 47.31}
PLACES = {
    frozenset({"DARTS-SaBN", "DARTS-affine"}): "sec. 4.2, ablation DARTS-affine",
    frozenset({"DARTS-CCBN", "DARTS"}): "sec. 4.2, CCBN against DARTS",
}
"""Where the text speaks of two methods of Table 2."""
MIN_SKIPS = 3.0
"""Number of skip connections, of 6 edges, from which on DARTS has collapsed."""
CLOSE_TO_BEST = 2.5
"""δ of "close to the Bench optimal", in points; the paper's difference is 1.95 on CIFAR-100."""


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


def collapse(search: str) -> str:
    """Return the name of the requirement that DARTS collapses in a search."""
    return f"skip connections of DARTS, of 6 edges (search on {search})"


def controls(settings: SearchSettings) -> list[Control]:
    """Return that α is far from uniform, that the supernet has learned, and that DARTS collapses in each search."""
    result: list[Control] = [
        Learned(settings.min_alpha_distance, "alpha distance", "distance of α from uniform"),
        Learned(settings.min_accuracy, "supernet_accuracy", "accuracy of the supernet (%)"),
    ]
    for search in settings.searches:
        skips = Measured("skips", {"search": search, "method": "DARTS"})
        result.append(Requirement(collapse(search), skips, MIN_SKIPS))
    return result


def claims(settings: SearchSettings) -> list[Claim]:
    """Return the orders of Table 2, by each metric; that SaBN is close to the best cell; and two hypotheses of ours."""
    result: list[Claim] = []
    for search, details in settings.searches.items():
        for data_set in details.accuracies:
            for metric in settings.metrics:
                for other in ("DARTS", "DARTS-affine", "DARTS-CCBN"):
                    result.append(_compare(metric, data_set, search, "DARTS-SaBN", other))
            if "cell accuracy" in settings.metrics:
                ccbn = ("DARTS-CCBN", "DARTS") if data_set == "cifar100" else ("DARTS", "DARTS-CCBN")
                result += [_compare("cell accuracy", data_set, search, *pair) for pair in (("DARTS-affine", "DARTS"), ccbn)]
                result.append(_close_to_best(data_set, search))
            result += _ours(data_set, search)
    return result


def _compare(metric: str, data_set: str, search: str, larger: str, smaller: str) -> Larger:
    """Return an order of Table 2. The paper's numbers are accuracies of cells, so they are not compared with other metrics."""
    paper, of_cell = TABLE_2[data_set], metric == "cell accuracy"
    place = PLACES.get(frozenset({larger, smaller}), "Table 2")
    sides = [Measured(f"{metric} {data_set}", {"search": search, "method": method}) for method in (larger, smaller)]
    return Larger(
        statement=f"{METRICS[metric]} on {DATA_SETS[data_set]} of {larger} is larger than of {smaller}",
        source=Source("sabn", place, "" if of_cell else f"accuracy of the cell {paper[larger]} and {paper[smaller]}"),
        published=Published(paper[larger], paper[smaller]) if of_cell else None,
        scale=UNITS if metric == "rank correlation" else POINTS,
        larger=sides[0],
        smaller=sides[1],
        group=f"{larger} > {smaller}, search on {search}",
        requires=(collapse(search),),
    )


def _close_to_best(data_set: str, search: str) -> Equivalent:
    cell = {"search": search, "method": "DARTS-SaBN"}
    return Equivalent(
        statement=f"accuracy of the cell on {DATA_SETS[data_set]} of DARTS-SaBN is close to that of the best cell",
        source=Source("sabn", "sec. 4.2, close to the optimum", "close to the Bench optimal"),
        published=Published(TABLE_2[data_set]["DARTS-SaBN"], OPTIMUM[data_set]),
        first=Measured(f"cell accuracy {data_set}", cell),
        second=Measured(lambda row: row["table"][data_set]["best"], cell),
        delta=CLOSE_TO_BEST,
        group=f"close to the best cell, search on {search}",
    )


def _ours(data_set: str, search: str) -> list[Claim]:
    """Return our hypotheses: SaBN is better than chance, and drawing classes helps it."""
    column, cell = f"expected accuracy {data_set}", {"search": search, "method": "DARTS-SaBN"}
    name = f"expected accuracy on {DATA_SETS[data_set]} of DARTS-SaBN"
    return [
        Larger(
            statement=f"{name} is larger than of a random cell",
            source=OURS,
            larger=Measured(column, cell),
            smaller=Measured(lambda row: row["table"][data_set]["mean"], cell),
            group=f"DARTS-SaBN > random cell, search on {search}",
        ),
        Larger(
            statement=f"{name} is larger with drawn classes than with class 0",
            source=OURS,
            larger=Measured(column, cell),
            smaller=Measured(column, cell | {"method": "DARTS-SaBN, class 0"}),
            group=f"drawn classes > class 0, search on {search}",
        ),
    ]


RECIPE = Recipe("sabn_search", PRESETS, cells, measure, claims, plot, tables, controls)
