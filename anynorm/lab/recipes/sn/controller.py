"""sn Fig. 10b and 1a: LN, GN and SN inside the LSTM of ENAS's controller.

    anynorm reproduce sn_controller --preset desk

Paper (appendix G): the controller of ENAS searches convolutional cells for CIFAR-10, with norms in the LSTM alone. BN does not
apply to it and IN equals LN there, so SN mixes LN and GN. Fig. 10b has curves of validation accuracy in which SN is above LN and
GN, Fig. 1a weights of SN in which LN is larger; the texts have no numbers.

    smoke  a synthetic table of accuracies, two epochs; checks that the code works and claims nothing
    desk   the tables of NAS-Bench-201, 12 epochs of 30 updates by 10 cells, 20 seeds; needs nasbench201/nb201.npz in
           the data directory (`anynorm.lab.tasks.search.nasbench` says how to write it from the benchmark's own file): a
           demonstration; decides nothing unless its controls hold
    paper  the same tables with the settings of ENAS's micro search: 150 epochs, logits 0.44 tanh

Scaled down in `desk`: a reward is drawn as Binomial(160, a)/160, with a the accuracy of the cell on the validation images after
12 epochs of its own training, in place of an accuracy with shared weights on a minibatch of 160 images. The logits are 2.5 tanh:
with ENAS's 0.44 tanh the probabilities of two operations differ by a factor of at most 2.4. The accuracy of a policy is its exact
expectation over the 15 625 cells. The claims are about the controller alone, in this space.

Not in the texts, so chosen here: where the norms are (on W_x x, on W_h h and on c, as in the layer-normalized LSTM of Ba et al.
2016), and the 32 groups of GN. With 4 groups GN of the gates would be LN of each gate.

Missing in `paper`: the published space (micro cells, whose input nodes are chosen by attention) and its child network with shared
weights. So this preset has the settings of the published controller, and not the published experiment.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.sn.weights import MIN_MOVE, MOVED, moved
from anynorm.lab.recipes.support.claims import OURS, UNITS, Claim, Larger, Source
from anynorm.lab.recipes.support.controls import Control, Requirement
from anynorm.lab.recipes.support.quantities import Measured, Quantity
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, result_over_seeds, save_figure, select
from anynorm.lab.recipes.support.runs import make_config, mean_weights, run_outcome, train_run
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.tasks.search.controller_task import ControllerSearch, observe
from anynorm.lab.tasks.search.nasbench import OP_NAMES, CellTable
from anynorm.lab.tasks.search.options import ControllerOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid
from anynorm.table import Table

NORMS = {"LN": "ln", "GN": "gn:32", "SN": "ln+gn:32", "none": ""}
RANDOM = "random search"
WEIGHTS = {
    f"{statistic}_{label.lower()}": f"{statistic}_{NORMS[label]}" for statistic in ("mean", "var") for label in ("LN", "GN")
}
"""Columns of SN's weights, with their names in the record of a run."""


@dataclass(frozen=True, kw_only=True)
class ControllerSettings(TrainingSettings):
    """Settings of the controller.

    Args:
        norms: specs of the norms in the LSTM by label; "" for an LSTM without norms.
        min_gain: points of accuracy from the first to the last evaluation from which on a controller has learned.
        min_move: difference from equal weights from which on SN is said to have a preference.
    """

    norms: Mapping[str, str]
    min_gain: float = 2.0
    min_move: float = MIN_MOVE


DESK = Config(task="controller_search", epochs=12, num_evals=12, lr=0.0035, weight_decay=0.0, schedule="constant", batch_size=10)
SMOKE = replace(
    DESK,
    epochs=2,
    num_evals=2,
    options=ControllerOptions(table="anynorm.lab.recipes.sn.controller:synthetic_table", steps_per_epoch=2),
)
PAPER = replace(DESK, epochs=150, num_evals=150, options=ControllerOptions(tanh_constant=0.44))
PRESETS = {
    "smoke": ControllerSettings(
        seeds=2, training=Training(SMOKE, base_batch_size=10), norms=NORMS, min_gain=-100.0, min_move=0.0
    ),
    "desk": ControllerSettings(seeds=20, training=Training(DESK, base_batch_size=10), norms=NORMS),
    "paper": ControllerSettings(seeds=20, training=Training(PAPER, base_batch_size=10), norms=NORMS),
}


