"""The configuration of a run: all settings that its result depends on. Runs with equal configurations are the same run."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from anynorm.errors import DataError, SpecError, did_you_mean
from anynorm.io.checkpoints import import_object
from anynorm.lab.data.download import find_path
from anynorm.lab.data.names import path_of
from anynorm.lab.training.norm_layout import Layout
from anynorm.lab.training.options import Options
from anynorm.lab.training.schedules import Schedule, parse_schedule, warmup_factor
from anynorm.lab.training.value_types import field_types, plain_value
from anynorm.registry import parse

LR_SCALINGS: dict[str, Callable[[float], float]] = {"linear": lambda ratio: ratio, "sqrt": math.sqrt, "none": lambda _: 1.0}
"""Rules that scale the learning rate: functions of the ratio of the batch size to the base batch size."""
OPTIMIZERS = ("sgd", "adam", "adamw")
INITIALIZATIONS = ("default", "he")
PRECISIONS = ("32", "bf16-mixed", "16-mixed")


@dataclass(frozen=True)
class Config:
    """The settings that determine the result of a training run.

    The id of a run depends only on fields that differ from their defaults. If a default changes, a stored run of the old default
    has the same id as a run of the new one, so `anynorm.lab.training.record.VERSION` must be increased. A new field needs no new
    version.

    Args:
        data: name of a data set, `folder:PATH`, `stream:PATH`, `hf:NAME` or `package.module:factory`; see `anynorm.lab.data`.
        model: name of a network or `package.module:factory`; see `anynorm.lab.models`.
        norm: a spec, or a layout of several specs; see `anynorm.lab.training.norm_layout`.
        width: width multiplier of the model; None for the model's default.
        num_train: number of training images, a random subset that depends on the seed; None for all.
        batch_size: number of samples per forward pass and device.
        grad_accum_steps: number of forward passes per optimizer step.
        schedule: a `Schedule`, or its text, such as step:0.5,0.75; it is kept as text.
        warmup_epochs: number of epochs over which the learning rate increases linearly from 0.
        mixup: parameter of the beta distribution of mixup; 0 for no mixup.
        crop: padding of random crops, in pixels.
        flip: whether to flip images horizontally at random.
        cutout: side length of the square that cutout erases, in pixels.
        precision: 32, bf16-mixed or 16-mixed: data type of most of the forward pass; parameters stay float32.
        ema_decay: decay of the exponential moving average of the parameters; if it is not 0, the averages are evaluated.
        devices: number of processes, over all machines, that train the run together, each with `batch_size` samples.
        sync: whether norms synchronize their statistics over the devices; if not, running statistics are those of the first.
        image_size: height and width to which images of a folder are resized.
        source_hash: `hash_sources` of a user's model, data and task: if their code or files change, the run is a new one.
        num_test: number of test images, from the start of the test set; None for all.
        num_validation: number of training images that are held out, the same for all seeds; if it is not 0, networks are tested
            on them instead of the test images, to choose settings.
        initialization: how convolutions are initialized: default (that of torch) or he; see `anynorm.lab.models.initialization`.
        num_evals: maximum number of evaluations over a full run.
        stop_epoch: epoch after which the run stops; the schedule is still that of all `epochs`. None to train all epochs.
        task: name of a task or `package.module:Task`; see `anynorm.lab.tasks`.
        options: settings of the task that are not fields of `Config`: an `Options` of the task, or values by name. They are kept
            as values by name, those of an `Options` only if they differ from the defaults, and tuples as comma-separated text.
        nesterov: whether SGD uses Nesterov momentum.
        decay_norms: whether weight decay applies to biases and the parameters of norms, such as γ and β.
        min_area: minimum area of a random resized crop of a streamed image, as a fraction in (0, 1]; 0 for no such crop.
        color_jitter: range of the random change of brightness, contrast and saturation of streamed images; 0 for no change.
        skip_unreadable: whether to leave out image files that cannot be decoded instead of raising an error.
        compile: whether to compile networks with `torch.compile`.
        morph_from: spec of the norms with which training starts; over the first 80 % of the steps they become those of `norm`, by
            `anynorm.morph`. "" to train with `norm` from the start.

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
    schedule: str | Schedule = "cosine"
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
    options: Mapping[str, Any] | Options = field(default_factory=dict, hash=False)
    nesterov: bool = False
    decay_norms: bool = True
    min_area: float = 0.0
    color_jitter: float = 0.0
    skip_unreadable: bool = False
    compile: bool = False
    num_validation: int = 0
    initialization: str = "default"
    morph_from: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", {name: plain_value(value) for name, value in self.option_values.items()})
        object.__setattr__(self, "schedule", str(parse_schedule(str(self.schedule))))
        Layout.parse(self.norm, self.batch_size, num_classes=1)
        if self.morph_from:
            for spec in (self.norm, self.morph_from):
                parse(spec, batch_size=self.batch_size)
        named_choices = (("optimizer", OPTIMIZERS), ("precision", PRECISIONS), ("initialization", INITIALIZATIONS))
        for name, choices in named_choices:
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

    def at_start(self) -> Config:
        """Return the configuration of the networks with which training starts; see `morph_from`."""
        return replace(self, norm=self.morph_from, morph_from="") if self.morph_from else self

    @property
    def option_values(self) -> dict[str, Any]:
        """The options as plain values by name, as the run is stored."""
        return self.options.changed() if isinstance(self.options, Options) else dict(self.options)

    @property
    def id(self) -> str:
        """The id of the run: twelve hexadecimal digits, a hash of the fields that differ from their defaults."""
        changed = {}
        for each in fields(self):
            value = getattr(self, each.name)
            default = {} if each.default is MISSING else each.default
            if value != default:  # lr=1 and lr=1.0 are the same run
                changed[each.name] = float(value) if field_types(Config)[each.name] is float else value
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]

    def lr_at(self, progress: float, lr: float | None = None) -> float:
        """Return the learning rate at a point of the training.

        Args:
            progress: the finished fraction of the training, from 0 to 1.
            lr: the base learning rate that is multiplied by warmup and schedule; None for `self.lr`.
        """
        warmup = warmup_factor(progress * self.epochs, self.warmup_epochs)
        return (self.lr if lr is None else lr) * warmup * parse_schedule(str(self.schedule)).factor(progress)


