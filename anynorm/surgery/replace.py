"""Replacement of norms of a model, each by a norm of its own spec: all of them, or none if one spec does not fit its layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anynorm.core.spec import NormSpec
from anynorm.errors import SpecError, SurgeryError
from anynorm.layers.norm import Norm
from anynorm.registry import nearest_spec
from anynorm.surgery.batches import Calibration
from anynorm.surgery.find import NormSite
from anynorm.surgery.new_norm import make_replacement
from anynorm.surgery.optimizer import replace_in_optimizer
from anynorm.surgery.report import Conversion, SurgeryReport
from anynorm.surgery.undo import UndoLog, all_or_nothing
from anynorm.table import pluralize

MAX_LISTED = 12
"""Number of layers that an error message lists."""


def replace_norms(
    model: nn.Module,
    specs: dict[NormSite, NormSpec],
    *,
    fit: Calibration | None,
    groups: str,
    optimizer: torch.optim.Optimizer | None,
    options: dict[str, Any],
) -> SurgeryReport:
    """Replace norms in place; if one spec does not fit its layer, no norm is replaced.

    Args:
        model: the model.
        specs: definition of the new norm of each site. Unsupported norms are kept; the report has the reason.
        fit: calibration batches, or None.
        groups: as in `convert`.
        optimizer: as in `convert`.
        options: as in `convert`.

    Raises:
        SurgeryError: if a spec does not fit its layer; the message lists all these layers. The model is unchanged.
    """
    norms: dict[NormSite, Norm] = {}
    conversions: list[Conversion] = []
    failures: list[str] = []
    for site, norm_spec in specs.items():
        if site.unsupported:
            conversions.append(unconverted(site, None, site.unsupported))
            continue
        channels = site.info.channels
        try:
            fitting = nearest_spec(norm_spec, channels) if groups == "nearest" else norm_spec
            replacement = make_replacement(site, fitting, options)
        except SpecError as error:
            failures.append(f"  {site.path or 'the model itself'} ({channels} channels): {error}")
            continue
        norms[site] = replacement.norm
        conversions.append(Conversion(site.path, site.label, replacement.norm.spec, channels, **vars(replacement.transfer)))
    if failures:
        hint = " groups='nearest' uses the nearest number of groups." if groups == "exact" and "divisible" in failures[0] else ""
        start = f"{pluralize(len(failures), 'layer')} cannot be converted; nothing was changed.{hint}"
        raise SurgeryError("\n".join([start, *truncate_list(failures)]))
    for kind in {type(norm): None for norm in norms.values()}:
        kind.connect([norm for norm in norms.values() if type(norm) is kind])
    return _install(model, norms, conversions, fit=fit, optimizer=optimizer)


def _install(
    model: nn.Module, norms: dict[NormSite, Norm], conversions: list[Conversion], *, fit: Calibration | None, optimizer: Any
) -> SurgeryReport:
    changed: nn.Module = next((norm for site, norm in norms.items() if not site.parents), model)
    with all_or_nothing() as undo_log:
        for site, norm in norms.items():
            undo_log.replace(site, norm)
        disable_nested_tensors(model, norms, undo_log)
        if optimizer is not None:
            replace_in_optimizer(optimizer, [(site.module, norm) for site, norm in norms.items()], undo_log)
        if fit is not None:
            from anynorm.surgery.fit import fit_norms

            fit_norms(changed, norms, fit, conversions)
    rows = [conversion.row() for conversion in conversions]
    return SurgeryReport(rows, summarize_rows(rows), changed, undo_log.undo, model)


def disable_nested_tensors(model: nn.Module, norms: dict[NormSite, Norm], undo_log: UndoLog) -> None:
    """Disable the nested tensors into which nn.TransformerEncoder converts padded inputs; norms do not take them."""
    parents = {id(parent) for site in norms for parent, _ in site.parents}
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(id(layer) in parents for layer in module.layers):
            undo_log.set_attribute(module, "use_nested_tensor", False)


def unconverted(site: NormSite, channels: int | None, reason: str) -> Conversion:
    """Return the row of a norm that is not converted."""
    return Conversion(site.path, site.label, new_norm=None, channels=channels, notes=[f"not converted: {reason}"])


def summarize_rows(rows: list[dict[str, Any]]) -> str:
    """Return the finding of a report: how many norms are converted, to which specs, and which are not."""
    converted = [row["new_norm"] for row in rows if row["new_norm"]]
    specs = list(dict.fromkeys(converted))
    listed = ", ".join(specs[:4]) + (", …" if len(specs) > 4 else "")
    noun, verb = "norm" if len(rows) == 1 else "norms", "is" if len(converted) == 1 else "are"
    text = f"{len(converted)} of {len(rows)} {noun} {verb} now {listed}." if converted else f"0 of {len(rows)} {noun} converted."
    paths = [row["path"] or "the model itself" for row in rows if not row["new_norm"]]
    return text + (f" Not converted: {', '.join(paths)} (reasons in the column note)." if paths else "")


def truncate_list(lines: list[str]) -> list[str]:
    """Return the first lines of a list, and the number of the others."""
    return lines if len(lines) <= MAX_LISTED else [*lines[:MAX_LISTED], f"  … and {len(lines) - MAX_LISTED} more."]
