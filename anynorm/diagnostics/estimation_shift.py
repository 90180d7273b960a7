"""Tells which norm is at fault where a model is good in train mode and bad in eval.

The estimation shift of every norm that keeps statistics (see `esm`), what each alone does to the output (see `trial`), and what
to do about it (see `verdict`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from anynorm.diagnostics import verdict
from anynorm.diagnostics.esm import compute, measure
from anynorm.diagnostics.observe import inferring, names_of, norms_of
from anynorm.diagnostics.report import Report
from anynorm.diagnostics.trial import Score, Trial
from anynorm.errors import DiagnosticError
from anynorm.progress import shown
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.walk import Site, Where


def estimation_shift(
    model: nn.Module,
    loader: Iterable[Any],
    batches: int | None = None,
    *,
    forward: Forward | None = None,
    where: Where = None,
    trial_batches: int = 1,
    score: Score | None = None,
) -> Report:
    """Measure the estimation shift of every norm that keeps statistics, ours or torch's, in the order they run.

    A norm that runs several times in a pass is measured over all its runs together, which `calls` tells.

    Args:
        loader: batches: tensors, tuples whose first entry is x, or dictionaries.
        batches: how many of them; None takes all.
        forward: calls the model with a batch, where it needs more than its first entry.
        trial_batches: the first so many batches are kept, and each norm alone is put right on them; 0 leaves that out.
        score: of (output, batch), such as an accuracy; told for each trial.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> estimation_shift(model, [10 + torch.randn(256, 4)]).finding.partition(" (")[0]
    "1 norms, 256 samples: one norm is at fault, '1'"
    """
    forward = forward or call
    sites = keeping_sites(model, where)
    with inferring(model):
        tallies, samples, held = measure(model, sites, shown(loader, "measuring", batches), forward, trial_batches)
        if not tallies:
            raise DiagnosticError(f"The batches reached none of the {len(sites)} norms that keep statistics.")
        rows: list[dict[str, Any]] = [
            {"path": tally.site.path, "norm": tally.site.called, "channels": tally.site.known.channels, **compute(tally)}
            for tally in tallies
        ]
        base = Trial(model, held, forward, score).put_right_each(rows, tallies) if held else None
    passes = min(tally.calls for tally in tallies)
    for row, tally in zip(rows, tallies, strict=True):
        if tally.calls > passes:
            row["note"] = f"runs {tally.calls / passes:.3g} times a pass: pooled"
    reached = [tally.site for tally in tallies]
    rows += [
        {"path": site.path, "norm": site.called, "channels": site.known.channels, "note": "no sample reached it"}
        for site in sites
        if site not in reached
    ]
    return Report(rows, verdict.say(rows, samples, base), "estimation_shift", "shift", {"samples": samples, "score": base})


def keeping_sites(model: nn.Module, where: Where = None) -> list[Site]:
    """List the norms that keep statistics, or say that there are none."""
    sites = norms_of(model, where)
    keeping = [site for site in sites if site.known.kept]
    if not keeping:
        raise DiagnosticError(
            f"None of the {len(sites)} norms keeps statistics ({names_of(sites)}): they do in inference what they do in "
            "training, and nothing can shift."
        )
    return keeping
