"""Training depends on the seed and the step alone, resumes after a kill at any moment, and reports divergence."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.tasks.run import make_trainer, train
from anynorm.lab.training.checkpoint import load_checkpoint, save_checkpoint
from anynorm.lab.training.config import Config
from anynorm.lab.training.sampler import derive_seed
from anynorm.lab.training.trainer import Trainer
from tests.helpers import same

QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=4, lr=0.05)


def final_state(trainer):
    return {key: value.clone() for key, value in trainer.task.network.state_dict().items()}


def result(trainer: Trainer) -> nn.Module:
    """Return the network that is evaluated and saved: the moving average, if the run has one."""
    with trainer.evaluation_networks() as task:
        return task.network


def identical(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "mobilenetv2", "width": 0.25, "epochs": 1},
        {"ema_decay": 0.9, "mixup": 0.2, "crop": 1, "flip": True, "cutout": 2},
    ],
)
def test_a_run_stopped_after_any_step_ends_with_the_same_bits(options, tmp_path):
    config = replace(QUICK, **options)
    uninterrupted = train(config).trainer

    def stop(trainer):
        if trainer.step == uninterrupted.steps // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, seconds=0.0, callback=stop)
    assert 0 < load_checkpoint(tmp_path / "checkpoint.pt")["step"] < uninterrupted.steps
    resumed = train(config, tmp_path).trainer
    assert identical(final_state(resumed), final_state(uninterrupted))
    assert identical(result(resumed).state_dict(), result(uninterrupted).state_dict())
    assert resumed.curve.points == uninterrupted.curve.points


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    save_checkpoint(make_trainer(QUICK).state_dict(), tmp_path / "checkpoint.pt")
    other = replace(QUICK, seed=5)
    with pytest.raises(anynorm.DataError, match=f"must be of run {other.id}; got one of run {QUICK.id}"):
        train(other, tmp_path)


def test_a_damaged_checkpoint_is_reported(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"x" * 100)
    with pytest.raises(anynorm.DiskError, match=r"cannot read .*checkpoint\.pt .*: the file is damaged\. Delete it to start"):
        train(QUICK, tmp_path)


def test_a_checkpoint_that_cannot_be_written_leaves_the_previous_one(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint({"step": 1}, path)

    def fail(*_, **__):
        raise RuntimeError("PytorchStreamWriter failed writing file")  # torch's error on a full disk

    monkeypatch.setattr("torch.save", fail)
    with pytest.raises(anynorm.DiskError, match=r"cannot write .*checkpoint\.pt"):
        save_checkpoint({"step": 2}, path)
    assert load_checkpoint(path) == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_divergence_ends_a_run_and_is_reported():
    _, failure = train(replace(QUICK, lr=1e12, norm="gn:4", schedule="constant"))
    assert re.fullmatch(r"the test loss is nan after step \d", failure)  # the step depends on where float32 overflows
    trainer, failure = train(replace(QUICK, lr=1e12, norm="gn:4", epochs=20))
    assert failure.startswith("the loss is ")
    assert trainer.step < trainer.steps


def test_an_accumulated_step_is_that_of_the_full_batch_for_norms_that_do_not_pool_over_samples():
    config = replace(QUICK, norm="gn:4", epochs=1, schedule="constant")
    full = train(replace(config, batch_size=32)).trainer
    accumulated = train(replace(config, batch_size=8, grad_accum_steps=4)).trainer
    for a, b in zip(full.task.parameters(), accumulated.task.parameters(), strict=True):
        same(a, b, rtol=1e-3, atol=1e-5)  # sums in another order


def test_the_moving_average_starts_at_the_initial_parameters_and_buffers_are_those_of_the_model():
    decay = 0.8
    trainer = make_trainer(replace(QUICK, ema_decay=decay))
    expected = [parameter.detach().clone() for parameter in trainer.task.network.parameters()]
    for _ in range(3):
        trainer.training_step()
        for average, parameter in zip(expected, trainer.task.network.parameters(), strict=True):
            average.lerp_(parameter.detach(), 1 - decay)
    for average, parameter in zip(expected, result(trainer).parameters(), strict=True):
        assert torch.equal(average, parameter)
    assert identical(dict(result(trainer).named_buffers()), dict(trainer.task.network.named_buffers()))
    assert result(trainer).state_dict().keys() == trainer.task.network.state_dict().keys()
    assert not any(parameter.requires_grad for parameter in result(trainer).parameters())


def test_it_learns():
    trainer = train(replace(QUICK, num_train=None, epochs=3, batch_size=32, lr=0.1)).trainer
    assert trainer.curve.points[-1]["test_error"] < 10
    bfloat16 = replace(QUICK, num_train=None, epochs=2, precision="bf16-mixed", optimizer="adam", lr=0.01)
    assert train(bfloat16).trainer.curve.points[-1]["test_error"] < 40


def test_a_run_needs_enough_images():
    with pytest.raises(
        anynorm.DataError,
        match=r"a step needs 128 samples \(batch size 128 × 1 batches per step × devices=1\); got 64 training samples",
    ):
        make_trainer(replace(QUICK, batch_size=128))
    with pytest.raises(anynorm.DataError, match="num_train must be between 1 and the 1348 images of the data set; got 5000"):
        make_trainer(replace(QUICK, num_train=5000))


def test_seeds_differ_for_every_run_stream_and_number():
    seeds = [derive_seed(seed, stream, number) for seed in range(5) for stream in (1, 2, 3) for number in range(50)]
    assert len(set(seeds)) == len(seeds)


class Doubling(anynorm.Task):
    """Learn y = 2 x."""

    metric = anynorm.Metric("distance")

    def __init__(self, config):
        super().__init__(config)
        self.model = self.apply_norms(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)))

    num_samples = 64

    def batch(self, indices, generator):
        x = torch.rand(len(indices), 8, generator=generator)
        return x, 2 * x.mean(1)

    def loss(self, batch):
        error = self.model(batch[0])[:, 0] - batch[1]
        return {"loss": error.square().mean(), "distance": error.detach().abs().mean()}

    def evaluate(self):
        metrics = self.loss(self.batch(torch.arange(8), torch.Generator().manual_seed(0)))
        return {name: float(value) for name, value in metrics.items()}


def test_the_trainer_trains_any_task():
    with torch.no_grad():
        start = Doubling(QUICK).eval().evaluate()["loss"]
    trainer, failure = train(QUICK, task=Doubling(QUICK))
    assert not failure
    assert set(trainer.curve.points[0]) == {"step", "epoch", "train_loss", "train_distance", "test_loss", "test_distance"}
    assert trainer.curve.points[-1]["test_loss"] < start
