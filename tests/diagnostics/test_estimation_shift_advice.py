"""The finding of an estimation shift report: the cause, and what to do."""

import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anynorm
from anynorm.diagnostics import estimation_shift
from anynorm.diagnostics.estimation_shift_advice import _depth_correlation, advise
from anynorm.diagnostics.scores import accuracy
from tests.helpers import data


def deep(depth: int = 12, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def recalibrated(model: Any, x: torch.Tensor) -> Any:
    """Recalibrate on x, so that running statistics are those of x in train mode."""
    anynorm.recalibrate(model, [x])
    return model.eval()


def test_no_action_is_advised_where_statistics_are_right():
    x = data(2000, 16)
    report = estimation_shift(recalibrated(deep(), x), [x])
    assert max(row["shift"] for row in report) < 0.05
    assert "the running statistics fit" in report.finding
    assert "No action needed" in report.finding


def test_the_one_corrupted_norm_is_named_although_all_norms_after_it_shift():
    x = data(2000, 16)
    model = recalibrated(deep(), x)
    model[10].running_mean.add_(2 * model[10].running_var.sqrt())
    report = estimation_shift(model, x.split(500))
    assert sum(row["shift"] > 0.3 for row in report) > 3
    assert "one norm is at fault, '10'" in report.finding
    assert report["10"]["shift_removed"] > 0.9


def test_no_single_norm_is_at_fault_where_correcting_it_leaves_others_shifted():
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.BatchNorm1d(16))
    x = data(1000, 16)
    recalibrated(model, x)
    with torch.no_grad():
        model[1].running_mean.add_(3.0)
        model[3].running_var.mul_(1e-4)
    assert "at fault" not in estimation_shift(model, x).finding


def test_shift_that_grows_with_depth_is_reported_and_xbn_advised():
    torch.manual_seed(0)
    few, many = data(24, 16), data(2000, 16)
    model = deep(16)
    report = estimation_shift(recalibrated(model, few), [many])
    assert "grows with depth" in report.finding
    assert "xbn" in report.finding


def test_more_data_is_advised_where_samples_cannot_resolve_the_shift():
    x = data(2000, 16)
    report = estimation_shift(recalibrated(deep(1), x), [x[:16]])
    assert "16 samples cannot resolve a shift below 0.5. Use more data." in report.finding


def test_scores_are_reported_before_and_after_each_correction():
    x = data(400, 16)
    model = recalibrated(deep(), x)
    labels = model(x).argmax(1)
    model[1].running_var.mul_(50.0)
    report = estimation_shift(model, [(x, labels)], score=accuracy)
    assert report["1"]["score"] > 90
    assert report.details["score"] < 90
    assert "with '1' alone corrected" in report.finding


def test_unfreezing_is_advised_for_frozen_norms_and_unreadable_ones_are_listed():
    model: Any = nn.Sequential(
        nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)
    )
    anynorm.freeze(model, where="0")
    report = estimation_shift(model, [5 + data(64, 4)], forward=lambda _, x: model[:3](x))
    assert report["0"]["note"] == "frozen"
    assert "Unfreeze the 1 frozen norm first" in report.finding
    assert "normalizes by them in eval mode" in report["3"]["note"]


def profile(*shifts: float) -> list[dict[str, Any]]:
    return [{"path": str(k), "shift": shift} for k, shift in enumerate(shifts)]


def test_a_large_last_third_without_rank_correlation_is_not_a_trend():
    growing = profile(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    assert "grows with depth, from 0.2 in the first third to 0.8 in the last" in advise(growing, 1000, None)
    scattered = profile(0.31, 0.5, 0.32, 0.1, 0.2, 0.15, 0.3, 0.31, 5.0)
    assert "6 norms have a shift of 0.3 or more, without a trend over depth (worst '8', 5)" in advise(scattered, 1000, None)
    few = profile(0.1, 0.2, 0.4, 0.9, 1.5)
    assert "without a trend" in advise(few, 1000, None)


@pytest.mark.parametrize(
    ("shifts", "action"),
    [
        ((0.1, 0.2), "(dropout, augmentation, data)."),
        ((0.1, 0.9), "Recalibrate on data like that of inference, and check the layer that feeds this norm."),
        ((0.5, 0.9), "Recalibrate on data like that of inference."),
        (tuple(0.1 * k for k in range(9)), "put a batch-free norm into every block (anynorm.xbn)."),
    ],
)
def test_the_last_sentence_says_what_to_do(shifts, action):
    rows = [row | {"score": 50.0} for row in profile(*shifts)]
    assert advise(rows, 1000, 40.0).endswith(action)


def test_a_trend_over_depth_is_found_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert "shift grows with depth" in advise(profile(*(0.1 * k for k in range(9))), 1000, None)


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.7, 3.0]) | st.floats(0, 10), min_size=3, max_size=12).filter(
        lambda x: len({*x}) > 1
    )
)
def test_the_trend_over_depth_is_spearmans_rank_correlation(shifts):
    spearmanr = pytest.importorskip("scipy.stats", reason="needs the lab extra").spearmanr
    expected = spearmanr(range(len(shifts)), shifts).statistic
    assert _depth_correlation([{"shift": shift} for shift in shifts]) == pytest.approx(expected, abs=1e-12)
