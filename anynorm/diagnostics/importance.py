"""Which cut a network of mixed norms has come to use, layer by layer (sn Figs. 1, 4 and 7)."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import nn

from anynorm.diagnostics.observe import names_of, norms_of
from anynorm.diagnostics.report import Report
from anynorm.errors import DiagnosticError
from anynorm.layers.norm import Norm
from anynorm.surgery.find import Where


@torch.no_grad()
def importance(model: nn.Module, *, where: Where = None) -> Report:
    """Give the weights of the cuts of every mixed norm: for the mean `mean_in` and so on, for the variance `var_in`.

    `decided` is the largest of them: how far a norm has gone towards one cut.

    Groups of channels that weigh on their own are averaged; averages of the network are over the norms that have a cut.

    >>> import anynorm
    >>> importance(nn.Sequential(anynorm.make("sn", 8))).rows[0]["var_bn"]
    0.3333333432674408
    """
    sites = norms_of(model, where)
    rows: list[dict[str, Any]] = []
    for site in sites:
        norm = site.module
        if isinstance(norm, Norm) and (norm.weights("mean") is not None or norm.weights("var") is not None):
            weights = compute(norm)
            rows.append({"path": site.path, "norm": site.label, **weights, "decided": max(weights.values())})
    if not rows:
        raise DiagnosticError(f"None of the {len(sites)} norms mixes cuts ({names_of(sites)}); sn does, and so does bn/bn+en.")
    columns = list(dict.fromkeys(column for row in rows for column in row if column.startswith(("mean_", "var_"))))
    means = {column: statistics.fmean(row[column] for row in rows if column in row) for column in columns}
    told = "; ".join(
        f"{side} "
        + ", ".join(f"{column.removeprefix(side + '_')} {means[column]:.2f}" for column in columns if column.startswith(side))
        for side in ("mean", "var")
        if any(column.startswith(side) for column in columns)
    )
    return Report(rows, f"Average weights of {len(rows)} norms: {told}.", "importance", "decided", {"means": means})


def compute(norm: Norm) -> dict[str, float]:
    """Give the weights of a norm by side and cut."""
    found: dict[str, float] = {}
    for side, cuts in (("mean", norm.mean_cuts), ("var", norm.var_cuts)):
        weights = norm.weights(side)
        if weights is not None:
            found |= {f"{side}_{norm.cuts[cut]}": float(weights[:, k].mean()) for k, cut in enumerate(cuts)}
    return found
