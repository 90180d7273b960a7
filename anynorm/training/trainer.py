"""One loop that trains, and can be stopped at any moment.

What a step does depends on its number and the seed alone: which images, how they are augmented, what dropout drops. So the state
of a run is small (parameters, statistics, optimizer, number of the step, curve so far), and a run that was killed and goes
on from its last checkpoint ends with the very numbers of one that was not.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anynorm.data import ImageDataset, augment, load_dataset
from anynorm.errors import DataError, DiskError
from anynorm.layers.norm import Norm
from anynorm.models import build_model
from anynorm.surgery.sync import sync
from anynorm.training import distributed as together
from anynorm.training.config import Config
from anynorm.training.norm_layout import apply_norms


class DivergedError(Exception):
    """Ends a run whose loss is no number."""


class Trainer:
    """A network in training."""

    def __init__(self, config: Config, data: ImageDataset) -> None:
        self.config, self.data = config, _tested(data, config.num_test)
        self.images, self.labels = self._chosen()
        self.per_step = config.batch_size * config.grad_accum_steps * config.devices
        if self.per_step > len(self.images):
            raise DataError(f"A step takes {self.per_step} images, and there are {len(self.images)}: give a smaller batch size.")
        self.steps_per_epoch = len(self.images) // self.per_step
        self.steps = self.steps_per_epoch * config.epochs
        self.end = self.steps_per_epoch * (config.stop_epoch or config.epochs)
        torch.manual_seed(config.seed)
        self.model = apply_norms(build_model(config.model, data.shape, config.width), config.norm, config.batch_size)
        if config.sync:
            self.model = sync(self.model).model
        for module in self.model.modules():
            if isinstance(module, Norm):
                module.set_total_steps(self.steps * config.grad_accum_steps)
        self.parallel = DistributedDataParallel(self.model) if config.devices > 1 else self.model
        self.average = copy.deepcopy(self.model).requires_grad_(False) if config.ema_decay else None
        self.optimizer = _optimizer(config, self.model)
        self.step = 0
        self.curve: list[dict[str, float]] = []
        self.sums = {"loss": 0.0, "wrong": 0.0, "seen": 0.0}
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def _chosen(self) -> tuple[Tensor, Tensor]:
        images, labels = self.data.train
        count = self.config.num_train
        if count is None:
            return images, labels
        if not 0 < count <= len(images):
            raise DataError(f"{count} training images were asked for; there are {len(images)}.")
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.config.seed))[:count]
        return images[chosen], labels[chosen]

    def batch(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        """Give the images and targets of a pass: what they are depends on its number and the seed alone."""
        config = self.config
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            chance = torch.Generator().manual_seed(_mixed(config.seed, 1, epoch))
            self._order = epoch, torch.randperm(len(self.images), generator=chance)
        number = part * config.devices + together.rank()
        start = index * self.per_step + number * config.batch_size
        chosen = self._order[1][start : start + config.batch_size]
        chance = torch.Generator().manual_seed(_mixed(config.seed, 2, step * config.grad_accum_steps * config.devices + number))
        x = self.data.standardize(self.images[chosen])
        if config.crop:
            x = augment.random_crop(x, config.crop, chance)
        if config.flip:
            x = augment.random_flip(x, chance)
        if config.cutout:
            x = augment.cutout(x, config.cutout, chance)
        targets = nn.functional.one_hot(self.labels[chosen], self.data.num_classes).float()
        if config.mixup:
            x, targets = augment.mixup(x, targets, config.mixup, chance)
        return x, targets

    def advance(self) -> None:
        """Do a step."""
        config = self.config
        chance = _mixed(config.seed, 3, self.step * config.devices + together.rank())
        torch.default_generator.manual_seed(chance)  # of dropout; torch.manual_seed asks devices that are not there, too
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr_at(self.step / self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(config.grad_accum_steps):
            x, targets = self.batch(self.step, part)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
                logits = self.parallel(x)
                loss = nn.functional.cross_entropy(logits, targets, label_smoothing=config.label_smoothing)
            (loss / config.grad_accum_steps).backward()  # type: ignore[no-untyped-call]
            self._count(loss.detach(), logits.detach(), targets)
        self.optimizer.step()
        self._follow()
        self.step += 1

    def _count(self, loss: Tensor, logits: Tensor, targets: Tensor) -> None:
        value = float(loss)
        finite = math.isfinite(value)
        if not (finite if self.config.devices == 1 else together.broadcast_bool(finite)):
            raise DivergedError(f"the loss is {value} in step {self.step}")
        self.sums["loss"] += value * len(logits)
        self.sums["wrong"] += float((logits.argmax(1) != targets.argmax(1)).sum())
        self.sums["seen"] += len(logits)

    @torch.no_grad()
    def _follow(self) -> None:
        """Let the average follow the model; statistics and counts are the model's own."""
        if self.average is not None:
            for slow, fast in zip(self.average.parameters(), self.model.parameters(), strict=True):
                slow.lerp_(fast, 1 - self.config.ema_decay)
            for mine, its in zip(self.average.buffers(), self.model.buffers(), strict=True):
                mine.copy_(its)

    def note(self) -> None:
        """Ask the test set, and add a point to the curve."""
        loss, error = self.test()
        if not math.isfinite(loss):
            raise DivergedError(f"the test loss is {loss} after step {self.step}")
        seen = max(1.0, self.sums["seen"])
        self.curve.append(
            {
                "step": self.step,
                "epoch": self.step / self.steps_per_epoch,
                "train_loss": self.sums["loss"] / seen,
                "train_error": 100 * self.sums["wrong"] / seen,
                "test_loss": loss,
                "test_error": error,
            }
        )
        self.sums = dict.fromkeys(self.sums, 0.0)

    @property
    def result(self) -> nn.Module:
        """The network that is tested and kept: the average, where there is one."""
        return self.model if self.average is None else self.average

    @torch.no_grad()
    def test(self) -> tuple[float, float]:
        """Give the loss and the error in percent on the test set, in eval mode."""
        model = self.result.eval()
        loss = wrong = 0.0
        for x, truth in self.data.test_batches(500):
            logits = model(x).float()
            loss += float(nn.functional.cross_entropy(logits, truth, reduction="sum"))
            wrong += float((logits.argmax(1) != truth).sum())
        self.model.train()
        count = len(self.data.test[1])
        return loss / count, 100 * wrong / count

    def state(self) -> dict[str, Any]:
        """Give all that the rest of the run depends on."""
        average = None if self.average is None else self.average.state_dict()
        found = {"model": self.model.state_dict(), "average": average, "optimizer": self.optimizer.state_dict()}
        return {**found, "step": self.step, "curve": self.curve, "sums": self.sums, "config": self.config.id}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if state["config"] != self.config.id:
            raise DataError(f"This checkpoint is of the run {state['config']}, not of {self.config.id}.")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.step, self.curve, self.sums = state["step"], state["curve"], state["sums"]


