"""Tasks: several networks and optimizers, options, artifacts, loggers, and what is refused."""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.training.checkpoint import load_checkpoint, save_checkpoint
from anynorm.training.config import Config
from anynorm.training.devices import Hardware
from anynorm.training.run import load_run, run
from anynorm.training.store import Store
from anynorm.training.task import make_optimizer, merge_options
from anynorm.training.trainer import Trainer, train

QUICK = Config(task="tests.training.test_task:Adversarial", batch_size=8, epochs=2, lr=0.01, num_evals=2)


class Adversarial(anynorm.Task):
    """A generator and a discriminator on numbers: two networks, two optimizers, two updates of the second per step."""

    metric: ClassVar = anynorm.Metric("mean", higher_is_better=True)
    default_options: ClassVar = {"target": 3.0, "name": "pair", "steps": 2}
    num_samples: ClassVar = 64
    passes_per_step: ClassVar = 2
    num_updates: torch.Tensor

    def __init__(self, config):
        super().__init__(config)
        self.generator = self.apply_norms(nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)))
        self.discriminator = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.long))

    def configure_optimizers(self):
        slow = replace(self.config, lr=self.config.lr / 4)
        return {
            "generator": make_optimizer(slow, [self.generator]),
            "discriminator": make_optimizer(self.config, [self.discriminator]),
        }

    def batch(self, indices, generator):
        return torch.randn(len(indices), 2, generator=generator), self.options["target"] + torch.randn(
            len(indices), 1, generator=generator
        )

    def training_step(self, step):
        for number in range(self.passes_per_step):
            noise, real = self.training_batch(step.number, number)
            d_loss = self.discriminator(self.generator(noise).detach()).mean() - self.discriminator(real).mean()
            step.backward(d_loss)
            step.update("discriminator")
        g_loss = -self.discriminator(self.generator(noise)).mean()
        step.backward(g_loss)
        for parameter in self.discriminator.parameters():
            parameter.grad = None
        step.update("generator")
        self.num_updates += 1
        return {"d_loss": d_loss, "g_loss": g_loss}

    def evaluate(self):
        noise = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
        self.samples = self.generator(noise)
        return {"mean": float(self.samples.mean())}

    def artifacts(self):
        return {f"samples/{int(self.num_updates):03d}.txt": str(self.samples.tolist()).encode()}


def test_a_task_may_have_several_networks_and_optimizers_and_a_state_of_its_own(tmp_path):
    assert run(QUICK, tmp_path)
    folder, record = Store(tmp_path).folder(QUICK.id), Store(tmp_path).record(QUICK.id)
    assert {"generator.pt", "discriminator.pt"} <= {path.name for path in folder.iterdir()}
    assert set(record["curve"][0]) == {"step", "epoch", "train_d_loss", "train_g_loss", "test_mean"}
    assert record["metric"] == {"name": "mean", "unit": "", "higher_is_better": True}
    assert record["saved_bytes"] is None  # a step has several forward passes
    assert record["shift"] is None  # no test batches
    task = load_run(tmp_path, QUICK.id)
    assert not task.training
    with torch.no_grad():
        assert task.evaluate()["mean"] == record["test_mean"]


def test_several_optimizers_follow_one_schedule_from_their_own_learning_rates():
    trainer = Trainer(QUICK)
    trainer.step = trainer.steps // 2
    trainer.training_step()
    lrs = {name: optimizer.param_groups[0]["lr"] for name, optimizer in trainer.optimizers.items()}
    assert lrs == pytest.approx({"generator": 0.00125, "discriminator": 0.005})


def test_a_task_with_several_networks_resumes_to_the_same_bits(tmp_path):
    config = replace(QUICK, ema_decay=0.5)
    uninterrupted = train(config).trainer

    def stop(trainer):
        if trainer.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, seconds=0.0, callback=stop)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == 2
    resumed = train(config, tmp_path).trainer
    for name, value in uninterrupted.task.state_dict().items():
        assert torch.equal(resumed.task.state_dict()[name], value)
    assert resumed.curve.points == uninterrupted.curve.points
    assert resumed.task.get_buffer("num_updates") == resumed.steps


