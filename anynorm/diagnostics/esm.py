"""The estimation shift of one norm (xbn Def. 2), from what has reached it.

    ESM_μ = ‖μ̂ − μ̃‖₂        ESM_σ = ‖σ̂ − σ̃‖₂

hat: kept; tilde: of the norm's input over the data, the model in eval mode, so that what the norms before it do wrong is in it.
Both variances are unbiased. Beside the magnitudes stand their sizes relative to ‖μ̃‖ and ‖σ̃‖, in which loud channels hide quiet
ones; so there is the `shift` too, which counts all channels alike, and says how far from standardised the norm's output is:

    shift = max( rms of (μ̂ − μ̃) / σ̃,  rms of ln(σ̂ / σ̃) )

0 is right; 1 is a mean a whole deviation off, or a deviation wrong by a factor e. Channels that do not vary are left out of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.moments import MIN_SHARE
from anynorm.core.update_rules import as_tables
from anynorm.diagnostics.buffers import Slot, Slots
from anynorm.diagnostics.observe import Guard, watching
from anynorm.diagnostics.statistics import Tally, pooled_moments, samples_of
from anynorm.errors import DiagnosticError
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.find import NormSite


@dataclass
class Measured:
    """What reached each norm, in the order they first ran; and copies of the first batches, as many as were to be held."""

    tallies: list[Tally] = field(default_factory=list)
    passes: int = 0
    samples: int = 0
    held: list[Any] = field(default_factory=list)


def measure(
    model: nn.Module, sites: Mapping[NormSite, Slots], batches: Iterable[Any], forward: Forward = call, hold: int = 0
) -> Measured:
    """Run batches through a model.

    Args:
        hold: how many samples to hold copies of.
    """
    found = Measured()
    tallies: dict[NormSite, Tally] = {}
    guard = Guard()
    first: list[int] = []

    def see(site: NormSite, x: Tensor, labels: Tensor | None) -> None:
        guard.check(site.path, x)
        first.append(len(x))
        update(tallies.setdefault(site, Tally(site, sites[site])), x, labels)

    held = 0
    with watching(sites, see):
        for batch in batches:
            size = samples_of(batch)
            if size is None and forward is call:
                raise DiagnosticError(
                    f"The loader gave a {type(batch).__name__}, which holds no tensor. Batches are tensors, tuples whose first "
                    "entry is x, or dictionaries; forward= calls the model with anything else."
                )
            if size == 0:
                continue
            kept = copy.deepcopy(batch) if held < hold else None  # a loader, or the model, may write into it
            first.clear()
            forward(model, guard.begin(batch))
            size = size or (first[0] if first else 1)
            found.passes, found.samples = found.passes + 1, found.samples + size
            if kept is not None:
                found.held.append(kept)
                held += size
    if not found.passes:
        raise DiagnosticError("The loader gave no batch with a sample in it.")
    found.tallies = list(tallies.values())
    return found


def update(tally: Tally, x: Tensor, labels: Tensor | None = None) -> None:
    """Take an input of a norm into its tally."""
    known = tally.site.info
    norm: Any = tally.site.module
    if known.norm_spec.soft_assignment:  # such a norm says itself what each of its modes has of x
        tally.update({cut: norm.moments_of(x) for cut in known.running_stats})
        return
    tally.update(pooled_moments(x, known.running_stats, labels, known.norm_spec.affine.num_domains))


def compute(tally: Tally) -> dict[str, float]:
    """Give ESM_μ and ESM_σ of a norm, their relative sizes and the shift; domains nobody reached are left out."""
    mean_off, mean_size, mean_shift = [], [], []
    std_off, std_size, std_shift = [], [], []
    for cut, slots in tally.slots.items():
        expected = tally.by_cut[cut]
        kept = tuple(None if slot is None else slot.tensor for slot in slots)
        domains, parts, strips = expected.mean.shape
        mean, var = as_tables((kept[0], kept[1]), (domains, parts, strips), expected.mean.dtype)
        deviation, there = expected.unbiased_var().sqrt(), expected.count > MIN_SHARE
        live = there & (deviation > 1e-6 * (expected.mean.abs() + deviation))
        if kept[0] is not None:
            mean_off.append((mean - expected.mean)[there])
            mean_size.append(expected.mean[there])
            mean_shift.append(((mean - expected.mean) / deviation)[live])
        if kept[1] is not None:
            std_off.append((var.sqrt() - deviation)[there])
            std_size.append(deviation[there])
            eps = tally.site.info.eps
            std_shift.append((((var + eps) / (expected.unbiased_var() + eps)).log() / 2)[live])
    found = {"esm_mean": _length(mean_off), "esm_std": _length(std_off)}
    found["relative_mean"] = _ratio(found["esm_mean"], _length(mean_size))
    found["relative_std"] = _ratio(found["esm_std"], _length(std_size))
    return found | {"shift": max(_rms(mean_shift), _rms(std_shift))}


def _length(tables: list[Tensor]) -> float:
    return float(torch.cat(tables).norm()) if tables else 0.0


def _rms(tables: list[Tensor]) -> float:
    count = sum(table.numel() for table in tables)
    return _length(tables) / math.sqrt(count) if count else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.inf if part else 0.0


def expected_statistics(tally: Tally) -> dict[Slot, Tensor]:
    """Give what a norm would hold if it kept the statistics of what reached it."""
    values = {}
    for cut, slots in tally.slots.items():
        found = tally.by_cut[cut]
        for slot, table in zip(slots, (found.mean, found.unbiased_var()), strict=True):
            if slot is not None:
                old = slot.tensor.to(table.dtype).reshape(table.shape)
                values[slot] = torch.where(found.count > MIN_SHARE, table, old).reshape(slot.tensor.shape)
    return values


def check_kept(sites: Mapping[NormSite, Slots]) -> None:
    """Refuse statistics that are no numbers: what they do needs no measuring."""
    for site, slots in sites.items():
        for tensor in (slot.tensor for pair in slots.values() for slot in pair if slot is not None):
            wrong = int((~torch.isfinite(tensor)).sum())
            if wrong:
                raise DiagnosticError(
                    f"{wrong} of {tensor.numel()} statistics that '{site.path}' ({site.label}) keeps are NaN or infinite: what "
                    "passes it is lost. Recalibrate the model, or load an earlier checkpoint."
                )
