"""Fig. 8 of xbn compares networks of equal accuracy, and draws of noise are not networks."""

from dataclasses import replace

import pytest

from anynorm.lab.recipes.support.presets import tiny
from anynorm.lab.recipes.support.verdicts import HOLDS, NOT_FAIR, judge
from anynorm.lab.recipes.xbn.perturbation.recipe import PRESETS, claims, controls, loss_at_max_delta, measure
from anynorm.lab.recipes.xbn.perturbation.results import accuracy_loss

NIGHT = replace(PRESETS["night"], seeds=4)
LOST = {"bn": 30.0, "gn:16": 15.0, "in.none": 5.0}


def curve(accuracy, lost):
    """Return a curve that loses points at Δ = 0.5 and 0.75, and nearly all at 1."""
    scores = {0.0: accuracy, 0.5: accuracy - lost, 0.75: accuracy - lost, 1.0: 1.0}
    return [{"delta": delta, "score": score, "sd": 1.0, "scores": [score, score]} for delta, score in scores.items()]


def make_rows(accuracies):
    rows = []
    for number, (norm, accuracy) in enumerate(accuracies.items()):
        for seed in range(NIGHT.seeds):
            points = curve(accuracy + seed, LOST[norm] + 0.3 * ((number + 1) * seed % 4))
            rows.append(
                {"norm": norm, "position": "first", "seed": seed, "accuracy": accuracy + seed, "layer": points, "channel": points}
            )
    return rows


def verdicts(accuracies):
    return [verdict.verdict for verdict in judge(claims(NIGHT), controls(NIGHT), make_rows(accuracies), None)]


def test_the_order_of_the_figure_is_tested_on_networks_of_equal_accuracy():
    assert verdicts({"bn": 80.0, "gn:16": 81.0, "in.none": 78.0}) == [HOLDS] * 4
    assert verdicts({"bn": 80.0, "gn:16": 81.0, "in.none": 60.0}) == [HOLDS, NOT_FAIR] * 2
    assert verdicts({"bn": 80.0, "gn:16": 87.0, "in.none": 85.0}) == [NOT_FAIR, HOLDS] * 2


def test_networks_that_did_not_learn_are_not_a_fair_test():
    assert verdicts({"bn": 39.0, "gn:16": 39.0, "in.none": 39.0}) == [NOT_FAIR] * 4


def test_noise_of_magnitude_1_does_not_count():
    (row, *_) = make_rows({"bn": 80.0})
    assert accuracy_loss("layer", norm="bn").at([row], 0) == 30
    assert loss_at_max_delta(row) == 30
    failed = {"norm": "bn", "seed": 0, "accuracy": None, "layer": None}
    assert accuracy_loss("layer", norm="bn").at([failed], 0) is None
    assert accuracy_loss("layer", norm="bn").per_item([row], 0) is None  # a record without items
    assert loss_at_max_delta(failed) is None


def test_the_figure_needs_a_bn_network_that_loses_accuracy(monkeypatch):
    monkeypatch.setitem(LOST, "bn", 2.0)
    assert verdicts({"bn": 80.0, "gn:16": 81.0, "in.none": 78.0}) == [NOT_FAIR] * 4


def test_the_first_norms_of_the_first_blocks_of_a_trained_network_are_perturbed(tmp_path):
    training = replace(NIGHT.training, config=replace(tiny(NIGHT.training.config), num_train=64, num_test=40, width=0.5))
    settings = replace(NIGHT, training=training, num_blocks=4, deltas=(0.5,), num_draws=2, num_test=40)
    values = measure(settings, {"norm": "in.none", "position": "first", "seed": 0}, tmp_path)
    assert not values.get("failure")
    assert values["layers"] == ["1.0.bn1", "1.1.bn1", "1.2.bn1", "2.0.bn1"]
    assert [point["delta"] for point in values["layer"]] == [0.0, 0.5]
    assert values["layer"][0]["score"] == values["accuracy"]


@pytest.mark.parametrize(("norm", "per"), [("bn", "layer"), ("in", "channel")])
def test_the_points_lost_are_the_mean_over_test_images(norm, per, tmp_path):
    settings = replace(PRESETS["smoke"], deltas=(0.5, 0.75, 1.0))
    rows = [{"norm": norm, "seed": 0} | measure(settings, {"norm": norm, "position": "first", "seed": 0}, tmp_path)]
    loss = accuracy_loss(per, norm=norm)
    items = loss.per_item(rows, 0)
    assert items is not None
    assert len(items) == 64
    assert items.mean() == pytest.approx(loss.at(rows, 0))
    assert items.any()


@pytest.mark.parametrize("preset", ["night", "paper"])
def test_networks_are_trained_and_the_second_norm_is_no_claim_of_the_paper(preset):
    settings = PRESETS[preset]
    assert settings.training is not None
    assert settings.seeds >= 3
    assert {claim.source.place for claim in claims(settings)} == {"Fig. 8"}
    second = [claim.source.paper for claim in claims(PRESETS["desk"]) if "second norm" in claim.statement]
    assert second == [""] * 4
