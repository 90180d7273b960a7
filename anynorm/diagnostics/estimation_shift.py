"""Tells which norm is at fault where a model is good in train mode and bad in eval.

The estimation shift of every norm that keeps statistics (see `esm`), what each alone does to the output (see `trial`), and what
to do about it (see `verdict`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from anynorm.core.update_rules import Frozen
from anynorm.diagnostics import advice as verdict
from anynorm.diagnostics.ablation import Score, Trial
from anynorm.diagnostics.buffers import Slots, kept_slots
from anynorm.diagnostics.esm import Measured, check_kept, compute, measure
from anynorm.diagnostics.observe import eval_mode, names_of, norms_of, unread_rows
from anynorm.diagnostics.report import Report
from anynorm.diagnostics.statistics import Tally
from anynorm.errors import DiagnosticError
from anynorm.progress import track
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.find import NormSite, Where


def estimation_shift(
    model: nn.Module,
    loader: Iterable[Any],
    batches: int | None = None,
    *,
    forward: Forward | None = None,
    where: Where = None,
    trial_samples: int = 256,
    score: Score | None = None,
) -> Report:
    """Measure the estimation shift of every norm that keeps statistics, ours or torch's, in the order they run.

    A norm that runs several times in a pass is measured over all its runs together, which its note tells.

    Args:
        loader: batches: tensors, tuples whose first entry is x, or dictionaries; a tensor is one batch.
        batches: how many of them; None takes all.
        forward: calls the model with a batch, where it needs more than its first entry.
        trial_samples: the first batches, until there are so many samples, are kept, and each norm alone is put right on them; 0
            leaves that out.
        score: of (output, batch), such as an accuracy; told for each trial.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> estimation_shift(model, [10 + torch.randn(256, 4)]).finding.partition(" (")[0]
    "1 norm, 256 samples: one norm is at fault, '1'"
    """
    sites = find_tracking_norms(model, where)
    check_kept(sites)
    given = track(checked_loader(loader), "measuring", batches)
    with eval_mode(model):
        found = measure(model, sites, given, forward or call, trial_samples)
        if not found.tallies:
            raise DiagnosticError(f"The batches reached none of the {len(sites)} norms that keep statistics.")
        rows = [_row(tally.site) | compute(tally) for tally in found.tallies]
        base = Trial(model, found.held, forward or call, score).put_right_each(rows, found.tallies) if found.held else None
    for row, tally in zip(rows, found.tallies, strict=True):
        row.update(_note(tally, found))
    reached = [tally.site for tally in found.tallies]
    rows += [_row(site) | {"note": "no sample reached it"} for site in sites if site not in reached]
    rows += unread_rows(model, where)
    details = {"samples": found.samples, "score": base}
    return Report(rows, verdict.say(rows, found.samples, base), "estimation_shift", "shift", details)


def checked_loader(loader: Any) -> Iterable[Any]:
    """Take a tensor as one batch, and refuse what gives none."""
    if isinstance(loader, Tensor):
        return [loader]
    if not isinstance(loader, Iterable):
        raise DiagnosticError(f"The loader is a {type(loader).__name__}, which gives no batches.")
    return loader


def _row(site: NormSite) -> dict[str, Any]:
    return {"path": site.path, "norm": site.label, "channels": site.info.channels}


def _note(tally: Tally, found: Measured) -> dict[str, str]:
    words = [f"runs {tally.calls / found.passes:.3g} times a pass: pooled"] if tally.calls > found.passes else []
    words += ["frozen"] if isinstance(tally.site.info.update_rule, Frozen) else []
    return {"note": ", ".join(words)} if words else {}


def find_tracking_norms(model: nn.Module, where: Where = None) -> dict[NormSite, Slots]:
    """Give the norms that keep statistics, and where, or say that there are none."""
    sites = norms_of(model, where)
    preserve_buffers = [site for site in sites if site.info.running_stats]
    if not preserve_buffers:
        raise DiagnosticError(
            f"None of the {len(sites)} norms keeps statistics ({names_of(sites)}): they do in inference what they do in "
            "training, and nothing can shift."
        )
    return {site: kept_slots(site) for site in preserve_buffers}
