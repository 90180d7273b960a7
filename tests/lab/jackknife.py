"""Check jackknife pseudo-values against a bootstrap over images."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray


def check_pseudo_values(
    values: Sequence[float], metric: float, metric_of: Callable[[NDArray[np.int64]], float], num_resamples: int = 60
) -> None:
    """Check that pseudo-values have the mean and the standard error of a metric.

    Args:
        values: one pseudo-value per image.
        metric: the metric of all images.
        metric_of: a function that returns the metric of images by their indices.
        num_resamples: number of bootstrap samples.
    """
    generator, n = np.random.default_rng(0), len(values)
    expected = float(np.std([metric_of(generator.integers(n, size=n)) for _ in range(num_resamples)], ddof=1))
    assert np.mean(values) == pytest.approx(metric, abs=expected)  # their difference is the bias of the metric
    assert np.std(values, ddof=1) / n**0.5 == pytest.approx(expected, rel=0.25)  # that of 60 resamples is known to 9 %
