"""Curves for other programs: event files that TensorBoard reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Logger(Protocol):
    """Receives the points of a curve."""

    def add(self, point: dict[str, float]) -> None:
        """Write a point."""

    def close(self) -> None:
        """Write what is buffered."""


class NoLogger:
    """Writes nothing."""

    def add(self, point: dict[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TensorBoardLogger:
    """Writes the points of a curve as event files.

    Args:
        folder: of the event files.
        step: the step that training resumes from; later events of an interrupted training are hidden.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def add(self, point: dict[str, float]) -> None:
        """Write a point of a curve: train_loss as train/loss, and so on."""
        for name, value in point.items():
            kind, _, metric = name.partition("_")
            if metric:
                self._writer.add_scalar(f"{kind}/{metric}", value, int(point["step"]))

    def close(self) -> None:
        """Write what is buffered and close the file."""
        self._writer.close()
