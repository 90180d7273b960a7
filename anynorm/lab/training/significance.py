"""Significance of differences over seeds: the paired t-test, and Holm's correction for several tests.

Two configurations are compared by a paired test over seeds, because runs with the same seed share their data order and
initialization. With d_1 … d_n the differences per seed, the p-value of Student's one-sided paired t-test is the probability of a
t at least this large if the true mean difference is 0:

    t = mean(d) / (sd(d) / √n),    p = P(T_{n-1} ≥ t)

For k tests at level α, Holm (1979) sorts the p-values, rejects the null hypothesis of the smallest if it is below α / k, of the
next if it is below α / (k − 1), and so on, and stops at the first that is not.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
LEVEL = 0.05
"""A difference is called significant if its p-value is below this level."""


def paired_t_test(larger: Sequence[float], smaller: Sequence[float]) -> float:
    """Return the p-value of Student's paired one-sided t-test of mean(larger) > mean(smaller).

    Args:
        larger: one value per seed.
        smaller: one value per seed, in the same order of seeds.

    Returns:
        The p-value; 1.0 if there are fewer than two pairs or a value is not finite.

    >>> round(paired_t_test([3.1, 2.9, 3.4], [2.0, 2.8, 2.1]), 3)
    0.077
    """
    differences = [a - b for a, b in zip(larger, smaller, strict=True)]
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return 1.0
    if max(differences) - min(differences) <= 1e-12 * max(map(abs, differences)):
        # sd = 0 up to rounding: t is infinite or 0 / 0, for which scipy returns NaN with a warning
        return 0.0 if max(differences) > 0 else 1.0
    from scipy.stats import ttest_rel

    return float(ttest_rel(larger, smaller, alternative="greater").pvalue)


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return p-values adjusted for multiple tests by Holm's step-down method, in the order of the input.

    A test is significant at the family-wise level α if its adjusted p-value is below α.

    >>> holm({"gn": 0.04, "sn": 0.01, "bn": 0.03})
    {'gn': 0.06, 'sn': 0.03, 'bn': 0.06}
    """
    adjusted: dict[Key, float] = {}
    largest = 0.0
    for rank, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        largest = max(largest, min(1.0, p_values[key] * (len(p_values) - rank)))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}