def _tested(data: ImageDataset, count: int | None) -> ImageDataset:
    """Leave so many images of the test set, the first ones."""
    images, labels = data.test
    if count is None:
        return data
    if not 0 < count <= len(images):
        raise DataError(f"{count} test images were asked for; there are {len(images)}.")
    return replace(data, test=(images[:count], labels[:count]))


def _mixed(seed: int, stream: int, number: int) -> int:
    """Give a seed that is another for every run, stream and number."""
    return (seed * 1_000_003 + stream) * 2_147_483_647 % (1 << 40) + number


def _optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True)
    momentum, decay = config.momentum, config.weight_decay
    return torch.optim.SGD(model.parameters(), lr=config.lr, momentum=momentum, weight_decay=decay, fused=True)


def train(
    config: Config,
    folder: Path | None = None,
    *,
    data: ImageDataset | None = None,
    seconds: float = 20.0,
    callback: Callable[[Trainer], None] | None = None,
) -> tuple[Trainer, str]:
    """Train to the end, from a folder's checkpoint where there is one; give the training, and why it failed, if it did.

    Args:
        seconds: how often a checkpoint is written.
        callback: is told after every step.
    """
    training = Trainer(config, data or load_dataset(config.data, config.image_size, skip_unreadable=config.skip_unreadable))
    checkpoint = None if folder is None else folder / "checkpoint.pt"
    if checkpoint is not None and checkpoint.exists():
        training.restore(_read(checkpoint))
    if together.rank():
        checkpoint = None  # the first process writes for all
    every = math.ceil(training.steps / config.num_evals)
    saved = time.monotonic()
    try:
        while training.step < training.end:
            training.advance()
            if training.step % every == 0 or training.step == training.end:
                training.note()
            if callback is not None:
                callback(training)
            if checkpoint is not None and time.monotonic() - saved > seconds:
                save(training.state(), checkpoint)
                saved = time.monotonic()
    except DivergedError as error:
        return training, str(error)
    return training, ""


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises about a file that is damaged
        raise DiskError(f"{path} cannot be read: {type(error).__name__}: {error}. Delete it, and the run begins anew.") from None
    return found


def save(state: dict[str, Any], path: Path) -> None:
    """Write a state whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, RuntimeError) as error:  # torch has a RuntimeError of its own for a disk that is full
        part.unlink(missing_ok=True)
        raise DiskError(f"{path} cannot be written: {error}. What was there before stands; make room and go on.") from None
