"""The questions that can be asked from a command line, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.ablation import accuracy, agreement
from anynorm.diagnostics.estimation_shift import estimation_shift
from anynorm.diagnostics.fluctuation import batch_fluctuation
from anynorm.diagnostics.gradient_balance import gradient_balance
from anynorm.diagnostics.importance import importance
from anynorm.diagnostics.observe import eval_mode
from anynorm.diagnostics.perturb import perturbation_curve
from anynorm.diagnostics.report import Report
from anynorm.errors import AnynormError, DiagnosticError
from anynorm.surgery.batches import call

PER_CLASS = 8
"""Samples of each class in a draw of gradients."""


@dataclass
class DiagnoseArgs:
    """A model, the batches it is asked about (None where there are none), and options of single questions."""

    model: nn.Module
    given: Iterator[Any] | None
    where: list[str] | None = None
    batches: int | None = None
    deltas: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5)
    per: str = "layer"
    seeds: int = 5

    def data(self) -> Iterator[Any]:
        """Give the batches, or say that they are needed."""
        if self.given is None:
            raise DiagnosticError("This question is about data: give --data.")
        return islice(self.given, self.batches)

    def is_labelled(self) -> bool:
        """Whether batches are (x, labels); the first is looked at, and given again."""
        if self.given is None:
            return False
        first = list(islice(self.given, 1))
        self.given = chain(first, self.given)
        batch: Any = first[0] if first else None
        labels = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
        return isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()


def run_diagnostic(what: str, asked: DiagnoseArgs) -> Report:
    """Answer a question by its name."""
    if what not in QUESTIONS:
        near = difflib.get_close_matches(what, QUESTIONS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DiagnosticError(f"There is no question {what!r}. Known: {' '.join(QUESTIONS)}.{hint}")
    try:
        return QUESTIONS[what](asked)
    except AnynormError:
        raise
    except Exception as error:  # whatever somebody's model or loader raises
        raise DiagnosticError(f"The model cannot be run on this data: {type(error).__name__}: {error}.") from error


def _shift(asked: DiagnoseArgs) -> Report:
    score = accuracy if asked.is_labelled() else None
    return estimation_shift(asked.model, asked.data(), where=asked.where, score=score)


def _perturb(asked: DiagnoseArgs) -> Report:
    labelled = asked.is_labelled()
    batches = list(asked.data())
    if not batches:
        raise DiagnosticError("The data holds no batch.")

    def outputs(model: nn.Module) -> list[Tensor]:
        return [call(model, batch) for batch in batches]

    with eval_mode(asked.model):
        undisturbed = outputs(asked.model)
    if not all(isinstance(y, Tensor) and y.dim() == 2 for y in undisturbed):
        raise DiagnosticError("The model gives no (n, classes) to be scored; in Python, perturbation_curve takes any score.")

    def score(model: nn.Module) -> float:
        against = zip(outputs(model), batches if labelled else undisturbed, strict=True)
        scores = [(accuracy(y, other) if labelled else agreement(other, y), len(y)) for y, other in against]
        return sum((value or 0.0) * size for value, size in scores) / sum(size for _, size in scores)

    report = perturbation_curve(asked.model, score, (0.0, *asked.deltas), asked.where, per=asked.per, seeds=asked.seeds)
    report.finding += f" The score is {'accuracy' if labelled else 'agreement with the undisturbed model'} in percent."
    return report


def _gradients(asked: DiagnoseArgs) -> Report:
    """Take a classifier's cross entropy on draws of a few samples of each class."""
    if not asked.is_labelled():
        raise DiagnosticError("Gradients are compared between classes: --data must hold labels, as whole numbers, beside x.")
    pairs = [(batch[0], batch[1]) for batch in asked.data()]
    x, labels = (torch.cat(list(entries)) for entries in zip(*pairs, strict=True))
    by_class = {label: x[labels == label] for label in sorted(set(labels.tolist()))}
    fewest = min(len(rows) for rows in by_class.values())
    size = min(PER_CLASS, fewest)
    draws = [{label: rows[k : k + size] for label, rows in by_class.items()} for k in range(0, fewest - size + 1, size)]

    def loss(model: nn.Module, batch: Tensor, label: int) -> Tensor:
        y = model(batch)
        if not isinstance(y, Tensor) or y.dim() != 2 or y.shape[1] <= max(by_class):
            raise DiagnosticError(f"The model gives no (n, {max(by_class) + 1} classes), as the labels would want.")
        return nn.functional.cross_entropy(y, torch.full((len(batch),), label))

    return gradient_balance(asked.model, draws, loss, where=asked.where)


QUESTIONS: dict[str, Callable[[DiagnoseArgs], Report]] = {
    "shift": _shift,
    "importance": lambda asked: importance(asked.model, where=asked.where),
    "perturb": _perturb,
    "fluctuation": lambda asked: batch_fluctuation(asked.model, asked.data(), where=asked.where),
    "gradients": _gradients,
}
