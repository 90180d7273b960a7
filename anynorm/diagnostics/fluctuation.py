"""Fluctuation of batch statistics during training (hn sec. 4.6, Figs. 6 and 7).

At each step, the mean and standard deviation of every norm's input are recorded for the cuts of BN (one statistic per channel)
and EN (one per layer), or for other cuts that pool over samples, independent of the cuts of the norm itself. The fluctuation of
a statistic is the standard deviation of its series over the last steps, averaged over the channels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.cuts import Cut
from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.diagnostics.observe import observe_inputs
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.diagnostics.statistics import pooled_moments
from anynorm.diagnostics.validation import as_batches, find_readable_norms
from anynorm.errors import DiagnosticError
from anynorm.progress import track
from anynorm.registry import parse
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.find import NormSite, Where
from anynorm.surgery.modes import eval_mode


class Recorder:
    """Recorder of the statistics of each norm's input over the last steps."""

    def __init__(self, sites: list[NormSite], last: int, specs: Sequence[str]) -> None:
        if last < 2:
            raise DiagnosticError(f"last must be at least 2 steps; got last={last}.")
        self.sites, self.specs = sites, list(specs)
        self.cuts = {site: _resolve_cuts(self.specs, site.info.channels) for site in sites}
        self.history: dict[NormSite, deque[list[tuple[Tensor, Tensor]]]] = {site: deque(maxlen=last) for site in sites}

    def update(self, site: NormSite, x: Tensor, labels: Tensor | None = None) -> None:
        """Record the statistics of an input of a norm in train mode; each run of the norm counts as one step."""
        if site.module.training:
            moments = pooled_moments(x, self.cuts[site])
            self.history[site].append(
                [(moments[cut].mean.flatten(), moments[cut].var.sqrt().flatten()) for cut in self.cuts[site]]
            )

    def series(self, path: str) -> dict[str, Tensor]:
        """Return the series of a norm by the keys `bn_mean`, `bn_std`, `en_mean`, `en_std`: tensors of shape (steps, parts).

        Raises:
            DiagnosticError: if no norm at `path` was recorded.
        """
        site = next((site for site in self.sites if path in site.paths), None)
        if site is None:
            raise DiagnosticError(f"No norm at '{path}' was recorded. Recorded: {' '.join(site.path for site in self.sites)}.")
        series = {}
        for k, spec in enumerate(self.specs):
            for side, name in enumerate(("mean", "std")):
                steps = [step[k][side] for step in self.history[site]]
                series[f"{spec}_{name}"] = torch.stack(steps).cpu() if steps else torch.empty(0, 0)
        return series

    def report(self) -> DiagnosticReport:
        """Return a report of the fluctuation of each statistic, with one row per norm; `details` has the series by path.

        Raises:
            DiagnosticError: if no norm ran twice in train mode, or if an input was NaN or infinite.
        """
        rows, details = [], {}
        for site in self.sites:
            row: dict[str, Any] = {"path": site.path, "norm": site.label, "steps": len(self.history[site])}
            if row["steps"] < 2:
                rows.append(row | {"note": "ran fewer than 2 times in train mode"})
                continue
            details[site.path] = self.series(site.path)
            rows.append(row | compute_fluctuation(details[site.path]))
        measured = [row for row in rows if "note" not in row]
        if not measured:
            raise DiagnosticError(
                "No norm ran twice in train mode inside the block. A model compiled before the block skips the recorder: "
                "enter the block first, after torch._dynamo.reset() if the model has run already."
            )
        not_finite = next((path for path, series in details.items() if not all(map(_is_finite, series.values()))), None)
        if not_finite is not None:
            raise DiagnosticError(f"The input of '{not_finite}' has NaN or infinite values; it is the first such norm.")
        columns = list(next(iter(details.values())))
        means = ", ".join(f"{column} {sum(row[column] for row in measured) / len(measured):.3g}" for column in columns)
        worst = max(measured, key=lambda row: row[columns[1]])
        finding = (
            f"{len(measured)} norms, mean fluctuation: {means}. {columns[1]} fluctuates most in '{worst['path']}'. To reduce "
            "fluctuation, use larger batches or a norm that pools more values per statistic (hn, en)."
        )
        return DiagnosticReport(rows, finding, "fluctuation", columns[1], details)


