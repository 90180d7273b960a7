"""What the shift of one norm does alone: its statistics are put right for a moment, all others left as they are.

output_error    ‖y′ − y‖₂ / ‖y‖₂ of the model's output y
cures           the part of the shift of all norms that is gone: 1 − Σ shift′ / Σ shift
left            the largest shift that is left in the model
score           what a score of the output becomes
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.buffers import swap_buffers
from anynorm.diagnostics.esm import compute, expected_statistics, measure
from anynorm.diagnostics.statistics import Tally, samples_of, tensors_in
from anynorm.progress import track
from anynorm.surgery.batches import Forward

Score = Callable[[Any, Any], float | None]


@dataclass
class Trial:
    """Runs a model on a few batches.

    Args:
        score: of (output, batch); None where there is none.
    """

    model: nn.Module
    batches: list[Any]
    forward: Forward
    score: Score | None

    def run(self, tallies: list[Tally]) -> tuple[list[Tensor], list[float], float | None]:
        """Give the outputs, the shift of each norm, and the score."""
        outputs: list[Tensor] = []
        scores: list[tuple[float, int]] = []

        def keep(model: nn.Module, batch: Any) -> None:
            given = copy.deepcopy(batch)  # a model may write into its input
            output = self.forward(model, given)
            outputs.extend(tensor.detach().clone() for tensor in tensors_in(output) if tensor.is_floating_point())
            score = None if self.score is None else self.score(output, batch)
            if score is not None:
                scores.append((float(score), samples_of(batch) or 1))

        found = measure(self.model, {tally.site: tally.slots for tally in tallies}, self.batches, keep)
        total = sum(size for _, size in scores)
        score = sum(value * size for value, size in scores) / total if total else None
        return outputs, [compute(tally)["shift"] for tally in found.tallies], score

    def put_right_each(self, rows: list[dict[str, Any]], tallies: list[Tally]) -> float | None:
        """Write into each row what putting its norm right alone does; give the score of the model as it is."""
        before, shifts, base = self.run(tallies)
        for row, tally in track(list(zip(rows, tallies, strict=True)), "putting right"):
            with swap_buffers(expected_statistics(tally)):
                after, left, score = self.run(tallies)
            if [new.shape for new in after] == [old.shape for old in before]:  # as those of a detector need not be
                difference = _size([new - old for new, old in zip(after, before, strict=True)])
                row["output_error"] = difference / _size(before) if difference else 0.0
            row["cures"] = 1 - sum(left) / sum(shifts) if sum(shifts) else 0.0
            row["left"] = max(left)
            if score is not None:
                row["score"] = score
        return base


def _size(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def accuracy(output: Any, batch: Any) -> float | None:
    """Score outputs (n, classes) by the labels of batches (x, labels): the percentage of the largest that are right.

    None where the output is something else.
    """
    labels: Tensor = batch[1]
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(labels):
        return None
    return 100 * float((output.argmax(1) == labels.to(output.device)).double().mean())


def agreement(reference: Tensor, output: Tensor) -> float:
    """Give the percentage of outputs (n, classes) whose largest is that of a reference."""
    return 100 * float((torch.argmax(output, 1) == torch.argmax(reference, 1)).double().mean())
