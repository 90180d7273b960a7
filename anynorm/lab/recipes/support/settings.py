"""Settings of a recipe: frozen dataclasses, one class per kind of recipe.

    Settings              the number of seeds
    TrainingSettings      and how networks are trained: `Training`, a `Config` that each cell changes by `dataclasses.replace`

`presets` has values of `Training` that several recipes share; `settings_json` converts settings for records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from anynorm.lab.training.config import Config


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


SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True)
class Training:
    """How the networks of a recipe are trained.

    Args:
        config: the configuration that cells change: their norm, seed, and other fields.
        base_batch_size: number of samples per optimizer step for which `config.lr` is given. The learning rate is scaled linearly
            to the samples per step of a cell (batch size × devices × gradient accumulation steps). None: it is not scaled.
        median_of_last: number of last evaluations over which the median of the test accuracy is taken.
    """

    config: Config
    base_batch_size: int | None = None
    median_of_last: int = 1


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