def compute_fluctuation(series: dict[str, Tensor]) -> dict[str, float]:
    """Return the standard deviation of each series (steps, parts) over the steps, averaged over the parts."""
    return {name: float(steps.std(0).mean()) for name, steps in series.items()}


def _is_finite(steps: Tensor) -> bool:
    return bool(torch.isfinite(steps).all())


def _resolve_cuts(specs: list[str], channels: int) -> list[Cut]:
    cuts = []
    for spec in specs:
        resolved = parse(spec).resolve(channels)
        if len(resolved.distinct) != 1 or not resolved.distinct[0].pools_samples or resolved.distinct[0].is_ghost:
            raise DiagnosticError(f"cuts must each be one cut that pools over all samples; got {spec}. Usable: bn en en:8.")
        cuts.append(resolved.distinct[0])
    return cuts


@contextmanager
def fluctuation(
    model: nn.Module, last: int = 200, *, cuts: Sequence[str] = ("bn", "en"), where: Where = None
) -> Iterator[Recorder]:
    """Record the input statistics of every norm while the model is trained inside a `with` block.

    Args:
        model: the model.
        last: number of last steps to keep.
        cuts: specs of the cuts to record; each must pool over samples.
        where: which norms to record, as in `anynorm.convert`; None for all.

    Returns:
        A context manager that yields a `Recorder`; call its `report()` or `series(path)`.

    Raises:
        DiagnosticError: if the model has no norm, `last` is below 2, or a cut does not pool over samples.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> with fluctuation(model, last=10) as recorder:
    ...     for _ in range(20):
    ...         _ = model(torch.randn(16, 4))
    >>> recorder.series("1")["bn_mean"].shape
    torch.Size([10, 8])
    """
    recorder = Recorder(find_readable_norms(model, where), last, cuts)
    with observe_inputs(recorder.sites, recorder.update):
        yield recorder


def batch_fluctuation(
    model: nn.Module,
    loader: Iterable[Any],
    batches: int | None = None,
    *,
    last: int = 200,
    forward: Forward | None = None,
    where: Where = None,
) -> DiagnosticReport:
    """Measure how much batch statistics fluctuate between batches in train mode, at fixed parameters; the model is not changed.

    Args:
        model: the model.
        loader: batches: tensors, (x, …), dictionaries, or lists of images; see `anynorm.surgery.batches`. A tensor is one batch.
        batches: number of batches to use; None for all.
        last: number of last batches to keep.
        forward: a function `forward(model, batch)` that calls the model, if the call in `anynorm.surgery.batches` does not suit
            it.
        where: which norms to record, as in `anynorm.convert`; None for all.

    Returns:
        A report with one row per norm: `path norm steps bn_mean bn_std en_mean en_std`.

    Raises:
        DiagnosticError: if there are fewer than 2 batches, and in the cases listed in `fluctuation`.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> list(batch_fluctuation(model, torch.randn(64, 4).split(16)).rows[0])
    ['path', 'norm', 'steps', 'bn_mean', 'bn_std', 'en_mean', 'en_std']
    """
    count = 0
    with eval_mode(model), preserve_buffers(model), fluctuation(model, last, where=where) as recorder:
        model.train()
        for batch in track(as_batches(loader), "recording", batches):
            (forward or call)(model, batch)
            count += 1
    if count < 2:
        raise DiagnosticError(f"The loader must yield at least 2 batches; it yielded {count}.")
    report = recorder.report()
    report.finding = f"Between batches at fixed parameters: {report.finding}"
    return report