def test_artifacts_are_files_of_the_run_and_listed_by_runs_show(tmp_path):
    run(QUICK, tmp_path)
    folder = Store(tmp_path).folder(QUICK.id) / "artifacts" / "samples"
    assert sorted(path.name for path in folder.iterdir()) == ["004.txt", "008.txt"]
    shown = CliRunner().invoke(app, ["runs", "show", QUICK.id, "--runs", str(tmp_path)])
    assert '"artifacts": [\n    "samples/004.txt",\n    "samples/008.txt"\n  ]' in shown.stdout


def test_tensorboard_reads_the_curve(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(QUICK, tmp_path, hardware=Hardware("cpu", logger="tensorboard"))
    events = EventAccumulator(str(Store(tmp_path).folder(QUICK.id) / "tensorboard")).Reload()
    curve = Store(tmp_path).record(QUICK.id)["curve"]
    assert {"test/mean", "train/d_loss", "train/g_loss"} == set(events.Tags()["scalars"])
    points = [(event.step, event.value) for event in events.Scalars("test/mean")]
    assert points == [(point["step"], pytest.approx(point["test_mean"])) for point in curve]


def test_options_have_the_type_of_their_default():
    assert merge_options(Adversarial, {"target": 1, "steps": 3}) == {"target": 1, "name": "pair", "steps": 3}
    with pytest.raises(anynorm.SpecError, match="Adversarial has no option 'goal'; its options are target name steps"):
        Trainer(replace(QUICK, options={"goal": 1}))
    with pytest.raises(anynorm.SpecError, match=r"option steps of Adversarial must be of type int; got 1\.5"):
        Trainer(replace(QUICK, options={"steps": 1.5}))
    with pytest.raises(anynorm.SpecError, match="Task has no option 'x'; it has no options"):
        merge_options(anynorm.Task, {"x": 1})


@pytest.mark.parametrize(
    ("value", "message"),
    [("high", "evaluate must return numbers; the metric 'mean' is of type str"),
     (torch.zeros(2), r"evaluate must return numbers; the metric 'mean' is a tensor of shape \(2,\)")],
)  # fmt: skip
def test_metrics_that_are_not_numbers_are_reported_and_the_store_stays_whole(value, message, tmp_path, monkeypatch):
    monkeypatch.setattr(Adversarial, "evaluate", lambda _: {"mean": value})
    monkeypatch.setattr(Adversarial, "artifacts", lambda _: {})
    with pytest.raises(anynorm.DataError, match=message):
        train(QUICK)
    run(QUICK, tmp_path)
    assert Store(tmp_path).record(QUICK.id)["status"] == "failed"


def test_metrics_of_a_step_must_be_scalars(monkeypatch):
    monkeypatch.setattr(Adversarial, "training_step", lambda *_: {"loss": torch.zeros(3)})
    with pytest.raises(
        anynorm.DataError, match=r"training_step must return scalar tensors; the metric 'loss' is a tensor of shape"
    ):
        train(QUICK)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    state = Trainer(QUICK).state_dict()
    del state["version"]
    save_checkpoint(state, tmp_path / "checkpoint.pt")
    with pytest.raises(anynorm.DataError, match=r"the checkpoint must be of version 2; got version 1\. Delete it"):
        train(QUICK, tmp_path)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_a_run_without_enough_memory_fails_with_the_batch_size(error, tmp_path, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(Adversarial, "training_step", fail)
    run(QUICK, tmp_path)
    note = Store(tmp_path).record(QUICK.id)["note"]
    assert note.startswith("out of memory with batch_size=8 on cpu. Use a smaller batch size")
    monkeypatch.setattr(Adversarial, "training_step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # an error of the task's code is the user's to see
        run(replace(QUICK, seed=1), tmp_path)


def test_weight_decay_can_leave_out_biases_and_norms():
    modules = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))]
    groups = make_optimizer(Config(decay_norms=False, nesterov=True), modules).param_groups
    assert [(len(group["params"]), group["weight_decay"], group["nesterov"]) for group in groups] == [
        (1, 5e-4, True),
        (3, 0.0, True),
    ]
