"""Sensitivity of a model to errors of its running statistics, measured by random perturbations (xbn eq. 5).

μ̂ (1 + δ_μ)        σ̂² (1 + δ_σ)        δ_μ, δ_σ ~ uniform(−Δ, Δ), one per layer or one per channel
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.buffers import BufferRef, swap_buffers
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.diagnostics.validation import find_tracking_norms
from anynorm.errors import DiagnosticError
from anynorm.progress import track
from anynorm.surgery.find import Where
from anynorm.surgery.modes import eval_mode

PER = ("layer", "channel")


@dataclass
class Draws:
    """Random draws of a perturbation. Iterate over them inside the block of `perturb` to apply one after the other.

    Args:
        originals: the unperturbed running statistics.
        delta, per, seeds: see `perturb`.
        closed: whether the block has ended.
    """

    originals: dict[BufferRef, Tensor]
    delta: float
    per: str
    seeds: int
    closed: bool = False

    def __iter__(self) -> Iterator[int]:
        for seed in range(self.seeds):
            self.apply(seed)
            yield seed

    @torch.no_grad()
    def apply(self, seed: int) -> None:
        """Apply the draw of a seed to the model; for a given seed, the noise is proportional to Δ.

        Raises:
            DiagnosticError: if the block of the perturbation has ended.
        """
        if self.closed:
            raise DiagnosticError("The block of this perturbation has ended. Iterate over the draws inside it.")
        generator = torch.Generator().manual_seed(seed)
        for ref, original in self.originals.items():
            shape = original.shape if self.per == "channel" else ()
            noise = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
            ref.tensor.copy_(original.double() * (1 + self.delta * noise.to(original.device)))


@contextmanager
def perturb(model: nn.Module, delta: float, layers: Where = None, *, per: str = "layer", seeds: int = 5) -> Iterator[Draws]:
    """Perturb the running statistics of a model inside a `with` block; restore them on exit.

    Only eval mode is affected: train mode uses batch statistics. The first draw is applied on entry.

    Args:
        model: the model.
        delta: Δ, the maximum relative noise, from 0 to 1.
        layers: which norms to perturb, as `where` of `anynorm.convert`; None for all with running statistics.
        per: "layer" for one δ per layer, "channel" for one δ per channel.
        seeds: number of draws.

    Returns:
        A context manager that yields the draws; iterating over them applies one after the other.

    Raises:
        DiagnosticError: if an argument is out of range, or no norm has running statistics.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).eval()
    >>> with perturb(model, 0.5, seeds=3) as draws:
    ...     variances = [float(model[1].running_var[0]) for _ in draws]
    >>> len(set(variances)), float(model[1].running_var[0])
    (3, 1.0)
    """
    _check_arguments(delta, per, seeds)
    sites = find_tracking_norms(model, layers)
    refs = [ref for buffers in sites.values() for pair in buffers.values() for ref in pair if ref is not None]
    originals = {ref: ref.tensor for ref in refs}
    draws = Draws(originals, delta, per, seeds)
    with swap_buffers(originals):
        try:
            draws.apply(0)
            yield draws
        finally:
            draws.closed = True


def _check_arguments(delta: float, per: str, seeds: int) -> None:
    if not 0 <= delta <= 1:
        raise DiagnosticError(f"delta must be in [0, 1]; got delta={delta}. Above 1 a variance could become negative.")
    if per not in PER:
        raise DiagnosticError(f"per must be one of {' '.join(PER)}; got per={per!r}.")
    if seeds < 1:
        raise DiagnosticError(f"seeds must be at least 1; got seeds={seeds}.")


def perturbation_curve(
    model: nn.Module,
    score: Callable[[nn.Module], float],
    deltas: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    layers: Where = None,
    *,
    per: str = "layer",
    seeds: int = 5,
) -> DiagnosticReport:
    """Measure the score of a model in eval mode for several sizes of perturbation.

    Args:
        model: the model.
        score: a function `score(model)`, such as the accuracy on test data.
        deltas: sizes Δ of the perturbation.
        layers: which norms to perturb, as `where` of `anynorm.convert`; None for all with running statistics.
        per: "layer" for one δ per layer, "channel" for one δ per channel.
        seeds: number of draws for each Δ.

    Returns:
        A report with one row per Δ: `delta score sd score_drop scores` (mean and standard deviation of the score over draws, the
        decrease relative to the unperturbed model, and the score of each draw).

    Raises:
        DiagnosticError: if an argument is out of range, no norm has running statistics, or the unperturbed score is not finite.

    >>> model = nn.Sequential(nn.BatchNorm1d(8))
    >>> x = torch.ones(1, 8)
    >>> report = perturbation_curve(model, lambda model: float(model(x).mean()), [0.0, 0.5], seeds=3)
    >>> [row["delta"] for row in report], round(report.rows[0]["score"], 3)
    ([0.0, 0.5], 1.0)
    """
    sites = find_tracking_norms(model, layers)
    if not deltas:
        raise DiagnosticError("deltas must have at least one entry; got an empty sequence.")
    for delta in deltas:
        _check_arguments(delta, per, seeds)

    def eval_score() -> float:
        with eval_mode(model):
            return float(score(model))

    rows: list[dict[str, Any]] = []
    unperturbed = eval_score()
    if not math.isfinite(unperturbed):
        raise DiagnosticError(f"The score of the unperturbed model must be finite; got {unperturbed}.")
    for delta in track(list(deltas), "perturbing"):
        with perturb(model, delta, layers, per=per, seeds=seeds) as draws:
            scores = [eval_score() for _ in draws] if delta else [unperturbed] * seeds
        mean = statistics.fmean(scores)
        sd = statistics.stdev(scores) if seeds > 1 and math.isfinite(mean) else 0.0
        rows.append({"delta": float(delta), "score": mean, "sd": sd, "score_drop": unperturbed - mean, "scores": scores})
    half = next((row["delta"] for row in rows if unperturbed > 0 and row["score"] < unperturbed / 2), None)
    finding = f"{len(sites)} norms perturbed per {per}, {seeds} draws: score {unperturbed:.4g} unperturbed, "
    if half is None:
        finding += f"{rows[-1]['score']:.4g} at Δ = {rows[-1]['delta']:g}."
    else:
        finding += f"below half of it at Δ = {half:g}. A batch-free norm in every block (anynorm.xbn) reduces the sensitivity."
    return DiagnosticReport(rows, finding, "perturbation", "score_drop", {"per": per, "layers": [site.path for site in sites]})
