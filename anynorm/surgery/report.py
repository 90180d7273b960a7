"""The result of an operation that changes the norms of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class FusionReport(SurgeryReport):
    """Report of `fuse`.

    Attributes:
        not_fused: the number of activations per reason, for the calls of the example that are not fused.
    """

    not_fused: dict[str, int] = field(default_factory=dict)


@dataclass
class Conversion:
    """The conversion of one norm: a row of the report of `convert`.

    Attributes:
        path: path of the norm in the model.
        norm: name of the old norm.
        new_norm: spec of the new norm; None if the norm was not converted.
        channels: number of channels; None if it is unknown.
        transferred: names of the tensors that were transferred to the new norm.
        not_transferred: names of the tensors that were not.
        error_before: relative error of the output before the fit; None without a fit.
        error_after: relative error of the output after the fit; None without a fit.
        notes: remarks, such as the reason why the norm was not converted.
    """

    path: str
    norm: str
    new_norm: str | None
    channels: int | None
    transferred: list[str] = field(default_factory=list)
    not_transferred: list[str] = field(default_factory=list)
    error_before: float | None = None
    error_after: float | None = None
    notes: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Return the columns of the report; those of the fit and `note` only if they have a value."""
        columns = dict(vars(self))
        note = "; ".join(columns.pop("notes"))
        fitted = {name: columns.pop(name) for name in ("error_before", "error_after")}
        return columns | (fitted if self.error_before is not None else {}) | ({"note": note} if note else {})
