"""The configuration of a run: every value its result depends on. Equal configurations are one run."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from anynorm.errors import DataError, SpecError
from anynorm.io.checkpoints import import_object
from anynorm.training.norm_layout import validate_norms


def _steps(*milestones: float) -> Callable[[float], float]:
    return lambda progress: 0.1 ** sum(progress >= milestone for milestone in milestones)


LR_SCALINGS: dict[str, Callable[[float], float]] = {"linear": lambda ratio: ratio, "sqrt": math.sqrt, "none": lambda _: 1.0}
"""The factor of the learning rate, by the ratio of the batch size to the one that the learning rate belongs to."""
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "step": _steps(0.5, 0.75),
    "step-quarters": _steps(0.25, 0.5, 0.75),
    "step-25-75": _steps(0.25, 0.75),
    "step-38-75": _steps(3 / 8, 3 / 4),  # I3D: 150 000 and 300 000 of 400 000 steps
    "step-67-89": _steps(2 / 3, 8 / 9),  # detectors: 60 000 and 80 000 of 90 000 steps
    "step-30-60-90": _steps(0.3, 0.6, 0.9),
    "step-thirds": lambda progress: (1.0, 0.06, 0.012, 0.0024)[sum(progress >= start for start in (1 / 3, 2 / 3, 5 / 6))],
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "cosine-to-0.04": lambda progress: 0.04 + 0.96 * (1 + math.cos(math.pi * progress)) / 2,  # DARTS: from 0.025 to 0.001
    "exponential": lambda progress: 0.01**progress,  # 0.1 after half of the training
    "poly": lambda progress: (1 - progress) ** 0.9,
    "inverse": lambda progress: 1 / (1 + 8 * progress),  # AdaIN's 1/(1 + 5e-5 step) over its 160 000 steps
}
"""Factor of the learning rate as a function of progress, the finished fraction of the training."""
OPTIMIZERS = ("sgd", "adam", "adamw")
PRECISIONS = ("32", "bf16-mixed", "16-mixed")
_OLD_PRECISIONS = {"float32": "32", "bfloat16": "bf16-mixed"}
FOLDERS = (
    "folder:", "stream:", "coco:", "voc:", "yolo:", "masks:", "camvid:", "cityscapes:", "ade20k:", "frames:", "videos:",
)  # fmt: skip
"""Prefixes of the names of data sets that are folders."""
RENAMED = {
    "images": "num_train",
    "accumulate": "grad_accum_steps",
    "rate": "lr",
    "decay": "weight_decay",
    "warmup": "warmup_epochs",
    "smoothing": "label_smoothing",
    "ema": "ema_decay",
    "side": "image_size",
    "made_of": "source_hash",
    "test_images": "num_test",
    "points": "num_evals",
    "until": "stop_epoch",
}
"""Fields as anynorm 0.1 named them, for the error message."""


@dataclass(frozen=True)
class Config:
    """Everything that determines the result of a training run.

    The defaults are part of the identity of every run (see `id`): changing one makes old runs pass for new ones, so it needs a
    new `anynorm.training.record.VERSION`. Adding a field does not.

    Args:
        data: name of a data set, `folder:PATH`, `stream:PATH`, `hf:NAME` or `package.module:factory`; see `anynorm.data`.
        model: name of a network or `package.module:factory`; see `anynorm.models`.
        norm: a spec, or a layout of several; see `anynorm.training.norm_layout`.
        width: width multiplier of the model; None for the model's default.
        num_train: number of training images, chosen by the seed; None for all.
        batch_size: samples per forward pass and device.
        grad_accum_steps: forward passes per optimizer step.
        schedule: a key of `SCHEDULES`.
        warmup_epochs: epochs over which the learning rate rises linearly from 0.
        mixup: parameter of the beta distribution of mixup; 0 for none.
        crop: padding of random crops, in pixels.
        flip: whether images are flipped horizontally at random.
        cutout: side of the square that cutout erases, in pixels.
        precision: 32, bf16-mixed or 16-mixed: data type of most of the forward pass; parameters stay float32.
        ema_decay: decay of the exponential moving average of the parameters, which is then evaluated; 0 for none.
        devices: number of processes that train together on all machines, each with its own `batch_size` samples.
        sync: whether norms synchronize their statistics over the devices. If not, the running statistics of the first are kept.
        image_size: side that images of a folder are resized to.
        source_hash: `hash_sources` of a user's model or data, so that a change of them makes another run.
        num_test: number of test images, the first ones; None for all.
        num_evals: number of evaluations over a full run, at most.
        stop_epoch: epoch after which the run ends, with the schedule of the full run; None for the last.
        task: name of a task or `package.module:Task`; see `anynorm.tasks`.
        options: settings of the task that are not fields here; see `Task.default_options`.
        nesterov: whether SGD uses Nesterov momentum.
        decay_norms: whether weight decay applies to biases and the parameters of norms, such as γ and β.
        min_area: smallest part of a streamed image that a random resized crop keeps, in (0, 1]; 0 for no random resized crop.
        color_jitter: range of the random change of brightness, contrast and saturation of streamed images; 0 for none.
        skip_unreadable: leave out image files that cannot be decoded instead of raising.
        compile: whether networks are compiled by `torch.compile`.

    Raises:
        SpecError: if a value is outside its range.
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
    precision: str = "32"
    ema_decay: float = 0.0
    devices: int = 1
    sync: bool = False
    seed: int = 0
    image_size: int = 64
    source_hash: str = ""
    num_test: int | None = None
    num_evals: int = 20
    stop_epoch: int | None = None
    task: str = "classification"
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    nesterov: bool = False
    decay_norms: bool = True
    min_area: float = 0.0
    color_jitter: float = 0.0
    skip_unreadable: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        validate_norms(self.norm, self.batch_size)
        for name, choices in (("schedule", SCHEDULES), ("optimizer", OPTIMIZERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in choices:
                raise SpecError(f"{name} must be one of {' '.join(choices)}; got {getattr(self, name)!r}.")
        if self.width is not None and self.width <= 0:
            raise SpecError(f"width must be greater than 0; got {self.width}.")
        for name in ("batch_size", "grad_accum_steps", "epochs", "devices", "num_evals"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        last = self.epochs if self.stop_epoch is None else self.stop_epoch
        self._check("stop_epoch", 1 <= last <= self.epochs, f"between 1 and epochs={self.epochs}")
        self._check("lr", self.lr > 0, "greater than 0")
        for name in ("momentum", "label_smoothing", "ema_decay"):
            self._check(name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        for name in ("mixup", "crop", "cutout", "color_jitter"):
            self._check(name, 0 <= getattr(self, name) < math.inf, "0 or more")
        self._check("min_area", 0 <= self.min_area <= 1, "in [0, 1]")

    def _check(self, name: str, valid: bool, wanted: str) -> None:
        if not valid:
            raise SpecError(f"{name} must be {wanted}; got {getattr(self, name)}.")

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that identify the run: a hash of the fields that differ from their defaults."""
        changed = {}
        for each in fields(self):
            value = getattr(self, each.name)
            default = {} if each.default is MISSING else each.default
            if value != default:  # lr=1 and lr=1.0 are one run
                changed[each.name] = float(value) if "float" in str(each.type) else value
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]

    def lr_at(self, progress: float, lr: float | None = None) -> float:
        """Return the learning rate after a fraction of the training, from 0 to 1.

        Args:
            progress: the finished fraction.
            lr: the learning rate that the schedule multiplies; None for that of the configuration.
        """
        warmup = 1.0
        if self.warmup_epochs:  # 1e-3: the rate of the first step is not 0
            warmup = min(1.0, (progress * self.epochs + 1e-3) / self.warmup_epochs)
        return (self.lr if lr is None else lr) * warmup * SCHEDULES[self.schedule](progress)


def hash_sources(config: Config) -> str:
    """Return a hash of a user's model, data and task, '' if all are built in; options of the task may name data too.

    It covers the source file of a factory or task, and the names, sizes and modification times of files and of those in a folder.
    """
    from anynorm.data.download import find_path  # data sets import models, which need no configuration
    from anynorm.models.search import parse_space

    parts = []
    options = [value for value in config.options.values() if isinstance(value, str)]
    for text in (config.model, config.data, config.task, *options):
        prefix, colon, name = text.partition(":")
        is_prefixed = prefix + colon in (*FOLDERS, "npz:")
        path = find_path(name if is_prefixed else text)
        if is_prefixed or (text in options and path.is_file()):
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            stats = [(str(file.relative_to(path)), file.stat()) for file in files if file.is_file()]
            parts.append(json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]))
        elif colon and prefix != "hf" and (_names_factory(text) if text in options else parse_space(text) is None):
            source = inspect.getsourcefile(import_object(text))
            parts.append("" if source is None else Path(source).read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12] if parts else ""


def _names_factory(text: str) -> bool:
    """Whether an option is `package.module:factory` of something that can be imported; other options may have colons too."""
    if not all(part.isidentifier() for part in text.replace(":", ".", 1).split(".")):
        return False
    try:
        factory = import_object(text)
    except DataError:
        return False
    return inspect.isfunction(factory) or inspect.isclass(factory)


def config_from_dict(values: dict[str, Any], known: Iterable[str] = ()) -> Config:
    """Return the configuration with these values; fields that are not given have their defaults.

    Args:
        values: fields of `Config`.
        known: further names that an error message may suggest, such as the options of a task.

    Raises:
        SpecError: if a name is not a field of `Config`; the message has the nearest one, or the new name of a renamed one.
    """
    names = [each.name for each in fields(Config)]
    for name in values:
        if name in names:
            continue
        if name in RENAMED:
            raise SpecError(f"A run has no setting {name!r}: anynorm 0.2 renamed it to {RENAMED[name]!r}.")
        near = difflib.get_close_matches(name, [*names, *known], n=1)
        raise SpecError(f"A run has no setting {name!r}." + (f" Did you mean {near[0]}?" if near else ""))
    precision = values.get("precision")
    return Config(**values | ({"precision": _OLD_PRECISIONS[precision]} if precision in _OLD_PRECISIONS else {}))
