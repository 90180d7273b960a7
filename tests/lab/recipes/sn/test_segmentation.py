"""The recipe of segmentation: controls by data set, pretrained backbones, and the distance of SN's weights between data."""

from dataclasses import replace

import pytest

from anynorm.lab.recipes.sn.segmentation import MIN_MIOU, RECIPE
from anynorm.lab.recipes.support.learned_weights import WeightDistance, layer_weights, mean_weight, weight_of
from anynorm.lab.recipes.support.verdicts import HOLDS, NOT_FAIR, judge
from anynorm.lab.training.record import DONE, FAILED, RunRecord
from tests.lab.recipes.comparisons import comparisons, noise

NIGHT = RECIPE.presets["night"]
MIOU = {"sn": 80.0, "syncbn": 78.0, "gn": 75.0, "bn": 70.0}


def make_rows(**changes):
    """Return rows whose weights differ between data sets by 0.3, and between seeds by 0.01."""
    return [
        {
            "data": data, "norm": norm, "seed": seed, "failure": "",
            **dict.fromkeys(("miou", "miou_multi_scale", "miou_recalibrated"), MIOU[norm] + noise([data, norm, seed], 0.1)),
            "miou_batch_statistics": 75.0 + 0.1 * (seed % 3), **changes,
            "weights": {"backbone.0": [0.5 * (data == "ADE20K") + 0.01 * seed] * 6},
        }
        for data in NIGHT.data
        for norm in NIGHT.norms
        for seed in range(6)
    ]  # fmt: skip


def verdicts(rows, settings=NIGHT):
    claims = comparisons(RECIPE.claims(settings))
    return {v.claim.statement: v for v in judge(claims, RECIPE.controls(settings), rows, None)}


def test_the_order_of_table_5_and_fig_9_hold_in_rows_that_have_them():
    found = verdicts(make_rows())
    assert found["`sn` has a higher mIoU than `syncbn` (camvid for Cityscapes)"].verdict == HOLDS
    assert found["the mixing weights of SN differ more between data sets than between seeds"].verdict == HOLDS


def test_networks_that_did_not_learn_with_their_batch_statistics_are_not_compared():
    found = verdicts(make_rows(miou_batch_statistics=MIN_MIOU["camvid"] - 1))
    verdict = found["`sn` has a higher mIoU than `gn` (camvid for Cityscapes)"]
    assert (verdict.verdict, "data Cityscapes, norm sn: 29, below 30" in verdict.note) == (NOT_FAIR, True)
    paper = RECIPE.presets["paper"]
    rows = [row | {"num_backbones": 1} for row in make_rows(miou_batch_statistics=75.0)]
    verdict = verdicts(rows, paper)["`sn` has a higher mIoU than `gn` (ADE20K)"]
    assert verdict.note == "backbones per norm: 1, below 3"


def test_claims_about_weights_need_rows_with_weights():
    desk = RECIPE.presets["desk"]
    assert not any("weights" in claim.statement for claim in RECIPE.claims(desk))
    assert any("weights" in claim.statement for claim in RECIPE.claims(replace(desk, has_weights=True)))


def test_weights_of_a_run_are_kept_by_layer():
    names = [f"{side}_{cut}" for side in ("mean", "var") for cut in ("in", "ln", "bn")]
    layer = {"path": "backbone.1", "norm": "sn"} | dict(zip(names, (0.2, 0.3, 0.5, 0.1, 0.1, 0.8), strict=True))
    record = RunRecord("a", {}, DONE, importance=[layer])
    row = {"weights": layer_weights(record), "norm": "sn", "seed": 0}
    assert row["weights"] == {"backbone.1": [0.2, 0.3, 0.5, 0.1, 0.1, 0.8]}
    assert mean_weight(row, "bn") == weight_of("bn", "backbone", norm="sn").at([row], 0) == pytest.approx(0.65)
    assert mean_weight(row, "bn", "heads") is None
    assert layer_weights(replace(record, status=FAILED)) is None
    assert layer_weights(replace(record, importance=None)) is None


def test_the_distance_of_weights_is_over_common_layers_and_seeds_are_a_ring():
    rows = [
        {"data": data, "seed": seed, "weights": {"a": [0.1 * seed + (data == "y")], data: [9.0]}}
        for data in "xy"
        for seed in range(3)
    ]
    assert WeightDistance({"data": "x"}, {"data": "y"}).at(rows, 1) == pytest.approx(1.0)
    ring = WeightDistance({"data": "x"}, {"data": "x"}, next_seed=True)
    assert [ring.at(rows, seed) for seed in range(3)] == pytest.approx([0.05, 0.05, 0.1])
    rows[0]["weights"] = None
    assert ring.at(rows, 0) is None
