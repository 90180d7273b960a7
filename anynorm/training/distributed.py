"""Several processes that train one network (torchrun): who is who, and what the first tells the others."""

from __future__ import annotations

import atexit
import os

import torch
import torch.distributed as dist

from anynorm.errors import DataError


def join(devices: int) -> None:
    """Join the processes that torchrun has started, as many as a run wants; until the end of this one.

    Joining anew for every run would wait for ever: torchrun's processes meet once.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != devices:
        raise DataError(
            f"The run wants {devices} device{'s' if devices > 1 else ''}, and {started} process{'es' if started > 1 else ''} "
            f"{'were' if started > 1 else 'was'} started: use torchrun --nproc-per-node {devices}."
        )
    if devices > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")  # runs stay on the CPU
        atexit.register(dist.destroy_process_group)


def size() -> int:
    """Count the processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Give the number of this process; the first, which tests and writes, is 0."""
    return dist.get_rank() if size() > 1 else 0


def broadcast_bool(answer: bool) -> bool:
    """Give what the first process answers."""
    if size() == 1:
        return answer
    told = torch.tensor(int(answer))
    dist.broadcast(told, 0)
    return bool(told)
