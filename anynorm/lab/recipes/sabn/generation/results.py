"""The results of a GAN in a row of `sabn_generation`, computed from the curve of its run.

fd, class_score, generator_loss         means of the last evaluations
class_accuracy, real_class_accuracy     % of images assigned to their class by a classifier of real images; generated and real
relative_class_accuracy                 the first in % of the second: a generator that ignores its class has chance
real_class_score                        the class score of real images, without which that of generated ones means nothing
grad_norm_std, g_inter                  gradient balance by mode, means over stages and measurements (`curves` has the stages)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anynorm.lab.tasks.generation.class_gradients import MODES, BalanceMetric
from anynorm.lab.tasks.generation.feature_networks import distance_name, metric_suffix, score_name
from anynorm.lab.tasks.generation.metrics import REAL
from anynorm.lab.training.sweep import Measurement, Row

BALANCE = {"grad_norm_std": "standard deviation of class gradient norms", "g_inter": "cosine of class gradients"}
"""The columns of the gradient balance that are compared, with their names in claims."""
VALUES = (
    "fd", "best_fd", "class_score", "real_class_score", "generator_loss",
    "class_accuracy", "real_class_accuracy", "relative_class_accuracy",
)  # fmt: skip


def balance_column(column: str, mode: str) -> str:
    """Return the column of a row for a column of the gradient balance in one mode."""
    return f"{column} {mode}"


def failed_results() -> Measurement:
    """Return the columns of a run that failed."""
    balance = [balance_column(column, mode) for column in BALANCE for mode in MODES]
    return {**dict.fromkeys([*VALUES, *balance]), "curves": {}}


def summarize(curve: Sequence[Mapping[str, Any]], features: str, num_last_evals: int) -> Measurement:
    """Return the results of a run from its curve.

    Args:
        curve: the points of the evaluations.
        features: the feature network.
        num_last_evals: number of last evaluations whose mean is the value of the run.

    Returns:
        The values, and `curves`, the series of all of them with the gradient balance by stage.
    """
    accuracy = f"class accuracy{metric_suffix(features)}"
    names = {
        "fd": f"test_{distance_name(features)}",
        "class_score": f"test_{score_name(features)}",
        "generator_loss": "train_generator_loss",
        "class_accuracy": f"test_{accuracy}",
    }
    curves: dict[str, list[Any]] = {name: [point.get(key) for point in curve] for name, key in names.items()}
    values: Measurement = {name: _mean(curves[name][-num_last_evals:]) for name in names}
    values["best_fd"] = min(curves["fd"])
    real_accuracy = curve[-1].get(f"test_{REAL}{accuracy}")
    values["real_class_accuracy"] = real_accuracy
    values["relative_class_accuracy"] = 100 * values["class_accuracy"] / real_accuracy if real_accuracy else None
    values["real_class_score"] = curve[-1].get(f"test_{REAL}{score_name(features)}")
    stages = [metric for metric in map(BalanceMetric.parse, _training_metrics(curve[-1])) if metric and metric.column in BALANCE]
    curves |= {str(metric): [point.get(f"train_{metric}") for point in curve] for metric in stages}
    for column in BALANCE:
        for mode in MODES:
            series = [curves[str(metric)] for metric in stages if (metric.column, metric.mode) == (column, mode)]
            values[balance_column(column, mode)] = _mean([value for values_of_stage in series for value in values_of_stage])
    digits = {name: [None if value is None else float(f"{value:.5g}") for value in column] for name, column in curves.items()}
    return {**values, "curves": {"step": [point["step"] for point in curve], **digits}}


def mean_of_curve(name: str) -> Callable[[Row], float | None]:
    """Return a function of a row: the mean of a series of `curves` over all evaluations; None if the row does not have it."""
    return lambda row: _mean(row["curves"].get(name, []))


def closed_gap(row: Row) -> float | None:
    """Return the rise of the class score in training, in % of what real images are above the first samples.

    None if the row does not have the score of real images, or if they are not above the first samples.
    """
    known = [value for value in row["curves"].get("class_score", []) if value is not None]
    real = row.get("real_class_score")
    if not known or real is None or real <= known[0]:
        return None
    return float(100 * (known[-1] - known[0]) / (real - known[0]))


def median_ratio(*values: float) -> float:
    """Return the median of the ratios of the first half of the values to the second half, entry by entry."""
    half = len(values) // 2
    return statistics.median(first / second for first, second in zip(values[:half], values[half:], strict=True))


def real_to_first_score(row: Row) -> float | None:
    """Return the class score of real images divided by that of the first evaluation; None if the row does not have both."""
    known = [value for value in row["curves"].get("class_score", []) if value is not None]
    real = row.get("real_class_score")
    return real / known[0] if known and real is not None else None


def _training_metrics(point: Mapping[str, Any]) -> list[str]:
    return [name.removeprefix("train_") for name in point if name.startswith("train_")]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(f"{statistics.fmean(known):.6g}") if known else None
