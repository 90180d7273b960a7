"""Quantities and controls of the recipe `xbn_mlp`: errors and estimation shift by third of the batch norms of a network."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from anynorm.lab.recipes.support.claims import RATIO, Larger, Level, Source
from anynorm.lab.recipes.support.controls import Control, Requirement
from anynorm.lab.recipes.support.quantities import Computed, Measured
from anynorm.lab.recipes.xbn.mlp_results import MlpSettings
from anynorm.lab.training.sweep import Row

NEAR_ZERO = 0.1
"""ESM that is called zero; at the start it is about 11, the square root of the number of neurons."""
WHOLE = {name: {"figure": "2, 4", "network": name} for name in ("bn", "gnbn")}


def subset(network: str, size: int) -> dict[str, Any]:
    """Return the cell of a network that was trained on a subset of the test set."""
    return {"figure": "3, 5", "network": network, "train_size": size}


def error_gap(cell: Mapping[str, Any], iterations: slice) -> Measured:
    """Return the mean of test error − training error over iterations, in points."""

    def gap(row: Row) -> float:
        curves = row["curves"]
        pairs = zip(curves["train_error"][iterations], curves["test_error"][iterations], strict=True)
        return statistics.fmean(test - train for train, test in pairs)

    return Measured(gap, cell)


def third_of(profile: list[float], third: int) -> list[float]:
    """Return the first (0), middle (1) or last (2) third of the batch norms of a network.

    >>> [third_of(list(range(10)), third) for third in (0, 1, 2)]
    [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9]]
    """
    size = len(profile) // 3
    return (profile[:size], profile[size:-size], profile[-size:])[third]


def shift_of(column: str, cell: Mapping[str, Any], third: int, iterations: slice) -> Measured:
    """Return the ESM of a third of the batch norms, averaged over layers and iterations."""

    def shift(row: Row) -> float:
        return statistics.fmean(statistics.fmean(third_of(profile, third)) for profile in row["curves"][column][iterations])

    return Measured(shift, cell)


def final_shift(cell: Mapping[str, Any], third: int | None = None, column: str = "esm_std") -> Measured:
    """Return the ESM after training, averaged over a third of the batch norms, or over all of them."""
    return Measured(lambda row: statistics.fmean(row[column] if third is None else third_of(row[column], third)), cell)


def windowed_shift(cell: Mapping[str, Any], iterations: slice) -> Measured:
    """Return ESM_σ averaged over all batch norms and over iterations."""
    return Measured(lambda row: statistics.fmean(map(statistics.fmean, row["curves"]["esm_std"][iterations])), cell)


def growth_of(cell: Mapping[str, Any]) -> Computed:
    """Return ESM_σ after training of the last third of the batch norms ÷ that of the first third."""
    return Computed(lambda last, first: last / first, (final_shift(cell, 2), final_shift(cell, 0)))


def train_accuracy(row: Row) -> float:
    """Return the training accuracy in %."""
    return 100 - float(row["train_error"])


def controls(settings: MlpSettings) -> list[Control]:
    """Return the controls that networks fit their training set."""
    if settings.data != "mnist":
        return []
    cells = {fits(name): cell for name, cell in WHOLE.items()}
    cells |= {fits(name, size): subset(name, size) for size in settings.train_sizes for name in ("bn", "gnbn")}
    result = [Requirement(name, Measured(train_accuracy, cell), 95.0) for name, cell in cells.items()]
    for name, cell in (("as stated", subset("none", min(settings.train_sizes))), ("as trained", trained_without_norm(settings))):
        result.append(Requirement(fits(f"none, {name}"), Measured(train_accuracy, cell), 50.0))
    return [*result]


def fits(network: str, size: int | None = None) -> str:
    """Return the name of the control that a network fits its training set."""
    return f"training accuracy (%) of {network}" + (f", |S| = {size}" if size else "")


def required(settings: MlpSettings, *names: str) -> tuple[str, ...]:
    """Return the names of controls that a claim requires; none if the settings have no controls."""
    return names if settings.data == "mnist" else ()


def trained_without_norm(settings: MlpSettings) -> dict[str, Any]:
    """Return the cell of a network without norms that trains: one of those of the table, chosen for that."""
    init, lr, iterations = settings.inits[-1], min(settings.no_norm_lrs), max(settings.no_norm_iterations)
    return {"figure": "no norm", "init": init, "lr": lr, "iterations": iterations}


def deeper(source: Source, symbol: str, sides: tuple[Measured, Measured, Measured], where: str, group: str) -> Iterator[Larger]:
    """Yield the claims that ESM is larger in the middle and in the last third of the layers than in the first."""
    for name, side in (("middle", sides[1]), ("last", sides[2])):
        yield Larger(
            statement=f"{symbol} is larger in the {name} third of the layers than in the first ({where})",
            source=source,
            larger=side,
            smaller=sides[0],
            scale=RATIO,
            level=Level.LAYER,
            group=group,
        )


def thirds(column: str, cell: Mapping[str, Any], iterations: slice) -> tuple[Measured, Measured, Measured]:
    """Return the ESM of the first, the middle and the last third of the batch norms; see `shift_of`."""
    return tuple(shift_of(column, cell, third, iterations) for third in range(3))  # type: ignore[return-value]
