"""What the shift of one norm does alone: its statistics are put right for a moment, all others left as they are.

output_error    ‖y′ − y‖₂ / ‖y‖₂ of the model's output y
cures           the part of the shift of all norms that is gone: 1 − Σ shift′ / Σ shift
score           what a score of the output becomes
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.esm import compute, expected_statistics, measure
from anynorm.diagnostics.observe import changing
from anynorm.diagnostics.statistics import Tally, usable_size
from anynorm.progress import shown
from anynorm.surgery.batches import Forward

Score = Callable[[Any, Any], float]


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

    def run(self, tallies: list[Tally]) -> tuple[list[Tensor], float, float | None]:
        """Give the outputs, the shift of all norms together, and the score."""
        outputs: list[Tensor] = []
        scores: list[float] = []

        def keep(model: nn.Module, batch: Any) -> None:
            output = self.forward(model, batch)
            outputs.extend(_tensors(output))
            if self.score is not None:
                scores.append(float(self.score(output, batch)) * usable_size(batch))

        found, samples, _ = measure(self.model, [tally.site for tally in tallies], self.batches, keep)
        shift = sum(compute(tally)["shift"] for tally in found)
        return outputs, shift, sum(scores) / samples if scores else None

    def put_right_each(self, rows: list[dict[str, Any]], tallies: list[Tally]) -> float | None:
        """Write into each row what putting its norm right alone does; give the score of the model as it is."""
        before, shift, base = self.run(tallies)
        size = _size(before)
        for row, tally in shown(list(zip(rows, tallies, strict=True)), "putting right"):
            with changing(expected_statistics(tally)):
                after, left, score = self.run(tallies)
            difference = _size([new - old for new, old in zip(after, before, strict=True)])
            row["output_error"] = difference / size if size else 0.0
            row["cures"] = 1 - left / shift if shift else 0.0
            if score is not None:
                row["score"] = score
        return base


def _size(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def _tensors(output: Any) -> list[Tensor]:
    """Give the floating-point tensors of an output, whatever holds them."""
    if isinstance(output, Tensor):
        return [output.detach().clone()] if output.is_floating_point() else []
    entries = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return [tensor for entry in entries for tensor in _tensors(entry)]


def accuracy(output: Tensor, batch: Any) -> float:
    """Score outputs (n, classes) by the labels of batches (x, labels): the percentage of the largest that are right."""
    labels: Tensor = batch[1]
    return 100 * float((output.argmax(1) == labels.to(output.device)).double().mean())


def agreement(reference: Tensor, output: Tensor) -> float:
    """Give the percentage of outputs (n, classes) whose largest is that of a reference."""
    return 100 * float((torch.argmax(output, 1) == torch.argmax(reference, 1)).double().mean())
