"""Means with their spread, paired tests and Holm's correction agree with scipy and with hand-computed values."""

import json
import math
from typing import Any

import pytest
from scipy import stats

from anynorm.lab.training.result import Result
from anynorm.lab.training.significance import LEVEL, holm, paired_t_test
from anynorm.table import Table


def test_a_result_has_numbers_and_its_text_counts_failed_runs_and_has_no_sd_for_a_single_value():
    assert Result.of([30.0, 32.0, None]) == Result(31.0, 2**0.5, 2, 1)
    assert Result.of([1.0]) == Result(1.0, None, 1)
    assert Result.of([None, None]) == Result(None, None, 0, 2)
    assert str(Result.of([])) == ""
    assert str(Result.of([None, None])) == "failed"
    assert str(Result.of([1.0])) == "1"
    assert str(Result.of([1.0, 3.0])) == "2 ± 1.4"
    assert str(Result.of([30.0, 32.0, None])) == "31 ± 1.4, 1 of 3 failed"
    assert f"{Result.of([30.04, 32.0]):.1f}" == "31.0 ± 1.4"
    assert f"{Result.of([30.04, 32.0]):+.2f ± .1f}" == "+31.02 ± 1.4"
    assert str(Result.of([float("nan"), 1.0])) == "nan"


def test_the_json_of_a_table_has_the_numbers_of_a_result_and_its_text_the_format_of_the_column():
    rows: list[dict[str, Any]] = [
        {"norm": "bn", "error %": Result.of([50.0, 52.0]), "shift": 0.123456},
        {"norm": "in", "error %": "not trained"},
    ]
    table = Table(rows, "bn learns.", formats={"error %": ".1f", "shift": ".2f"})
    assert table.text().splitlines() == [
        "norm  error %      shift",
        "bn    51.0 ± 1.4   0.12",
        "in    not trained",
        "bn learns.",
    ]
    first = json.loads(table.json())["rows"][0]
    assert first == {"norm": "bn", "error %": {"mean": 51.0, "sd": 2**0.5, "n": 2, "num_failed": 0}, "shift": 0.123456}
    diverged = Table([{"norm": "bn", "error %": Result.of([float("nan"), 1.0])}], "")
    assert json.loads(diverged.json())["rows"][0]["error %"] == {"mean": None, "sd": None, "n": 2, "num_failed": 0}


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
