"""The recipe sabn_style: controls, dependent claims, and the night preset."""

import pytest

from anynorm.lab.recipes.sabn.style import NORMS, PRESETS, claims, content_correlation, controls, loss_at_end, loss_fall
from anynorm.lab.recipes.support.runs import options_of
from anynorm.lab.recipes.support.verdicts import judge

COLUMNS = (
    "train_content_loss", "train_style_loss", "test_content_loss", "test_style_loss", "test_adain_content_loss",
    "test_normalized_content_loss",
)  # fmt: skip
FACTORS = {"AdaIN": 1.0, "ILM+IN": 1.0, "SaAdaIN": 0.7, "SaAdaIN detached": 0.8}


def rows(train, test, scale=1.0):
    """Return rows with given curves of the style loss, in which SaAdaIN has the lowest losses."""
    return [
        {"norm": norm, "seed": seed, "failure": "", "curves": {"train_style_loss": train, "test_style_loss": test}}
        | dict.fromkeys(COLUMNS, scale * FACTORS[norm] * (1 + 0.01 * (seed * number % 5)))
        for number, norm in enumerate(NORMS, 1)
        for seed in range(8)
    ]


def verdicts(train, test, scale=1.0):
    settings = PRESETS["night"]
    return judge(claims(settings), controls(settings), rows(train, test, scale), None)


def test_losses_are_compared_when_decoders_have_learned_and_converged():
    assert {each.verdict for each in verdicts([9.0, 3.0, 2.0], [4.0, 2.0, 1.98])} == {"holds"}
    falling = verdicts([9.0, 3.0, 2.0], [4.0, 2.0, 1.5])
    assert {each.verdict for each in falling} == {"not a fair test"}
    assert "held-out style loss of AdaIN at the end" in falling[0].note
    untrained = verdicts([2.0, 2.0, 2.0], [2.0, 2.0, 2.0])
    assert {each.verdict for each in untrained} == {"not a fair test"}


def test_pictures_that_do_not_keep_the_content_are_not_compared():
    lost = verdicts([9.0, 3.0, 2.0], [4.0, 2.0, 1.98], scale=2.0)  # the error of unrelated features
    assert {each.verdict for each in lost} == {"not a fair test"}
    assert "correlation of the normalized features of pictures and photos of AdaIN" in lost[0].note
    assert content_correlation({"failure": "", "test_normalized_content_loss": 2.0}) == 0
    assert content_correlation({"failure": "diverged"}) is None


def test_the_controls_of_a_failed_run_have_no_number():
    row = {"failure": "diverged", "curves": {"train_style_loss": [2.0], "test_style_loss": [1.0]}}
    assert loss_fall(row) is None
    assert loss_at_end(row) is None
    assert loss_at_end(row | {"failure": "", "curves": {"test_style_loss": [4.0, 2.0, 1.0]}}) == pytest.approx(50)


def test_training_and_held_out_losses_of_the_same_runs_are_one_group():
    papers = [claim for claim in claims(PRESETS["night"]) if claim.source.paper]
    assert {claim.source.place for claim in papers} == {"Fig. 7a", "Fig. 7b"}
    assert len(papers) == 6
    assert len({claim.group for claim in papers}) == 4


def test_the_night_has_96_held_out_pairs_and_the_paper_preset_has_pictures():
    config = PRESETS["night"].training.config
    assert config.num_test * options_of(config).styles_per_content == 96
    assert PRESETS["paper"].pictures is not None
