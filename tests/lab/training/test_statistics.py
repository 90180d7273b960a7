"""Means with their spread, paired tests and Holm's correction agree with scipy and with hand-computed values."""

import math

import pytest
from scipy import stats

from anynorm.lab.training.statistics import LEVEL, holm, mean_sd, paired_t_test


def test_mean_sd_counts_failed_runs_and_has_no_sd_for_a_single_value():
    assert mean_sd([]) == ""
    assert mean_sd([None, None]) == "failed"
    assert mean_sd([1.0]) == "1"
    assert mean_sd([1.0, 3.0]) == "2 ± 1.4"
    assert mean_sd([30.0, 32.0, None]) == "31 ± 1.4, 1 of 3 failed"
    assert mean_sd([30.04, 32.0], ".1f", ".1f") == "31.0 ± 1.4"
    assert mean_sd([float("nan"), 1.0]) == "nan"


def test_the_paired_test_is_students():
    a, b = [3.1, 2.9, 3.4, 3.0], [2.0, 2.8, 2.1, 2.4]
    differences = [x - y for x, y in zip(a, b, strict=True)]
    mean = sum(differences) / 4
    sd = math.sqrt(sum((value - mean) ** 2 for value in differences) / 3)
    assert paired_t_test(a, b) == pytest.approx(stats.t.sf(mean / (sd / 2), 3))
    assert paired_t_test(b, a) == pytest.approx(1 - paired_t_test(a, b))


@pytest.mark.parametrize(
    ("larger", "smaller", "p"),
    [
        ([1.0], [0.0], 1.0),
        ([], [], 1.0),
        ([float("nan"), 1.0], [0.0, 0.0], 1.0),
        ([float("inf"), 1.0], [0.0, 0.0], 1.0),
        ([2.0, 3.0], [1.0, 2.0], 0.0),
        ([30.1, 31.3], [20.1, 21.3], 0.0),
        ([1.0, 2.0], [1.0, 2.0], 1.0),
        ([1.0, 2.0], [2.0, 3.0], 1.0),
    ],
)
def test_too_few_values_values_that_are_not_finite_and_constant_differences_have_a_p_value(larger, smaller, p):
    assert paired_t_test(larger, smaller) == p


def test_holm_rejects_step_by_step_and_stops_at_the_first_that_is_not_significant():
    adjusted = holm({"a": 0.011, "b": 0.02, "c": 0.013, "d": 0.2})
    assert list(adjusted) == ["a", "b", "c", "d"]
    assert adjusted == pytest.approx({"a": 0.044, "b": 0.044, "c": 0.044, "d": 0.2})
    stopped = holm({"a": 0.03, "b": 0.04})
    assert stopped == pytest.approx({"a": 0.06, "b": 0.06})  # b alone would pass at 0.05
    assert stopped["b"] >= LEVEL
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
