"""The result of an operation that changes the norms of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from anynorm.table import Table


@dataclass
class SurgeryReport(Table):
    """Report of an operation on the norms of a model, with one row per norm and `undo`.

    Attributes:
        rows: one dictionary per norm; its first entry is the path of the norm.
        finding: a one-line summary.
        model: the changed model: the same object, unless the model itself was a norm that was replaced.
    """

    model: nn.Module
    undo_changes: Callable[[], None] = field(repr=False, default=lambda: None)
    original: nn.Module | None = field(repr=False, default=None)

    def undo(self) -> nn.Module:
        """Revert the operation and return the original model.

        Raises:
            SurgeryError: if a later operation has replaced the same norms; undo the later operation first.
        """
        self.undo_changes()
        self.model = self.original or self.model
        return self.model
