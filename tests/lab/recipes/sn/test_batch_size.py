"""Table 2 of sn is measured with batch averages and BN at one sample per device, and its claims are those of the paper."""

from dataclasses import replace

import pytest

from anynorm.lab.recipes.sn.batch_size import PRESETS, RECIPE, cells
from anynorm.lab.recipes.sn.batch_size_claims import ONE, TABLE_2, claims, mean_test_accuracy
from anynorm.lab.recipes.sn.training import IMAGENET_SN
from anynorm.lab.recipes.support.verdicts import judge
from tests.lab.recipes.comparisons import noise


def rows_of(settings, accuracy, train_accuracy=80.0):
    """Return rows whose accuracies are those of a function of setting and norm, plus a tenth of the seed and noise."""
    return [
        cell
        | {"accuracy": accuracy(cell["setting"], cell["norm"]) + cell["seed"] / 10 + noise(cell)}
        | {"train_accuracy": train_accuracy, "failure": ""}
        | {"curve": [[1, 50.0, 100 - accuracy(cell["setting"], cell["norm"])]]}
        for cell in cells(settings)
    ]


def test_bn_is_trained_at_one_sample_per_device_in_night_and_paper_only():
    trained = {preset: {"setting": ONE, "norm": "bn", "seed": 0} in cells(settings) for preset, settings in PRESETS.items()}
    assert trained == {"smoke": False, "desk": False, "night": True, "paper": True}


def test_the_paper_preset_averages_50_000_and_all_samples_and_starts_as_he():
    paper = PRESETS["paper"]
    assert paper.averaged_samples == (50_000, 1_281_167)
    assert (paper.training, IMAGENET_SN.config.initialization) == (IMAGENET_SN, "he")


def test_settings_of_eight_devices_in_night_have_equal_steps():
    divisions = PRESETS["night"].divisions
    assert {devices * samples for name, (devices, samples) in divisions.items() if name.startswith("(8")} == {32}


@pytest.mark.parametrize("preset", ["night", "paper"])
def test_every_claim_of_the_paper_holds_with_the_papers_numbers(preset):
    settings = replace(PRESETS[preset], seeds=5)
    rows = rows_of(settings, lambda setting, norm: TABLE_2[setting].get(norm, 1.0))
    verdicts = judge(claims(settings), RECIPE.controls(settings), rows, None)
    larger = [verdict for verdict in verdicts if "converges" not in verdict.claim.statement]
    assert {verdict.verdict for verdict in larger} <= {"holds", "equivalent"}
    assert sum(verdict.verdict == "holds" for verdict in larger) >= 20


def test_small_differences_are_not_tested_if_bn_does_not_fail():
    settings = replace(PRESETS["paper"], seeds=5)
    rows = rows_of(settings, lambda _, norm: {"bn": 76.0, "gn": 75.0, "sn": 77.0}[norm])
    verdicts = {verdict.claim.statement: verdict for verdict in judge(claims(settings), RECIPE.controls(settings), rows, None)}
    verdict = verdicts["`gn` is more accurate than `sn` (setting (8, 2))"]
    assert (verdict.verdict, "points that bn loses" in verdict.note) == ("not a fair test", True)


def test_networks_that_have_not_learned_decide_nothing_except_that_bn_fails_with_one_sample():
    settings = replace(PRESETS["paper"], seeds=5)
    rows = rows_of(settings, lambda setting, norm: TABLE_2[setting].get(norm, 1.0))
    for row in rows:
        row["train_accuracy"] = 5.0 if row["norm"] == "bn" else 80.0
    verdicts = {
        verdict.claim.statement: verdict.verdict for verdict in judge(claims(settings), RECIPE.controls(settings), rows, None)
    }
    assert verdicts["`sn` is more accurate than `bn` (setting (8, 1))"] == "holds"
    assert verdicts["`sn` is more accurate than `bn` (setting (8, 2))"] == "not a fair test"


def test_the_mean_accuracy_of_a_curve_is_that_of_its_evaluations():
    assert mean_test_accuracy({"failure": "", "curve": [[1, 80.0, 70.0], [2, 60.0, 50.0]]}) == 40.0
    assert mean_test_accuracy({"failure": "diverged", "curve": []}) is None
