"""Conversion of the norms of a model to another spec, with transfer of parameters and statistics where possible."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anynorm.core.spec import NormSpec
from anynorm.errors import SpecError, SurgeryError
from anynorm.layers.norm import Norm
from anynorm.registry import nearest_spec, parse, split_options
from anynorm.surgery.batches import Calibration, Forward, calibration
from anynorm.surgery.find import NormSite, Where, check_model, choose, find_norms
from anynorm.surgery.optimizer import replace_in_optimizer
from anynorm.surgery.replace import make_replacement
from anynorm.surgery.report import Conversion, SurgeryReport
from anynorm.surgery.undo import all_or_nothing
from anynorm.table import pluralize

MAX_LISTED = 12


def convert(
    model: nn.Module,
    spec: str | NormSpec,
    where: Where = None,
    *,
    fit: Any = None,
    forward: Forward | None = None,
    groups: str = "exact",
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> SurgeryReport:
    """Replace norms of a model, in place.

    Args:
        model: the model.
        spec: spec of the new norms, such as "gn:32", or a `NormSpec`.
        where: which norms to replace. None: norms that pool over samples, such as BatchNorm; the report also lists the other
            norms. "all": every norm. Or a module class, a pattern of paths such as "layer3.*", a predicate of path and module, or
            a list of these.
        fit: calibration batches (a data loader or a tensor). γ and β of each new norm are fitted to the output of the old norm
            by least squares; see `anynorm.surgery.fit`.
        forward: a function `forward(model, batch)` that calls the model, if the call in `anynorm.surgery.batches` does not suit
            it. With `fit`, the batch contains every sample twice.
        groups: "exact" to raise an error if the number of groups does not divide the channels of a layer; "nearest" to use the
            nearest number that does.
        optimizer: optimizer in which the old parameters are replaced by the new ones, with their groups and state.
        options: options of `anynorm.make`: num_classes, num_domains, batch_size, eps, momentum, … A norm without affine is
            replaced by a norm without affine, unless `affine=True` is given or the spec has an affine per class.

    Returns:
        A report with one row per norm.

    Raises:
        SurgeryError: if there is nothing to convert or a layer cannot be converted. The model is unchanged.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8))
    >>> print(convert(model, "gn:4"))
    path  norm         new_norm  channels  transferred  not_transferred     note
    1     BatchNorm2d  gn:4      8         γ, β         running statistics
    3     GroupNorm              8                                          not converted: does not pool over samples
    1 of 2 norms is now gn:4. Not converted: 3 (reasons in the column note). where='all' converts every norm.
    """
    check_model(model)
    if groups not in ("exact", "nearest"):
        raise SurgeryError(f"groups must be 'exact' or 'nearest'; got {groups!r}.")
    sites = find_norms(model)
    if not sites:
        raise SurgeryError(
            f"This {type(model).__name__} has no norm that anynorm recognizes; anynorm.register adds support for other classes."
        )
    chosen = choose(sites, where)
    skipped: list[NormSite] = []
    if where is None:
        skipped = [site for site in sites if not site.unsupported and not site.info.pools_samples]
        chosen = [site for site in sites if site not in skipped]
        if all(site.unsupported for site in chosen):
            raise SurgeryError(_nothing_pools(model, chosen, skipped))
    arguments, layer_options = split_options(options)
    specs = {site: _definition(spec, site, arguments) for site in chosen}
    report = replace_norms(model, specs, fit=calibration(fit, forward), groups=groups, optimizer=optimizer, options=layer_options)
    _add_skipped(report, sites, skipped)
    return report


def _definition(spec: str | NormSpec, site: NormSite, arguments: dict[str, Any]) -> NormSpec:
    """Return the definition of the new norm of a site; that of bgn without a number depends on the channels of the site."""
    if isinstance(spec, NormSpec):
        return spec
    return parse(spec, **arguments, num_features=None if site.unsupported else site.info.channels)


def _nothing_pools(model: nn.Module, unsupported: list[NormSite], skipped: list[NormSite]) -> str:
    """Return the error message for a model in which no supported norm pools over samples."""
    lines = [f"  {site.path or 'the model itself'} ({site.label})" for site in skipped]
    lines += [
        f"  {site.path or 'the model itself'} ({site.label}): cannot be converted: {site.unsupported}" for site in unsupported
    ]
    hint = " where='all' converts these norms:" if skipped and not unsupported else ""
    if skipped and unsupported:
        hint = " where='all' converts the supported ones of these norms:"
    start = f"No norm of this {type(model).__name__} that anynorm supports pools over samples; nothing was changed."
    return "\n".join([start + hint, *_truncated(lines)])


def _truncated(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MAX_LISTED else [*lines[:MAX_LISTED], f"  … and {len(lines) - MAX_LISTED} more."]


def _add_skipped(report: SurgeryReport, sites: list[NormSite], skipped: list[NormSite]) -> None:
    """Add a row to the report for each skipped norm (one that does not pool over samples), in the order of the modules."""
    if not skipped:
        return
    rows = {row["path"]: row for row in report.rows}
    rows |= {site.path: _unconverted(site, site.info.channels, "does not pool over samples").row() for site in skipped}
    report.rows[:] = [rows[site.path] for site in sites]
    report.finding = f"{_summary(report.rows)} where='all' converts every norm."


def _unconverted(site: NormSite, channels: int | None, reason: str) -> Conversion:
    return Conversion(site.path, site.label, new_norm=None, channels=channels, notes=[f"not converted: {reason}"])


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
            conversions.append(_unconverted(site, None, site.unsupported))
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
        raise SurgeryError("\n".join([start, *_truncated(failures)]))
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
        if optimizer is not None:
            replace_in_optimizer(optimizer, [(site.module, norm) for site, norm in norms.items()], undo_log)
        if fit is not None:
            from anynorm.surgery.fit import fit_norms

            fit_norms(changed, norms, fit, conversions)
    rows = [conversion.row() for conversion in conversions]
    return SurgeryReport(rows, _summary(rows), changed, undo_log.undo, model)


def _summary(rows: list[dict[str, Any]]) -> str:
    converted = [row["new_norm"] for row in rows if row["new_norm"]]
    specs = list(dict.fromkeys(converted))
    listed = ", ".join(specs[:4]) + (", …" if len(specs) > 4 else "")
    noun, verb = "norm" if len(rows) == 1 else "norms", "is" if len(converted) == 1 else "are"
    text = f"{len(converted)} of {len(rows)} {noun} {verb} now {listed}." if converted else f"0 of {len(rows)} {noun} converted."
    paths = [row["path"] or "the model itself" for row in rows if not row["new_norm"]]
    return text + (f" Not converted: {', '.join(paths)} (reasons in the column note)." if paths else "")
