"""Metrics of a search, computed from the accuracies of all architectures of NAS-Bench-201.

The cell of the largest α is one of 15 625, and one edge of it may change its accuracy by more than 10 points. Two metrics use
the whole distribution p(cell) = Π_edges softmax(α):

    expected accuracy       E_α = Σ_cells p(cell) accuracy(cell), exact
    rank correlation        Spearman's ρ of log p(cell) with accuracy(cell)

A search whose α is uniform has chosen nothing, whatever its largest α is:

    distance from uniform   ½ Σ_o |softmax(α)_o − 1/n| of the n operations o, mean over edges; below 1 − 1/n

A uniformly random cell has the mean accuracy of the table: 61.41 % on CIFAR-100.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.models.search.supernet import Supernet
from anynorm.lab.tasks.search.nasbench import CellTable, load_table

DATA_SETS = ("cifar10", "cifar100", "imagenet16")
"""Data sets whose test accuracies after 200 epochs are used."""


def distance_from_uniform(probabilities: Tensor) -> float:
    """Return the mean total variation distance of rows of probabilities from the uniform distribution.

    >>> import torch
    >>> distance_from_uniform(torch.eye(4)), distance_from_uniform(torch.full((3, 4), 0.25))
    (0.75, 0.0)
    """
    return float((probabilities.detach().double() - 1 / probabilities.shape[1]).abs().sum(1).mean() / 2)


def expected_accuracy_name(data_set: str) -> str:
    """Return the name of the metric E_α."""
    return f"expected accuracy {data_set}"


def load_search_table(path: str) -> CellTable | None:
    """Return the table at a path, relative to the working directory or the data directory; None if the path is empty."""
    return load_table(path) if path else None


def check_table(table: CellTable | None, supernet: Supernet) -> None:
    """Check that a table has the operations and edges of a supernet.

    Raises:
        DataError: if it does not.
    """
    if table is None:
        return
    shapes = {kind: tuple(alpha.shape) for kind, alpha in supernet.alphas.items()}
    if shapes != {"cell": (table.num_edges, len(table.op_names))} or supernet.op_names != table.op_names:
        raise DataError(
            f"the table has cells of {table.num_edges} edges with the operations {' '.join(table.op_names)}; "
            f"{type(supernet).__name__} has α of shape {shapes} for {' '.join(supernet.op_names)}. Use table= without a file."
        )


def table_metrics(table: CellTable, alpha: Tensor) -> dict[str, float]:
    """Return the accuracies of a search in percent, and rank correlations, for each data set of the table.

    Args:
        table: accuracies of all cells.
        alpha: α (edges, ops).
    """
    log_probabilities = alpha.detach().double().cpu().log_softmax(1)
    likelihood = table.log_probabilities(log_probabilities)
    row = int(table.index(alpha.detach().argmax(1).cpu()))
    metrics: dict[str, Any] = {}
    for data_set in DATA_SETS:
        if (data_set, 200, "test") not in table.accuracies:
            continue
        accuracy = table.accuracy(data_set)
        metrics[f"cell accuracy {data_set}"] = float(accuracy[row])
        metrics[expected_accuracy_name(data_set)] = float(table.expected(log_probabilities.exp(), accuracy))
        metrics[f"rank correlation {data_set}"] = rank_correlation(likelihood, accuracy)
    return metrics


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's ρ of two vectors; 0 if all values of one vector are equal."""
    from scipy.stats import spearmanr

    if any(bool((values == values[0]).all()) for values in (a, b)):
        return 0.0
    return float(spearmanr(a.numpy(), b.numpy()).statistic)
