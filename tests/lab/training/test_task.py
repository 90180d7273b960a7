"""Tasks: several networks and optimizers, options, artifacts, loggers, and what is refused."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn
from typer.testing import CliRunner
from typing_extensions import TypeVar

import anynorm
from anynorm.cli import app
from anynorm.lab.comparison.compare import make_base
from anynorm.lab.tasks.run import load_run, make_trainer, run, train
from anynorm.lab.training.checkpoint import load_checkpoint, save_checkpoint
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import Curve
from anynorm.lab.training.devices import Hardware
from anynorm.lab.training.options import Options, option
from anynorm.lab.training.store import Store
from anynorm.lab.training.task import Metric, make_optimizer

QUICK = Config(task="tests.lab.training.test_task:Adversarial", batch_size=8, epochs=2, lr=0.01, num_evals=2)


@dataclass(frozen=True)
class PairOptions(Options):
    """Options of three types."""

    target: float = option(3.0, "mean of the numbers.")
    name: str = option("pair", "name of the networks.")
    steps: int = option(2, "number of steps.", minimum=1)


PairOptions_co = TypeVar("PairOptions_co", bound=PairOptions, default=PairOptions, covariant=True)


class Adversarial(anynorm.Task[PairOptions_co]):
    """A generator and a discriminator on numbers: two networks, two optimizers, two updates of the second per step."""

    metric: ClassVar = anynorm.Metric("mean", higher_is_better=True)
    num_samples: ClassVar = 64
    micro_batches_per_step: ClassVar = 2
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
        return torch.randn(len(indices), 2, generator=generator), self.options.target + torch.randn(
            len(indices), 1, generator=generator
        )

    def training_step(self, trainer):
        for micro_batch in range(self.micro_batches_per_step):
            noise, real = self.training_batch(trainer.step, micro_batch)
            d_loss = self.discriminator(self.generator(noise).detach()).mean() - self.discriminator(real).mean()
            trainer.backward(d_loss)
            trainer.update("discriminator")
        g_loss = -self.discriminator(self.generator(noise)).mean()
        trainer.backward(g_loss)
        for parameter in self.discriminator.parameters():
            parameter.grad = None
        trainer.update("generator")
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
    assert set(record.curve[0]) == {"step", "epoch", "train_d_loss", "train_g_loss", "test_mean"}
    assert record.metric == Metric("mean", higher_is_better=True)
    assert record.saved_bytes is None  # a step has several forward passes
    assert record.shift is None  # no test batches
    task = load_run(tmp_path, QUICK.id)
    assert not task.training
    assert task.get_buffer("num_updates") == record.steps
    with torch.no_grad():
        assert task.evaluate()["mean"] == record.metrics["test_mean"]


def test_several_optimizers_follow_one_schedule_from_their_own_learning_rates():
    trainer = make_trainer(QUICK)
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
    curve = Store(tmp_path).record(QUICK.id).curve
    assert {"test/mean", "train/d_loss", "train/g_loss"} == set(events.Tags()["scalars"])
    points = [(event.step, event.value) for event in events.Scalars("test/mean")]
    assert points == [(point["step"], pytest.approx(point["test_mean"])) for point in curve]


def test_options_are_those_of_the_dataclass():
    assert Adversarial.options_of(replace(QUICK, options={"target": 1, "steps": 3})) == PairOptions(1.0, "pair", 3)
    assert replace(QUICK, options=PairOptions(steps=3)) == replace(QUICK, options={"steps": 3})
    with pytest.raises(anynorm.SpecError, match="Adversarial has no option 'goal'; its options are target name steps"):
        make_trainer(replace(QUICK, options={"goal": 1}))
    with pytest.raises(anynorm.SpecError, match=r"steps must be an integer; got 1\.5"):
        make_trainer(replace(QUICK, options={"steps": 1.5}))
    with pytest.raises(anynorm.SpecError, match="Task has no option 'x'; it has no options"):
        anynorm.Task(replace(QUICK, options={"x": 1}))


def test_an_option_must_not_have_the_name_of_a_setting_of_every_run():
    @dataclass(frozen=True)
    class ClashOptions(Options):
        lr: float = option(1.0, "learning rate.")
        flip: bool = option(True, "flips.")
        other: int = option(1, "another.")

    with pytest.raises(anynorm.SpecError, match="options of Clash must not have the names of settings of every run; got flip lr"):

        class Clash(anynorm.Task[ClashOptions]):
            pass


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
    assert Store(tmp_path).record(QUICK.id).status == "failed"


def test_metrics_of_a_step_must_be_scalars(monkeypatch):
    monkeypatch.setattr(Adversarial, "training_step", lambda *_: {"loss": torch.zeros(3)})
    with pytest.raises(
        anynorm.DataError, match=r"metrics of a training step must be scalar tensors; the metric 'loss' is a tensor of shape"
    ):
        train(QUICK)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    state = make_trainer(QUICK).state_dict()
    del state["version"]
    save_checkpoint(state, tmp_path / "checkpoint.pt")
    with pytest.raises(anynorm.DiskError, match=r"the checkpoint must be of version 2; got version 1\. Delete it to start again"):
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
    note = Store(tmp_path).record(QUICK.id).note
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
    per_domain = [nn.Sequential(nn.Linear(4, 3), anynorm.make("bn.aux@2", 3))]
    groups = make_optimizer(Config(decay_norms=False), per_domain).param_groups
    assert [[parameter.shape for parameter in group["params"]] for group in groups] == [[(3, 4)], [(3,), (2, 3), (2, 3)]]


@pytest.mark.parametrize(
    ("method", "replacement", "message"),
    [
        ("evaluate", lambda _: {"loss": 1.0}, "Adversarial.evaluate must return a dictionary with the metric 'mean'; got loss"),
        (
            "evaluate",
            lambda _: 1.0,
            "Adversarial.evaluate must return a dictionary with the metric 'mean'; got an object of type float",
        ),
        (
            "training_step",
            lambda _, trainer: trainer.update("critic"),
            "optimizer must be one of generator discriminator; got 'critic'",
        ),
        ("training_step", anynorm.Task.training_step, "Adversarial must define loss; see anynorm.Task"),
        ("evaluate", anynorm.Task.evaluate, "Adversarial must define evaluate; see anynorm.Task"),
    ],
)
def test_mistakes_in_a_task_are_named(method, replacement, message, monkeypatch):
    monkeypatch.setattr(Adversarial, method, replacement)
    with pytest.raises(anynorm.DataError, match=message):
        train(QUICK)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [({"error": torch.zeros(())}, "Adversarial.loss must return a dictionary with the metric 'loss'; got error"),
     ({"loss": torch.zeros((), requires_grad=True), "error": 0.5}, "the metric 'error' is of type float")],
)  # fmt: skip
def test_a_loss_that_cannot_be_used_is_named(metrics, message, monkeypatch):
    monkeypatch.setattr(Adversarial, "training_step", anynorm.Task.training_step)
    monkeypatch.setattr(Adversarial, "loss", lambda *_: metrics)
    with pytest.raises(anynorm.DataError, match=message):
        train(QUICK)


def test_a_task_without_a_loss_is_compared(tmp_path):
    table = anynorm.compare(["bn", "gn:2"], [8], 1, task=QUICK.task, epochs=1, lr=0.01, runs=tmp_path, processes=1)
    assert set(table["bn"]) >= {"mean, batch 8", "step time, batch 8"}
    assert table["bn"]["memory, batch 8"] is None


def test_the_metric_of_a_run_that_failed_at_once_is_that_of_its_task(tmp_path):
    run(replace(QUICK, batch_size=128), tmp_path)  # more than the task has
    (failed,) = Store(tmp_path).runs()
    assert (failed.status, failed.metric) == ("failed", "mean")


@dataclass(frozen=True)
class MeasuredOptions(PairOptions):
    """A fourth option."""

    network: str = option("ResNet-56", "network of the features.")


class Measured(Adversarial[MeasuredOptions]):
    """The mean is compared under the name of an option, with spaces and parentheses."""

    @classmethod
    def metric_for(cls, config):
        return anynorm.Metric(f"FD ({cls.options_of(config).network})")

    def evaluate(self):
        return {self.metric_for(self.config).name: super().evaluate()["mean"], "mean": 0.0}


MEASURED = replace(QUICK, task="tests.lab.training.test_task:Measured")


def test_the_metric_may_depend_on_the_options_of_a_run(tmp_path):
    small = replace(MEASURED, options={"network": "ResNet-8"})
    for config, name in ((MEASURED, "FD (ResNet-56)"), (small, "FD (ResNet-8)")):
        assert run(config, tmp_path)
        record = Store(tmp_path).record(config.id)
        assert record.metric.name == name
        assert record.metrics[f"test_{name}"] == record.curve[-1][f"test_{name}"]
    wrong = replace(small, batch_size=128)  # more than the task has
    run(wrong, tmp_path)
    assert Store(tmp_path).record(wrong.id).metric.name == "FD (ResNet-8)"


def test_a_task_object_that_fails_is_recorded_with_its_own_metric(tmp_path):
    config = replace(QUICK, task="classification", batch_size=128)
    run(config, tmp_path, task=Measured(config))
    assert Store(tmp_path).record(config.id).metric.name == "FD (ResNet-56)"


def test_a_run_whose_options_are_refused_is_recorded_with_the_metric_of_the_class(tmp_path):
    config = replace(MEASURED, options={"depth": 3})
    run(config, tmp_path)
    record = Store(tmp_path).record(config.id)
    assert record.note.startswith("SpecError: Measured has no option 'depth'")
    assert record.metric.name == "mean"


def test_a_step_that_returns_nothing_is_named(monkeypatch):
    monkeypatch.setattr(Adversarial, "training_step", lambda *_: None)
    with pytest.raises(
        anynorm.DataError, match=r"Adversarial\.training_step must return a dictionary of metrics; got an object of type"
    ):
        train(QUICK)


def test_a_metric_that_not_every_step_has_is_averaged_over_those_that_have_it(monkeypatch):
    def training_step(_, trainer):
        return {"rare": torch.ones(())} if trainer.step % 2 else {"often": torch.ones(())}

    monkeypatch.setattr(Adversarial, "training_step", training_step)
    (*_, point) = train(QUICK).trainer.curve.points
    assert (point["train_rare"], point["train_often"]) == (1.0, 1.0)


def test_gradients_that_a_step_leaves_behind_are_not_used_by_the_next(monkeypatch):
    trainer = make_trainer(QUICK)
    for parameter in trainer.task.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    trainer.training_step()
    clean = make_trainer(QUICK)
    clean.training_step()
    for name, value in clean.task.state_dict().items():
        assert torch.equal(trainer.task.state_dict()[name], value)


def test_a_checkpoint_is_written_only_when_the_metrics_of_all_steps_have_been_read(tmp_path, monkeypatch):
    """On a GPU they are read every few steps, by all processes together; one process alone would wait for the others."""
    monkeypatch.setattr("anynorm.lab.training.trainer.Curve", SlowCurve)
    train(replace(QUICK, epochs=4, num_evals=1), tmp_path, seconds=0.0)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == 16
    assert SlowCurve.steps_of_checks == [2, 5, 8, 11, 14, 15]


class SlowCurve(Curve):
    """Reads metrics every third step, as on a GPU."""

    steps_of_checks: ClassVar[list[int]] = []

    def __init__(self, device, processes):
        super().__init__(device, processes)
        self._interval = 3

    def check(self):
        self.steps_of_checks.append(self._pending[-1][0])
        super().check()


def test_the_memory_of_a_run_does_not_depend_on_its_moving_average(tmp_path):
    config = Config(model="small", width=0.5, num_train=32, batch_size=16, epochs=1)
    configs = config, replace(config, ema_decay=0.9), replace(config, precision="bf16-mixed")
    saved = [run(each, tmp_path) and Store(tmp_path).record(each.id).saved_bytes for each in configs]
    assert saved[0] == saved[1] > saved[2] > 0


def test_options_from_python_are_part_of_the_run():
    settings = {"task": QUICK.task, "steps": 3, "options": {"target": 1}}
    assert make_base(settings).options == {"steps": 3, "target": 1.0}
    assert make_base(settings | {"options": {"target": 1.0}}).id == make_base(settings).id
    assert make_base({"task": QUICK.task, "options": {"target": 3.0}}).options == {}