def hash_sources(config: Config) -> str:
    """Return a hash of a user's model, data and task; "" if all of them are built in.

    The hash covers the source file of each factory or task, and the name, size and modification time of each data file, including
    files and factories that are values of `config.options`.
    """
    from anynorm.lab.models.search import parse_space

    parts = []
    options = [value for value in config.option_values.values() if isinstance(value, str)]
    for text in (config.model, config.data, config.task, *options):
        prefix, colon, _ = text.partition(":")
        path = path_of(text)
        if path is None and text in options and find_path(text).is_file():
            path = find_path(text)
        if path is not None:
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            stats = [(str(file.relative_to(path)), file.stat()) for file in files if file.is_file()]
            parts.append(json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]))
        elif colon and prefix != "hf" and (_names_factory(text) if text in options else parse_space(text) is None):
            source = inspect.getsourcefile(import_object(text))
            parts.append("" if source is None else Path(source).read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12] if parts else ""


def _names_factory(text: str) -> bool:
    """Whether an option is `package.module:factory` and can be imported; other options may contain colons too."""
    if not all(part.isidentifier() for part in text.replace(":", ".", 1).split(".")):
        return False
    try:
        factory = import_object(text)
    except DataError:
        return False
    return inspect.isfunction(factory) or inspect.isclass(factory)


def config_from_dict(values: dict[str, Any], known: Iterable[str] = ()) -> Config:
    """Make a configuration from a dictionary; missing fields have their defaults.

    Args:
        values: values of fields of `Config`, by name.
        known: further names that an error message may suggest, such as the options of a task.

    Raises:
        SpecError: if a name is not a field of `Config`; the message suggests a similar name.
    """
    names = [each.name for each in fields(Config)]
    if name := next((name for name in values if name not in names), ""):
        raise SpecError(f"A run has no setting {name!r}.{did_you_mean(name, [*names, *known], count=1)}")
    return Config(**values)
