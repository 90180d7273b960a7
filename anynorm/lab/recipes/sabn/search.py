"""sabn Table 2: CCBN and SaBN in architecture search by DARTS on NAS-Bench-201.

    anynorm reproduce sabn_search --preset desk

Paper: first-order DARTS with four kinds of norms in the operations of the supernet: batch norm without affine (DARTS), with
affine, CCBN and SaBN; the last two are conditioned on operations drawn from softmax(α) for the edges before them. Accuracy of the
cell of the largest α per edge, from the benchmark's table, on CIFAR-100 and ImageNet16-120.

    smoke  32 digits, 2 steps, a table with synthetic accuracies; checks that the code works and claims nothing
    desk   CIFAR-10 at 16 × 16 pixels, 8 channels, one cell per stage, 600 steps; needs nasbench201/nb201.npz in the
           data directory (`anynorm.lab.tasks.search.nasbench`)
    paper  the published setting; needs the table, CIFAR-100, and a folder imagenet16-120/ with train/ and test/

Scaled down in `desk`: the search is on CIFAR-10 instead of the two data sets whose accuracies are reported; the supernet has half
of the channels and a fifth of the cells; 600 steps of 32 images instead of 35 epochs; α learns with 1e-2 instead of 3e-4, a rate
chosen by a few single runs. So the claims are about the order of the norms early in a small search.

One edge of a cell may change its accuracy by more than 10 points, so the accuracy of one cell is mostly noise. The recipe also
has the expected accuracy of cells drawn from softmax(α), exact, and the rank correlation of log p(cell) with accuracy over all
15 625 cells. The row "random cell" is a uniformly random one: it has 61.41 % on CIFAR-100, and the paper's DARTS with affine
(63.46) and with CCBN (62.16) are close to it. "DARTS-SaBN, class 0" is an ablation: the class is always 0, so nothing is drawn.

Statistics are those of the batch throughout, as in the paper's code. A batch has one class, so norms with statistics per class
(`auxbn@K`, `saauxbn@K`) compute the same as CCBN and SaBN here, and are not measured apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support import synthetic_table
from anynorm.lab.recipes.support.claims import NOT_IN_PAPER, Claim
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import Values, result_over_seeds, save_figure, select, successful, values_of
from anynorm.lab.recipes.support.runs import make_config, run_outcome, train_run
from anynorm.lab.recipes.support.settings import Settings, Training
from anynorm.lab.tasks.search.darts import DifferentiableSearch
from anynorm.lab.tasks.search.nasbench import load_table
from anynorm.lab.tasks.search.options import DartsOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Cosine
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid
from anynorm.table import Table

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
    """

    searches: Mapping[str, Search]
    methods: Mapping[str, Method]


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
PAPER = replace(
    COMMON, model="nasbench201", epochs=50, stop_epoch=35, num_evals=50, batch_size=64,
    options=DartsOptions(alpha_lr=3e-4, alpha_from_test=True, table=TABLE),
)  # fmt: skip
CIFAR_100 = replace(PAPER, data="cifar100", crop=4)
IMAGENET_16 = replace(PAPER, data="folder:imagenet16-120", image_size=16, crop=2)
PRESETS = {
    "smoke": SearchSettings(
        seeds=2,
        searches={"digits": Search(Training(SMOKE, base_batch_size=8), ("cifar100", "imagenet16"))},
        methods=METHODS,
    ),
    "desk": SearchSettings(
        seeds=3,
        searches={"CIFAR-10": Search(Training(DESK, base_batch_size=32), ("cifar100", "imagenet16"))},
        methods=METHODS,
    ),
    "paper": SearchSettings(
        seeds=3,
        searches={
            "CIFAR-100": Search(Training(CIFAR_100, base_batch_size=64), ("cifar100",)),
            "ImageNet16-120": Search(Training(IMAGENET_16, base_batch_size=64), ("imagenet16",)),
        },
        methods=METHODS,
    ),
}
DATA_SETS = {"cifar100": "CIFAR-100", "imagenet16": "ImageNet16-120"}
TABLE_2 = {
    "cifar100": {"DARTS": 44.05, "DARTS-affine": 63.46, "DARTS-CCBN": 62.16, "DARTS-SaBN": 71.56},
    "imagenet16": {"DARTS": 36.47, "DARTS-affine": 37.26, "DARTS-CCBN": 31.25, "DARTS-SaBN": 45.85},
}
METRICS = {
    "cell accuracy": "accuracy of the cell",
    "expected accuracy": "expected accuracy",
    "rank correlation": "rank correlation",
}


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
    config = make_config(config, search.training.base_batch_size)
    record = train_run(config, runs)
    done, curve = record.done, record.curve
    names = [f"{metric} {data_set}" for metric in METRICS for data_set in search.accuracies]
    names += ["skips", "error"]
    artifact = Store(runs).folder(config.id) / "artifacts" / "architecture.json"
    return {
        **{name: float(f"{record.metrics[f'test_{name}']:.6g}") if done else None for name in names},
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


def claims(settings: SearchSettings) -> list[Claim]:
    """Return the orders of Table 2, by three metrics; that SaBN is better than chance; and that drawing classes helps it."""
    result = []
    for search, details in settings.searches.items():
        for data_set in details.accuracies:
            paper = TABLE_2[data_set]
            for metric in METRICS:
                for other in ("DARTS", "DARTS-affine", "DARTS-CCBN"):
                    result.append(_compare(metric, data_set, search, "DARTS-SaBN", other))
            result.append(_compare("cell accuracy", data_set, search, "DARTS-affine", "DARTS"))
            column = f"expected accuracy {data_set}"
            statement = f"expected accuracy on {DATA_SETS[data_set]} of DARTS-SaBN is larger than of a random cell"
            larger = values_of(column, search=search, method="DARTS-SaBN")
            result.append(Claim(statement, f"Table 2: {paper['DARTS-SaBN']}", larger, _chance(data_set, search)))
            statement = f"expected accuracy on {DATA_SETS[data_set]} of DARTS-SaBN is larger with drawn classes than with class 0"
            ablation = values_of(column, search=search, method="DARTS-SaBN, class 0")
            result.append(Claim(statement, NOT_IN_PAPER, larger, ablation))
    return result


def _compare(metric: str, data_set: str, search: str, larger: str, smaller: str) -> Claim:
    paper = TABLE_2[data_set]
    numbers = f"{paper[larger]:.2f} and {paper[smaller]:.2f}"
    values = [values_of(f"{metric} {data_set}", search=search, method=method) for method in (larger, smaller)]
    return Claim(
        f"{METRICS[metric]} on {DATA_SETS[data_set]} of {larger} is larger than of {smaller}",
        numbers if metric == "cell accuracy" else f"{numbers} (accuracy of the cell)",
        *values,
    )


def _chance(data_set: str, search: str) -> Values:
    """Return a function that gives the mean accuracy of all cells for each seed."""
    return lambda rows: [table[data_set]["mean"] for table in select(rows, "table", search=search, method="DARTS-SaBN")]


def tables(record: RecipeRecord[SearchSettings]) -> list[Table]:
    """Return the metrics by method, with a random cell and the best cell of the table, for each data set."""
    result = []
    for search, details in record.settings.searches.items():
        for data_set in details.accuracies:
            columns = {f"{name}, %" if "accuracy" in name else name: f"{metric} {data_set}" for metric, name in METRICS.items()}
            rows: list[Row] = []
            for method in record.settings.methods:
                values, others = (
                    {
                        title: result_over_seeds(record.rows, column, search=search, method=method)
                        for title, column in part.items()
                    }
                    for part in (columns, {"skips": "skips", "supernet error, %": "error"})
                )
                rows.append({"method": method, "paper, %": TABLE_2[data_set].get(method, ""), **values, **others})
            table = record.rows[0]["table"] | next(row["table"] for row in record.rows if row["search"] == search)
            rows += _reference_rows(table[data_set], rows[0])
            formats = {"paper, %": ".2f", "skips": ".1f", "supernet error, %": ".1f"} | dict.fromkeys(columns, ".2f")
            finding = f"Search on {search}; accuracies on {DATA_SETS[data_set]}. Mean ± sd over seeds."
            result.append(Table(rows, finding, formats=formats))
    return result


def _reference_rows(table: dict[str, float], like: Row) -> list[Row]:
    """Return the rows of a uniformly random cell and of the best cell, with the columns of another row."""
    random, best = (dict.fromkeys(like, "") for _ in range(2))
    random |= {"method": "random cell", "accuracy of the cell, %": f"{table['mean']:.2f} ± {table['sd']:.2f} (cells)"}
    random |= {"expected accuracy, %": f"{table['mean']:.2f}", "rank correlation": "0"}
    best |= {"method": "best cell", "accuracy of the cell, %": f"{table['best']:.2f}"}
    return [random, best]


def plot(record: RecipeRecord[SearchSettings], path: Path) -> list[Path]:
    """Plot expected accuracy and rank correlation over steps, and the accuracy of each cell, one row per data set."""
    panels = [(search, name) for search, details in record.settings.searches.items() for name in details.accuracies]
    fig = Figure(figsize=(15, 3.6 * len(panels)), layout="constrained")
    for (search, data_set), axes in zip(panels, fig.subplots(len(panels), 3, squeeze=False), strict=True):
        table = next(row["table"] for row in record.rows if row["search"] == search)[data_set]
        for ax, metric, unit in ((axes[0], "expected accuracy", " (%)"), (axes[1], "rank correlation", "")):
            labels = {"xlabel": "step", "ylabel": f"{metric}{unit}", "title": f"{DATA_SETS[data_set]}, search on {search}"}
            draw.lines(_by_step(record, search, f"{metric} {data_set}"), ax, **labels)
            ax.get_legend().remove()
            ax.axhline(table["mean"] if unit else 0, color="gray", ls=":", lw=1)
        _draw_cells(axes[2], record, search, data_set)
        for value, name in ((table["mean"], "random cell (mean)"), (table["best"], "best cell")):
            axes[2].axhline(value, color="gray", ls=":" if name.startswith("random") else "-", lw=1, label=name)
        axes[2].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        axes[0].legend(frameon=False, fontsize="small")
    return save_figure(fig, path, dpi=90)


def _draw_cells(ax: Any, record: RecipeRecord[SearchSettings], search: str, data_set: str) -> None:
    """Plot the accuracy of the cell of each seed."""
    methods = list(record.settings.methods)
    for index, (method, color) in enumerate(zip(methods, draw.COLORS, strict=False)):
        values = successful(record.rows, f"cell accuracy {data_set}", search=search, method=method)
        ax.plot([index] * len(values), values, "o", color=color, markersize=5)
    ax.set_xticks(range(len(methods)), [method.removeprefix("DARTS-") for method in methods], rotation=20)
    ax.set(ylabel="accuracy of the cell (%)", title="cell of the largest α, one point per seed")


def _by_step(record: RecipeRecord[SearchSettings], search: str, name: str) -> dict[str, dict[int, list[float]]]:
    result: dict[str, dict[int, list[float]]] = {}
    for method in record.settings.methods:
        points: dict[int, list[float]] = {}
        for curves in select(record.rows, "curves", search=search, method=method):
            for step, value in zip(curves["step"], curves[name], strict=True):
                points.setdefault(step, []).append(value)
        result[method] = points
    return result


RECIPE = Recipe("sabn_search", PRESETS, cells, measure, claims, plot, tables)
