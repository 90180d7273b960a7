"""Settings of `shift_adaptation`, and values of its rows, which have one result per target and number of unlabeled images."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from anynorm.diagnostics.corruptions import CORRUPTIONS
from anynorm.lab.recipes.support.rows import Values, differences, select
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


def results_of(norm: str, data: Callable[[str], bool], count: int) -> Callable[[list[Row]], list[list[Row]]]:
    """Return a function that selects, for each seed, the results of a norm for some targets; an empty list where the run failed.

    Args:
        norm: the norm of the cells.
        data: a function of the name of a target, such as "contrast 5", that returns whether its results are selected.
        count: the number of unlabeled images.
    """

    def selected(rows: list[Row]) -> list[list[Row]]:
        corruption, domain = (select(rows, "results", norm=norm, shift=shift) for shift in SHIFTS)
        # clean images are taken from the corruption cells only, because domain cells have another source
        by_seed = [a + [result for result in b if result["data"] != CLEAN] for a, b in zip(corruption, domain, strict=True)]
        return [[r for r in results if data(r["data"]) and r["num_unlabeled"] == count] for results in by_seed]

    return selected


def mean_of(column: str, settings: ShiftSettings, norm: str, data: Callable[[str], bool], *, few: bool = False) -> Values:
    """Return a function that averages a column over selected targets, for each seed; None where the run failed.

    Args:
        column: the column of the results.
        settings: the settings; `num_unlabeled` lists numbers of unlabeled images.
        norm: the norm of the cells.
        data: a function of the name of a target that returns whether its results are selected.
        few: whether to use the last entry of `num_unlabeled` instead of the first.
    """
    selected = results_of(norm, data, settings.num_unlabeled[-1 if few else 0])
    return lambda rows: [statistics.fmean(r[column] for r in results) if results else None for results in selected(rows)]


def rank_correlation(settings: ShiftSettings, norm: str) -> Values:
    """Return a function that computes Spearman's correlation of estimation shift and gain over corruptions, for each seed."""
    selected = results_of(norm, is_corrupted, settings.num_unlabeled[0])

    def correlate(results: list[Row]) -> float | None:
        from scipy.stats import spearmanr

        shifts, gains = [r["shift"] for r in results], [r["recalibrated"] - r["source"] for r in results]
        if len(set(shifts)) < 2 or len(set(gains)) < 2:
            return 0.0 if results else None  # the correlation of constant values is undefined
        return float(spearmanr(shifts, gains).statistic)

    return lambda rows: [correlate(results) for results in selected(rows)]


def is_corrupted(data: str) -> bool:
    """Whether a target is a corruption with a severity, such as "contrast 5"."""
    return data.rpartition(" ")[0] in CORRUPTIONS


def named(*names: str) -> Callable[[str], bool]:
    """Return a function that tests whether a target is among `names`; a corruption without a severity matches all severities."""
    return lambda data: data in names or data.rpartition(" ")[0] in names


def corruption_loss(settings: ShiftSettings, norm: str) -> Values:
    """Return a function that computes the mean drop of accuracy by corruptions, in points, for each seed."""
    clean, corrupted = (mean_of("source", settings, norm, data) for data in (named(CLEAN), is_corrupted))
    return differences(clean, corrupted)
