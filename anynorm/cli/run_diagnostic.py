"""The diagnostics of `anynorm diagnose --what NAME`: calls of `anynorm.diagnostics` with a model and batches.

This module is separate from `diagnose.py`, which must not import torch before a command runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics import (
    Target,
    adaptation,
    batch_fluctuation,
    estimation_shift,
    gradient_balance,
    importance,
    perturbation_curve,
)
from anynorm.diagnostics.corruptions import corruption_targets
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.diagnostics.scores import accuracy, agreement
from anynorm.errors import AnynormError, DiagnosticError, did_you_mean
from anynorm.surgery.batches import call
from anynorm.surgery.modes import eval_mode

SAMPLES_PER_CLASS = 8
"""Number of samples of each class per draw of `gradient_balance`."""


@dataclass
class DiagnoseArgs:
    """Arguments of a diagnostic.

    Args:
        batches: iterator over batches; None without --data.
        num_batches: number of batches to use; None for all.
        trial_samples: as in `estimation_shift`.
        deltas, per, seeds: as in `perturbation_curve`.
        unlabeled: batches from which `adaptation` estimates statistics; None to estimate them from `batches`.
        source_weight: as in `adaptation`.
        corruptions, severities, mean, std: as in `corruption_targets`.
    """

    model: nn.Module
    batches: Iterator[Any] | None
    where: list[str] | None = None
    num_batches: int | None = None
    trial_samples: int = 256
    deltas: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5)
    per: str = "layer"
    seeds: int = 5
    unlabeled: Iterator[Any] | None = None
    source_weight: float = 0.5
    corruptions: Sequence[str] = ()
    severities: Sequence[int] = (1, 3, 5)
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)

    def data(self) -> Iterator[Any]:
        """Return the batches.

        Raises:
            DiagnosticError: if --data was not given.
        """
        if self.batches is None:
            raise DiagnosticError("This diagnostic needs data: pass --data.")
        return islice(self.batches, self.num_batches)

    def has_labels(self) -> bool:
        """Whether the first batch is (x, integer labels)."""
        if self.batches is None:
            return False
        first = list(islice(self.batches, 1))
        self.batches = chain(first, self.batches)
        batch: Any = first[0] if first else None
        labels = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
        return isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()


def run_diagnostic(what: str, args: DiagnoseArgs) -> DiagnosticReport:
    """Run a diagnostic by name.

    Raises:
        DiagnosticError: if the name is unknown or the model fails on the data.
    """
    if what not in DIAGNOSTICS:
        hint = did_you_mean(what, DIAGNOSTICS)
        raise DiagnosticError(f"--what must be one of {' '.join(DIAGNOSTICS)}; got {what!r}.{hint}")
    try:
        return DIAGNOSTICS[what](args)
    except AnynormError:
        raise
    except Exception as error:  # the user's model or loader may raise anything
        raise DiagnosticError(f"The model cannot be run on this data: {type(error).__name__}: {error}.") from error


def _estimation_shift(args: DiagnoseArgs) -> DiagnosticReport:
    score = accuracy if args.has_labels() else None
    return estimation_shift(args.model, args.data(), where=args.where, trial_samples=args.trial_samples, score=score)


def _perturbation(args: DiagnoseArgs) -> DiagnosticReport:
    """Run `perturbation_curve`; the score is the accuracy, or the agreement with the unperturbed model without labels."""
    has_labels = args.has_labels()
    batches = list(args.data())
    if not batches:
        raise DiagnosticError("--data must have at least one batch; got none.")

    def outputs(model: nn.Module) -> list[Tensor]:
        return [call(model, batch) for batch in batches]

    with eval_mode(args.model):
        unperturbed = outputs(args.model)
    if not all(isinstance(y, Tensor) and y.dim() == 2 for y in unperturbed):
        raise DiagnosticError(
            "The model must return a tensor (n, classes) to be scored. In Python, perturbation_curve takes any score."
        )

    def score(model: nn.Module) -> float:
        pairs = zip(outputs(model), batches if has_labels else unperturbed, strict=True)
        scores = [(accuracy(y, target) if has_labels else agreement(target, y), len(y)) for y, target in pairs]
        return sum((value or 0.0) * size for value, size in scores) / sum(size for _, size in scores)

    report = perturbation_curve(args.model, score, (0.0, *args.deltas), args.where, per=args.per, seeds=args.seeds)
    name = "accuracy" if has_labels else "agreement with the unperturbed model"
    report.finding = f"The score is {name} in percent. {report.finding}"
    return report


def _gradient_balance(args: DiagnoseArgs) -> DiagnosticReport:
    """Run `gradient_balance` with the cross entropy of a classifier, on draws with a few samples of each class."""
    if not args.has_labels():
        raise DiagnosticError("Gradients are compared between classes: --data must have integer labels beside x.")
    pairs = [(batch[0], batch[1]) for batch in args.data()]
    x, labels = (torch.cat(list(entries)) for entries in zip(*pairs, strict=True))
    by_class = {label: x[labels == label] for label in sorted(set(labels.tolist()))}
    smallest = min(len(samples) for samples in by_class.values())
    size = min(SAMPLES_PER_CLASS, smallest)
    starts = range(0, smallest - size + 1, size)
    draws = [{label: samples[start : start + size] for label, samples in by_class.items()} for start in starts]

    def loss(model: nn.Module, batch: Tensor, label: int) -> Tensor:
        y = model(batch)
        if not isinstance(y, Tensor) or y.dim() != 2 or y.shape[1] <= max(by_class):
            got = f"a tensor {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
            raise DiagnosticError(f"The model must return a tensor (n, {max(by_class) + 1} classes) for these labels; got {got}.")
        return nn.functional.cross_entropy(y, torch.full((len(batch),), label))

    return gradient_balance(args.model, draws, loss, where=args.where)


def _adaptation(args: DiagnoseArgs) -> DiagnosticReport:
    """Run `adaptation` on the data or on corrupted data; without --unlabeled, statistics come from the test images themselves."""
    if not args.has_labels():
        raise DiagnosticError(
            "Accuracy needs labels: --data must have integer labels beside x. --unlabeled takes data without them."
        )
    labeled = list(args.data())
    unlabeled = None if args.unlabeled is None else list(args.unlabeled)
    if args.corruptions:
        options: dict[str, Any] = {"mean": args.mean, "std": args.std, "corruptions": args.corruptions}
        targets = corruption_targets(labeled, unlabeled, severities=args.severities, **options)
    else:
        targets = iter([Target("--data", [batch[0] for batch in labeled] if unlabeled is None else unlabeled, labeled)])
    report = adaptation(args.model, targets, source_weight=args.source_weight)
    if unlabeled is None:
        report.finding += (
            " Statistics were estimated from the test images themselves (without labels): pass --unlabeled for others."
        )
    return report


DIAGNOSTICS: dict[str, Callable[[DiagnoseArgs], DiagnosticReport]] = {
    "shift": _estimation_shift,
    "importance": lambda args: importance(args.model, where=args.where),
    "perturb": _perturbation,
    "fluctuation": lambda args: batch_fluctuation(args.model, args.data(), where=args.where),
    "gradients": _gradient_balance,
    "adaptation": _adaptation,
}
