"""The estimation shift of one norm (xbn Def. 2), from what has reached it.

    ESM_μ = ‖μ̂ − μ̃‖₂        ESM_σ = ‖σ̂ − σ̃‖₂

hat: kept; tilde: of the norm's input over the data, the model in eval mode, so that what the norms before it do wrong is in it.
Both variances are unbiased. Beside the magnitudes stand their sizes relative to ‖μ̃‖ and ‖σ̃‖, and the `shift`: the larger of
ESM_μ and ESM_σ in units of ‖σ̃‖, which says how far from standardised the norm's output is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.population import tables_of
from anynorm.diagnostics.observe import Guard, watching
from anynorm.diagnostics.statistics import Tally, pooled_moments, usable_size
from anynorm.errors import DiagnosticError
from anynorm.surgery.batches import Forward
from anynorm.surgery.walk import Site


def measure(
    model: nn.Module, sites: list[Site], batches: Iterable[Any], forward: Forward, hold: int = 0
) -> tuple[list[Tally], int, list[Any]]:
    """Run batches; give what reached each norm, in the order they first ran, the samples, and the first `hold` batches."""
    tallies: dict[Site, Tally] = {}
    guard = Guard()
    samples = 0
    held: list[Any] = []

    def see(site: Site, x: Tensor, labels: Tensor | None) -> None:
        guard.check(site.path, x)
        update(tallies.setdefault(site, Tally(site)), x, labels)

    with watching(sites, see):
        for batch in batches:
            size = usable_size(batch)
            if not size:
                continue
            forward(model, guard.begin(batch))
            samples += size
            if len(held) < hold:
                held.append(batch)
    if not samples:
        raise DiagnosticError("The loader gave no batch with a sample in it.")
    return list(tallies.values()), samples, held


def update(tally: Tally, x: Tensor, labels: Tensor | None = None) -> None:
    """Take an input of a norm into its tally."""
    known = tally.site.known
    tally.update(pooled_moments(x, known.kept, labels, known.parts.ending.domains))


def compute(tally: Tally) -> dict[str, float]:
    """Give ESM_μ and ESM_σ of a norm, relative to the statistics and in deviations; domains nobody reached are left out."""
    off: dict[str, list[Tensor]] = {"mean": [], "std": []}
    size: dict[str, list[Tensor]] = {"mean": [], "std": [], "std at mean": []}
    for cut, kept in tally.site.known.kept.items():
        expected = tally.by_cut[cut]
        there = expected.count > 0
        domains, parts, strips = expected.mean.shape
        mean, var = tables_of(kept, (domains, parts, strips), expected.mean.dtype)
        deviation = expected.unbiased_var().sqrt()
        if kept[0] is not None:
            off["mean"].append((mean - expected.mean)[there])
            size["mean"].append(expected.mean[there])
            size["std at mean"].append(deviation[there])
        if kept[1] is not None:
            off["std"].append((var.sqrt() - deviation)[there])
            size["std"].append(deviation[there])
    mean_off, std_off = _length(off["mean"]), _length(off["std"])
    return {
        "esm_mean": mean_off,
        "esm_std": std_off,
        "relative_mean": _ratio(mean_off, _length(size["mean"])),
        "relative_std": _ratio(std_off, _length(size["std"])),
        "shift": max(_ratio(mean_off, _length(size["std at mean"])), _ratio(std_off, _length(size["std"]))),
    }


def _length(tables: list[Tensor]) -> float:
    return float(torch.cat(tables).norm()) if tables else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.inf if part else 0.0


def expected_statistics(tally: Tally) -> dict[Tensor, Tensor]:
    """Give what the buffers of a norm would hold if it kept the statistics of what reached it."""
    values = {}
    for cut, kept in tally.site.known.kept.items():
        found = tally.by_cut[cut]
        for buffer, table in zip(kept, (found.mean, found.unbiased_var()), strict=True):
            if buffer is not None:
                old = buffer.to(table.dtype).reshape(table.shape)
                values[buffer] = torch.where(found.count > 0, table, old).reshape(buffer.shape)
    return values
