"""Accuracy on new data before and after its statistics replace the running statistics (test-time adaptation without labels).

    source          the running statistics of the model
    recalibrated    the statistics of the new data                           (AdaBN, Li et al. 2016)
    mixed           α source + (1 − α) new, see `anynorm.recalibrate`        (Schneider et al. 2020)
    per_batch       the statistics of each test batch                        (Nado et al. 2020)

`shift` is the maximum estimation shift of any norm on the new data before adaptation (see `esm`). Statistics are estimated from
unlabeled data; labels are used only to measure the accuracy.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from anynorm.diagnostics.batch_statistics import batch_statistics
from anynorm.diagnostics.estimation_shift import estimation_shift
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.diagnostics.scores import Score, accuracy
from anynorm.diagnostics.validation import as_batches, find_readable_norms, list_labels
from anynorm.errors import DiagnosticError
from anynorm.progress import track
from anynorm.surgery.batches import Forward, call, size_of
from anynorm.surgery.modes import eval_mode
from anynorm.surgery.recalibrate import has_running_stats, recalibrate

VARIANTS = ("source", "recalibrated", "mixed", "per_batch")
MARGIN = 1.0
"""Maximum difference of two scores, in percentage points, that the finding treats as equal."""


class Target(NamedTuple):
    """New data.

    Attributes:
        name: name of the row in the report.
        unlabeled: batches from which statistics are estimated; labels, if present, are ignored. A tensor is one batch.
        labeled: batches (x, labels) on which the accuracy is measured.
    """

    name: str
    unlabeled: Any
    labeled: Iterable[Any]


def adaptation(
    model: nn.Module,
    targets: Iterable[Target],
    *,
    source_weight: float = 0.5,
    forward: Forward | None = None,
    score: Score = accuracy,
) -> DiagnosticReport:
    """Measure the accuracy of a model on new data before and after its running statistics are adapted.

    The model runs in eval mode and is not changed.

    Args:
        model: a classifier with norms of anynorm or torch.
        targets: the new data sets. The batches of one target at a time are kept in memory.
        source_weight: α of the column `mixed`.
        forward: a function `forward(model, batch)` that calls the model, if the call in `anynorm.surgery.batches` does not suit
            it.
        score: a function `score(output, batch)` that returns percent; the mean over batches is weighted by batch size.

    Returns:
        A report with one row per target: `data samples shift source recalibrated mixed per_batch`. `samples` is the number of
        unlabeled samples. If no norm has running statistics, all scores are equal, and the finding says so.

    Raises:
        DiagnosticError: if `targets` is empty, a target has no samples, or the output cannot be scored.

    >>> import torch
    >>> x = torch.randn(256, 2)
    >>> model = nn.Sequential(nn.BatchNorm1d(2, affine=False)).eval()  # predicts the larger entry
    >>> new = x + torch.tensor([3.0, 0.0])
    >>> report = adaptation(model, [Target("new sensor", new, [(new, x.argmax(1))])])
    >>> report["new sensor"]["source"] < 70 < 90 < report["new sensor"]["recalibrated"]
    True
    """
    sites = find_readable_norms(model)
    measure = _Measurement(model, source_weight, forward or call, score)
    with eval_mode(model):
        rows = [measure.row(target) for target in track(targets, "adapting")]
    if not rows:
        raise DiagnosticError("targets must have at least one entry; got none.")
    if measure.is_adaptable:
        finding = _finding(rows, source_weight)
    else:
        finding = f"No norm has running statistics to adapt ({list_labels(sites)}): the columns are equal."
    details = {"source_weight": source_weight, "one_class_batches": measure.one_class_batches}
    if measure.one_class_batches:
        finding += (
            f" {measure.one_class_batches} test batches have a single class, whose statistics are not those of the data: shuffle "
            "the test data before reading the column per_batch."
        )
    return DiagnosticReport(rows, finding, "adaptation", "shift", details)


class _Measurement:
    """Measurement of the scores of one model."""

    def __init__(self, model: nn.Module, source_weight: float, forward: Forward, score: Score) -> None:
        self.model, self.source_weight, self.forward, self.score = model, source_weight, forward, score
        self.is_adaptable = has_running_stats(model)
        self.one_class_batches = 0

    def row(self, target: Target) -> dict[str, Any]:
        """Return the row of the report for a target."""
        unlabeled, labeled = list(as_batches(target.unlabeled)), list(target.labeled)
        for name, batches in (("unlabeled", unlabeled), ("labeled", labeled)):
            if not batches:
                raise DiagnosticError(f"The {name} data of {target.name!r} must have at least one batch; got none.")
        for batch in labeled:
            _check_labels(batch)
        self.one_class_batches += _count_one_class(labeled)
        row: dict[str, Any] = {"data": target.name, "samples": sum(map(size_of, unlabeled)), "shift": None}
        row["source"] = source = self._mean_score(labeled)
        if not self.is_adaptable:
            return row | dict.fromkeys(VARIANTS, source)
        report = estimation_shift(self.model, unlabeled, forward=self.forward, trial_samples=0)
        row["shift"] = max(shift for norm in report if (shift := norm.get("shift")) is not None)
        for name, weight in (("recalibrated", 0.0), ("mixed", self.source_weight)):
            with self._recalibrated(unlabeled, weight):
                row[name] = self._mean_score(labeled)
        with batch_statistics(self.model):
            row["per_batch"] = self._mean_score(labeled)
        return row

    @contextmanager
    def _recalibrated(self, unlabeled: list[Any], source_weight: float) -> Iterator[None]:
        report = recalibrate(self.model, unlabeled, source_weight=source_weight, forward=self.forward)
        try:
            yield
        finally:
            report.undo()

    def _mean_score(self, labeled: list[Any]) -> float:
        total = count = 0.0
        for batch in labeled:
            value = self.score(self.forward(self.model, batch), batch)
            if value is None:
                raise DiagnosticError("The model must return a tensor (n, classes) to be scored; pass score= for other outputs.")
            total, count = total + value * size_of(batch), count + size_of(batch)
        return total / count


def _check_labels(batch: Any) -> None:
    labels = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    if not isinstance(labels, Tensor) or not len(labels):
        raise DiagnosticError(f"Labeled batches must be (x, labels); got a {type(batch).__name__} without labels.")


def _count_one_class(labeled: list[Any]) -> int:
    """Return the number of batches with a single class (including batches of one sample); 0 if all data have the same class."""
    classes = [set(batch[1].flatten().tolist()) for batch in labeled]
    return sum(len(group) == 1 for group in classes) if len(set().union(*classes)) > 1 else 0


def _finding(rows: list[dict[str, Any]], source_weight: float) -> str:
    """Return the mean scores over targets, and recommend the first kind of statistics that is within `MARGIN` of the best."""
    means = {name: statistics.fmean(row[name] for row in rows) for name in VARIANTS}
    where = f"'{rows[0]['data']}'" if len(rows) == 1 else f"{len(rows)} data sets (means)"
    finding = f"Score in percent on {where}: {means['source']:.1f} with the source statistics, {means['recalibrated']:.1f} "
    finding += (
        f"recalibrated, {means['mixed']:.1f} mixed (source weight {source_weight:.3g}), {means['per_batch']:.1f} per batch. "
    )
    advice = {
        "source": "Adapting the statistics does not help: the running statistics fit, or the weights do not.",
        "recalibrated": "Recalibrate on unlabeled data like these: anynorm.recalibrate(model, unlabeled).",
        "mixed": f"Recalibrate and keep a part: anynorm.recalibrate(model, unlabeled, source_weight={source_weight:.3g}).",
        "per_batch": "Use the statistics of each batch (anynorm.diagnostics.batch_statistics), or recalibrate on more data.",
    }
    return finding + advice[next(name for name in VARIANTS if means[name] >= max(means.values()) - MARGIN)]
