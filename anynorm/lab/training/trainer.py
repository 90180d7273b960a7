"""The training loop. A run that is interrupted and resumed has results that are bit-identical to those of an uninterrupted run.

The samples, augmentation and dropout masks of a step depend only on the seed and the step number. The state of a run therefore
consists of its networks, optimizers, step number and curve.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import DataError, DiskError
from anynorm.io.atomic import atomic_write
from anynorm.lab.training.checkpoint import load_checkpoint, save_checkpoint
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import Curve, DivergedError
from anynorm.lab.training.devices import Hardware, make_fabric
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.loggers import Logger, NoLogger, TensorBoardLogger
from anynorm.lab.training.sampler import Sampler
from anynorm.lab.training.task import Metrics, Optimizers, Task, check_metrics
from anynorm.layers.morphing import Ramp
from anynorm.layers.norm import Norm
from anynorm.registry import parse
from anynorm.surgery.morph import Morph, finish_layers, morph
from anynorm.surgery.sync import sync

CHECKPOINT_VERSION = 2
MORPH_STOP = 0.8
"""Finished fraction of the training at which norms have become those of `Config.norm` (`Config.morph_from`)."""


class Trainer:
    """A trainer of one task.

    Args:
        config: the configuration of the run.
        task: the task to train.
        hardware: the hardware to train on; the CPU by default.

    Attributes:
        task: the task, with networks and data.
        averages: exponential moving averages of the networks by name; empty if `config.ema_decay` is 0.
        optimizers: the optimizers of the task by name.
        step: number of finished steps.
        steps: number of steps of all epochs, on which schedules depend.
        end: number of steps after which training stops; smaller than `steps` if `config.stop_epoch` is set.
        curve: the metrics of each evaluation.
        morph: the gradual replacement of the norms; None without `config.morph_from`.

    Raises:
        DataError: if a step needs more samples than the task has.
    """

    def __init__(self, config: Config, task: Task, hardware: Hardware | None = None) -> None:
        self.config = config
        self.hardware = hardware or Hardware("cpu")
        self.fabric = make_fabric(config, self.hardware)
        self.task = task
        self.processes = Processes(config.devices)
        self.task.device, self.task.num_workers = self.fabric.device, self.hardware.num_workers
        self.task.processes = self.processes
        self.task.sampler = Sampler(config, self.task.num_samples, self.task.micro_batches_per_step, self.processes.rank)
        self.steps_per_epoch = self.task.sampler.steps_per_epoch
        self.steps = self.steps_per_epoch * config.epochs
        self.end = self.steps_per_epoch * (config.stop_epoch or config.epochs)
        if config.sync:
            sync(self.task)
        for module in self.task.modules():
            if isinstance(module, Norm):
                module.set_total_steps(self.steps * self.task.micro_batches_per_step)
        self.morph = self._morph() if config.morph_from not in ("", config.norm) else None
        self.task.to(self.fabric.device)
        self.processes.broadcast_tensors([*self.task.parameters(), *self.task.buffers()])
        self.averages = _make_averages(self.task, config.ema_decay)
        if config.compile:
            for network in self.task.children():
                network.compile()
        self.optimizers = _named(self.task.configure_optimizers())
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])
        self._uses_onednn = not self.task.has_tiny_inputs
        self.step = 0
        self.curve = Curve(self.fabric.device, self.processes)

    # The interface for tasks (`anynorm.lab.training.task.TrainingLoop`) ---------------------------------------------------------

    @property
    def progress(self) -> float:
        """The finished fraction of the training."""
        return self.step / self.steps

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context manager for forward passes that sets the precision of the run."""
        return self.fabric.autocast()

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of a loss and accumulate them; with 16-mixed precision, the loss is scaled first."""
        self.fabric.backward(loss)

    def update(self, name: str = "main") -> None:
        """Average the gradients of an optimizer over the processes, update its parameters, and reset the gradients."""
        if name not in self.optimizers:
            raise DataError(f"optimizer must be one of {' '.join(self.optimizers)}; got {name!r}. See configure_optimizers.")
        optimizer = self.optimizers[name]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.processes.average_gradients(parameters)
        self.fabric.strategy.optimizer_step(optimizer)
        for parameter in parameters:  # `zero_grad` does the same, but takes five times as long
            parameter.grad = None

    # The loop ---------------------------------------------------------------------------------------------------------------

    def training_step(self) -> None:
        """Run one training step.

        Raises:
            DivergedError: if a metric is not finite in any process. On a GPU, it is raised a few steps later.
        """
        _seed_generators(self.task.sampler.dropout_seed(self.step), self.fabric.device)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                if not group.get("constant_lr", False):
                    group["lr"] = self.config.lr_at(self.progress, group["initial_lr"])
        self.processes.broadcast_tensors(self.task.buffers())
        for parameter in self.task.parameters():
            parameter.grad = None  # a step must not depend on earlier gradients, so that a resumed run is exact
        with _onednn(enabled=self._uses_onednn):
            metrics: Metrics = self.task.training_step(self)
        check_metrics(f"{type(self.task).__name__}.training_step", metrics)
        if self.morph is not None:
            self.morph.advance_to(self.step + 1)
        for name, average in self.averages.items():
            update_average(average, self.task.get_submodule(name), self.config.ema_decay)
        self.curve.add(self.step, metrics)
        self.step += 1
        self.task.is_trained = self.step >= self.end

    def _morph(self) -> Morph:
        spec = parse(self.config.norm, batch_size=self.config.batch_size)
        ramp = Ramp(stop=MORPH_STOP)
        return morph(self.task, spec, "all", steps=self.end, schedule=ramp, groups="nearest")

    def finish_morph(self) -> None:
        """Replace the layers that `Config.morph_from` left between two norms by those of `Config.norm`, after the last step."""
        if self.morph is not None:
            self.morph.finish()
            for average in self.averages.values():
                finish_layers(average)

    def evaluate(self) -> dict[str, bytes]:
        """Evaluate the networks, add a point to the curve, and return the artifacts of the task by file name.

        Raises:
            DivergedError: if a metric is not finite in any process.
        """
        networks = [self.task, *self.averages.values()]
        self.processes.broadcast_tensors(buffer for network in networks for buffer in network.buffers())
        with self.evaluation_networks(), torch.no_grad():
            metrics = self.task.evaluate()
            check_metrics(f"{type(self.task).__name__}.evaluate", metrics, self.task.metric_for(self.config).name)
            artifacts = self.task.artifacts()
        self.curve.add_evaluation(self.step, self.step / self.steps_per_epoch, metrics)
        return artifacts

    @contextmanager
    def evaluation_networks(self) -> Iterator[Task]:
        """Set the task to eval mode inside a `with` block, with networks replaced by their moving averages; restore on exit."""
        networks = {name: self.task.get_submodule(name) for name in self.averages}
        try:
            for name, average in self.averages.items():
                setattr(self.task, name, average)
            yield self.task.eval()
        finally:
            for name, network in networks.items():
                setattr(self.task, name, network)
            self.task.train()

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which training can be resumed."""
        return {
            "version": CHECKPOINT_VERSION,
            "config": self.config.id,
            "task": self.task.state_dict(),
            "averages": {name: average.state_dict() for name, average in self.averages.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "precision": self.fabric.strategy.precision.state_dict(),  # with 16-mixed, the state of the gradient scaler
            "step": self.step,
            "curve": self.curve.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`.

        Raises:
            DiskError: if the state belongs to another run or was written by an incompatible version of anynorm.
        """
        if state.get("version") != CHECKPOINT_VERSION:
            version = state.get("version", 1)
            raise DiskError(
                f"the checkpoint must be of version {CHECKPOINT_VERSION}; got version {version}. Delete it to start again."
            )
        if state["config"] != self.config.id:
            raise DiskError(f"the checkpoint must be of run {self.config.id}; got one of run {state['config']}. Delete it.")
        self.task.load_state_dict(state["task"])
        for name, average in self.averages.items():
            average.load_state_dict(state["averages"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.step = state["step"]
        self.curve.load_state_dict(state["curve"])


def _named(optimizers: torch.optim.Optimizer | Optimizers) -> Optimizers:
    return {"main": optimizers} if isinstance(optimizers, torch.optim.Optimizer) else optimizers


@contextmanager
def _onednn(*, enabled: bool) -> Iterator[None]:
    """Disable oneDNN inside a `with` block unless `enabled`; `torch.backends.mkldnn.flags` would warn about TF32."""
    backend: Any = torch.backends.mkldnn
    before = backend.enabled
    backend.enabled = before and enabled
    try:
        yield
    finally:
        backend.enabled = before


def _seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and the device; `torch.manual_seed` would also seed all other devices."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _make_averages(task: Task, decay: float) -> dict[str, nn.Module]:
    """Return a copy of each network with trainable parameters, by name; no copies if `decay` is 0."""
    averages: dict[str, nn.Module] = {}
    for name, network in task.named_children() if decay else ():
        if any(parameter.requires_grad for parameter in network.parameters()):
            averages[name] = copy.deepcopy(network).requires_grad_(False)
    return averages


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, decay: float) -> None:
    """Update a moving average in place: θ' ← decay θ' + (1 − decay) θ for parameters; buffers are copied.

    `torch.optim.swa_utils.AveragedModel` does the same, but synchronizes with the GPU in every update.
    """
    torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
    for copied, buffer in zip(average.buffers(), network.buffers(), strict=True):
        copied.copy_(buffer, non_blocking=True)


def fit(
    trainer: Trainer,
    folder: Path | None = None,
    *,
    seconds: float = 20.0,
    callback: Callable[[Trainer], None] | None = None,
) -> str:
    """Train until the last step, or until the run diverges.

    Args:
        trainer: the trainer of the run.
        folder: the folder of the checkpoint and artifacts; training resumes from the checkpoint if it exists. None to write no
            files.
        seconds: minimum time between checkpoints.
        callback: a function that is called with the trainer after every step.

    Returns:
        The reason why training diverged; "" if it did not.
    """
    checkpoint = None if folder is None else folder / "checkpoint.pt"
    if checkpoint is not None and checkpoint.exists():
        trainer.load_state_dict(load_checkpoint(checkpoint))
    if not trainer.processes.is_main:
        folder = checkpoint = None
    logger = _make_logger(trainer, folder)
    steps_per_evaluation = math.ceil(trainer.steps / trainer.config.num_evals)
    last_save = time.monotonic()
    try:
        while trainer.step < trainer.end:
            trainer.training_step()
            if trainer.step % steps_per_evaluation == 0 or trainer.step == trainer.end:
                _write_artifacts(trainer.evaluate(), folder)
                logger.add(trainer.curve.points[-1])
            if callback is not None:
                callback(trainer)
            if checkpoint is not None and trainer.curve.is_checked and time.monotonic() - last_save > seconds:
                save_checkpoint(trainer.state_dict(), checkpoint)
                last_save = time.monotonic()
    except DivergedError as error:
        return str(error)
    finally:
        trainer.task.close()
        logger.close()
    trainer.finish_morph()  # not before: checkpoints have the layers in between
    return ""


def _make_logger(trainer: Trainer, folder: Path | None) -> Logger:
    if folder is None or trainer.hardware.logger is None:
        return NoLogger()
    return TensorBoardLogger(folder / "tensorboard", trainer.step)


def _write_artifacts(artifacts: dict[str, bytes], folder: Path | None) -> None:
    """Write the artifacts of a task to the subfolder `artifacts` of a run, each file atomically."""
    for name, content in artifacts.items():
        if folder is not None:
            path = folder / "artifacts" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                temporary.write_bytes(content)
