"""Cells of recipes that are runs of a store, and the settings they need."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import anynorm
from anynorm.data import load
from anynorm.errors import DataError, SpecError
from anynorm.models import build
from anynorm.recipes.support import norm_grid as sweep
from anynorm.recipes.support import presets as runs
from anynorm.recipes.support.claims import Claim
from anynorm.training.config import Config
from anynorm.training.norm_layout import apply_norms, validate_norms
from anynorm.training.store import Store
from anynorm.training.trainer import Trainer, train

SETTINGS: dict[str, Any] = {
    "train": {"data": "digits", "num_train": 64, "epochs": 1, "lr": 0.1, "num_test": 50, "num_evals": 1},
    "base_batch_size": 32,
}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv(runs.RUNS, str(tmp_path))
    return tmp_path


def test_the_rate_follows_the_batch_size_and_a_cell_may_change_settings():
    config = runs.config_of(SETTINGS, "gn:8", 8, 3, schedule="constant")
    assert (config.lr, config.norm, config.batch_size, config.seed, config.schedule) == (0.025, "gn:8", 8, 3, "constant")
    with pytest.raises(SpecError, match=r"A run has no setting 'epoch'\. Did you mean epochs\?"):
        runs.config_of({"train": {"epoch": 1, "lr": 1.0}, "base_batch_size": 1}, "bn", 8, 0)


def test_a_run_is_trained_once_and_its_numbers_are_those_of_the_store(root):
    config = runs.config_of(SETTINGS, "bn", 16, 0)
    first = runs.numbers(runs.trained(config))
    record = Store(root).record(config.id)
    assert first["accuracy"] == pytest.approx(100 - record["test_error"], abs=1e-3)
    assert len(record["curve"]) == 1
    assert runs.numbers(runs.trained(config)) == first  # the seconds too: it was not run again
    assert first["failed"] == ""
    assert first["commit"] == record["provenance"]["commit"]


def test_a_median_is_that_of_the_last_points():
    curve = [{"test_error": error} for error in (90.0, 10.0, 50.0, 40.0)]
    record = {"status": "done", "curve": curve, "test_error": 40.0, "train_error": 5.0, "note": "", "seconds": 1.0}
    record["provenance"] = {"commit": "abc"}
    assert runs.numbers(record)["accuracy"] == 60.0
    assert runs.numbers(record, median=3)["accuracy"] == 60.0
    assert runs.numbers(record, median=4)["accuracy"] == 55.0


def test_a_sweep_takes_the_median_that_its_settings_ask_for(root):
    settings = {"train": SETTINGS["train"] | {"num_evals": 4}, "base_batch_size": 8, "median": 3}
    found = sweep.measure(settings, {"norm": "hn", "batch_size": 8, "seed": 0})
    curve = Store(root).record(runs.config_of(settings, "hn", 8, 0).id)["curve"]
    errors = sorted(point["test_error"] for point in curve[-3:])
    assert len(curve) == 4
    assert errors[1] != curve[-1]["test_error"]
    assert found["accuracy"] == pytest.approx(100 - errors[1], abs=1e-3)


def test_a_folder_that_changes_makes_other_runs(root):
    (root / "images").mkdir()
    settings = {"train": {"data": f"folder:{root / 'images'}", "lr": 0.1}, "base_batch_size": 32}
    before = runs.config_of(settings, "bn", 16, 0)
    (root / "images" / "new.png").write_bytes(b"")
    runs._made_of.cache_clear()  # another process
    assert runs.config_of(settings, "bn", 16, 0).id != before.id


def test_a_run_that_cannot_be_trained_is_told_and_its_claims_are_not_decided():
    in_1x1 = runs.numbers(runs.trained(runs.config_of(SETTINGS, "in", 16, 0, model="resnet10")))
    assert in_1x1["accuracy"] is None
    assert "would take a statistic from one value" in in_1x1["failed"]
    rows = [in_1x1 | {"norm": "in", "seed": 0}, {"norm": "bn", "accuracy": 40.0, "seed": 0}]
    claim = runs.better("bn", "in", "76 and 71")
    judged = claim.judge(rows)
    assert (judged["verdict"], judged["smaller"], judged["larger"], judged["p"]) == ("failed", "failed", "40", 1.0)
    assert judged["claim"] == "`bn` is more accurate than `in`"
    assert runs.told(rows, norm="in") == "failed"
    assert runs.told([*rows, {"norm": "in", "accuracy": 30.0, "seed": 1}], norm="in") == "30.0, 1 of 2 failed"


def test_points_lost_between_batch_sizes_are_judged_seed_by_seed():
    rows = []
    for seed in range(3):
        for norm, fall in (("bn", 10.0), ("sn", 1.0)):
            rows.append({"norm": norm, "batch_size": 32, "accuracy": 60.0 + seed, "seed": seed})
            rows.append({"norm": norm, "batch_size": 2, "accuracy": 60.0 + seed - fall - 0.1 * seed, "seed": seed})
    bn, sn = (runs.fall(32, 2, norm=norm) for norm in ("bn", "sn"))
    assert bn(rows) == pytest.approx([10.0, 10.1, 10.2])
    assert Claim("bn loses more", "", bn, sn).judge(rows)["verdict"] == "holds"


def test_images_are_averaged_to_a_smaller_side():
    whole, half = load("digits"), load("digits@4")
    assert half.shape[1:3] == (4, 4)
    expected = whole.train[0].float().reshape(-1, 1, 4, 2, 4, 2).mean((3, 5)).round().to(torch.uint8)
    assert torch.equal(half.train[0], expected)
    assert torch.equal(half.train[1], whole.train[1])
    for name in ("digits@3", "digits@", "digits@16", "digits@x"):
        with pytest.raises(DataError, match=rf"{name}: images of 8 × 8 pixels can be averaged to 1 2 4 8\."):
            load(name)


@pytest.mark.parametrize(("images", "points", "steps"), [(64, 1, [4]), (64, 2, [2, 4]), (80, 2, [3, 5]), (48, 20, [1, 2, 3])])
def test_the_test_set_is_asked_as_often_as_the_configuration_says(images, points, steps):
    training, failure = train(
        Config(num_train=images, batch_size=16, epochs=1, num_test=30, num_evals=points), data=load("digits")
    )
    assert not failure
    assert [point["step"] for point in training.curve] == steps


def test_a_run_that_ends_early_is_the_beginning_of_the_whole_one():
    data = load("digits")
    whole = Trainer(Config(num_train=64, epochs=3, num_test=30), data)
    for _ in range(whole.steps_per_epoch):
        whole.training_step()
    part, _ = train(Config(num_train=64, epochs=3, num_test=30, stop_epoch=1), data=data)
    assert part.step == whole.step
    for mine, its in zip(part.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(mine, its)
    with pytest.raises(SpecError, match="stop_epoch=4 is none of the 3 epochs of this run"):
        Config(epochs=3, stop_epoch=4)


def test_as_many_test_images_are_asked_as_the_configuration_says():
    data = load("digits")
    training = Trainer(Config(num_train=64, epochs=1, num_test=30), data)
    assert len(training.data.test[0]) == 30
    with pytest.raises(DataError, match=r"100000 test images were asked for; there are"):
        Trainer(Config(num_train=64, epochs=1, num_test=100000), data)


def test_settings_that_came_later_leave_the_names_of_runs_as_they_were():
    plain = Config()
    assert replace(plain, num_evals=20, num_test=None, stop_epoch=None).id == plain.id
    assert len({plain.id, replace(plain, num_evals=1).id, replace(plain, num_test=10).id, replace(plain, stop_epoch=1).id}) == 4
    assert plain.id == "dbaaca1afd7e"  # as before these settings were there


@pytest.mark.parametrize(
    ("norms", "wanted"),
    [("xbn=gn:4", 8), ("xbn.p1=gn:4", 8), ("xbn.d2=gn:4", 4), ("xbn.p3.d4=gn:4", 2), ("xbn.d8=gn:4", 1)],
)
def test_xbn_blocks_are_placed_by_position_and_distance(norms, wanted):
    model = apply_norms(build("resnet26", load("digits").shape), norms, 16)
    layers = [module for module in model.modules() if isinstance(module, anynorm.Norm)]
    assert sum(layer.spec == "gn:4" for layer in layers) == wanted


def test_places_that_are_not_there_are_refused():
    with pytest.raises(SpecError, match=r"'xbn\.p4=gn:4' places nothing; write xbn=gn:64, or with place 1 to 3"):
        validate_norms("xbn.p4=gn:4", 8)


def test_schedules_fall_where_their_names_say():
    config = Config(schedule="step-30-60-90", lr=1.0)
    assert [round(config.lr_at(part), 6) for part in (0.0, 0.29, 0.3, 0.6, 0.95)] == [1.0, 1.0, 0.1, 0.01, 0.001]
    quarters = replace(config, schedule="step-quarters")
    assert [round(quarters.lr_at(part), 6) for part in (0.2, 0.25, 0.5, 0.75)] == [1.0, 0.1, 0.01, 0.001]
