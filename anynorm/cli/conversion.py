"""The route of `anynorm convert`: convert, fit, distill, fold."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anynorm
from anynorm.errors import SpecError

FIT_SAMPLES = 512


@dataclass(frozen=True)
class Route:
    """The options of `anynorm convert` after the conversion; see its help.

    Raises:
        SpecError: if options of --distill are given without it, or --fold without inputs.
    """

    fit: str | None
    distill: str | None
    steps: int | None
    minutes: float | None
    resume: Path | None
    fold: bool

    def __post_init__(self) -> None:
        options = {"--steps": self.steps, "--minutes": self.minutes, "--resume": self.resume}
        given = [name for name, value in options.items() if value is not None]
        if given and self.distill is None:
            raise SpecError(f"{given[0]} is an option of --distill; pass --distill with inputs too.")
        if self.fold and self.distill is None and self.fit is None:
            raise SpecError("--fold runs the model on an example; pass inputs by --distill or --fit.")

    def run(self, model: Any, spec: str, where: list[str] | None, **options: Any) -> dict[str, Any]:
        """Change a model, and return the report of each operation by its name."""
        from anynorm.io.inputs import read_batches, read_first_batch
        from anynorm.surgery.batches import call

        samples = None if self.distill is None else list(read_batches(self.distill))
        fit = None if self.fit is None else list(read_batches(self.fit))
        original = copy.deepcopy(model) if samples is not None else None
        if fit is None and samples is not None:
            fit = _first(samples)
        reports = {"convert": anynorm.convert(model, spec, where, fit=fit, **options)}
        model = reports["convert"].model
        if original is not None:
            reports["distill"] = anynorm.distill(
                model, original, samples, steps=self.steps, minutes=self.minutes, checkpoint=self.resume
            )
        if self.fold:
            example = read_first_batch(str(self.distill or self.fit))
            reports["fold"] = anynorm.fold(model, example, forward=call)
        return reports


def _first(batches: list[Any]) -> list[Any]:
    """Return the first batches, with at least `FIT_SAMPLES` samples if there are as many."""
    from anynorm.surgery.batches import size_of

    count, chosen = 0, []
    for batch in batches:
        chosen.append(batch)
        count += size_of(batch)
        if count >= FIT_SAMPLES:
            break
    return chosen
