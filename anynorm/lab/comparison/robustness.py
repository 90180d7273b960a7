"""Errors on adversarial images in the results of a comparison: two columns per attack, and a warning where they differ.

A run has, by attack, such as "pgd4", the error in percent for attacks with norms in eval mode and in train mode. Adversarial
images are always classified in eval mode.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anynorm.lab.tasks.classification.robustness import RobustMetric
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.result import Result

ROBUST_FORMAT = ".1f"
"""Format specification of robust errors, which are in percent."""


class RobustErrors(NamedTuple):
    """The errors of a run under one attack, in percent, by the mode of the norms during the attack."""

    eval_mode: float
    train_mode: float


def robust_errors(record: RunRecord) -> dict[str, RobustErrors]:
    """Return the robust errors of a run by attack, or by attack and branch if the norms of a task have several branches.

    >>> metrics = {"test_error": 10.0, "test_robust_error_pgd4": 60.0, "test_robust_error_pgd4_train_mode": 55.0}
    >>> robust_errors(RunRecord("", {}, "done", metrics=metrics))
    {'pgd4': RobustErrors(eval_mode=60.0, train_mode=55.0)}
    """
    errors: dict[str, dict[str, float]] = {}
    for name, value in record.metrics.items():
        metric = RobustMetric.parse(name.removeprefix("test_"))
        if metric is not None and value is not None and name.startswith("test_"):
            errors.setdefault(metric.attack + metric.branch.replace("_", " "), {})[metric.norm_mode] = value
    return {attack: RobustErrors(modes["eval"], modes["train"]) for attack, modes in errors.items() if len(modes) == 2}


def attacks_of(records: Iterable[RunRecord]) -> list[str]:
    """Return the names of all attacks in records, in the order of their first use."""
    return list(dict.fromkeys(attack for record in records for attack in robust_errors(record)))


def robust_results(records: Sequence[RunRecord], attacks: Iterable[str]) -> dict[str, Result]:
    """Return the robust errors of one norm at one batch size, by quantity: "robust error % (eval-mode pgd4)".

    Args:
        records: the runs of this norm and batch size.
        attacks: the names of the attacks, see `attacks_of`.
    """
    results = {}
    for attack in attacks:
        pairs = [robust_errors(record).get(attack) for record in records]
        for title, index in (("eval-mode", 0), ("train-mode", 1)):
            results[f"robust error % ({title} {attack})"] = Result.of(None if pair is None else pair[index] for pair in pairs)
    return results


def mode_warning(records: Sequence[RunRecord], norms: Iterable[str], batch_sizes: Iterable[int]) -> str:
    """Return a warning that names the norms whose robust errors differ between the two modes of the attack; "" if none do.

    A difference counts if its mean over seeds exceeds the standard error of this mean; with one seed, any difference counts.
    """
    warnings, attacks, sizes = [], attacks_of(records), list(batch_sizes)
    for norm in norms:
        for size in sizes:
            cell = [robust_errors(record) for record in records if (record.norm, record.batch_size) == (norm, size)]
            for attack in attacks:
                pairs = [errors[attack] for errors in cell if attack in errors]
                if pairs and exceeds_standard_error([pair.train_mode - pair.eval_mode for pair in pairs]):
                    eval_mode, train_mode = (statistics.fmean(values) for values in zip(*pairs, strict=True))
                    warnings.append(f"{norm} ({attack}, batch size {size}: {eval_mode:.1f} % and {train_mode:.1f} %)")
    if not warnings:
        return ""
    return (
        "Warning: attacks with norms in eval and in train mode give robust errors that differ by more than the standard error "
        f"for {', '.join(warnings)}. State the mode with the number; the larger error is that of the stronger attack."
    )


def exceeds_standard_error(differences: Sequence[float]) -> bool:
    """Whether the absolute mean of differences is larger than its standard error.

    >>> exceeds_standard_error([0.0, 0.0]), exceeds_standard_error([1.0, 2.0]), exceeds_standard_error([-1.0, 1.2])
    (False, True, False)
    """
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return abs(statistics.fmean(differences)) > error
