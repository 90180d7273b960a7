"""The result of a surgery operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from anynorm.table import Table


@dataclass
class SurgeryReport(Table):
    """What an operation did to a model, one row per norm, and how to undo it.

    Attributes:
        rows: one dictionary per norm; its first entry is the path of the norm.
        finding: a summary in one sentence.
        model: the changed model: the same object, unless the model itself was a norm that was replaced.
    """

    model: nn.Module
    undo_changes: Callable[[], None] = field(repr=False, default=lambda: None)
    original: nn.Module | None = field(repr=False, default=None)

    def undo(self) -> nn.Module:
        """Revert the operation and return the original model.

        Raises:
            SurgeryError: if a later operation has replaced the same norms; undo that one first.
        """
        self.undo_changes()
        self.model = self.original or self.model
        return self.model
