"""The training loop. It can be stopped at any step and resumed to the bit-identical end.

Samples, augmentation and dropout masks of a step depend on the seed and the number of the step alone. So the state of a run is
small: parameters, buffers, optimizer, number of the step, curve.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from anynorm.data import ImageDataset
from anynorm.errors import DataError
from anynorm.io.checkpoints import import_object
from anynorm.layers.norm import Norm
from anynorm.models import build_model
from anynorm.surgery.sync import sync
from anynorm.training import distributed
from anynorm.training.checkpoint import load_checkpoint, save_checkpoint
from anynorm.training.config import Config
from anynorm.training.norm_layout import apply_norms
from anynorm.training.task import Task

_ORDER, _AUGMENTATION, _DROPOUT = 1, 2, 3
"""Independent streams of random numbers."""


class DivergedError(Exception):
    """The loss of a run is infinite or NaN."""


class Trainer:
    """A network in training.

    Args:
        config: the run.
        data: the data set of `config.data`, if it is already loaded.
        task: what is trained; the default is classification of `data`.

    Attributes:
        model: the network.
        average: the exponential moving average of its parameters, or None.
        step: number of finished steps, out of `steps` of the full run and `end` of this one (`Config.stop_epoch`).
        curve: one dictionary of metrics per evaluation.

    Raises:
        DataError: if a step takes more samples than the task has.
    """

    def __init__(self, config: Config, data: ImageDataset | None = None, task: Task | None = None) -> None:
        self.config = config
        self.task = _default_task(config, data) if task is None else task
        self.samples_per_step = config.batch_size * config.grad_accum_steps * config.devices
        if self.samples_per_step > len(self.task):
            raise DataError(
                f"a step needs {self.samples_per_step} samples (batch_size × grad_accum_steps × devices); got "
                f"{len(self.task)} training samples. Use a smaller batch size."
            )
        self.steps_per_epoch = len(self.task) // self.samples_per_step
        self.steps = self.steps_per_epoch * config.epochs
        self.end = self.steps_per_epoch * (config.stop_epoch or config.epochs)
        torch.manual_seed(config.seed)
        self.model = make_model(config, self.data)
        if config.sync:
            self.model = sync(self.model).model
        for module in self.model.modules():
            if isinstance(module, Norm):
                module.set_total_steps(self.steps * config.grad_accum_steps)
        self.parallel = DistributedDataParallel(self.model) if config.devices > 1 else self.model
        self.average = _make_average(self.model, config.ema_decay) if config.ema_decay else None
        self.optimizer = _make_optimizer(config, self.model)
        self.step = 0
        self.curve: list[dict[str, float]] = []
        self._sums: dict[str, float] = {}
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def data(self) -> ImageDataset:
        """The data set, reduced to the `num_test` test images of the run."""
        return self.task.data

    @property
    def result(self) -> nn.Module:
        """The network that is evaluated and saved: the moving average, if the run has one."""
        return self.model if self.average is None else self.average.module

    def batch(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a forward pass of this process.

        Args:
            step: number of the step.
            part: number of the pass in the step, below `grad_accum_steps`.
        """
        config = self.config
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(config.seed, _ORDER, epoch))
            self._order = epoch, torch.randperm(len(self.task), generator=generator)
        number = part * config.devices + distributed.rank()
        start = index * self.samples_per_step + number * config.batch_size
        passes_before = step * config.grad_accum_steps * config.devices
        generator = torch.Generator().manual_seed(derive_seed(config.seed, _AUGMENTATION, passes_before + number))
        return self.task.batch(self._order[1][start : start + config.batch_size], generator)

    def training_step(self) -> None:
        """Update the parameters once.

        Raises:
            DivergedError: if the loss is not finite, in any process.
        """
        config = self.config
        seed = derive_seed(config.seed, _DROPOUT, self.step * config.devices + distributed.rank())
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would initialize every other device as well
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr_at(self.step / self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(config.grad_accum_steps):
            inputs, targets = self.batch(self.step, part)
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
                loss, metrics = self.task.loss(self.parallel, inputs, targets)
            (loss / config.grad_accum_steps).backward()  # type: ignore[no-untyped-call]
            self._add_metrics(float(loss.detach()), metrics, len(inputs))
        self.optimizer.step()
        self.update_ema()
        self.step += 1

    def _add_metrics(self, loss: float, metrics: dict[str, float], samples: int) -> None:
        _check_finite(loss, "loss", f"in step {self.step}")
        for name, value in {"loss": loss * samples, **metrics, "samples": float(samples)}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def update_ema(self) -> None:
        """Update the moving average of the parameters; buffers are copied."""
        if self.average is not None:
            self.average.update_parameters(self.model)

    def evaluate(self) -> None:
        """Add a point to the curve: metrics of training since the last one, and of the evaluation.

        Raises:
            DivergedError: if the loss of the evaluation is not finite, in any process.
        """
        metrics = self.task.evaluate(self.result.eval())
        self.model.train()
        _check_finite(metrics["loss"], "test loss", f"after step {self.step}")
        samples = max(1.0, self._sums.pop("samples", 0.0))
        point = {"step": self.step, "epoch": self.step / self.steps_per_epoch}
        point |= {f"train_{name}": self._sums.get(name, 0.0) / samples for name in metrics}
        self.curve.append(point | {f"test_{name}": value for name, value in metrics.items()})
        self._sums = {}

    def state_dict(self) -> dict[str, Any]:
        """Return everything the rest of the run depends on."""
        return {
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "curve": self.curve,
            "sums": self._sums,
            "config": self.config.id,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state.

        Raises:
            DataError: if the state is that of another run.
        """
        if state["config"] != self.config.id:
            raise DataError(f"the checkpoint must be of run {self.config.id}; got one of run {state['config']}. Delete it.")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.step, self.curve, self._sums = state["step"], state["curve"], state["sums"]


def make_model(config: Config, data: ImageDataset) -> nn.Module:
    """Return the untrained network of a run."""
    return apply_norms(build_model(config.model, data.shape, config.width), config.norm, config.batch_size)


def derive_seed(seed: int, stream: int, number: int) -> int:
    """Return a seed that differs for every run, stream and number."""
    return (seed * 1_000_003 + stream) * 2_147_483_647 % (1 << 40) + number


def _default_task(config: Config, data: ImageDataset | None) -> Task:
    task: Task = import_object("anynorm.tasks:make_task")(config, data)
    return task


def _make_average(model: nn.Module, decay: float) -> AveragedModel:
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)).requires_grad_(False)  # type: ignore[no-untyped-call]
    average.n_averaged.fill_(1)  # it holds the initial parameters already; at 0 the first update would overwrite them
    return average


def _make_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), **options)
    return torch.optim.SGD(model.parameters(), momentum=config.momentum, **options)


def _check_finite(value: float, name: str, when: str) -> None:
    """Raise DivergedError in every process if the value of one is not finite."""
    finite = math.isfinite(value)
    if not distributed.all_true(finite):
        raise DivergedError(f"the {name} is not finite in another process {when}" if finite else f"the {name} is {value} {when}")


class TrainResult(NamedTuple):
    """A training that has ended, and the reason if it diverged ('' if not)."""

    trainer: Trainer
    failure: str


def train(
    config: Config,
    folder: Path | None = None,
    *,
    data: ImageDataset | None = None,
    task: Task | None = None,
    seconds: float = 20.0,
    callback: Callable[[Trainer], None] | None = None,
) -> TrainResult:
    """Train to the end of the run, or until it diverges.

    Args:
        config: the run.
        folder: of the checkpoint; training resumes from it if it exists. None for no checkpoints.
        data: the data set of `config.data`, if it is already loaded.
        task: what is trained; the default is classification of `data`.
        seconds: time between checkpoints.
        callback: called with the trainer after every step.
    """
    trainer = Trainer(config, data, task)
    checkpoint = None if folder is None else folder / "checkpoint.pt"
    if checkpoint is not None and checkpoint.exists():
        trainer.load_state_dict(load_checkpoint(checkpoint))
    if not distributed.is_main_process():
        checkpoint = None
    steps_per_evaluation = math.ceil(trainer.steps / config.num_evals)
    last_save = time.monotonic()
    try:
        while trainer.step < trainer.end:
            trainer.training_step()
            if trainer.step % steps_per_evaluation == 0 or trainer.step == trainer.end:
                trainer.evaluate()
            if callback is not None:
                callback(trainer)
            if checkpoint is not None and time.monotonic() - last_save > seconds:
                save_checkpoint(trainer.state_dict(), checkpoint)
                last_save = time.monotonic()
    except DivergedError as error:
        return TrainResult(trainer, str(error))
    return TrainResult(trainer, "")
