"""Checkpoints of runs: files with the state of a training, written atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from anynorm.errors import DiskError
from anynorm.io.atomic import atomic_write


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically: if writing fails, the previous file is left intact.

    Raises:
        DiskError: if the file cannot be written.
    """
    with atomic_write(path) as temporary:
        torch.save(state, temporary)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; tensors are loaded onto the CPU.

    Raises:
        DiskError: if the file is damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a damaged file
        message = f"cannot read {path} ({type(error).__name__}): the file is damaged. Delete it to start the run again."
        raise DiskError(message) from error
    return state
