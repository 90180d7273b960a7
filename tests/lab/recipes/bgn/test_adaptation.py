"""Several pairs of domains in one cell."""

from dataclasses import replace

import pytest

from anynorm.lab.recipes.bgn.adaptation.recipe import mean_of_pairs, measure, measure_pair
from anynorm.lab.recipes.bgn.adaptation.settings import PRESETS, DomainPair


def test_a_cell_with_several_pairs_has_their_mean(tmp_path):
    smoke = replace(PRESETS["smoke"], seeds=1)
    pair = DomainPair("digits", "digits-faded")
    settings = replace(smoke, pairs={"plain": pair, "groups": replace(pair, bgn="bgn:1.aux@2")})
    cell = {"norm": "bgn", "seed": 0}
    single = measure_pair(smoke, cell, tmp_path)
    row = measure(settings, cell, tmp_path)
    assert row["by_pair"]["plain"] == single["accuracy"]
    assert row["by_pair"]["groups"] != single["accuracy"]
    assert row["accuracy"] == pytest.approx(sum(row["by_pair"].values()) / 2, abs=1e-3)
    assert row["epochs"] == single["epochs"]
    assert len(row["accuracies"]) == len(row["epochs"])


def test_a_failed_pair_fails_the_cell():
    row = {"accuracy": 50.0, "source_accuracy": 40.0, "adabn_accuracy": 45.0, "failure": "", "seconds": 1.0, "commit": "c"}
    row |= {"epochs": [1], "accuracies": [50.0]}
    failed = row | {"accuracy": None, "failure": "the loss is not finite", "epochs": [], "accuracies": []}
    mean = mean_of_pairs({"A to D": row, "D to A": failed})
    assert mean["accuracy"] is None
    assert mean["failure"] == "D to A: the loss is not finite"
    assert mean["seconds"] == 2.0


def test_the_paper_preset_has_the_six_tasks_with_their_groups():
    pairs = PRESETS["paper"].pairs
    assert len(pairs) == 6
    assert {name: pair.bgn for name, pair in pairs.items()} == {
        "A to D": "bgn:1.aux@2", "A to W": "bgn:8.aux@2", "D to A": "bgn:512.aux@2",
        "D to W": "bgn:32.aux@2", "W to A": "bgn:512.aux@2", "W to D": "bgn:512.aux@2",
    }  # fmt: skip
    assert all(pair.data != pair.target for pair in pairs.values())
