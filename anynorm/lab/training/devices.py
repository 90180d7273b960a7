"""The device, precision and processes of a run, set up by Lightning Fabric.

A run on several devices has one process per device. The processes are started by torchrun, by the scheduler of a cluster, or by
`launch_processes`, which starts the same command once per device.
"""

from __future__ import annotations

import atexit
import logging
import os
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from anynorm.errors import DataError, SpecError
from anynorm.lab.training.config import Config

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DEVICES = ("auto", "cpu", "cuda", "mps")
LOGGERS = ("tensorboard",)
WORKER_VARIABLE = "ANYNORM_WORKER"
"""Environment variable with the index of a worker process; on a machine with several GPUs, it selects the GPU of the worker."""
_PRECISIONS: dict[str, Any] = {"32": "32-true"}


@dataclass(frozen=True)
class Hardware:
    """The hardware on which runs are trained, and their logger.

    It is not part of a run's configuration and does not change its id; the provenance in the record names the device.

    Args:
        device: auto (cuda, else mps, else cpu), cpu, cuda or mps.
        nodes: number of machines that train one run together.
        num_workers: number of processes per run that decode streamed images.
        logger: "tensorboard" to write event files into the folder of a run; None for no logger.

    Raises:
        SpecError: if a value is outside its range.
        DataError: if this machine does not have the device, or the package of the logger is not installed.
    """

    device: str = "auto"
    nodes: int = 1
    num_workers: int = 1
    logger: str | None = None

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise SpecError(f"device must be one of {' '.join(DEVICES)}; got {self.device!r}.")
        if self.logger not in (None, *LOGGERS):
            raise SpecError(f"logger must be one of {' '.join(LOGGERS)}; got {self.logger!r}.")
        if self.logger == "tensorboard" and find_spec("tensorboard") is None:
            raise DataError("--logger tensorboard needs the package tensorboard: pip install 'anynorm[tensorboard]'.")
        for name, least in (("nodes", 1), ("num_workers", 0)):
            if getattr(self, name) < least:
                raise SpecError(f"{name} must be at least {least}; got {getattr(self, name)}.")
        if self.device not in ("auto", *available_devices()):
            raise DataError(
                f"device {self.device} is not available; this machine has {' '.join(available_devices())}. "
                "`anynorm info` prints the devices that torch finds."
            )

    @property
    def kind(self) -> str:
        """The type of the device: cpu, cuda or mps."""
        return available_devices()[0] if self.device == "auto" else self.device


def available_devices() -> list[str]:
    """Return the device types of this machine, in order of preference."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, is_available in found.items() if is_available]


def num_gpus(hardware: Hardware) -> int:
    """Return the number of GPUs on which runs can be trained in parallel; 0 on the CPU."""
    return torch.cuda.device_count() if hardware.kind == "cuda" else int(hardware.kind == "mps")


def launch_processes(config: Config, hardware: Hardware) -> None:
    """Start this command again for each further device of a run, unless torchrun or a scheduler has started all processes.

    Raises:
        DataError: if torchrun started a number of processes other than `config.devices`, or this machine has fewer GPUs.
    """
    if config.devices == 1 or "WORLD_SIZE" in os.environ:
        check_processes(config, hardware)
    if config.devices > 1:
        check_gpus(config, hardware)
        make_fabric(config, hardware)


def make_fabric(config: Config, hardware: Hardware) -> Fabric:
    """Return the Fabric of a run; with several devices, initialize the process group.

    Raises:
        DataError: if the number of processes is not `config.devices`, or the device does not support the precision.
    """
    if config.precision == "16-mixed" and hardware.kind == "cpu":
        raise DataError("precision 16-mixed needs a GPU. Use bf16-mixed or 32 on the CPU.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about packages and clusters that anynorm does not use
        from lightning_fabric import Fabric

        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        nodes = hardware.nodes if config.devices > 1 else 1  # step times are measured on one device, whatever `nodes` is
        devices: Any = config.devices // nodes
        if hardware.kind == "cuda" and config.devices == 1:
            devices = [int(os.environ.get(WORKER_VARIABLE, "0")) % torch.cuda.device_count()]
        fabric = Fabric(
            accelerator=hardware.kind,
            devices=devices,
            num_nodes=nodes,
            strategy="ddp" if config.devices > 1 else "auto",
            precision=_PRECISIONS.get(config.precision, config.precision),
        )
        fabric.launch()
    if config.devices > 1:
        atexit.register(_destroy_process_group)
    if fabric.world_size != config.devices:
        raise DataError(f"devices must equal the number of processes; got devices={config.devices} and {fabric.world_size}.")
    return fabric


def _destroy_process_group() -> None:
    """Destroy the process group at exit: with gloo, the interpreter may abort if threads of the group are still running."""
    if dist.is_initialized():
        dist.destroy_process_group()


def check_processes(config: Config, hardware: Hardware) -> None:
    """Check that the number of processes is `config.devices`, and that the machines have enough GPUs.

    Raises:
        DataError: if the number of processes differs, or this machine has fewer GPUs.
    """
    started = dist.get_world_size() if dist.is_available() and dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    if started != config.devices:
        raise DataError(
            f"devices must equal the number of processes; got devices={config.devices} and {started} "
            f"process{'es' * (started > 1)}. Use torchrun --nproc-per-node {config.devices}."
        )
    check_gpus(config, hardware)


def check_gpus(config: Config, hardware: Hardware) -> None:
    """Check that every process of a run has a GPU, unless it runs on the CPU.

    Raises:
        DataError: if this machine has fewer GPUs than processes, or `config.devices` is not a multiple of `hardware.nodes`.
    """
    if config.devices % hardware.nodes:
        raise DataError(f"devices must be a multiple of nodes; got devices={config.devices} and nodes={hardware.nodes}.")
    gpus = num_gpus(hardware)
    if hardware.kind != "cpu" and config.devices // hardware.nodes > gpus:
        raise DataError(f"devices must be at most the {gpus} GPUs of this machine; got {config.devices // hardware.nodes}.")


def describe_device(device: torch.device) -> str:
    """Return the type of a device, with the name of the model for a CUDA GPU."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
