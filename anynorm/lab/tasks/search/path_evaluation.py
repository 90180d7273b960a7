"""The error of one path of a supernet with running statistics of this path.

Running statistics of a supernet are those of the mixture of all operations, or of all paths that were trained. A path has other
activations, so its error with these statistics says little about it:

    estimation shift      how far the statistics are from those of the path (`anynorm.diagnostics.estimation_shift`)
    recalibration         statistics of the path, estimated on training batches (`anynorm.recalibrate`)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anynorm.diagnostics import estimation_shift
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.lab.models.search.supernet import Supernet
from anynorm.surgery.modes import eval_mode
from anynorm.surgery.recalibrate import has_running_stats, recalibrate

Batches = Sequence[tuple[Tensor, Tensor]]


class PathEvaluation(NamedTuple):
    """Errors of a path in percent.

    Attributes:
        error: with statistics of the path.
        error_with_supernet_statistics: with the running statistics of the supernet.
        shift: the estimation shift of the supernet's statistics, one row per norm of the path; None if no norm has running
            statistics.
    """

    error: float
    error_with_supernet_statistics: float
    shift: DiagnosticReport | None


def evaluate_path(
    supernet: Supernet, choice: Mapping[str, Tensor | Sequence[int]], train_batches: Batches, test_batches: Batches
) -> PathEvaluation:
    """Evaluate one path of a supernet; the supernet is not changed.

    Args:
        supernet: a trained supernet.
        choice: index of the operation of each edge, by kind of cell, such as `supernet.choice()`.
        train_batches: images and labels from which statistics are estimated.
        test_batches: images and labels on which the path is evaluated.

    Raises:
        DataError: if the choice is not a path of the supernet.
    """
    network = copy.deepcopy(supernet)
    with network.path(choice), eval_mode(network), torch.no_grad():
        before = _error(network, test_batches)
        if not has_running_stats(network):
            return PathEvaluation(before, before, None)
        shift = estimation_shift(network, test_batches, trial_samples=0)
        shift.rows[:] = [row for row in shift.rows if "shift" in row]  # the others are not on the path
        recalibrate(network, train_batches)
        return PathEvaluation(_error(network, test_batches), before, shift)


def _error(network: Supernet, batches: Batches) -> float:
    wrong = sum(int((network(x).argmax(1) != labels).sum()) for x, labels in batches)
    return 100 * wrong / sum(len(labels) for _, labels in batches)
