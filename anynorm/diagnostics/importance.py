"""Learned mixing weights of each mixed norm of a network (sn Figs. 1, 4 and 7)."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import nn

from anynorm.diagnostics.report import DiagnosticReport
from anynorm.diagnostics.validation import find_readable_norms, list_labels
from anynorm.errors import DiagnosticError
from anynorm.layers.norm import Norm
from anynorm.surgery.find import Where


@torch.no_grad()
def importance(model: nn.Module, *, where: Where = None) -> DiagnosticReport:
    """Return the mixing weights of every mixed norm of a model, such as `sn`.

    Args:
        model: the model.
        where: which norms to report, as in `anynorm.convert`; None for all.

    Returns:
        A report with one row per mixed norm: the weight of each cut for the mean (`mean_in`, `mean_ln`, …) and the variance
        (`var_in`, …), averaged over the channel groups if each has its own weights, and the largest of these weights,
        `max_weight`. `details["means"]` has the mean of each column over the norms that have this column.

    Raises:
        DiagnosticError: if no norm of the model mixes cuts.

    >>> import anynorm
    >>> importance(nn.Sequential(anynorm.make("sn", 8))).rows[0]["var_bn"]
    0.3333333432674408
    """
    sites = find_readable_norms(model, where)
    rows: list[dict[str, Any]] = []
    for site in sites:
        weights = mixing_weights(site.module) if isinstance(site.module, Norm) else {}
        if weights:
            rows.append({"path": site.path, "norm": site.label, **weights, "max_weight": max(weights.values())})
    if not rows:
        raise DiagnosticError(
            f"None of the {len(sites)} norms mixes cuts ({list_labels(sites)}). Usable: sn, bn/bn+en, and other mixtures."
        )
    columns = list(dict.fromkeys(column for row in rows for column in row if column.startswith(("mean_", "var_"))))
    means = {column: statistics.fmean(row[column] for row in rows if column in row) for column in columns}
    sides = []
    for side in ("mean", "var"):
        entries = [f"{column.removeprefix(side + '_')} {means[column]:.2f}" for column in columns if column.startswith(side)]
        sides += [f"{side} {', '.join(entries)}"] if entries else []
    finding = (
        f"Average weights of {len(rows)} norms: {'; '.join(sides)}. anynorm.harden keeps only the cut with the largest weight of "
        "each norm."
    )
    return DiagnosticReport(rows, finding, "importance", "max_weight", {"means": means})


def mixing_weights(norm: Norm) -> dict[str, float]:
    """Return the mixing weights of a norm by the keys `mean_<cut>` and `var_<cut>`; empty if it mixes no cuts."""
    columns: dict[str, float] = {}
    for side, cuts in (("mean", norm.mean_cut_indices), ("var", norm.var_cut_indices)):
        weights = norm.mixing_weights(side)
        if weights is not None:
            columns |= {f"{side}_{norm.cuts[cut]}": float(weights[:, k].mean()) for k, cut in enumerate(cuts)}
    return columns
