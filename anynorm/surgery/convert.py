"""Any norm into any model: every norm, or those that `where` names, becomes another, with all that can be carried on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anynorm.errors import SpecError, SurgeryError
from anynorm.layers.norm import Norm
from anynorm.surgery.batches import Calibration, Forward, calibration
from anynorm.surgery.find import NormSite, Where, all_or_nothing, check_model, choose, find_norms
from anynorm.surgery.optimizer import move_optimizer
from anynorm.surgery.replace import nearest_spec, replacement
from anynorm.surgery.report import Report


def convert(
    model: nn.Module,
    spec: str,
    where: Where = None,
    *,
    fit: Any = None,
    forward: Forward | None = None,
    groups: str = "exact",
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> Report:
    """Replace norms of a model, in place.

    Args:
        where: which norms: None for all, a type, a pattern of paths such as `layer3.*`, a predicate of path and module, or a
            list of such things.
        fit: calibration batches (a loader or a tensor) on which each new layer's γ and β are solved so that its output is the
            old layer's; see `anynorm.surgery.fit`.
        forward: calls the model with the (doubled) batch to fit on, where it wants more than the batch's first entry.
        groups: `nearest` takes the nearest group number that divides a layer's channels; `exact` refuses.
        optimizer: its groups and state follow the parameters.
        options: as `anynorm.make` takes them: num_classes, num_domains, batch_size, eps, momentum, …

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    >>> print(convert(model, "gn:4"))
    path  was          is    channels  carried  lost
    1     BatchNorm2d  gn:4  8         γ, β     statistics
    1 of 1 norm is now gn:4.
    """
    check_model(model)
    if groups not in ("exact", "nearest"):
        raise SurgeryError(f"groups={groups!r} is neither 'exact' nor 'nearest'.")
    sites = choose(find_norms(model), where)
    if not sites:
        raise SurgeryError(f"This {type(model).__name__} has no norm that is known; see anynorm.surgery.adapters.register.")
    return replace_norms(
        model, dict.fromkeys(sites, spec), fit=calibration(fit, forward), groups=groups, optimizer=optimizer, options=options
    )


def replace_norms(
    model: nn.Module,
    specs: dict[NormSite, str],
    *,
    fit: Calibration | None,
    groups: str,
    optimizer: torch.optim.Optimizer | None,
    options: dict[str, Any],
) -> Report:
    """Replace the norm of each site by its spec, all or none."""
    made: dict[NormSite, Norm] = {}
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    for site, spec in specs.items():
        row: dict[str, Any] = {"path": site.path, "was": site.label}
        rows.append(row)
        reading = site.reading
        if isinstance(reading, str):
            row |= {"is": site.label, "lost": [f"not converted: {reading}"]}
            continue
        try:
            fitting = nearest_spec(spec, reading.channels) if groups == "nearest" else spec
            made[site], carried, lost = replacement(site, reading, fitting, options)
        except SpecError as error:
            wrong.append(f"  {site.path or 'the model itself'} ({reading.channels} channels): {error}")
            continue
        row |= {"is": made[site].spec, "channels": reading.channels, "carried": carried, "lost": lost}
    if wrong:
        more = [f"  … and {len(wrong) - 12} more."] if len(wrong) > 12 else []
        hint = " groups='nearest' takes the nearest group number." if groups == "exact" and "divisible" in wrong[0] else ""
        raise SurgeryError(
            "\n".join([f"{len(wrong)} layers cannot be converted; nothing was changed.{hint}", *wrong[:12], *more])
        )
    return _install(model, made, rows, fit=fit, optimizer=optimizer)


def _install(
    model: nn.Module, made: dict[NormSite, Norm], rows: list[dict[str, Any]], *, fit: Calibration | None, optimizer: Any
) -> Report:
    root = next((site for site in made if not site.holders), None)
    changed: nn.Module = made[root] if root is not None else model
    with all_or_nothing() as ledger:
        for site, norm in made.items():
            ledger.put(site, norm)
        if optimizer is not None:
            move_optimizer(optimizer, [(site.module, norm) for site, norm in made.items()], ledger)
        if fit is not None:
            from anynorm.surgery.fit import solve

            solve(changed, made, fit, rows)
    return Report(rows, _finding(made, rows), changed, ledger.undo, model)


def _finding(made: dict[NormSite, Norm], rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(norm.spec for norm in made.values()))
    track = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    verb = "is" if len(made) == 1 else "are"
    text = f"{len(made)} of {len(rows)} norm{'s' if len(rows) > 1 else ''} {verb} now {track or 'another'}."
    left = [row["path"] for row in rows if "channels" not in row]
    return text + (f" Not converted: {', '.join(left)}; the reason is in their rows." if left else "")
