"""Spearman's rank correlation."""

from __future__ import annotations

from collections.abc import Sequence


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlate the ranks of two series; ties share their mean rank, and a constant series correlates with nothing.

    >>> rank_correlation([1, 2, 3, 4], [10, 20, 20, 40])
    0.9486832980505138
    """
    a, b = _centred(first), _centred(second)
    size = (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5
    return sum(x * y for x, y in zip(a, b, strict=True)) / size if size else 0.0


def _centred(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    ranks = [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
    return [rank - (len(ranks) - 1) / 2 for rank in ranks]
