"""Processes that train one network together, started by torchrun. In a single process every function is the trivial case."""

from __future__ import annotations

import atexit
import os

import torch
import torch.distributed as dist

from anynorm.errors import DataError


def init_process_group(devices: int) -> None:
    """Join the processes of torchrun once per process; later calls only check their number.

    The group lasts until the process ends: a second rendezvous of the same processes would wait forever.

    Raises:
        DataError: if torchrun started another number of processes than `devices`.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != devices:
        raise DataError(
            f"devices must equal the number of processes; got devices={devices} and {started} "
            f"process{'es' if started > 1 else ''}. Use torchrun --nproc-per-node {devices}."
        )
    if devices > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")  # runs are on the CPU
        atexit.register(dist.destroy_process_group)


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def is_main_process() -> bool:
    """Whether this process is the one that writes results."""
    return rank() == 0


def broadcast_bool(value: bool) -> bool:
    """Return the value of the main process."""
    if world_size() == 1:
        return value
    tensor = torch.tensor(int(value))
    dist.broadcast(tensor, 0)
    return bool(tensor)


def all_true(value: bool) -> bool:
    """Whether the value is true in every process."""
    if world_size() == 1:
        return value
    tensor = torch.tensor(int(value))
    dist.all_reduce(tensor, dist.ReduceOp.MIN)
    return bool(tensor)


def barrier() -> None:
    """Wait until every process is here."""
    if world_size() > 1:
        dist.barrier()