def synthetic_table() -> CellTable:
    """Return a table for `smoke`: 10 % and 15 points per edge with a 3 × 3 convolution, for cells of two edges."""
    ops = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    accuracy = 10 + 15.0 * (ops == OP_NAMES.index("nor_conv_3x3")).sum(1).double()
    return CellTable(ops, OP_NAMES, dict.fromkeys([("cifar10", 12, "valid"), ("cifar10", 200, "test")], accuracy))


def cells(settings: ControllerSettings) -> list[Cell]:
    """Return one cell per norm and seed, and one of random search per seed."""
    return grid(settings.seeds, norm=[*settings.norms, RANDOM])


def measure(settings: ControllerSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a controller with a norm, or search at random; return accuracies and SN's weights (means over the three norms)."""
    if cell["norm"] == RANDOM:
        return random_search(settings, cell["seed"]) | dict.fromkeys(WEIGHTS)
    spec, config = settings.norms[cell["norm"]], settings.training.config
    if not spec:
        config = replace(config, options=replace(ControllerSearch.options_of(config), places=()))
    config = replace(config, norm=spec or "ln", seed=cell["seed"])
    record = train_run(make_config(config, settings.training), runs)
    done, curve = record.done, record.curve
    weights = mean_weights(record, WEIGHTS.values())
    return {
        **_summarize([point["test_accuracy"] for point in curve] if done else []),
        "full_accuracy": round(curve[-1]["test_full_accuracy"], 3) if done else None,
        "best_accuracy": round(curve[-1]["test_best_accuracy"], 3) if done else None,
        **{column: weights[name] for column, name in WEIGHTS.items()},
        **run_outcome(record),
    }


def random_search(settings: ControllerSettings, seed: int) -> Measurement:
    """Draw as many cells as a controller does, uniformly; return the accuracy of the cell with the largest reward so far."""
    config = make_config(replace(settings.training.config, norm="ln", seed=seed), settings.training)
    task = ControllerSearch(config)
    generator = torch.Generator().manual_seed(seed)
    count = task.num_samples * config.epochs
    rows = torch.randint(len(task.table), (count,), generator=generator)
    observed = observe(task.valid, rows, torch.rand(count, task.options.reward_images, generator=generator))
    ends = [count * (k + 1) // config.num_evals for k in range(config.num_evals)]
    best = [int(rows[observed[:end].argmax()]) for end in ends]
    return {
        **_summarize([float(task.valid[row]) for row in best]),
        "full_accuracy": round(float(task.test[best[-1]]), 3),
        "best_accuracy": round(float(task.valid[best[-1]]), 3),
        "failure": "",
    }


def _summarize(accuracies: list[float]) -> Measurement:
    """Return the accuracy at the end, its mean over all evaluations, and the curve."""
    return {
        "accuracy": round(accuracies[-1], 3) if accuracies else None,
        "mean_accuracy": round(statistics.fmean(accuracies), 3) if accuracies else None,
        "curve": [round(value, 3) for value in accuracies],
    }


def gain(row: Row) -> float | None:
    """Return the points of accuracy from the first to the last evaluation of a controller; None for a failed run."""
    return row["curve"][-1] - row["curve"][0] if row["curve"] else None


def _learned(norm: str) -> str:
    return f"points gained by the controller with {norm}" if norm != "none" else "points gained by the controller without norms"


def controls(settings: ControllerSettings) -> list[Control]:
    """Return that each controller has learned, and that SN's weights have left their start values."""
    learned = [Requirement(_learned(norm), Measured(gain, {"norm": norm}), settings.min_gain) for norm in settings.norms]
    weights: list[Quantity] = [Measured(name, {"norm": "SN"}) for name in WEIGHTS]
    return [*learned, moved(weights, 1 / 2, at_least=settings.min_move)]


def claims(_: ControllerSettings) -> list[Claim]:
    """Return the order of the curves and of SN's weights, and two comparisons that are not in the paper."""
    result: list[Claim] = []
    for column, quantity in (("mean_accuracy", "area under the curve of the accuracy"), ("accuracy", "accuracy at the end")):
        result += [
            Larger(
                statement=f"the {quantity} of SN is larger than that of {other}",
                source=Source("sn", "Fig. 10b", "SN obtains better accuracy than both LN and GN"),
                larger=Measured(column, {"norm": "SN"}),
                smaller=Measured(column, {"norm": other}),
                group=f"sn Fig. 10b: SN and {other}",
                requires=(_learned("SN"), _learned(other)),
            )
            for other in ("LN", "GN")
        ]
    for statistic, name in (("mean", "mean"), ("var", "variance")):
        larger, smaller = (Measured(f"{statistic}_{each}", {"norm": "SN"}) for each in ("ln", "gn"))
        result.append(
            Larger(
                statement=f"SN's weight of LN is larger than that of GN in the {name}",
                source=Source("sn", "Fig. 1a, LSTM", "LN is preferable than GN"),
                larger=larger,
                smaller=smaller,
                scale=UNITS,
                group="sn Fig. 1a: LN in the LSTM",
                requires=(MOVED,),
            )
        )
    for statement, column, other in (
        ("the area under the curve of the accuracy of SN is larger than without norms", "mean_accuracy", "none"),
        ("the sampled cell with the largest reward is more accurate with SN than with random search", "best_accuracy", RANDOM),
    ):
        larger, smaller = (Measured(column, {"norm": norm}) for norm in ("SN", other))
        result.append(Larger(statement=statement, source=OURS, larger=larger, smaller=smaller))
    return result


def tables(record: RecipeRecord[ControllerSettings]) -> list[Table]:
    """Return the accuracies by norm, and SN's weights."""
    columns = {
        "area under the curve": "mean_accuracy",
        "at the end": "accuracy",
        "at the end, 200 epochs": "full_accuracy",
        "best sampled cell": "best_accuracy",
    }
    rows = metric_rows(record.rows, "norm", [*record.settings.norms, RANDOM], columns)
    weights = {name.replace("_", " "): result_over_seeds(record.rows, name, norm="SN") for name in WEIGHTS}
    title = (
        "Accuracy in %, mean ± sd over seeds: exact expectation under the policy of the validation accuracy after 12 epochs "
        "(third column: test accuracy after 200), and of the sampled cell with the largest reward, which is all that random "
        "search has."
    )
    return [
        Table(rows, title),
        Table([weights], "Weights of SN, averaged over the three norms of the LSTM, mean ± sd over seeds; they start at 1/2."),
    ]


def plot(record: RecipeRecord[ControllerSettings], path: Path) -> list[Path]:
    """Plot the accuracies against the number of sampled cells, and SN's weights."""
    settings = record.settings
    fig = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[2, 1])
    for label, color in zip([*settings.norms, RANDOM], draw.COLORS, strict=False):
        _draw_curves(left, record, label, color)
    left.set(xlabel="epoch", ylabel="accuracy of a cell after 12 epochs, %")
    left.legend(frameon=False)
    for position, name in enumerate(WEIGHTS):
        values = [value for value in select(record.rows, name, norm="SN") if value is not None]
        right.scatter([position] * len(values), values, s=12, alpha=0.5, color=draw.COLORS[position % 2])
    right.axhline(0.5, color="0.7", lw=1, zorder=0)
    right.set(
        ylabel="weight of SN", xlim=(-0.5, 3.5), xticks=range(4), xticklabels=["LN\nmean", "GN\nmean", "LN\nvar.", "GN\nvar."]
    )
    return save_figure(fig, path)


def _draw_curves(ax: Any, record: RecipeRecord[ControllerSettings], norm: str, color: str) -> None:
    """Plot the mean curve of a norm, with every seed behind it; random search as dashes."""
    curves = [curve for curve in select(record.rows, "curve", norm=norm) if curve]
    if not curves:
        return
    epochs = [record.settings.training.config.epochs * (k + 1) / len(curves[0]) for k in range(len(curves[0]))]
    for curve in curves if norm != RANDOM else []:
        ax.plot(epochs, curve, color=color, alpha=0.12, lw=0.8)
    means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
    label = f"{norm} (best cell so far)" if norm == RANDOM else "no norm" if norm == "none" else norm
    ax.plot(epochs, means, color=color, ls="--" if norm == RANDOM else "-", label=label)


RECIPE = Recipe("sn_controller", PRESETS, cells, measure, claims, plot, tables, controls)
