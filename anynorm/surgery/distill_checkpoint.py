"""The checkpoint of a distillation: the state after the last finished stage, or inside the end-to-end phase.

It holds the settings of the run, so that a run with other settings, another model or other samples does not resume from it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from anynorm.errors import SurgeryError
from anynorm.io.atomic import atomic_write

VERSION = 1


def fingerprint(model: nn.Module, original: nn.Module, batch: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, with hashes of both models and of the samples."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return {
        **settings,
        "version": VERSION,
        "model": _hash(list(model.state_dict().values())),
        "original": _hash(list(original.state_dict().values())),
        "samples": _hash(
            [torch.stack([tensor.double().sum(), tensor.double().abs().amax()]) for tensor in tensors if tensor.numel()]
        ),
    }


def _hash(tensors: list[Any]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


class Checkpoint:
    """A checkpoint file; None as its path for no file."""

    def __init__(self, path: str | Path | None, run: dict[str, Any]) -> None:
        self.path, self.run = None if path is None else Path(path), run

    def write(self, state: dict[str, Any]) -> None:
        """Write a state, atomically."""
        if self.path is not None:
            with atomic_write(self.path) as temporary:
                torch.save({"run": self.run, **state}, temporary)

    def read(self) -> dict[str, Any] | None:
        """Return the state in the file; None if there is no file.

        Raises:
            SurgeryError: if the file cannot be read, or is that of another run.
        """
        if self.path is None or not self.path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            run = state["run"]
        except Exception as error:  # torch.load raises many types for a file of another format
            raise SurgeryError(
                f"{self.path} is not a checkpoint of distill ({type(error).__name__}): delete it, or pass another path. The "
                "model is unchanged."
            ) from None
        changed = [name for name in self.run if run.get(name) != self.run[name]]
        if changed:
            raise SurgeryError(
                f"{self.path} is the checkpoint of another run: it differs in {', '.join(changed)}. To resume, pass the same "
                "model (converted, not yet distilled), samples and settings; otherwise delete the file. The model is unchanged."
            )
        return state
