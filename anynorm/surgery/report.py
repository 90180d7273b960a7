"""What an operation did to a model, row by row, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from anynorm.table import Table


@dataclass
class Report(Table):
    """What was done, one row a module, its path first.

    Attributes:
        model: the model; the same object, unless the root itself was replaced.
    """

    model: nn.Module
    back: Callable[[], None] = field(repr=False, default=lambda: None)
    original: nn.Module | None = field(repr=False, default=None)

    def undo(self) -> nn.Module:
        """Put everything back as it was, and give the model."""
        self.back()
        self.model = self.original or self.model
        return self.model
