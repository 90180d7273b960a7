"""Both averages of sn are tested in every evaluation of one run, and sparse SN selects one normalizer per layer."""

from dataclasses import replace

import pytest

from anynorm.lab.recipes.sn.average import PRESETS, claims, curve_metrics, mean_change
from anynorm.lab.recipes.sn.batch_average import averaged_accuracies
from anynorm.lab.recipes.sn.variants import fine_tune_sparse
from anynorm.lab.recipes.support.presets import SMOKE
from anynorm.lab.recipes.support.runs import make_config, train_run
from anynorm.lab.tasks.classification.options import ClassificationOptions
from anynorm.lab.training.items import unpack_items
from anynorm.lab.training.record import DONE, FAILED, RunRecord


def test_curves_of_both_averages_have_a_mean_and_a_change():
    points = [{"test_error": 60.0, "test_error, batch average": 50.0}, {"test_error": 20.0, "test_error, batch average": 40.0}]
    metrics = curve_metrics(RunRecord("x", {}, DONE, curve=points))
    assert (metrics["averaged"], metrics["moving_area"], metrics["batch_area"]) == (60.0, 60.0, 55.0)
    assert (metrics["moving_change"], metrics["batch_change"]) == (40.0, 10.0)
    failed = curve_metrics(RunRecord("x", {}, FAILED, note="diverged"))
    assert (failed["averaged"], failed["batch_area"], failed["batch_curve"]) == (None, None, [])
    assert mean_change([1.0]) == 0.0


def test_equal_accuracies_at_the_end_are_claimed_as_an_equivalence():
    kinds = {claim.statement: type(claim).__name__ for claim in claims(PRESETS["paper"])}
    assert kinds["SN is as accurate with the batch average as with the moving average (batch 32, at the end)"] == "Equivalent"
    assert kinds["SN is as accurate with a batch average over 50000 samples as over 1281167 (batch 32)"] == "Equivalent"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained SN: its configuration, record and store."""
    runs = tmp_path_factory.mktemp("runs")
    options = ClassificationOptions(averaged_samples=64)
    config = make_config(replace(SMOKE.config, model="small", norm="sn", epochs=2, num_evals=2, options=options))
    return config, train_run(config, runs), runs


def test_the_average_of_a_stored_run_is_that_of_its_last_evaluation(trained):
    config, record, runs = trained
    result = averaged_accuracies(config, runs, (32, 64))
    assert result["averaged_64"] == pytest.approx(100 - record.curve[-1]["test_error, batch average"], abs=1e-3)
    assert result["items"]["averaged_64"] == record.items["error, batch average"]
    assert result["items"]["averaged_64"] != record.items["error"]
    for column in ("averaged_32", "averaged_64"):
        items = unpack_items(result["items"][column])
        assert len(items) == 64
        assert items.mean() == pytest.approx(result[column], abs=1e-3)


def test_sparse_sn_is_fine_tuned_with_one_normalizer_per_layer(trained):
    config, record, runs = trained
    metrics = fine_tune_sparse(config, 1, runs)
    assert set(metrics["chosen"].values()) <= {"in", "ln", "bn"}
    assert len(metrics["chosen"]) == len(record.importance)
    assert 0 <= metrics["hardened_accuracy"] <= 100
    assert metrics["failure"] == ""
    assert metrics["train_accuracy"] is not None
