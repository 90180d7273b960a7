"""The effect of correcting the running statistics of one norm while those of all other norms are unchanged.

output_error     ‖y′ − y‖₂ / ‖y‖₂ for the outputs y before and y′ after the correction
shift_removed    fraction of the summed shift of all norms that is removed: 1 − Σ shift′ / Σ shift
max_remaining    maximum shift of any norm after the correction
score            score of the output after the correction
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from anynorm.diagnostics.buffers import swap_buffers
from anynorm.diagnostics.esm import compute_esm, expected_statistics, measure
from anynorm.diagnostics.scores import Score
from anynorm.diagnostics.statistics import StatAccumulator, iterate_tensors, num_samples
from anynorm.progress import track
from anynorm.surgery.batches import Forward


class Result(NamedTuple):
    """The outputs of a model, the shift of each norm, and the score (None without a score function)."""

    outputs: list[Tensor]
    shifts: list[float]
    score: float | None


@dataclass
class Ablation:
    """A model and the batches on which the running statistics of one norm at a time are corrected.

    Args:
        model: the model.
        batches: the batches to run.
        forward: a function `forward(model, batch)` that calls the model.
        score: a function `score(output, batch)`, or None.
    """

    model: nn.Module
    batches: list[Any]
    forward: Forward
    score: Score | None

    def run(self, accumulators: list[StatAccumulator]) -> Result:
        """Run the batches with the current running statistics."""
        outputs: list[Tensor] = []
        scores: list[tuple[float, int]] = []

        def forward(model: nn.Module, batch: Any) -> None:
            output = self.forward(model, copy.deepcopy(batch))  # a model may overwrite its input
            outputs.extend(tensor.detach().clone() for tensor in iterate_tensors(output) if tensor.is_floating_point())
            score = None if self.score is None else self.score(output, batch)
            if score is not None:
                scores.append((float(score), num_samples(batch) or 1))

        buffers = {accumulator.site: accumulator.buffers for accumulator in accumulators}
        measurement = measure(self.model, buffers, self.batches, forward)
        total = sum(size for _, size in scores)
        score = sum(value * size for value, size in scores) / total if total else None
        return Result(outputs, [compute_esm(accumulator)["shift"] for accumulator in measurement.accumulators], score)

    def ablate_each(self, accumulators: list[StatAccumulator]) -> tuple[list[dict[str, float]], float | None]:
        """Correct the running statistics of one norm at a time and measure the effect.

        Returns:
            The columns for each norm, and the score of the model before any correction.
        """
        before = self.run(accumulators)
        rows = []
        for accumulator in track(accumulators, "correcting"):
            with swap_buffers(expected_statistics(accumulator)):
                after = self.run(accumulators)
            rows.append(_compare(before, after))
        return rows, before.score


def _compare(before: Result, after: Result) -> dict[str, float]:
    row = {}
    # outputs of a detector may differ in shape
    if [tensor.shape for tensor in after.outputs] == [tensor.shape for tensor in before.outputs]:
        difference = _l2_norm([new - old for new, old in zip(after.outputs, before.outputs, strict=True)])
        row["output_error"] = difference / _l2_norm(before.outputs) if difference else 0.0
    row["shift_removed"] = 1 - sum(after.shifts) / sum(before.shifts) if sum(before.shifts) else 0.0
    row["max_remaining"] = max(after.shifts)
    if after.score is not None:
        row["score"] = after.score
    return row


def _l2_norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
