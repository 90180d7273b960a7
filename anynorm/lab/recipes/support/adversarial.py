"""Recipes of adversarial training: accuracies on clean and adversarial images, by norm and by the mode of norms in the attack."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.attacks import NORM_MODES
from anynorm.lab.recipes.support.claims import OURS, Larger, Published, Source
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import save_figure, successful
from anynorm.lab.recipes.support.runs import items_of, last_accuracy, make_config, options_of, run_metrics, train_run
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.tasks.adversarial.options import AdversarialOptions, AdvPropOptions
from anynorm.lab.tasks.classification.robustness import RobustMetric
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.sweep import Cell, Measurement, grid


@dataclass(frozen=True)
class TrainedNorm:
    """A norm and the attack that it is trained with.

    Args:
        norm: the spec.
        attack_norm_mode: mode of the norms during attacks in training, "eval" or "train".
    """

    norm: str
    attack_norm_mode: str = "eval"


@dataclass(frozen=True, kw_only=True)
class AdversarialSettings(TrainingSettings):
    """Settings of adversarial training.

    Args:
        norms: norms by label.
        min_train_accuracy: training accuracy in % below which a network has not learned. In AdvProp, that of the clean branch.
            The default is 2.5 times chance with ten classes.
    """

    norms: Mapping[str, TrainedNorm]
    min_train_accuracy: float = 25.0

    @property
    def options(self) -> AdversarialOptions:
        """The options of the task."""
        options: AdversarialOptions = options_of(self.training.config)
        return options

    @property
    def attacks(self) -> tuple[str, ...]:
        """Names of the attacks of evaluations in metrics, such as "pgd10"."""
        return tuple(attack.replace(":", "") for attack in self.options.attack)

    @property
    def has_losses(self) -> bool:
        """Whether rows have the test losses of both branches."""
        return isinstance(self.options, AdvPropOptions) and bool(self.options.loss_attack)

    @property
    def branches(self) -> tuple[str, ...]:
        """Suffixes of column names: "" for the clean branch, and that of the adversarial branch of AdvProp."""
        return ("", "_adversarial_branch") if self.training.config.task == "advprop" else ("",)


def trained_norms(*norms: str, train_mode: tuple[str, ...] = ()) -> dict[str, TrainedNorm]:
    """Return norms by label.

    Args:
        norms: specs that are trained with the default attack of the settings, labeled by the spec.
        train_mode: specs that are also trained with train-mode attacks, labeled by `train_mode_label`.
    """
    plain = {norm: TrainedNorm(norm) for norm in norms}
    return plain | {train_mode_label(norm): TrainedNorm(norm, attack_norm_mode="train") for norm in train_mode}


def train_mode_label(norm: str) -> str:
    """Return the label of a norm trained with train-mode attacks."""
    return f"{norm}, train-mode attacks"


def cells(settings: AdversarialSettings) -> list[Cell]:
    """Return one cell per label of a norm and seed."""
    return grid(settings.seeds, norm=settings.norms)


def measure(settings: AdversarialSettings, cell: Cell, runs: Path) -> Measurement:
    """Train the network of a cell and return its accuracies on clean and adversarial images.

    With AdvProp and `loss_attack`, the row also has the test losses of both branches, the last ones and their curves, and the
    training accuracy on adversarial images.
    """
    trained = settings.norms[cell["norm"]]
    options = replace(settings.options, attack_norm_mode=trained.attack_norm_mode)
    config = replace(settings.training.config, norm=trained.norm, seed=cell["seed"], options=options)
    config = make_config(config, settings.training)
    record = train_run(config, runs)
    branches = settings.branches
    metrics = [RobustMetric(attack, mode, branch) for mode in NORM_MODES for attack in settings.attacks for branch in branches]
    names = {metric.accuracy: f"test_{metric.name}" for metric in metrics}
    names |= {f"accuracy{branch}": f"test_error{branch}" for branch in branches[1:]}
    if settings.has_losses:
        names["train_adversarial_accuracy"] = "train_adversarial_error"
    row = run_metrics(record) | {name: last_accuracy(record, metric) for name, metric in names.items()}
    columns = {name: metric.removeprefix("test_") for name, metric in names.items()}
    columns |= {"clean_loss": "loss", "adversarial_loss": "adversarial_loss"} if settings.has_losses else {}
    row |= items_of(record, columns)
    return row | (branch_losses(record) if settings.has_losses else {})


def branch_losses(record: RunRecord) -> Measurement:
    """Return the test losses of AdvProp, the last ones and their curves; None and empty curves if the run failed."""
    names = {"clean_loss": "test_loss", "adversarial_loss": "test_adversarial_loss"}
    curves = {name: [round(point[metric], 5) for point in record.curve if metric in point] for name, metric in names.items()}
    last = {name: curves[name][-1] if record.done else None for name in names}
    return {**last, "loss_curves": {"step": [point["step"] for point in record.curve], **curves}}


def higher(
    column: str,
    norms: tuple[str, str],
    quantity: str,
    source: Source,
    published: Published | None = None,
    *,
    group: str = "",
    requires: tuple[str, ...] = (),
    loser_may_fail: bool = False,
    num_attacked: int | None = None,
) -> Larger:
    """Return the claim that a column is higher for one norm than for another.

    Args:
        column: the column of the record, in %.
        norms: the labels of the two norms, the one with the higher value first.
        quantity: the name of the column in the statement.
        source: where the claim is made.
        published: the paper's numbers, in the order of `norms`.
        group, requires, loser_may_fail: see `Larger`.
        num_attacked: number of images of a column other than `accuracy`, for rows without the values of items.
    """
    norm, other = norms
    return Larger(
        statement=f"the {quantity} of `{norm}` is higher than that of `{other}`",
        source=source,
        published=published,
        larger=Measured(column, {"norm": norm}, num_attacked),
        smaller=Measured(column, {"norm": other}, num_attacked),
        group=group,
        requires=requires,
        loser_may_fail=loser_may_fail,
    )


def eval_mode_is_stronger(norm: str, metric: RobustMetric, quantity: str, group: str = "") -> Larger:
    """Return our claim that accuracy is lower under attacks with norms in eval mode than under attacks in train mode."""
    eval_mode, train_mode = (Measured(metric.with_mode(mode).accuracy, {"norm": norm}) for mode in ("eval", "train"))
    return Larger(
        statement=f"the {quantity} of `{norm}` is higher against train-mode attacks than against eval-mode attacks",
        source=OURS,
        larger=train_mode,
        smaller=eval_mode,
        group=group,
    )


def plot(
    record: RecipeRecord[AdversarialSettings], path: Path, panels: Callable[[AdversarialSettings], dict[str, dict[str, str]]]
) -> list[Path]:
    """Plot accuracies by norm: every seed as a dot, the mean as a line.

    Args:
        record: the record of the recipe.
        path: the path without the extension.
        panels: a function of the settings that returns, for each panel title, the columns of the record by label.
    """
    norms, parts = list(record.settings.norms), panels(record.settings)
    fig = Figure(figsize=(0.8 * len(norms) * len(parts) + 3, 4.4), layout="constrained")
    for ax, (title, columns) in zip(fig.subplots(1, len(parts), sharey=True, squeeze=False)[0], parts.items(), strict=True):
        for index, (label, column) in enumerate(columns.items()):
            for position, norm in enumerate(norms):
                x, values = position + 0.22 * (index - (len(columns) - 1) / 2), successful(record.rows, column, norm=norm)
                shown = label if position == 0 else None
                ax.plot([x] * len(values), values, "o", color=draw.COLORS[index], alpha=0.5, ms=4, label=shown)
                if values:
                    ax.hlines(statistics.fmean(values), x - 0.1, x + 0.1, color=draw.COLORS[index], lw=2)
        ax.set_xticks(range(len(norms)), [norm.replace(", ", ",\n") for norm in norms], rotation=45, ha="right")
        ax.set(title=title, ylabel="test accuracy (%)", ylim=(0, None))
    handles, labels = fig.axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside right upper", frameon=False)
    return save_figure(fig, path)
