"""bgn Table 7: accuracy on a new domain after adaptation with CAN, by norm.

    anynorm reproduce bgn_adaptation --preset desk

Paper: CAN (Kang et al. 2019) on the six tasks of Office-31, ResNet-50 pretrained on ImageNet, statistics and affine of every norm
per domain; batches of 30, Adam 0.001 with exponential decay. G of BGN differs between tasks (512, 1, 8, 32).

    smoke    digits and faded digits, a few steps; checks that the code works and claims nothing
    desk     USPS to MNIST at 16 × 16 pixels, 2000 images of each, ResNet-8, 372 steps on the source, then 186 of CAN
    evening  photos to sketches of PACS at 64 × 64 pixels, every norm fitted to a pretrained EfficientNet-lite0
    paper    the published setting, six tasks, after 5 epochs on the source; needs office31/ with its three domains

Scaled down in `desk`: one task with digits, a small network that is trained on the source first, SGD. So the claims are about the
order of the norms in this task. With ten classes, all of which are in each batch, the two readings of CAN's loss are the same.
Norms without statistics of the batch have an affine per domain (`gn:8.cc@2`), the others statistics too (`bn.aux@2`).

Beyond the paper: "bn, shared" has one BN for both domains, which answers what domain-specific norms contribute; "dsbn" has
pseudo labels instead of CAN's loss, and starts from AdaBN; with CAN, the norms of the target start as copies of the source's.
"Source only" and "AdaBN" are the same networks before adaptation, as they are and with the running statistics of the target.
AdaBN changes nothing for norms without running statistics.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from matplotlib import colormaps
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.claims import NOT_IN_PAPER, Claim, more_accurate
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_of, result_table, save_figure, successful, values_of
from anynorm.lab.recipes.support.runs import make_config, options_of, run_metrics, train_run
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.tasks.adaptation.can import CAN
from anynorm.lab.tasks.adaptation.options import CANOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.result import Result
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


@dataclass(frozen=True)
class Method:
    """A method of adaptation.

    Args:
        task: the task.
        norm: the spec.
    """

    task: str
    norm: str


@dataclass(frozen=True)
class DomainPair:
    """A source and a target.

    Args:
        data: the source.
        target: the target.
        bgn: the spec of "bgn" for this pair; None for that of the settings.
    """

    data: str
    target: str
    bgn: str | None = None


@dataclass(frozen=True, kw_only=True)
class AdaptationSettings(TrainingSettings):
    """Settings of domain adaptation.

    Args:
        norms: methods by label.
        pairs: pairs of domains by name, over which accuracies are averaged; empty for the domains of the training.
    """

    norms: Mapping[str, Method]
    pairs: Mapping[str, DomainPair] = field(default_factory=dict)


NORMS = {
    "bn": Method("can", "bn.aux@2"),
    "bgn": Method("can", "bgn.aux@2"),
    "gn": Method("can", "gn:8.cc@2"),
    "in": Method("can", "in.cc@2"),
    "ln": Method("can", "ln.cc@2"),
    "pn": Method("can", "pn.cc@2"),
}
BASELINES = {"bn, shared": Method("can", "bn"), "dsbn": Method("dsbn", "bn.aux@2")}
PUBLISHED = {"bn": 90.1, "bgn": 90.9, "gn": 88.6, "in": 87.5, "ln": 88.9, "pn": 88.7}
"""Mean accuracy over the six tasks, Table 7."""
METHODS = {"source_accuracy": "source only", "adabn_accuracy": "AdaBN", "accuracy": "adapted"}
SMOKE = Config(
    task="can", data="digits", model="small", width=0.5, num_train=160, num_test=100, epochs=2, lr=0.05, schedule="constant",
    num_evals=2,
    options=CANOptions(target="digits-faded", source_epochs=1, steps_per_loop=3, adaptation_lr=0.01),
)  # fmt: skip
DESK = Config(
    task="can", data="usps", model="small", num_train=2000, num_test=2000, epochs=9, lr=0.05, schedule="constant",
    num_evals=3,
    options=CANOptions(target="mnist@16", source_epochs=6, steps_per_loop=40, adaptation_lr=0.01),
)  # fmt: skip
EVENING = Config(
    task="can", data="pacs/photo", model="anynorm.lab.recipes.support.pretrained:efficientnet_lite0", image_size=64,
    num_train=1500, num_test=1500, flip=True, epochs=6, lr=0.01, schedule="constant", num_evals=6, batch_size=30,
    options=CANOptions(
        target="pacs/sketch", source_epochs=3, steps_per_loop=40, adaptation_lr=0.001, head_lr_factor=10.0,
        classes_per_batch=7, fit_images=128,
    ),
)  # fmt: skip
PAPER = Config(
    task="can", model="anynorm.lab.recipes.support.pretrained:resnet50", image_size=224, flip=True, epochs=300,
    optimizer="adam", lr=1e-3, schedule="exponential", num_evals=60, batch_size=30,
    options=CANOptions(source_epochs=5, steps_per_loop=90, head_lr_factor=10.0, fit_images=128),
)  # fmt: skip
PRESETS = {
    "smoke": AdaptationSettings(
        seeds=2,
        training=Training(SMOKE, base_batch_size=32),
        norms={name: (NORMS | BASELINES)[name] for name in ("bn", "bgn", "gn", "bn, shared", "dsbn")},
    ),
    "desk": AdaptationSettings(seeds=5, training=Training(DESK, base_batch_size=32), norms=NORMS | BASELINES),
    "evening": AdaptationSettings(seeds=3, training=Training(EVENING, base_batch_size=30), norms=NORMS | BASELINES),
    "paper": AdaptationSettings(
        seeds=3,
        training=Training(PAPER, base_batch_size=30),
        norms=NORMS | {"gn": Method("can", "gn:32.cc@2")},
        pairs={
            "A to D": DomainPair("office31/amazon", "office31/dslr", bgn="bgn:1.aux@2"),
            "A to W": DomainPair("office31/amazon", "office31/webcam", bgn="bgn:8.aux@2"),
            "D to A": DomainPair("office31/dslr", "office31/amazon", bgn="bgn:512.aux@2"),
            "D to W": DomainPair("office31/dslr", "office31/webcam", bgn="bgn:32.aux@2"),
            "W to A": DomainPair("office31/webcam", "office31/amazon", bgn="bgn:512.aux@2"),
            "W to D": DomainPair("office31/webcam", "office31/dslr", bgn="bgn:512.aux@2"),
        },
    ),
}


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
        "failure": "; ".join(failures),
        "seconds": sum(row["seconds"] for row in rows.values()),
        "commit": first["commit"],
        "epochs": [] if failures else first["epochs"],
        "accuracies": [] if failures else [round(mean(values), 3) for values in curves],
        "by_pair": {name: row["accuracy"] for name, row in rows.items()},
    }


def measure_pair(settings: AdaptationSettings, cell: Cell, runs: Path, pair: DomainPair | None = None) -> Measurement:
    """Return the accuracies of a cell on one pair of domains.

    Args:
        settings: of the preset.
        cell: norm and seed.
        runs: the folder of the run store.
        pair: the domains; None for those of the training.
    """
    method, config = settings.norms[cell["norm"]], settings.training.config
    norm = method.norm
    if pair is not None:
        config = replace(config, data=pair.data, options=replace(CAN.options_of(config), target=pair.target))
        norm = pair.bgn or norm if cell["norm"] == "bgn" else norm
    if method.task == "dsbn":
        options = {name: value for name, value in config.option_values.items() if name != "classes_per_batch"}
        config = replace(config, options=options)
    config = replace(config, task=method.task, norm=norm, seed=cell["seed"])
    config = make_config(config, settings.training.base_batch_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="clusters? .* no sample")  # usual in first loops of poor features
        record = train_run(config, runs)
    row = run_metrics(record)
    del row["train_accuracy"]  # the adaptation trains on labels of the source alone
    return row | before_adaptation(record)


def before_adaptation(record: RunRecord) -> Measurement:
    """Return the accuracies at the last evaluation before the adaptation, and the curve of accuracies by epoch."""
    curve = record.curve
    before = [point for point in curve if "test_adabn_error" in point]
    done = record.done and bool(before)
    return {
        "source_accuracy": round(100 - before[-1]["test_error"], 3) if done else None,
        "adabn_accuracy": round(100 - before[-1]["test_adabn_error"], 3) if done else None,
        "epochs": [point["epoch"] for point in curve],
        "accuracies": [round(100 - point["test_error"], 3) for point in curve],
    }


def claims(settings: AdaptationSettings) -> list[Claim]:
    """Return the order of the norms in Table 7, and what adaptation and domain-specific norms contribute."""
    norms, result = settings.norms, []
    for norm in ("bgn", "bn"):
        for other, accuracy in PUBLISHED.items():
            if other in norms and accuracy < PUBLISHED[norm]:
                result.append(more_accurate(norm, other, f"{PUBLISHED[norm]} and {accuracy}"))
    if "bn, shared" in norms:
        statement = "domain-specific `bn.aux@2` is more accurate than shared `bn`, both with CAN"
        result.append(Claim(statement, NOT_IN_PAPER, accuracy_of(norm="bn"), accuracy_of(norm="bn, shared")))
    if "dsbn" in norms:
        statement = "CAN is more accurate than DSBN (`bn.aux@2`)"
        result.append(Claim(statement, NOT_IN_PAPER, accuracy_of(norm="bn"), accuracy_of(norm="dsbn")))
    for column, name in (("source_accuracy", "without adaptation"), ("adabn_accuracy", "with AdaBN")):
        statement = f"`bn` is more accurate with CAN than {name}"
        result.append(Claim(statement, NOT_IN_PAPER, values_of("accuracy", norm="bn"), values_of(column, norm="bn")))
    adabn, source = (values_of(f"{name}_accuracy", norm="bn") for name in ("adabn", "source"))
    result.append(Claim("`bn` is more accurate with AdaBN than without adaptation", NOT_IN_PAPER, adabn, source))
    return result


def tables(record: RecipeRecord[AdaptationSettings]) -> list[Table]:
    """Return the accuracies by norm and method."""
    rows = []
    for norm, method in record.settings.norms.items():
        accuracies = {title: Result.of(successful(record.rows, column, norm=norm) or [None]) for column, title in METHODS.items()}
        rows.append({"norm": norm, "spec": method.norm, "method": method.task, **accuracies})
    return [result_table(rows, "Accuracy on the target's test images in %, mean ± sd over seeds; adapted: by the method.")]


def plot(record: RecipeRecord[AdaptationSettings], path: Path) -> list[Path]:
    """Plot the accuracy on the target before and after adaptation, and over the epochs."""
    fig = Figure(figsize=(11, 4), layout="constrained")
    bars, curves = fig.subplots(1, 2)
    norms = list(record.settings.norms)
    for k, (column, title) in enumerate(METHODS.items()):
        values = [successful(record.rows, column, norm=norm) for norm in norms]
        positions = [index + 0.27 * (k - 1) for index in range(len(norms))]
        means = [sum(each) / len(each) if each else 0.0 for each in values]
        bars.bar(positions, means, 0.25, color=draw.COLORS[k], label=title, alpha=0.85)
        for position, each in zip(positions, values, strict=True):
            bars.plot([position] * len(each), each, ".", color="black", ms=3)
    bars.set_xticks(range(len(norms)), norms, rotation=25)
    bars.set(ylabel="accuracy on the target (%)", ylim=(0, 118), title="Before and after adaptation, with every seed")
    bars.legend(frameon=False, loc="upper center", ncols=3)
    for norm, color in zip(norms, colormaps["tab10"].colors, strict=False):  # type: ignore[attr-defined]
        rows = [row for row in record.rows if row["norm"] == norm and not row["failure"]]
        if rows:
            means = [sum(each) / len(each) for each in zip(*(row["accuracies"] for row in rows), strict=True)]
            curves.plot(rows[0]["epochs"], means, "o-", ms=3, color=color, label=norm)
    curves.axvline(options_of(record.settings.training.config).source_epochs, color="gray", lw=1, ls=":")
    curves.set(xlabel="epoch (adaptation right of the dotted line)", ylabel="accuracy on the target (%)", title="Mean over seeds")
    curves.legend(frameon=False, fontsize="small")
    return save_figure(fig, path)


RECIPE = Recipe("bgn_adaptation", PRESETS, cells, measure, claims, plot, tables)
