"""Cells that are training runs: their configuration, their run in a store, and the metrics of a row."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anynorm.errors import DataError
from anynorm.lab.recipes.support import norm_grid, runs
from anynorm.lab.recipes.support.claims import OURS, Larger, Published, Source, more_accurate
from anynorm.lab.recipes.support.presets import IMAGENET
from anynorm.lab.recipes.support.quantities import accuracy_drop
from anynorm.lab.recipes.support.rows import result_over_seeds, successful
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.recipes.support.verdicts import judge
from anynorm.lab.training.config import Config
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Row

TRAINING = Training(Config(data="digits", num_train=64, epochs=1, lr=0.1, num_test=50, num_evals=1), base_batch_size=32)
BN_16 = replace(TRAINING.config, norm="bn", batch_size=16)


def test_the_learning_rate_is_scaled_linearly_to_the_batch_size():
    config = runs.make_config(replace(TRAINING.config, batch_size=8), TRAINING)
    assert config == replace(TRAINING.config, batch_size=8, lr=0.025)
    assert runs.make_config(replace(TRAINING.config, batch_size=8)).lr == 0.1


def test_the_learning_rate_follows_the_samples_of_all_devices_and_accumulated_passes():
    for devices, steps in ((4, 1), (1, 4), (2, 2)):
        config = replace(TRAINING.config, batch_size=8, devices=devices, grad_accum_steps=steps)
        assert runs.make_config(config, TRAINING).lr == 0.1


def test_a_folder_is_searched_in_the_working_directory_and_then_in_the_data_directory(tmp_path, monkeypatch):
    here, data = tmp_path / "here", tmp_path / "data"
    here.mkdir()
    (data / "images").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("ANYNORM_DATA", str(data))
    assert runs.with_full_path("folder:images") == f"folder:{data}/images"
    assert runs.with_full_path("stream:images") == f"stream:{data}/images"
    assert [runs.with_full_path(name) for name in ("folder:none", "cifar10@8", "hf:images")] == [
        "folder:none",
        "cifar10@8",
        "hf:images",
    ]
    (here / "images").mkdir()
    assert runs.with_full_path("folder:images") == "folder:images"


def test_a_run_is_trained_once_and_its_metrics_are_those_of_the_store(tmp_path):
    first = runs.train_cell(BN_16, TRAINING, tmp_path)
    record = Store(tmp_path).record(runs.make_config(BN_16, TRAINING).id)
    assert first["accuracy"] == pytest.approx(100 - record.metrics["test_error"], abs=1e-3)
    assert len(record.curve) == 1
    assert runs.train_cell(BN_16, TRAINING, tmp_path) == first  # the seconds too: it was not trained again
    assert first["failure"] == ""
    assert first["commit"] == record.provenance["commit"]


@pytest.mark.slow
def test_a_paper_preset_trains_on_a_folder_of_images_in_one_process_per_device(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # for the model below
    generator = np.random.default_rng(0)
    for number in range(48):
        path = tmp_path / "imagenet" / ("test" if number % 3 == 0 else "train") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path)
    small = replace(IMAGENET.config, image_size=32, model="small", epochs=1, num_evals=1, devices=2, batch_size=4)
    metrics = runs.train_cell(small, IMAGENET, tmp_path)
    assert metrics["failure"] == ""
    config = runs.make_config(small, IMAGENET)
    assert Store(tmp_path).record(config.id).steps == 32 // (4 * 2)
    assert runs.train_cell(small, IMAGENET, tmp_path) == metrics
    with pytest.raises(DataError, match=r"the 2 processes of run [0-9a-f]{12} failed; see their messages above"):
        runs.train_cell(replace(small, model="tests.lab.recipes.test_runs:exit_process"), IMAGENET, tmp_path)


def exit_process() -> None:
    os._exit(3)


def test_the_accuracy_is_the_median_of_the_last_evaluations():
    curve = [{"epoch": epoch, "test_error": error} for epoch, error in enumerate((90.0, 10.0, 50.0, 40.0), 1)]
    metrics = {"test_error": 40.0, "train_error": 5.0}
    record = RunRecord("", {}, "done", curve=curve, metrics=metrics, seconds=1.0, provenance={"commit": "abc"})
    assert runs.run_metrics(record)["accuracy"] == 60.0
    assert runs.run_metrics(record, median_of_last=3)["accuracy"] == 60.0
    assert runs.run_metrics(record, median_of_last=4)["accuracy"] == 55.0


def test_a_norm_grid_takes_the_median_that_its_settings_ask_for(tmp_path):
    training = Training(replace(TRAINING.config, num_evals=4), base_batch_size=8, median_of_last=3)
    settings = norm_grid.NormGrid(seeds=1, training=training, norms=("hn",), batch_sizes=(8,))
    metrics = norm_grid.measure(settings, {"norm": "hn", "batch_size": 8, "seed": 0}, tmp_path)
    config = runs.make_config(replace(training.config, norm="hn", batch_size=8), training)
    curve = Store(tmp_path).record(config.id).curve
    errors = sorted(point["test_error"] for point in curve[-3:])
    assert len(curve) == 4
    assert errors[1] != curve[-1]["test_error"]
    assert metrics["accuracy"] == pytest.approx(100 - errors[1], abs=1e-3)


def test_a_changed_image_folder_gives_new_runs(tmp_path):
    (tmp_path / "images").mkdir()
    config = Config(data=f"folder:{tmp_path / 'images'}")
    before = runs.make_config(config)
    (tmp_path / "images" / "new.png").write_bytes(b"")
    runs._hash_sources.cache_clear()  # as in another process
    assert runs.make_config(config).id != before.id


def test_a_run_that_cannot_be_trained_is_reported_and_its_claims_are_not_decided(tmp_path):
    in_on_1x1 = runs.train_cell(replace(BN_16, norm="in", model="resnet10"), TRAINING, tmp_path)
    assert in_on_1x1["accuracy"] is None
    assert in_on_1x1["failure"].startswith("ShapeError: ")
    assert "(16, 128, 1, 1)" in in_on_1x1["failure"]
    rows = [in_on_1x1 | {"norm": "in", "seed": 0}, {"norm": "bn", "accuracy": 40.0, "seed": 0}]
    claim = more_accurate("bn", "in", Source("sn"), Published(76.0, 71.0))
    (verdict,) = judge([claim], [], rows, None)
    assert (verdict.verdict, str(verdict.second), str(verdict.first), verdict.p) == ("failed", "failed", "40", None)
    assert verdict.claim.statement == "`bn` is more accurate than `in`"
    assert str(result_over_seeds(rows, "accuracy", norm="in")) == "failed"
    rows.append({"norm": "in", "accuracy": 30.0, "seed": 1})
    assert f"{result_over_seeds(rows, 'accuracy', norm='in'):.1f}" == "30.0, 1 of 2 failed"
    assert successful(rows, norm="in") == [30.0]


def test_accuracy_drops_between_batch_sizes_are_compared_seed_by_seed():
    rows: list[Row] = []
    for seed in range(3):
        for norm, drop in (("bn", 10.0), ("sn", 1.0)):
            rows.append({"norm": norm, "batch_size": 32, "accuracy": 60.0 + seed, "seed": seed})
            rows.append({"norm": norm, "batch_size": 2, "accuracy": 60.0 + seed - drop - 0.01 * drop * seed, "seed": seed})
    bn, sn = (accuracy_drop(32, 2, norm=norm) for norm in ("bn", "sn"))
    assert [bn.at(rows, seed) for seed in range(3)] == pytest.approx([10.0, 10.1, 10.2])
    (verdict,) = judge([Larger(statement="bn loses more", source=OURS, larger=bn, smaller=sn)], [], rows, None)
    assert verdict.verdict == "holds"
    rows[0]["accuracy"] = None
    assert bn.at(rows, 0) is None
