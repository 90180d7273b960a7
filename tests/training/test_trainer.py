"""Trainer depends on seed and step alone, can be killed at any moment, and says when it diverged."""

import signal
import subprocess
import sys
import time

import pytest
import torch

import anynorm
from anynorm.data import ImageDataset, load_dataset
from anynorm.training import trainer as engine
from anynorm.training.config import SCHEDULES, Config, config_from_dict
from anynorm.training.trainer import Trainer, train
from tests.helpers import same

DATA = load_dataset("digits")
QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=4, lr=0.05)


def final(training):
    return {key: value.clone() for key, value in training.model.state_dict().items()}


def identical(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    first, second = (train(QUICK, data=DATA)[0] for _ in range(2))
    other = train(config_from_dict({**vars(QUICK), "seed": 1}), data=DATA)[0]
    assert identical(final(first), final(second))
    assert first.curve == second.curve
    assert not identical(final(first), final(other))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "mobilenetv2", "width": 0.25, "epochs": 1},
        {"ema_decay": 0.9, "mixup": 0.2, "crop": 1, "flip": True, "cutout": 2},
    ],
)
def test_a_run_stopped_after_any_step_ends_with_the_same_bits(options, tmp_path):
    config = config_from_dict({**vars(QUICK), **options})
    whole = train(config, data=DATA)[0]

    def stop(training):
        if training.step == whole.steps // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, data=DATA, seconds=0.0, callback=stop)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert 0 < state["step"] < whole.steps
    again = train(config, tmp_path, data=DATA)[0]
    assert identical(final(again), final(whole))
    assert again.curve == whole.curve


@pytest.mark.slow
def test_a_run_killed_by_the_system_ends_with_the_same_bits(tmp_path):
    config = config_from_dict({**vars(QUICK), "epochs": 40})
    code = f"""
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from anynorm.training.config import Config
from anynorm.training.trainer import train
folder = Path(sys.argv[1])
training, _ = train({config!r}, folder, seconds=0.0)
torch.save(training.model.state_dict(), folder / "end.pt")
"""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    process = subprocess.Popen([sys.executable, "-c", code, str(killed)])
    while not (killed / "checkpoint.pt").exists():
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "end.pt").exists()
    for folder in (killed, whole):
        subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    ends = [torch.load(folder / "end.pt", weights_only=True) for folder in (killed, whole)]
    assert identical(*ends)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    engine.save(Trainer(QUICK, DATA).state(), tmp_path / "checkpoint.pt")
    with pytest.raises(anynorm.DataError, match="is of the run"):
        train(config_from_dict({**vars(QUICK), "seed": 5}), tmp_path, data=DATA)


def test_divergence_ends_a_run_and_is_told():
    training, why = train(config_from_dict({**vars(QUICK), "lr": 1e12, "norm": "gn:4", "schedule": "constant"}), data=DATA)
    assert why == "the test loss is nan after step 1"
    training, why = train(config_from_dict({**vars(QUICK), "lr": 1e12, "norm": "gn:4", "epochs": 20}), data=DATA)
    assert why.startswith("the loss is ")
    assert training.step < training.steps


def test_an_accumulated_step_is_that_of_the_whole_batch_where_norms_do_not_mix_samples():
    options = {**vars(QUICK), "norm": "gn:4", "epochs": 1, "schedule": "constant"}
    whole = train(config_from_dict({**options, "batch_size": 32}), data=DATA)[0]
    parts = train(config_from_dict({**options, "batch_size": 8, "grad_accum_steps": 4}), data=DATA)[0]
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        same(a, b, rtol=1e-3, atol=1e-5)  # sums in another order


def test_it_learns():
    training = train(config_from_dict({**vars(QUICK), "num_train": None, "epochs": 3, "batch_size": 32, "lr": 0.1}), data=DATA)[0]
    assert training.curve[-1]["test_error"] < 10
    half = train(
        config_from_dict(
            {**vars(QUICK), "num_train": None, "epochs": 2, "precision": "bfloat16", "optimizer": "adam", "lr": 0.01}
        ),
        data=DATA,
    )
    assert half[0].curve[-1]["test_error"] < 40


def test_schedules_begin_at_one_and_go_down():
    config = Config(lr=0.5, warmup_epochs=2.0, epochs=10)
    assert config.lr_at(0.1) == pytest.approx(0.25 * (1 + 0.9510565) / 2, rel=2e-3)
    assert config.lr_at(0.0) > 0
    assert [SCHEDULES["step"](progress) for progress in (0.0, 0.5, 0.75)] == pytest.approx([1, 0.1, 0.01])
    for name, schedule in SCHEDULES.items():
        assert schedule(0.0) == 1.0
        assert schedule(0.99) <= 1.0, name


def test_settings_that_mean_nothing_are_refused():
    for options, said in (
        ({"norm": "bm"}, "no norm called"),
        ({"schedule": "cosin"}, "none of constant step"),
        ({"epochs": 0}, "trains nothing"),
        ({"lr": 0.0}, "learning rate above 0"),
        ({"batchsize": 3}, "Did you mean batch_size"),
    ):
        with pytest.raises(anynorm.SpecError, match=said):
            config_from_dict(options)
    with pytest.raises(anynorm.DataError, match="A step takes 128 images, and there are 64"):
        Trainer(config_from_dict({**vars(QUICK), "batch_size": 128}), DATA)
    with pytest.raises(anynorm.DataError, match="there are 1348"):
        Trainer(config_from_dict({**vars(QUICK), "num_train": 5000}), DATA)


def test_standardised_images_have_mean_0_and_deviation_1():
    x = DATA.standardize(DATA.train[0])
    assert isinstance(DATA, ImageDataset)
    assert float(x.mean()) == pytest.approx(0, abs=1e-4)
    assert float(x.std()) == pytest.approx(1, abs=1e-3)
