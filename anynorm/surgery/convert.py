"""Conversion of the norms of a model to another spec, with transfer of parameters and statistics where possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from anynorm.core.spec import NormSpec
from anynorm.errors import SurgeryError
from anynorm.registry import parse, split_options
from anynorm.surgery.batches import Forward, calibration
from anynorm.surgery.find import NormSite, Where, check_model, choose, find_norms
from anynorm.surgery.replace import replace_norms, summarize_rows, truncate_list, unconverted
from anynorm.surgery.report import SurgeryReport


def convert(
    model: nn.Module,
    spec: str | NormSpec,
    where: Where = None,
    *,
    fit: Any = None,
    forward: Forward | None = None,
    groups: str = "exact",
    optimizer: torch.optim.Optimizer | None = None,
    fuse: bool = False,
    example: Any = None,
    **options: Any,
) -> SurgeryReport:
    """Replace norms of a model, in place.

    Args:
        model: the model.
        spec: spec of the new norms, such as "gn:32", or a `NormSpec`.
        where: which norms to replace. None: norms that pool over samples, such as BatchNorm, or every norm if none does, as in a
            transformer; the report also lists the other norms. "all": every norm. Or a module class, a pattern of paths such as
            "layer3.*", a predicate of path and module, or a list of these.
        fit: calibration batches (a data loader or a tensor). γ and β of each new norm are fitted to the output of the old norm
            by least squares; see `anynorm.surgery.fit`.
        forward: a function `forward(model, batch)` that calls the model, if the call in `anynorm.surgery.batches` does not suit
            it. With `fit`, the batch contains every sample twice.
        groups: "exact" to raise an error if the number of groups does not divide the channels of a layer; "nearest" to use the
            nearest number that does.
        optimizer: optimizer in which the old parameters are replaced by the new ones, with their groups and state.
        fuse: whether to fuse the norms with the addition and activation after them afterwards; see `anynorm.fuse`.
        example: an input of the model for `fuse`, or a tuple of inputs.
        options: options of `anynorm.make`: num_classes, num_domains, batch_size, eps, momentum, … A norm without affine is
            replaced by a norm without affine, unless `affine=True` is given or the spec has an affine per class.

    Returns:
        A report with one row per norm.

    Raises:
        SurgeryError: if there is nothing to convert, a layer cannot be converted, or `fuse` has no example. The model is
            unchanged.

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
    if fuse and example is None:
        raise SurgeryError("fuse=True needs an input of the model, example=…; got None.")
    sites = find_norms(model)
    if not sites:
        raise SurgeryError(
            f"This {type(model).__name__} has no norm that anynorm recognizes; anynorm.register adds support for other classes."
        )
    chosen = choose(sites, where)
    skipped: list[NormSite] = []
    if where is None:
        if all(site.unsupported for site in sites):
            raise SurgeryError(_nothing_supported(model, sites))
        if any(not site.unsupported and site.info.pools_samples for site in sites):
            skipped = [site for site in sites if not site.unsupported and not site.info.pools_samples]
            chosen = [site for site in sites if site not in skipped]
    arguments, layer_options = split_options(options)
    specs = {site: _definition(spec, site, arguments) for site in chosen}
    report = replace_norms(model, specs, fit=calibration(fit, forward), groups=groups, optimizer=optimizer, options=layer_options)
    _add_skipped(report, sites, skipped)
    return _fuse(report, example, forward) if fuse else report


def _fuse(report: SurgeryReport, example: Any, forward: Forward | None) -> SurgeryReport:
    """Fuse the norms of a converted model, and add what is fused to the report; undo the conversion if that raises."""
    from anynorm.surgery.fuse import fuse

    try:
        fused = fuse(report.model, example, forward=forward)
    except BaseException:
        report.undo()
        raise
    operations = {row["path"]: row["fused"] for row in fused}
    rows = [row | {"fused": operations.get(row["path"], [])} for row in report.rows]
    undo_conversion = report.undo_changes

    def undo() -> None:
        fused.undo()
        undo_conversion()

    return replace(report, rows=rows, finding=f"{report.finding} {fused.finding}", undo_changes=undo)


def _definition(spec: str | NormSpec, site: NormSite, arguments: dict[str, Any]) -> NormSpec:
    """Return the definition of the new norm of a site; that of bgn without a number depends on the channels of the site."""
    if isinstance(spec, NormSpec):
        return spec
    return parse(spec, **arguments, num_features=None if site.unsupported else site.info.channels)


def _nothing_supported(model: nn.Module, sites: list[NormSite]) -> str:
    """Return the error message for a model of whose norms none is supported."""
    lines = [f"  {site.path or 'the model itself'} ({site.label}): {site.unsupported}" for site in sites]
    return "\n".join([f"No norm of this {type(model).__name__} can be converted; nothing was changed:", *truncate_list(lines)])


def _add_skipped(report: SurgeryReport, sites: list[NormSite], skipped: list[NormSite]) -> None:
    """Add a row to the report for each skipped norm (one that does not pool over samples), in the order of the modules."""
    if not skipped:
        return
    rows = {row["path"]: row for row in report.rows}
    rows |= {site.path: unconverted(site, site.info.channels, "does not pool over samples").row() for site in skipped}
    report.rows[:] = [rows[site.path] for site in sites]
    report.finding = f"{summarize_rows(report.rows)} where='all' converts every norm."
