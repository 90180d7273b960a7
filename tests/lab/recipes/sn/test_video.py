"""The recipe of video classification: a value is the mean over the folds of a seed."""

from dataclasses import replace

import pytest

from anynorm.lab.recipes.sn import video
from anynorm.lab.recipes.sn.video import ALL_FOLDS, RECIPE, cells, tables
from anynorm.lab.recipes.support.record import MeasuredCell, RecipeRecord
from anynorm.lab.recipes.support.verdicts import HOLDS, NOT_FAIR, judge
from anynorm.lab.training.record import DONE, RunRecord
from tests.lab.recipes.comparisons import comparisons, noise

NIGHT = RECIPE.presets["night"]
ACCURACY = {"sn": 80.0, "bn": 70.0, "gn": 60.0}


def make_rows(settings, **changes):
    """Return rows whose folds differ by much more than seeds."""
    return [
        {
            **cell, "accuracy": ACCURACY[cell["norm"]] + 10 * cell.get("fold", 0) + 0.5 * (cell["seed"] % 2) + noise(cell),
            "train_accuracy": 90.0, "batch_accuracy": 80.0, "recalibrated_accuracy": 80.0, "failure": "",
            "num_folds": len(settings.fold_cells), **changes,
        }
        for cell in cells(settings)
    ]  # fmt: skip


def verdicts(settings, rows):
    claims = comparisons(RECIPE.claims(settings))
    return {v.claim.statement: v for v in judge(claims, RECIPE.controls(settings), rows, None)}


def test_folds_are_averaged_and_seeds_are_the_replications():
    found = verdicts(NIGHT, make_rows(NIGHT))["`sn` is more accurate than `bn` (setting 8)"]
    assert (found.verdict, found.n) == (HOLDS, 5)
    assert found.first.mean == pytest.approx(80 + 15 + 0.2, abs=0.02)


def test_folds_that_stand_for_seeds_are_not_a_fair_test():
    desk = RECIPE.presets["desk"]
    found = verdicts(desk, make_rows(desk))["`sn` is more accurate than `bn` (setting 8)"]
    assert (found.verdict, found.note) == (NOT_FAIR, f"{ALL_FOLDS}: 1, below 4")


def test_networks_near_chance_are_not_compared():
    found = verdicts(NIGHT, make_rows(NIGHT, train_accuracy=30.0))["`sn` is more accurate than `bn` (setting 8)"]
    assert (found.verdict, "training accuracy (%) of fold 0, norm sn, setting 8: 30, below 50" in found.note) == (NOT_FAIR, True)


def test_tables_have_means_over_folds():
    rows = make_rows(NIGHT)
    measured = [
        MeasuredCell({key: row[key] for key in ("setting", "norm", "fold", "seed")}, row, {"code": "", "cpu": ""}) for row in rows
    ]
    (table,) = tables(RecipeRecord("sn_video", "night", NIGHT, "", {}, measured))
    assert table.rows[0]["running statistics"].mean == pytest.approx(70 + 15 + 0.2, abs=0.02)


def test_a_cell_has_the_data_of_its_fold_and_pretrained_networks_a_backbone_per_seed(monkeypatch, tmp_path):
    configs = []

    def train(config, _):
        configs.append(config)
        curve = [{"test_error": 10.0, "epoch": 1.0}]
        return RunRecord(config.id, {}, DONE, metrics={"train_error": 5.0}, curve=curve, seconds=1.0, provenance={"commit": ""})

    monkeypatch.setattr(video, "train_run", train)
    monkeypatch.setattr(video, "train_backbone", lambda training, norm, runs, seed: (f"{norm}-{seed}.pt", 70.0))
    cell = {"setting": "4", "norm": "sn", "fold": 2, "seed": 3}
    row = RECIPE.measure(NIGHT, cell, tmp_path)
    assert (configs[0].data, configs[0].seed, row["num_folds"]) == ("ut_interaction/2", 3, 4)
    pretrained = replace(NIGHT, pretraining=RECIPE.presets["paper"].pretraining)
    row = RECIPE.measure(pretrained, cell, tmp_path)
    assert (configs[1].options["weights"], row["num_backbones"]) == ("sn-3.pt", 5)
    del cell["fold"]
    RECIPE.measure(RECIPE.presets["desk"], cell, tmp_path)
    assert configs[2].data == "ut_interaction/3"
