"""Curves for other programs: event files that TensorBoard reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anynorm.errors import DataError


class TensorBoardLogger:
    """Writes the points of a curve as event files.

    Args:
        folder: of the event files.
        step: the step that training resumes from; later events of an interrupted training are hidden.

    Raises:
        DataError: if tensorboard is not installed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise DataError("--logger tensorboard needs the package tensorboard: pip install 'anynorm[tensorboard]'.") from None
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
