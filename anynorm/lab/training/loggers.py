"""Loggers of training curves: TensorBoard event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Logger(Protocol):
    """An object that writes the points of a curve; see `anynorm.lab.training.curve.Curve.points`."""

    def add(self, point: dict[str, float]) -> None:
        """Write a point."""

    def close(self) -> None:
        """Flush buffered points and close the files."""


class NoLogger:
    """A logger that writes nothing."""

    def add(self, point: dict[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TensorBoardLogger:
    """A logger that writes the points of a curve to TensorBoard event files.

    Args:
        folder: the folder of the event files.
        step: the step from which training resumes; TensorBoard hides later events that an interrupted training wrote.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def add(self, point: dict[str, float]) -> None:
        """Write each metric of a point as a scalar: train_loss as train/loss, and so on."""
        for name, value in point.items():
            kind, _, metric = name.partition("_")
            if metric:
                self._writer.add_scalar(f"{kind}/{metric}", value, int(point["step"]))

    def close(self) -> None:
        """Flush buffered points and close the file."""
        self._writer.close()
