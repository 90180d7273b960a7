"""Settings of `shift_adaptation`, and values of its rows, which have one result per target and number of unlabeled images."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anynorm.diagnostics.adaptation import VARIANTS
from anynorm.diagnostics.corruptions import CORRUPTIONS
from anynorm.lab.recipes.support.computed_column import ComputedColumn
from anynorm.lab.recipes.support.quantities import Linear, Measured
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.training.sweep import Row

SHIFTS = ("corruption", "domain")
CLEAN = "uncorrupted"
"""The name of the target with unchanged test images."""


@dataclass(frozen=True, kw_only=True)
class ShiftSettings(TrainingSettings):
    """Settings of tests on corrupted images and on another domain.

    Args:
        domain_training: how networks are trained that are tested on another domain.
        domain: the other domain, a name of a data set.
        norms: specs of the norms, one of them GN.
        corruptions: names of corruptions.
        severities: severities of the corruptions.
        num_unlabeled: a large and a small number of unlabeled images.
        num_labeled: number of test images.
        prior_samples: N of the weight N / (N + n) of the source statistics.
        eval_batch_size: number of images per test batch.
        min_train_accuracy: training accuracy in % from which a network counts as trained.
    """

    domain_training: Training
    domain: str
    norms: tuple[str, ...] = ("bn", "hn", "bgn", "sn", "gn:8")
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = (1, 3, 5)
    num_unlabeled: tuple[int, ...] = (1000, 16)
    num_labeled: int = 1000
    prior_samples: int = 16
    eval_batch_size: int = 100
    min_train_accuracy: float = 25.0

    @property
    def num_test(self) -> int:
        """The number of test images."""
        return self.num_labeled


def mean_result(
    column: str, settings: ShiftSettings, norm: str, data: Callable[[str], bool], *, few: bool = False, shift: str = SHIFTS[0]
) -> ComputedColumn:
    """Return a column averaged over targets; None where the run failed. Test items are groups of test images.

    Args:
        column: the column of the results.
        settings: the settings; `num_unlabeled` lists numbers of unlabeled images.
        norm: the norm of the cells.
        data: a function of the name of a target, such as "contrast 5", that returns whether its results are selected.
        few: whether to use the last entry of `num_unlabeled` instead of the first.
        shift: "corruption", or "domain" for targets of the other domain, whose networks have another source.
    """
    count = settings.num_unlabeled[-1 if few else 0]

    def mean(row: Row) -> float | None:
        values = [result[column] for result in _selected(row, data, count)]
        return statistics.fmean(values) if values and None not in values else None

    def items(row: Row) -> NDArray[np.float64] | None:
        values = [result.get("items", {}).get(column) for result in _selected(row, data, count)]
        return np.mean(values, axis=0) if values and None not in values else None

    return ComputedColumn(mean, {"shift": shift, "norm": norm}, settings.num_test if column in VARIANTS else None, items=items)


def _selected(row: Row, data: Callable[[str], bool], count: int) -> list[Row]:
    return [result for result in row["results"] if data(result["data"]) and result["num_unlabeled"] == count]


def shift_with(name: str, settings: ShiftSettings) -> str:
    """Return the kind of shift whose cells have a target."""
    return SHIFTS[1] if name == settings.domain else SHIFTS[0]


def rank_correlation(settings: ShiftSettings, norm: str) -> Measured:
    """Return Spearman's correlation of estimation shift and gain over corruptions; None where the run failed."""

    def correlate(row: Row) -> float | None:
        from scipy.stats import spearmanr

        results = _selected(row, is_corrupted, settings.num_unlabeled[0])
        shifts, gains = [r["shift"] for r in results], [r["recalibrated"] - r["source"] for r in results]
        if len(set(shifts)) < 2 or len(set(gains)) < 2:
            return 0.0 if results else None  # the correlation of constant values is undefined
        return float(spearmanr(shifts, gains).statistic)

    return Measured(correlate, {"shift": SHIFTS[0], "norm": norm})


def is_corrupted(data: str) -> bool:
    """Whether a target is a corruption with a severity, such as "contrast 5"."""
    return data.rpartition(" ")[0] in CORRUPTIONS


def named(*names: str) -> Callable[[str], bool]:
    """Return a function that tests whether a target is among `names`; a corruption without a severity matches all severities."""
    return lambda data: data in names or data.rpartition(" ")[0] in names


def corruption_loss(settings: ShiftSettings, norm: str) -> Linear:
    """Return the mean drop of accuracy by corruptions, in points."""
    clean, corrupted = (mean_result("source", settings, norm, data) for data in (named(CLEAN), is_corrupted))
    return clean - corrupted
