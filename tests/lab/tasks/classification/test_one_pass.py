"""A step in one pass has the result of gradient accumulation."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from anynorm.lab.data import load_dataset
from anynorm.lab.tasks.adversarial.task import Adversarial
from anynorm.lab.tasks.classification import one_pass
from anynorm.lab.tasks.classification.task import Classification
from anynorm.lab.tasks.run import train
from anynorm.lab.training.config import Config
from anynorm.lab.training.trainer import Trainer
from anynorm.layers.norm import Norm
from tests.helpers import same

CONFIG = Config(
    model="small", width=0.5, num_train=64, num_test=64, batch_size=2, grad_accum_steps=4, crop=1, flip=True, cutout=2,
    label_smoothing=0.1, epochs=1, lr=0.05, num_evals=1,
)  # fmt: skip
NORMS = ["bn", "gn:8", "ln", "sn", "hn", "hn:8", "bgn:8", "bgn", "en", "pn", "bn+in", "bn/en:8"]
DATA = load_dataset("digits")


class Double(Classification):
    """Classification in float64."""

    def training_batch(self, step, micro_batch=0):
        x, targets = super().training_batch(step, micro_batch)
        return x.double(), targets

    def step_batch(self, step):
        x, targets = super().step_batch(step)
        return x.double(), targets

    def _test_batches(self, batch_size, processes):
        for x, targets in super()._test_batches(batch_size, processes):
            yield x.double(), targets


def double_trainer(config, *, merged):
    task = Double(config, DATA).double()
    task.__dict__["is_one_pass"] = merged  # which is False for subclasses
    return Trainer(config, task)


@pytest.mark.parametrize(
    ("norm", "batch_size"), [*((norm, 2) for norm in NORMS), ("bn", 4), ("sn", 8), ("bn", 1), ("gn:8", 1), ("hn:8", 1)]
)
def test_weights_statistics_and_metrics_are_those_of_accumulation(norm, batch_size):
    config = replace(CONFIG, norm=norm, batch_size=batch_size)
    assert Classification(config, DATA).is_one_pass
    one, other = (double_trainer(config, merged=merged) for merged in (False, True))
    start = next(other.task.parameters()).clone()
    for _ in range(3):
        one.training_step()
        other.training_step()
    state, actual = one.task.state_dict(), other.task.state_dict()
    assert state.keys() == actual.keys()
    for name, expected in state.items():
        same(actual[name], expected, rtol=1e-10, atol=1e-10, msg=name)
    assert not torch.allclose(start, next(other.task.parameters()))  # it has trained
    for trainer in (one, other):
        trainer.evaluate()
    for name, value in one.curve.points[-1].items():
        assert other.curve.points[-1][name] == pytest.approx(value, rel=1e-6), name  # training metrics are float32


@pytest.mark.parametrize("norm", ["bn", "in+ln"])
def test_the_images_of_a_step_are_those_of_its_micro_batches(norm):
    task: Any = Classification(replace(CONFIG, norm=norm), DATA)
    Trainer(CONFIG, task)  # sets the sampler
    for step in (0, 9):
        parts = [task.training_batch(step, micro_batch) for micro_batch in range(4)]
        for merged, expected in zip(task.step_batch(step), zip(*parts, strict=True), strict=True):
            assert torch.equal(merged, torch.cat(expected))


def test_one_step_is_one_pass(monkeypatch):
    sizes = []
    for enabled in (True, False):
        monkeypatch.setattr(one_pass, "ENABLED", enabled)
        trainer = Trainer(CONFIG, Classification(CONFIG, DATA))
        trainer.task.network.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
        trainer.training_step()
    assert sizes == [8, 2, 2, 2, 2]


def test_a_resumed_run_in_one_pass_ends_with_the_same_bits(tmp_path):
    config = replace(CONFIG, epochs=2)
    uninterrupted = train(config).trainer
    assert uninterrupted.task.is_one_pass

    def stop(trainer):
        if trainer.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, seconds=0.0, callback=stop)
    resumed = train(config, tmp_path).trainer
    assert resumed.curve.points == uninterrupted.curve.points
    for name, expected in uninterrupted.task.state_dict().items():
        assert torch.equal(resumed.task.state_dict()[name], expected), name


def first_norm(trainer) -> Any:
    return next(module for module in trainer.task.modules() if isinstance(module, Norm))


def is_one_pass(**changes):
    return Classification(replace(CONFIG, **changes), DATA).is_one_pass


@pytest.mark.parametrize(
    "changes",
    [
        {"grad_accum_steps": 1},
        {"norm": "ssn"},
        {"norm": "brn"},
        {"norm": "gbgn:2,4"},
        {"mixup": 0.2},
        {"precision": "bf16-mixed"},
        {"compile": True},
        {"model": "mobilenetv2"},  # has dropout
        {"grad_accum_steps": 2048},  # too many positions
    ],
)
def test_other_runs_accumulate(changes):
    assert is_one_pass()
    assert not is_one_pass(**changes)


def test_other_tasks_and_networks_accumulate():
    assert not Adversarial(replace(CONFIG, task="adversarial"), DATA).is_one_pass
    task = Classification(CONFIG, DATA)
    task.model = nn.Sequential(task.model, nn.BatchNorm1d(10))
    assert not task.is_one_pass


def test_runs_that_accumulate_train(monkeypatch):
    monkeypatch.setattr(one_pass, "MAX_POSITIONS", 1)
    trainer = Trainer(CONFIG, Classification(CONFIG, DATA))
    trainer.training_step()
    assert trainer.task.samples_per_pass == 2
    assert first_norm(trainer).num_batches_tracked == 4
