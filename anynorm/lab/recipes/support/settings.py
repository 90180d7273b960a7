"""Settings of a recipe: frozen dataclasses, one class per kind of recipe.

    Settings              the number of seeds
    TrainingSettings      and how networks are trained: `Training`, a `Config` that each cell changes by `dataclasses.replace`

`presets` has values of `Training` that several recipes share; `settings_json` converts settings for records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar

from anynorm.errors import DataError
from anynorm.lab.training.config import LR_SCALINGS, Config


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that all recipes have.

    Args:
        seeds: number of seeds; every cell is measured with the seeds 0 to `seeds` − 1.
    """

    seeds: int

    @property
    def num_devices(self) -> int:
        """The largest number of devices that train one run together."""
        return 1

    @property
    def num_test(self) -> int | None:
        """The number of test images of accuracies; None if it is not known."""
        return None

    @property
    def num_validation(self) -> int:
        """The number of training images that a pilot holds out and tests networks on."""
        return 5000


SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True)
class Training:
    """How the networks of a recipe are trained.

    Args:
        config: the configuration that cells change: their norm, seed, and other fields.
        base_batch_size: number of samples per optimizer step for which `config.lr` is given. The learning rate is scaled linearly
            to the samples per step of a cell (batch size × devices × gradient accumulation steps). None: it is not scaled.
        median_of_last: number of last evaluations over which the median of the test accuracy is taken.
        samples_per_step: number of samples per optimizer step at every batch size: smaller batches accumulate gradients, so that
            cells differ in the samples of a statistic, not in the number of steps. None: one batch per step.
        lrs: learning rates by the name of a norm, without its arguments ("gn" for gn:8), instead of `config.lr`.
    """

    config: Config
    base_batch_size: int | None = None
    median_of_last: int = 1
    samples_per_step: int | None = None
    lrs: Mapping[str, float] = field(default_factory=dict)

    def complete(self, config: Config) -> Config:
        """Return the configuration of a cell with its gradient accumulation steps and its learning rate.

        Raises:
            DataError: if the samples of a step cannot be divided into batches.
        """
        if self.samples_per_step is not None:
            steps, rest = divmod(self.samples_per_step, config.batch_size * config.devices)
            if rest or not steps:
                raise DataError(
                    f"samples_per_step must be a multiple of batch_size × devices; got {self.samples_per_step} and "
                    f"{config.batch_size} × {config.devices}."
                )
            config = replace(config, grad_accum_steps=steps)
        config = replace(config, lr=self.lrs.get(config.norm.partition(":")[0], config.lr))
        if self.base_batch_size is None:
            return config
        ratio = config.batch_size * config.devices * config.grad_accum_steps / self.base_batch_size
        return replace(config, lr=config.lr * LR_SCALINGS["linear"](ratio))


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """Settings of a recipe that trains its networks in one way.

    Args:
        training: how networks are trained.
    """

    training: Training

    @property
    def num_devices(self) -> int:
        """The number of devices that train one run together."""
        return self.training.config.devices

    @property
    def num_test(self) -> int | None:
        """The number of test images; None if all of the data set are used."""
        return self.training.config.num_test


class Devices(NamedTuple):
    """The division of the samples of an optimizer step.

    Attributes:
        num_devices: number of devices, each with statistics of its own.
        samples: number of samples per device and forward pass.
    """

    num_devices: int
    samples: int


def divide_samples(config: Config, devices: Devices, *, simulate: bool, sync: bool = False) -> Config:
    """Return a configuration that divides the samples of a step over devices.

    Args:
        config: the configuration.
        devices: the division.
        simulate: whether one device stands for all: a step accumulates the gradients of as many forward passes, each with
            statistics of its own. With `sync`, all samples are in one pass.
        sync: whether norms pool the samples of all devices.
    """
    if not simulate:
        return replace(config, devices=devices.num_devices, batch_size=devices.samples, sync=sync)
    if sync:
        return replace(config, batch_size=devices.num_devices * devices.samples)
    return replace(config, grad_accum_steps=devices.num_devices, batch_size=devices.samples)


def map_configs(value: Any, function: Callable[[Config], Config]) -> Any:
    """Return settings in which each configuration, at any depth, is replaced by a function of it."""
    if isinstance(value, Config):
        return function(value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {each.name: map_configs(getattr(value, each.name), function) for each in fields(value)}
        return replace(value, **changed)
    if isinstance(value, Mapping):
        return {key: map_configs(entry, function) for key, entry in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map_configs(entry, function) for entry in value)
    return value


def configs_in(value: Any) -> Iterator[Config]:
    """Yield the configurations that settings contain, at any depth."""
    if isinstance(value, Config):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from configs_in(getattr(value, each.name))
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from configs_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from configs_in(entry)
