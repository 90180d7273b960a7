"""The MLPs of xbn: controls of the start of running statistics, and claims per third of the layers."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from anynorm.lab.recipes.support.controls import Requirement
from anynorm.lab.recipes.xbn.mlp import NIGHT, PAPER, SMOKE, build_network, cells, measure
from anynorm.lab.recipes.xbn.mlp_claims import claims
from anynorm.lab.recipes.xbn.mlp_quantities import controls, error_gap, final_shift, growth_of, shift_of, thirds, windowed_shift
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
    assert places["n"] - places["p"] == {"Fig. 3c", "Fig. 2 caption", "Fig. 4 caption", "sec. 4.1"}
    required = {name for claim in claims(NIGHT) for name in claim.requires}
    assert required <= {control.name for control in controls(NIGHT) if isinstance(control, Requirement)}
    assert not controls(SMOKE)
