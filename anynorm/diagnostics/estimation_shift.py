"""Diagnosis of a model that is good in train mode and bad in eval mode: which norm causes the difference.

Measures the estimation shift of every norm with running statistics (`esm`) and the effect of correcting each norm separately
(`ablation`), and recommends a remedy (`estimation_shift_advice`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from anynorm.core.update_rules import Frozen
from anynorm.diagnostics.ablation import Ablation
from anynorm.diagnostics.esm import Measurement, compute_esm, measure
from anynorm.diagnostics.estimation_shift_advice import advise, describe_skipped
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.diagnostics.scores import Score
from anynorm.diagnostics.statistics import StatAccumulator
from anynorm.diagnostics.validation import as_batches, check_finite_stats, find_tracking_norms, unreadable_rows
from anynorm.errors import DiagnosticError
from anynorm.progress import track
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.find import NormSite, Where
from anynorm.surgery.modes import eval_mode


def estimation_shift(
    model: nn.Module,
    loader: Iterable[Any],
    batches: int | None = None,
    *,
    forward: Forward | None = None,
    where: Where = None,
    trial_samples: int = 256,
    score: Score | None = None,
) -> DiagnosticReport:
    """Measure the estimation shift of every norm with running statistics, of anynorm or torch.

    The model runs in eval mode and is not changed. If a norm runs several times per forward pass, its statistics are pooled over
    these runs, and its row has a note.

    Args:
        model: the model.
        loader: batches: tensors, (x, …), dictionaries, or lists of images; see `anynorm.surgery.batches`. A tensor is one batch.
        batches: number of batches to use; None for all.
        forward: a function `forward(model, batch)` that calls the model, if the call in `anynorm.surgery.batches` does not suit
            it.
        where: which norms to measure, as in `anynorm.convert`; None for all.
        trial_samples: number of samples on which each norm is corrected separately (columns `output_error shift_removed
            max_remaining score`). The first batches are copied until they have this many samples. 0 omits these columns.
        score: a function `score(output, batch)`, such as `anynorm.diagnostics.scores.accuracy`, reported for each correction.

    Returns:
        A report with one row per norm, in the order of execution: `path norm channels esm_mean esm_std relative_mean
        relative_std shift` and the columns above. The finding ends with a recommendation. If training skipped batches whose
        statistics were not finite, the column `skipped` has their number since the model was made or loaded, and the finding too.

    Raises:
        DiagnosticError: if no norm has running statistics, no batch reaches such a norm, or values are NaN or infinite.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> estimation_shift(model, [10 + torch.randn(256, 4)]).finding.partition(" (")[0]
    "1 norm, 256 samples: one norm is at fault, '1'"
    """
    sites = find_tracking_norms(model, where)
    check_finite_stats(sites)
    forward = forward or call
    base_score = None
    with eval_mode(model):
        measurement = measure(model, sites, track(as_batches(loader), "measuring", batches), forward, trial_samples)
        accumulators = measurement.accumulators
        if not accumulators:
            raise DiagnosticError(f"No batch reached any of the {len(sites)} norms with running statistics.")
        rows = [_row(accumulator.site) | compute_esm(accumulator) for accumulator in accumulators]
        if measurement.copied_batches:
            ablated, base_score = Ablation(model, measurement.copied_batches, forward, score).ablate_each(accumulators)
            rows = [row | columns for row, columns in zip(rows, ablated, strict=True)]
    rows = [row | _note(accumulator, measurement) for row, accumulator in zip(rows, accumulators, strict=True)]
    reached = [accumulator.site for accumulator in accumulators]
    rows += [_row(site) | {"note": "no sample reached it"} for site in sites if site not in reached]
    rows += unreadable_rows(model, where)
    skipped = {site.path: count for site in sites if (count := num_skipped(site))}
    rows = [row | ({"skipped": skipped.get(row["path"], 0)} if skipped else {}) for row in rows]
    finding = advise(rows, measurement.num_samples, base_score) + describe_skipped(skipped)
    details = {"samples": measurement.num_samples, "score": base_score, "skipped": skipped}
    return DiagnosticReport(rows, finding, "estimation_shift", "shift", details)


def num_skipped(site: NormSite) -> int:
    """Return the number of training batches that a norm skipped because their statistics were not finite; 0 if unknown."""
    counter = getattr(site.module, "num_batches_skipped", None)
    return 0 if counter is None else int(counter.sum())


def _row(site: NormSite) -> dict[str, Any]:
    return {"path": site.path, "norm": site.label, "channels": site.info.channels}


def _note(accumulator: StatAccumulator, measurement: Measurement) -> dict[str, str]:
    runs_per_pass = accumulator.num_calls / measurement.num_passes
    notes = [f"runs {runs_per_pass:.3g} times per pass: pooled"] if runs_per_pass > 1 else []
    notes += ["frozen"] if isinstance(accumulator.site.info.update_rule, Frozen) else []
    return {"note": ", ".join(notes)} if notes else {}
