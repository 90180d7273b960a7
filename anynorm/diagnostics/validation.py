"""Checks before and during a diagnostic: supported norms, valid batches, and finite values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.buffers import StatBuffers, running_stat_buffers
from anynorm.diagnostics.statistics import iterate_tensors
from anynorm.errors import DiagnosticError
from anynorm.surgery.find import NormSite, Where, choose, find_norms


def find_readable_norms(model: Any, where: Where = None) -> list[NormSite]:
    """Return the norms of a model that anynorm supports.

    Args:
        model: the model.
        where: which norms to return, as in `anynorm.convert`; None for all.

    Raises:
        DiagnosticError: if the model has no supported norm, or if hooks cannot observe it.
    """
    if not isinstance(model, nn.Module):
        raise DiagnosticError(f"The model must be an nn.Module; got a {type(model).__name__}.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise DiagnosticError("TorchScript modules cannot be observed. Diagnose the model before scripting it.")
    meta = next((name for name, tensor in model.state_dict().items() if tensor.is_meta), None)
    if meta is not None:
        raise DiagnosticError(f"'{meta}' is on the meta device and has no values. Load the weights first.")
    sites = find_norms(model)
    if not sites:
        raise DiagnosticError(
            f"This {type(model).__name__} has no norm among its modules. Norms called as functions "
            "(torch.nn.functional.batch_norm) cannot be observed. Register your own classes with "
            "anynorm.register."
        )
    chosen = choose(sites, where)
    readable = [site for site in chosen if not site.unsupported]
    if not readable:
        raise DiagnosticError(f"None of the {len(chosen)} norms can be read; '{chosen[0].path}': {chosen[0].unsupported}.")
    return readable


def find_tracking_norms(model: nn.Module, where: Where = None) -> dict[NormSite, StatBuffers]:
    """Return the norms of a model with running statistics, each with the buffers of these statistics.

    Args:
        model: the model.
        where: which norms to return, as in `anynorm.convert`; None for all.

    Raises:
        DiagnosticError: if no norm has running statistics.
    """
    sites = find_readable_norms(model, where)
    tracking = [site for site in sites if site.info.running_stats]
    if not tracking:
        raise DiagnosticError(
            f"None of the {len(sites)} norms has running statistics ({list_labels(sites)}): they compute the same in train and "
            "eval mode, so there is no estimation shift."
        )
    return {site: running_stat_buffers(site) for site in tracking}


def unreadable_rows(model: nn.Module, where: Where = None) -> list[dict[str, Any]]:
    """Return a row for each unsupported norm, with the reason as its note."""
    chosen = choose(find_norms(model), where)
    return [{"path": site.path, "norm": site.label, "note": site.unsupported} for site in chosen if site.unsupported]


def list_labels(sites: Iterable[NormSite]) -> str:
    """Return the distinct labels of norms, separated by commas."""
    return ", ".join(dict.fromkeys(site.label for site in sites))


def as_batches(loader: Any) -> Iterable[Any]:
    """Return an iterable of batches; a tensor is one batch.

    Raises:
        DiagnosticError: if the loader is not iterable.
    """
    if isinstance(loader, Tensor):
        return [loader]
    if not isinstance(loader, Iterable):
        raise DiagnosticError(f"The loader must be a tensor or an iterable of batches; got a {type(loader).__name__}.")
    return loader


def check_finite_stats(sites: Mapping[NormSite, StatBuffers]) -> None:
    """Check that all running statistics are finite.

    Raises:
        DiagnosticError: if one is NaN or infinite.
    """
    for site, buffers in sites.items():
        for tensor in (ref.tensor for pair in buffers.values() for ref in pair if ref is not None):
            count = int((~torch.isfinite(tensor)).sum())
            if count:
                raise DiagnosticError(
                    f"{count} of {tensor.numel()} running statistics of '{site.path}' ({site.label}) are NaN or infinite, and so "
                    "is its output. Recalibrate the model, or load an earlier checkpoint."
                )


class FiniteCheck:
    """Check that the inputs of norms are finite, with an error message that names the first norm where they are not."""

    def __init__(self) -> None:
        self.batch: Any = None
        self.index = -1
        self.previous_path = ""

    def start_batch(self, batch: Any) -> Any:
        """Store the next batch for the error message, and return it."""
        self.batch, self.index, self.previous_path = batch, self.index + 1, ""
        return batch

    def check(self, path: str, x: Tensor) -> None:
        """Check that x, an input of the norm at `path`, is finite.

        Raises:
            DiagnosticError: if x has NaN or infinite values.
        """
        # a sum with NaN or infinite terms is not finite; it takes a thirtieth of the time of isfinite on all values
        count = 0 if bool(torch.isfinite(x.sum())) else int((~torch.isfinite(x)).sum())
        if count:
            before = (
                f"The input of '{self.previous_path}' before it was finite."
                if self.previous_path
                else "It is the first norm that runs."
            )
            is_finite = all(bool(torch.isfinite(tensor).all()) for tensor in iterate_tensors(self.batch))
            cause = "" if is_finite else " The batch itself has such values: fix the data."
            raise DiagnosticError(
                f"{count} of {x.numel()} input values of '{path}' in batch {self.index} are NaN or infinite. {before}{cause}"
            )
        self.previous_path = path
