"""How much the statistics of batches fluctuate while a model trains (hn sec. 4.6, Figs. 6 and 7).

For every norm, whatever it is, the mean and standard deviation of its input are recorded at each step by the cuts of BN (one a
neuron) and EN (one a layer), or others that pool over samples. The fluctuation of a statistic is the standard deviation of its
series over the last k steps; a row tells its mean over the neurons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.cuts import Cut
from anynorm.core.grammar import parse
from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.diagnostics.estimation_shift import checked_loader
from anynorm.diagnostics.observe import eval_mode, norms_of, watching
from anynorm.diagnostics.report import Report
from anynorm.diagnostics.statistics import pooled_moments
from anynorm.errors import DiagnosticError
from anynorm.progress import track
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.find import NormSite, Where


class Recorder:
    """Keeps the last statistics of each norm's input."""

    def __init__(self, sites: list[NormSite], last: int, specs: Sequence[str]) -> None:
        if last < 2:
            raise DiagnosticError(f"last={last} steps have no fluctuation; it takes 2 or more.")
        self.sites, self.specs = sites, list(specs)
        self.cuts = {site: _cuts(self.specs, site.info.channels) for site in sites}
        self.seen: dict[NormSite, deque[list[tuple[Tensor, Tensor]]]] = {site: deque(maxlen=last) for site in sites}

    def update(self, site: NormSite, x: Tensor, labels: Tensor | None = None) -> None:
        """Take an input of a norm that trains; every run is a step of its own."""
        if site.module.training:
            found = pooled_moments(x, self.cuts[site])
            self.seen[site].append([(found[cut].mean.flatten(), found[cut].var.sqrt().flatten()) for cut in self.cuts[site]])

    def series(self, path: str) -> dict[str, Tensor]:
        """Give the series of a norm: (steps, parts) of `bn_mean`, `bn_std` and so on."""
        site = next((site for site in self.sites if path in site.paths), None)
        if site is None:
            raise DiagnosticError(f"No norm at '{path}' was recorded. Recorded: {' '.join(site.path for site in self.sites)}.")
        found = {}
        for k, spec in enumerate(self.specs):
            for side, name in enumerate(("mean", "std")):
                steps = [step[k][side] for step in self.seen[site]]
                found[f"{spec}_{name}"] = torch.stack(steps).cpu() if steps else torch.empty(0, 0)
        return found

    def report(self) -> Report:
        """Tell how much each statistic fluctuates, norm by norm."""
        rows, details = [], {}
        for site in self.sites:
            row: dict[str, Any] = {"path": site.path, "norm": site.label, "steps": len(self.seen[site])}
            if row["steps"] < 2:
                rows.append(row | {"note": "ran less than twice in train mode"})
                continue
            details[site.path] = self.series(site.path)
            rows.append(row | compute(details[site.path]))
        measured = [row for row in rows if "note" not in row]
        if not measured:
            raise DiagnosticError(
                "No norm ran twice in train mode while it was recorded. A model compiled before does not see the recorder: "
                "enter it first, after torch._dynamo.reset() where something was compiled already."
            )
        broken = next((path for path, series in details.items() if not all(map(_is_finite, series.values()))), None)
        if broken is not None:
            raise DiagnosticError(f"NaN or infinite values have reached '{broken}', the first of the norms that they did.")
        columns = list(next(iter(details.values())))
        means = {column: sum(row[column] for row in measured) / len(measured) for column in columns}
        told = ", ".join(f"{column} {value:.3g}" for column, value in means.items())
        worst = max(measured, key=lambda row: row[columns[1]])
        finding = f"{len(measured)} norms, mean fluctuation: {told}. {columns[1]} fluctuates most in '{worst['path']}'."
        return Report(rows, finding, "fluctuation", columns[1], details)


def compute(series: dict[str, Tensor]) -> dict[str, float]:
    """Give the standard deviation of each series over the steps, averaged over its parts."""
    return {name: float(steps.std(0).mean()) for name, steps in series.items()}


def _is_finite(steps: Tensor) -> bool:
    return bool(torch.isfinite(steps).all())


def _cuts(specs: list[str], channels: int) -> list[Cut]:
    cuts = []
    for spec in specs:
        fitted = parse(spec).fit(channels)
        if len(fitted.cuts) != 1 or not fitted.cuts[0].pools_samples or fitted.cuts[0].is_ghost:
            raise DiagnosticError(f"{spec} is not one cut that pools over samples, such as bn, en or en:8.")
        cuts.append(fitted.cuts[0])
    return cuts


@contextmanager
def fluctuation(
    model: nn.Module, last: int = 200, *, cuts: Sequence[str] = ("bn", "en"), where: Where = None
) -> Iterator[Recorder]:
    """Record statistics while the body of the block trains the model; `report()` of what it gives tells.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> with fluctuation(model, last=10) as recorder:
    ...     for _ in range(20):
    ...         _ = model(torch.randn(16, 4))
    >>> recorder.series("1")["bn_mean"].shape
    torch.Size([10, 8])
    """
    recorder = Recorder(norms_of(model, where), last, cuts)
    with watching(recorder.sites, recorder.update):
        yield recorder


def batch_fluctuation(
    model: nn.Module,
    loader: Iterable[Any],
    batches: int | None = None,
    *,
    last: int = 200,
    forward: Forward | None = None,
    where: Where = None,
) -> Report:
    """Tell how much statistics fluctuate from batch to batch in train mode; parameters stay as they are."""
    count = 0
    with eval_mode(model), preserve_buffers(model), fluctuation(model, last, where=where) as recorder:
        model.train()
        for batch in track(checked_loader(loader), "recording", batches):
            (forward or call)(model, batch)
            count += 1
    if count < 2:
        raise DiagnosticError(f"The loader gave {count} batch{'' if count == 1 else 'es'}; fluctuation takes 2 or more.")
    report = recorder.report()
    report.finding += " From batch to batch at fixed parameters."
    return report
