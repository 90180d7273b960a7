"""SN's weights are read by layer and stage, and preferences need weights that have left their start values."""

from dataclasses import replace

import pytest

from anynorm.lab.recipes.sn.importance import PRESETS, RECIPE, claims
from anynorm.lab.recipes.sn.protocols import DECAY, INITIALIZATION, REFERENCE, SOLVER, protocols
from anynorm.lab.recipes.sn.weights import (
    adjacent_distance,
    average_weights,
    stage_weight,
    statistics_distance,
    weight_metrics,
)
from anynorm.lab.recipes.support.presets import NIGHT
from anynorm.lab.recipes.support.verdicts import judge
from anynorm.lab.training.record import DONE, RunRecord
from tests.lab.recipes.comparisons import noise


def layer(mean_bn, var_bn):
    """Return the weights of a layer in which IN and LN share what BN leaves."""
    weights = {"mean_in": (1 - mean_bn) / 2, "mean_ln": (1 - mean_bn) / 2, "mean_bn": mean_bn}
    return weights | {"var_in": (1 - var_bn) / 2, "var_ln": (1 - var_bn) / 2, "var_bn": var_bn}


ROW = {"layers": {"0.1": layer(0.9, 0.9), "1.0.bn1": layer(0.6, 0.6), "1.0.bn2": layer(0.4, 0.2), "3.0.bn1": layer(0.3, 0.1)}}


def test_weights_of_stages_leave_out_the_stem():
    assert stage_weight(["mean_bn", "var_bn"], last=False)(ROW) == pytest.approx(0.45)
    assert stage_weight(["var_bn"], last=True)(ROW) == pytest.approx(0.1)
    assert stage_weight(["var_bn"], last=True)({"layers": {}}) is None


def test_distances_are_total_variation_distances():
    assert adjacent_distance(ROW) == pytest.approx((0.2 + 0.4) / 2)  # one pair in a block: mean and variance
    assert statistics_distance(ROW) == pytest.approx((0 + 0 + 0.2 + 0.2) / 4)


def test_norms_without_bn_have_no_weight_of_bn():
    weights = {"path": "0.1", "norm": "sn-bn", "mean_in": 0.4, "mean_ln": 0.6, "var_in": 0.7, "var_ln": 0.3, "max_weight": 0.7}
    row = weight_metrics(RunRecord("x", {}, DONE, importance=[weights]))
    assert (row["mean_bn"], row["mean_ln"], list(row["layers"])) == (None, 0.6, ["0.1"])
    assert set(average_weights({}).values()) == {None}


def importance_rows(settings, bn_by_size):
    rows = []
    for size in settings.batch_sizes:
        for seed in range(settings.seeds):
            mean = bn_by_size[size] + noise([size, seed], 0.001)
            layers = {f"{stage}.0.bn1": layer(mean, mean - 0.1) for stage in (1, 2, 3)}
            row = {"batch_size": size, "seed": seed, "failure": "", "train_accuracy": 90.0, "layers": layers}
            rows.append(row | average_weights(layers))
    return rows


def test_how_weights_change_is_not_tested_if_they_stay_at_one_third():
    settings = replace(PRESETS["night"], seeds=3, batch_sizes=(32, 2))
    verdicts = judge(claims(settings), RECIPE.controls(settings), importance_rows(settings, {32: 0.39, 2: 0.37}), None)
    by_place = {verdict.claim.source.place: verdict.verdict for verdict in verdicts}
    assert by_place["Fig. 4"] == "not a fair test"
    verdicts = judge(claims(settings), RECIPE.controls(settings), importance_rows(settings, {32: 0.7, 2: 0.2}), None)
    assert {v.verdict for v in verdicts if v.claim.statement.startswith("BN's weight in the mean is larger at batch")} == {
        "holds"
    }


def test_claims_about_res5_are_about_the_last_stage():
    levels = {claim.level.value for claim in claims(PRESETS["night"]) if claim.source.place.startswith("App. C.2")}
    assert levels == {"stage", "layer"}
    assert not [claim for claim in claims(PRESETS["desk"]) if claim.source.place.startswith("App. C.2")]


def test_a_protocol_changes_one_setting():
    changed = protocols(NIGHT.config)
    reference = changed[REFERENCE]
    assert changed[SOLVER] == replace(reference, optimizer="adam", lr=reference.lr / 100)
    assert changed[INITIALIZATION] == replace(reference, initialization="he")
    assert changed[DECAY] == replace(reference, schedule="step:0.5,0.75")
