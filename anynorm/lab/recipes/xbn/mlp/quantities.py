"""Quantities and controls of the recipe `xbn_mlp`: errors and estimation shift by third of the batch norms of a network.

Claims about the same runs have the same group: the group is named by the runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from anynorm.lab.recipes.support.claims import RATIO, Larger, Level, Source
from anynorm.lab.recipes.support.controls import Control, Requirement
from anynorm.lab.recipes.support.quantities import Computed, Measured
from anynorm.lab.recipes.xbn.mlp.settings import MOMENTUM, MlpSettings
from anynorm.lab.training.sweep import Row

NEAR_ZERO = 0.1
"""ESM that is called zero; at the start it is about 11, the square root of the number of neurons."""
WHOLE = {name: {"figure": "2, 4", "network": name} for name in ("bn", "gnbn")}
"""The cells of networks that are trained on all test images."""
EXACT_START = "Exact start"
"""The name of running statistics that start from those of the first batch, not from (0, 1)."""
MIN_FITTED, MIN_LEARNED = 95.0, 60.0
"""Training accuracy in % from which a network fits its training set, and from which one with another setting has learned."""


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


def smallest_shift(cell: Mapping[str, Any]) -> Measured:
    """Return the smallest ESM_σ of a batch norm after training."""
    return Measured(lambda row: min(row["esm_std"]), cell)


def largest_early_shift(column: str, cell: Mapping[str, Any], iterations: slice) -> Measured:
    """Return the largest ESM of a batch norm, averaged over iterations."""
    return Measured(lambda row: max(map(statistics.fmean, zip(*row["curves"][column][iterations], strict=True))), cell)


def train_accuracy(row: Row) -> float:
    """Return the training accuracy in %."""
    return 100 - float(row["train_error"])


def variations(settings: MlpSettings) -> dict[str, dict[str, Any]]:
    """Return the cells of BN networks on all test images that differ from `WHOLE` in one setting, by its name."""
    cells: dict[str, dict[str, Any]] = {f"lr {lr:g}": {"figure": "lr", "lr": lr} for lr in settings.lrs}
    cells |= {f"{depth} layers": {"figure": "depth", "depth": depth} for depth in settings.depths}
    cells |= {momentum_name(momentum): {"figure": "momentum", "momentum": momentum} for momentum in settings.momenta}
    return cells | ({EXACT_START: started("bn")} if settings.first_batch_start else {})


def momentum_name(momentum: float = MOMENTUM) -> str:
    """Return the name of the reading of α that a claim tests: torch's momentum, the weight of the newest batch."""
    return f"Momentum {momentum:g}"


def started(network: str) -> dict[str, Any]:
    """Return the cell of a network whose running statistics start from those of the first batch."""
    return {"figure": "start", "network": network}


def grouped(groups: int) -> dict[str, Any]:
    """Return the cell of a GNBN network with another number of groups."""
    return {"figure": "groups", "groups": groups}


def without_norm(settings: MlpSettings, network: str = "none") -> dict[str, Any]:
    """Return the cell of the network without norms in a training with which it fits, or that of BN with the same training.

    Of the trainings of the table, it is the one with the last initialization, the smallest learning rate and the most steps.
    """
    init, lr, iterations = settings.inits[-1], min(settings.no_norm_lrs), max(settings.no_norm_iterations)
    return {"figure": "no norm", "network": network, "init": init, "lr": lr, "iterations": iterations}


def bn_with_its_own_training(settings: MlpSettings) -> dict[str, Any]:
    """Return the cell of BN with the initialization of `without_norm`, and the stated learning rate and number of steps."""
    init, smallest = settings.inits[-1], min(settings.train_sizes)
    return subset("bn", smallest) if init == "default" else {"figure": "initializations", "network": "bn", "init": init}


def controls(settings: MlpSettings) -> list[Control]:
    """Return the controls that the networks of the figures fit, and that those with other settings have learned."""
    if settings.data != "mnist":
        return []
    smallest = min(settings.train_sizes)
    cells = {fits(name): cell for name, cell in WHOLE.items()}
    cells |= {fits(name, size): subset(name, size) for size in settings.train_sizes for name in ("bn", "gnbn")}
    cells |= {fits("none"): subset("none", smallest), fits("none, trained longer"): without_norm(settings)}
    cells |= {fits("bn, init of none"): bn_with_its_own_training(settings)}
    cells |= {fits("bn, trained as none"): without_norm(settings, "bn")} if settings.equal_training else {}
    varied = {fits(name): cell for name, cell in variations(settings).items()}
    varied |= {fits(f"gnbn, {groups} groups"): grouped(groups) for groups in settings.groups}
    varied |= {fits(f"gnbn, {EXACT_START}"): started("gnbn")} if settings.first_batch_start else {}
    return [
        Requirement(name, Measured(train_accuracy, cell), at_least)
        for at_least, named in ((MIN_FITTED, cells), (MIN_LEARNED, varied))
        for name, cell in named.items()
    ]


def fits(network: str, size: int | None = None) -> str:
    """Return the name of the control that a network fits its training set."""
    return f"training accuracy (%) of {network}" + (f", |S| = {size}" if size else "")


def required(settings: MlpSettings, *names: str) -> tuple[str, ...]:
    """Return the names of controls that a claim requires; none if the settings have no controls."""
    return names if settings.data == "mnist" else ()


def deeper(
    source: Source,
    setting: str,
    sides: tuple[Measured, Measured, Measured],
    group: str,
    *,
    symbol: str = "ESM_σ",
    requires: tuple[str, ...] = (),
) -> Iterator[Larger]:
    """Yield the claims that ESM is larger in the middle and in the last third of the layers than in the first.

    Args:
        source: where it is claimed.
        setting: the network, with which the statement begins.
        sides: the ESM of the first, the middle and the last third.
        group: see `Larger`.
        symbol: the quantity.
        requires: see `Larger`.
    """
    for name, side in (("middle", sides[1]), ("last", sides[2])):
        yield Larger(
            statement=f"{setting}: {symbol} of the {name} third exceeds the first third's",
            source=source,
            larger=side,
            smaller=sides[0],
            scale=RATIO,
            level=Level.LAYER,
            group=group,
            requires=requires,
        )


def thirds(column: str, cell: Mapping[str, Any], iterations: slice) -> tuple[Measured, Measured, Measured]:
    """Return the ESM of the first, the middle and the last third of the batch norms; see `shift_of`."""
    return tuple(shift_of(column, cell, third, iterations) for third in range(3))  # type: ignore[return-value]
