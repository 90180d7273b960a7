"""Errors on adversarial images in the results of a comparison: two columns per attack, and a warning where they differ.

The row of a run has `robust_errors`: by attack, such as "pgd4", the error in percent for attacks with norms in eval mode and in
train mode. Adversarial images are always classified in eval mode.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from anynorm.lab.tasks.classification.robustness import PREFIX, TRAIN_MODE
from anynorm.lab.training.statistics import Result

Row = dict[str, Any]
ROBUST_FORMAT = ".1f"
"""Format specification of robust errors, which are in percent."""
_METRIC = re.compile(rf"test_{PREFIX}([a-z0-9]+)({TRAIN_MODE})?(_.+)?")


class RobustErrors(NamedTuple):
    """The errors of a run under one attack, in percent, by the mode of the norms during the attack."""

    eval_mode: float
    train_mode: float


def read_robust_errors(record: Mapping[str, Any]) -> dict[str, RobustErrors]:
    """Return the robust errors of a run by attack, or by attack and branch if the norms of a task have several branches.

    >>> read_robust_errors({"test_error": 10.0, "test_robust_error_pgd4": 60.0, "test_robust_error_pgd4_train_mode": 55.0})
    {'pgd4': RobustErrors(eval_mode=60.0, train_mode=55.0)}
    """
    errors: dict[str, dict[bool, float]] = {}
    for name, value in record.items():
        match = _METRIC.fullmatch(name)
        if match and value is not None:
            attack, train_mode, branch = match.groups(default="")
            errors.setdefault(attack + branch.replace("_", " "), {})[bool(train_mode)] = value
    return {attack: RobustErrors(values[False], values[True]) for attack, values in errors.items() if len(values) == 2}


def attacks_of(rows: Iterable[Row]) -> list[str]:
    """Return the names of all attacks in rows, in the order of their first use."""
    return list(dict.fromkeys(attack for row in rows for attack in row.get("robust_errors", {})))


def robust_columns(rows: Sequence[Row], attacks: Iterable[str], batch_size: int) -> dict[str, Result]:
    """Return the columns of robust errors of one norm at one batch size.

    Args:
        rows: the rows of this norm and batch size.
        attacks: the names of the attacks, see `attacks_of`.
        batch_size: the batch size, for the names of the columns.
    """
    columns = {}
    for attack in attacks:
        values = [row["robust_errors"].get(attack) for row in rows]
        for title, index in (("eval-mode", 0), ("train-mode", 1)):
            cells = [None if value is None else value[index] for value in values]
            columns[f"robust error % ({title} {attack}), batch {batch_size}"] = Result.of(cells)
    return columns


def mode_warning(rows: Sequence[Row], norms: Iterable[str], batch_sizes: Iterable[int]) -> str:
    """Return a warning that names the norms whose robust errors differ between the two modes of the attack; "" if none do.

    A difference counts if its mean over seeds exceeds the standard error of this mean; with one seed, any difference counts.
    """
    found = []
    for norm in norms:
        for size in batch_sizes:
            cell = [row.get("robust_errors", {}) for row in rows if (row["norm"], row["batch_size"]) == (norm, size)]
            for attack in attacks_of(rows):
                pairs = [errors[attack] for errors in cell if attack in errors]
                if pairs and exceeds_standard_error([pair.train_mode - pair.eval_mode for pair in pairs]):
                    eval_mode, train_mode = (statistics.fmean(values) for values in zip(*pairs, strict=True))
                    found.append(f"{norm} ({attack}, batch size {size}: {eval_mode:.1f} % and {train_mode:.1f} %)")
    if not found:
        return ""
    return (
        "Warning: attacks with norms in eval and in train mode give robust errors that differ by more than the standard error "
        f"for {', '.join(found)}. State the mode with the number; the larger error is that of the stronger attack."
    )


def exceeds_standard_error(differences: Sequence[float]) -> bool:
    """Whether the absolute mean of differences is larger than its standard error.

    >>> exceeds_standard_error([0.0, 0.0]), exceeds_standard_error([1.0, 2.0]), exceeds_standard_error([-1.0, 1.2])
    (False, True, False)
    """
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return abs(statistics.fmean(differences)) > error
