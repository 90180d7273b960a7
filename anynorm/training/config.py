"""One run as a value: everything that its result depends on. Equal configurations are one run."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from anynorm.errors import SpecError
from anynorm.io.checkpoints import import_object
from anynorm.training.norm_layout import validate_norms


def _steps(*parts: float) -> Callable[[float], float]:
    return lambda progress: 0.1 ** sum(progress >= part for part in parts)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "step": _steps(0.5, 0.75),
    "step-quarters": _steps(0.25, 0.5, 0.75),
    "step-30-60-90": _steps(0.3, 0.6, 0.9),
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "poly": lambda progress: (1 - progress) ** 0.9,
}
"""What the learning rate is multiplied by, after a part of the training."""
OPTIMIZERS = ("sgd", "adam")
PRECISIONS = ("float32", "bfloat16")
LATER = {"num_test": None, "num_evals": 20, "stop_epoch": None, "skip_unreadable": False}
"""Settings that came later: at these values a run is the one that a store had without them."""


@dataclass(frozen=True)
class Config:
    """How a network is trained.

    Args:
        norm: see `anynorm.training.norm_layout`.
        width: of the model; None is its own.
        num_train: how many training images, chosen by the seed; None takes all.
        warmup_epochs: epochs over which the rate rises.
        batch_size: samples a forward pass, and device; `accumulate` so many passes make a step.
        weight_decay: weight decay, on everything.
        smoothing, mixup: of labels, and of pairs of images (the parameter of the beta distribution).
        crop, cutout: margin of random crops and side of a blanked square, in pixels.
        ema_decay: weight of the old in an average of the parameters, which is then what is tested; 0 for none.
        devices: how many processes train together (torchrun), each with `batch_size` samples of its own.
        sync: whether statistics are those of all of them; else each has its own, and those of the first are kept.
        image_size: the size that images of a folder are brought to.
        source_hash: the `fingerprint` of a model or data of one's own: when they change, runs are others.
        num_test: how many images of the test set are asked, the first ones; None takes all.
        num_evals: how often they are, at most, over a run.
        stop_epoch: after how many of its epochs a run ends; None does them all.
        skip_unreadable: leave out images of a folder that cannot be decoded, instead of raising.
    """

    data: str = "digits"
    model: str = "small"
    norm: str = "bn"
    width: float | None = None
    num_train: int | None = None
    batch_size: int = 32
    grad_accum_steps: int = 1
    epochs: int = 10
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    warmup_epochs: float = 0.0
    label_smoothing: float = 0.0
    mixup: float = 0.0
    crop: int = 0
    flip: bool = False
    cutout: int = 0
    precision: str = "float32"
    ema_decay: float = 0.0
    devices: int = 1
    sync: bool = False
    seed: int = 0
    image_size: int = 64
    source_hash: str = ""
    num_test: int | None = None
    num_evals: int = 20
    stop_epoch: int | None = None
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        validate_norms(self.norm, self.batch_size)
        for name, known in (("schedule", SCHEDULES), ("optimizer", OPTIMIZERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise SpecError(f"{name}={getattr(self, name)!r} is none of {' '.join(known)}.")
        for name in ("batch_size", "grad_accum_steps", "epochs", "devices", "num_evals"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)} trains nothing; give 1 or more.")
        if self.stop_epoch is not None and not 1 <= self.stop_epoch <= self.epochs:
            raise SpecError(f"stop_epoch={self.stop_epoch} is none of the {self.epochs} epochs of this run.")
        if self.lr <= 0:
            raise SpecError(f"lr={self.lr} trains nothing; give a learning rate above 0.")
        for name, most in (
            ("momentum", 1),
            ("label_smoothing", 1),
            ("ema_decay", 1),
            ("mixup", math.inf),
            ("crop", math.inf),
            ("cutout", math.inf),
        ):
            if not 0 <= getattr(self, name) < most:
                raise SpecError(
                    f"{name}={getattr(self, name)} has no meaning; give 0 or more" + (", below 1." if most == 1 else ".")
                )

    @property
    def id(self) -> str:
        """A name of twelve letters that only equal configurations share."""
        told = {name: value for name, value in asdict(self).items() if LATER.get(name, ...) != value}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]

    def lr_at(self, progress: float) -> float:
        """Give the learning rate after a part of the training, from 0 to 1."""
        ramp = (
            min(1.0, (progress * self.epochs + 1e-3) / self.warmup_epochs) if self.warmup_epochs else 1.0
        )  # not 0 in the first step
        return self.lr * ramp * SCHEDULES[self.schedule](progress)


def hash_sources(config: Config) -> str:
    """Give a digest of what is not ours: a factory's source, the names, sizes and times of a folder's files; '' of neither."""
    parts = []
    for text in (config.model, config.data):
        if text.startswith("folder:"):
            root = Path(text.removeprefix("folder:"))
            files = [(str(path.relative_to(root)), path.stat()) for path in sorted(root.rglob("*")) if path.is_file()]
            parts.append(json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]))
        elif ":" in text:
            source = inspect.getsourcefile(import_object(text))
            parts.append("" if source is None else Path(source).read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12] if parts else ""


def config_from_dict(values: dict[str, Any]) -> Config:
    """Make a configuration of plain values, or say which of them is not known."""
    names = [field.name for field in fields(Config)]
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise SpecError(f"A run has no setting {name!r}." + (f" Did you mean {near[0]}?" if near else ""))
    return Config(**values)
