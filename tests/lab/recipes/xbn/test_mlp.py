"""The MLPs of xbn: controls of the start of running statistics, and claims per third of the layers."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from anynorm.lab.recipes.support.controls import Requirement
from anynorm.lab.recipes.xbn.mlp.claims import claims
from anynorm.lab.recipes.xbn.mlp.quantities import controls, error_gap, final_shift, growth_of, shift_of, thirds, windowed_shift
from anynorm.lab.recipes.xbn.mlp.recipe import NIGHT, PAPER, SMOKE, build_network, cells, measure
from anynorm.lab.training.sweep import Cell

SETTINGS = replace(SMOKE, depth=3, width=16, iterations=4)
CELL: Cell = {
    "figure": "2, 4", "network": "bn", "train_size": "all", "init": "default", "lr": 0.1, "iterations": 4, "seed": 0,
}  # fmt: skip


def measured(**changes):
    cell = CELL | changes
    return cell | measure(SETTINGS, cell, Path())


def test_statistics_that_start_from_the_first_batch_have_no_shift_in_the_first_iteration():
    usual, first_batch = measured(), measured(figure="start", start="first batch")
    assert statistics.fmean(usual["curves"]["esm_std"][0]) > 1
    assert max(first_batch["curves"]["esm_std"][0]) < 1e-3
    assert first_batch["curves"]["train_error"][0] == first_batch["curves"]["test_error"][0]
    assert usual["curves"]["train_error"] == first_batch["curves"]["train_error"]


def test_the_literal_alpha_lags_less():
    usual, literal = measured(), measured(figure="momentum", momentum=0.9)
    assert usual["curves"]["train_error"] == literal["curves"]["train_error"]
    assert statistics.fmean(literal["curves"]["esm_std"][2]) < statistics.fmean(usual["curves"]["esm_std"][2]) / 2


def test_runs_on_subsets_keep_curves_and_the_shift_on_the_training_set():
    row = measured(figure="3, 5", train_size=32)
    assert len(row["curves"]["esm_std"]) == CELL["iterations"] + 1
    assert len(row["train_esm_std"]) == len(row["esm_std"]) == 3
    assert 0 <= row["recomputed_error"] <= 100
    assert (
        measure(replace(SETTINGS, measure_subsets=False), CELL | {"figure": "3, 5", "train_size": 32}, Path())["curves"] is None
    )


def test_depth_and_groups_are_those_of_the_cell():
    assert len(build_network(SETTINGS, CELL | {"depth": 5}, 64)) == 2 + 3 * 5
    gn = build_network(SETTINGS, CELL | {"network": "gnbn", "groups": 8}, 64)[2]
    assert str(gn.spec) == "gn:8"


def test_night_has_other_random_seeds_than_the_record():
    assert NIGHT.first_random_seed >= PAPER.seeds
    own = measure(replace(SETTINGS, first_random_seed=7), CELL, Path())
    assert own["esm_std"] == measure(replace(SETTINGS, first_random_seed=0), CELL | {"seed": 7}, Path())["esm_std"]
    assert own["esm_std"] != measured()["esm_std"]


def test_the_cells_of_the_record_do_not_change():
    assert len(cells(PAPER)) == 235
    assert {key for cell in cells(PAPER) for key in cell} == CELL.keys()
    figures = {cell["figure"] for cell in cells(NIGHT)}
    assert figures == {cell["figure"] for cell in cells(PAPER)} | {"start", "momentum", "lr", "depth", "groups"}


def test_quantities_average_over_a_third_of_the_layers_and_over_iterations():
    profiles = [[1.0, 2.0, 4.0], [3.0, 4.0, 8.0]]
    curves = {"train_error": [10.0, 10.0], "test_error": [30.0, 20.0], "esm_std": profiles}
    rows = [{"seed": 0, "curves": curves, "esm_std": profiles[-1], "train_error": 2.0}]
    assert error_gap({}, slice(0, 2)).at(rows, 0) == 15
    assert [side.at(rows, 0) for side in thirds("esm_std", {}, slice(0, 2))] == [2, 3, 6]
    assert shift_of("esm_std", {}, 2, slice(1, None)).at(rows, 0) == 8
    assert (final_shift({}).at(rows, 0), final_shift({}, 1).at(rows, 0)) == (5, 4)
    assert growth_of({}).at(rows, 0) == pytest.approx(8 / 3)
    assert windowed_shift({}, slice(-1, None)).at(rows, 0) == 5


def test_the_night_preset_claims_what_the_record_lacks():
    places = {preset: {claim.source.place for claim in claims(settings)} for preset, settings in (("n", NIGHT), ("p", PAPER))}
    assert places["p"] == {"", *(f"Fig. {name}" for name in ("2a", "2b", "2c", "3a", "3b", "4a", "4b", "5a", "5b")), "sec. 4.2.1"}
    extra = {"Fig. 3c", "Fig. 2 caption", "Fig. 4 caption", "sec. 4.1", "sec. 4.2.1, training set", "Fig. 2, α as printed"}
    assert places["n"] - places["p"] == extra
    required = {name for claim in claims(NIGHT) for name in claim.requires}
    assert required <= {control.name for control in controls(NIGHT) if isinstance(control, Requirement)}
    assert not controls(SMOKE)


def sides_of(place, settings=NIGHT):
    """Return the cells of each claim about a place."""
    named = [claim for claim in claims(settings) if claim.source.place == place]
    return [[cell for side in claim.sides for cell in side.cells] for claim in named]


def test_the_paper_is_claimed_to_compare_bn_and_no_norms_with_equal_initialization_and_training():
    all_cells = cells(NIGHT)
    pairs = sides_of("sec. 4.2.1")
    assert len(pairs) == 2
    for pair in pairs:
        bn, none = (next(each for each in all_cells if cell.items() <= each.items()) for cell in pair)
        assert (bn["network"], none["network"]) == ("bn", "none")
        assert all(bn[key] == none[key] for key in ("init", "lr", "iterations", "train_size", "seed"))
    unequal = [claim for claim in claims(NIGHT) if claim.statement.startswith("own lr")]
    assert [claim.source.paper for claim in unequal] == [""]
    assert len(sides_of("sec. 4.2.1", PAPER)) == 1


def test_claims_about_fig_2_say_which_reading_of_alpha_they_test():
    for place, momentum in (("Fig. 2a", 0.1), ("Fig. 2b", 0.1), ("Fig. 2c", 0.1), ("Fig. 2, α as printed", 0.9)):
        named = [claim for claim in claims(NIGHT) if claim.source.place == place]
        assert named
        assert all(claim.statement.startswith(f"Momentum {momentum}: ") for claim in named)
        measured_with = {cell.get("momentum", 0.1) for pair in sides_of(place) for cell in pair}
        assert measured_with == {momentum}
    assert PAPER.momenta == ()


def test_every_layer_must_be_above_the_mean_of_networks_that_see_the_test_images():
    rows = [
        {"figure": "2, 4", "network": "bn", "seed": seed, "esm_std": [0.03, 0.05], "train_error": 0.1} for seed in range(2)
    ] + [{"figure": "3, 5", "network": "bn", "train_size": 32, "seed": seed, "esm_std": [0.02, 3.0]} for seed in range(2)]
    named = [claim for claim in claims(NIGHT) if claim.statement.startswith("|S| = 32: ESM_σ of every layer")]
    assert [[side.at(rows, 0) for side in claim.sides] for claim in named] == [[0.02, 0.04]]
    assert [claim.source.place for claim in named] == ["Fig. 3b"]


def test_the_first_phase_is_scaled_to_the_momentum_but_not_for_the_alpha_of_the_paper():
    gaps = [claim.statement for claim in claims(NIGHT) if "error gap is larger in iterations" in claim.statement]
    windows = {statement.partition(":")[0]: statement.partition("iterations ")[2].partition(" ")[0] for statement in gaps}
    assert [windows[f"Momentum {momentum}"] for momentum in (0.05, 0.1, 0.2, 0.9)] == ["0–59", "0–29", "0–14", "0–29"]
    assert {windows[name] for name in ("lr 0.05", "lr 0.2", "10 layers", "40 layers", "Exact start")} == {"0–29"}


def test_what_differs_between_claims_comes_first_and_fits_the_forest_plot():
    for settings in (NIGHT, PAPER, SMOKE):
        statements = [claim.statement for claim in claims(settings)]
        assert max(map(len, statements)) < 75
        assert len(set(statements)) == len(statements)


def test_claims_about_variations_need_networks_that_fit():
    for claim in claims(NIGHT):
        about_training_error = claim.statement.endswith("training error is zero")
        assert claim.requires or about_training_error or "shift of the input" in claim.statement, claim.statement
