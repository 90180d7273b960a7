"""Settings of recipes that divide the samples of a step over devices in several ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anynorm.lab.recipes.support.settings import Devices, TrainingSettings, divide_samples
from anynorm.lab.training.config import Config
from anynorm.lab.training.sweep import Cell


@dataclass(frozen=True, kw_only=True)
class DeviceGrid(TrainingSettings):
    """Settings of a grid of divisions of samples × norms.

    Args:
        divisions: devices and samples per device, by the label of the paper's setting.
        gn: the spec of GN.
        simulate_devices: see `divide_samples`.
    """

    divisions: Mapping[str, Devices]
    gn: str
    simulate_devices: bool

    @property
    def num_devices(self) -> int:
        """The largest number of devices that train one run together."""
        return 1 if self.simulate_devices else max(devices.num_devices for devices in self.divisions.values())

    def cell_config(self, cell: Cell, norm: str) -> Config:
        """Return the configuration of a cell.

        Args:
            cell: `setting`, a label of `divisions`, and `seed`.
            norm: the spec of the norm.
        """
        config = replace(self.training.config, seed=cell["seed"])
        config = divide_samples(config, self.divisions[cell["setting"]], simulate=self.simulate_devices)
        return replace(config, norm=norm)
