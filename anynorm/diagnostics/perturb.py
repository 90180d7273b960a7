"""How a model bears statistics that are wrong (xbn eq. 5).

μ̂ (1 + δ_μ)        σ̂² (1 + δ_σ)        δ_μ, δ_σ ~ uniform(−Δ, Δ), one a layer or one a channel
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.estimation_shift import keeping_sites
from anynorm.diagnostics.observe import changing, inferring
from anynorm.diagnostics.report import Report
from anynorm.errors import DiagnosticError
from anynorm.progress import shown
from anynorm.surgery.walk import Site, Where

PER = ("layer", "channel")


@dataclass
class Draws:
    """The draws of a perturbation: iterating puts one after the other into the model."""

    sites: list[Site]
    delta: float
    per: str
    seeds: int
    old: dict[Tensor, Tensor]

    def __iter__(self) -> Iterator[int]:
        for seed in range(self.seeds):
            self.put(seed)
            yield seed

    @torch.no_grad()
    def put(self, seed: int) -> None:
        """Write the draw of a seed; the same seed draws the same directions for every Δ."""
        chance = torch.Generator().manual_seed(seed)
        for site in self.sites:
            for buffer in statistics_of(site):
                shape = buffer.shape if self.per == "channel" else ()
                noise = 2 * torch.rand(shape, generator=chance, dtype=torch.float64) - 1
                buffer.copy_(self.old[buffer].double() * (1 + self.delta * noise.to(buffer.device)))


def statistics_of(site: Site) -> list[Tensor]:
    """List the means and variances that a norm keeps."""
    return [buffer for pair in site.known.kept.values() for buffer in pair if buffer is not None]


@contextmanager
def perturb(model: nn.Module, delta: float, layers: Where = None, *, per: str = "layer", seeds: int = 5) -> Iterator[Draws]:
    """Perturb the kept statistics of a model inside a block; afterwards they are what they were.

    The first draw is there at once; iterating over what the block is given puts one after the other.

    Args:
        layers: which norms, as `where` of `anynorm.convert`; all that keep statistics, if not given.
        per: `layer`: one δ for all channels of a layer; `channel`: one for each.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).eval()
    >>> with perturb(model, 0.5, seeds=3) as draws:
    ...     found = [float(model[1].running_var[0]) for _ in draws]
    >>> len(set(found)), float(model[1].running_var[0])
    (3, 1.0)
    """
    if not 0 <= delta <= 1:
        raise DiagnosticError(f"delta={delta} is no relative noise; above 1 a variance could be negative. Give 0 to 1.")
    if per not in PER:
        raise DiagnosticError(f"per={per!r} is none of {' '.join(PER)}.")
    if seeds < 1:
        raise DiagnosticError(f"seeds={seeds} draws nothing; give 1 or more.")
    sites = keeping_sites(model, layers)
    old = {buffer: buffer.clone() for site in sites for buffer in statistics_of(site)}
    with changing(old):
        draws = Draws(sites, delta, per, seeds, old)
        draws.put(0)
        yield draws


def perturbation_curve(
    model: nn.Module,
    score: Callable[[nn.Module], float],
    deltas: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    layers: Where = None,
    *,
    per: str = "layer",
    seeds: int = 5,
) -> Report:
    """Score a model in eval mode under growing perturbation, several draws each.

    Args:
        score: of the model, such as its accuracy on test data.
    """

    def scored() -> float:
        with inferring(model):
            return float(score(model))

    rows: list[dict[str, Any]] = []
    plain = scored()
    for delta in shown(list(deltas), "perturbing"):
        with perturb(model, delta, layers, per=per, seeds=seeds) as draws:
            scores = [scored() for _ in draws] if delta else [plain] * seeds
        spread = statistics.stdev(scores) if seeds > 1 else 0.0
        rows.append(
            {
                "delta": float(delta),
                "score": statistics.fmean(scores),
                "sd": spread,
                "lost": plain - statistics.fmean(scores),
                "scores": scores,
            }
        )
    half = next((row["delta"] for row in rows if row["score"] < plain / 2), None)
    told = (
        f"half of it is lost at Δ = {half:g}"
        if half is not None
        else f"{rows[-1]['score']:.4g} are left at Δ = {rows[-1]['delta']:g}"
    )
    sites = keeping_sites(model, layers)
    finding = f"{len(sites)} norms perturbed per {per}, {seeds} draws: score {plain:.4g} undisturbed; {told}."
    return Report(rows, finding, "perturbation", "lost", {"per": per, "layers": [site.path for site in sites]})
