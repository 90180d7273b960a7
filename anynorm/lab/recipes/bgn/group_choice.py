"""The number of groups G of BGN, chosen on validation data.

The paper chooses G by a sweep (Table 1). A norm of a recipe may be `bgn:auto`: then networks with every candidate G are trained
with pilot seeds on a part of the training images, tested on the rest of them, and the G with the largest mean accuracy is used
for the measured seeds. The test images have no part in the choice. The run store keeps the runs of the sweep, so that all cells
that differ only in the seed share them; their rows have G and the accuracies of the sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from anynorm.errors import DataError
from anynorm.lab.data.datasets import Split, load_in_memory, split_at_random
from anynorm.lab.recipes.support.recipe import FIRST_PILOT_SEED
from anynorm.lab.training.sweep import Measurement

AUTO = "auto"
"""What stands for the number of groups in the spec of a norm whose G is chosen: `bgn:auto`."""


@dataclass(frozen=True)
class GroupSweep:
    """The sweep that chooses G.

    Args:
        candidates: numbers of groups; empty if no norm has `auto`.
        seeds: number of pilot seeds per candidate.
    """

    candidates: tuple[int, ...] = ()
    seeds: int = 2


class ChosenGroups(NamedTuple):
    """The result of a sweep.

    Attributes:
        groups: the chosen number of groups.
        accuracies: mean validation accuracy in % of each candidate; None if a run failed.
    """

    groups: int
    accuracies: dict[int, float | None]

    @property
    def columns(self) -> Measurement:
        """The columns of a row."""
        return {"groups": self.groups, "group_sweep": {str(groups): value for groups, value in self.accuracies.items()}}

    def spec(self, norm: str) -> str:
        """Return the spec of a norm with the chosen number of groups."""
        return norm.replace(AUTO, str(self.groups))


def choose_groups(sweep: GroupSweep, accuracy: Callable[[int, int], float | None]) -> ChosenGroups:
    """Return the number of groups with the largest validation accuracy.

    Args:
        sweep: the candidates.
        accuracy: a function of G and a pilot seed that trains a network and returns its validation accuracy in %; None if the
            run failed.

    Raises:
        DataError: if there are no candidates, or a run of every candidate failed.

    >>> choose_groups(GroupSweep((16, 4, 1)), lambda groups, seed: {16: 50.0, 4: 60.0, 1: None}[groups]).columns
    {'groups': 4, 'group_sweep': {'16': 50.0, '4': 60.0, '1': None}}
    """
    if not sweep.candidates:
        raise DataError("a norm with the number of groups `auto` needs candidates; got none in the settings `groups`.")
    accuracies: dict[int, float | None] = {}
    for groups in sweep.candidates:
        values = [accuracy(groups, FIRST_PILOT_SEED + k) for k in range(sweep.seeds)]
        known = [value for value in values if value is not None]
        accuracies[groups] = round(fmean(known), 3) if len(known) == len(values) else None
    successful = {groups: value for groups, value in accuracies.items() if value is not None}
    if not successful:
        raise DataError(f"a run failed for every number of groups of the sweep: {', '.join(map(str, sweep.candidates))}.")
    return ChosenGroups(max(successful, key=successful.__getitem__), accuracies)


# Validation data ----------------------------------------------------------------------------------------------------------------


def digits() -> tuple[Split, Split]:
    """Return the training images of digits, divided into training and validation images."""
    return _hold_out("digits")


def digits_faded() -> tuple[Split, Split]:
    """Return the training images of faded digits, divided into training and validation images."""
    return _hold_out("digits-faded")


def cifar10_16() -> tuple[Split, Split]:
    """Return the training images of CIFAR-10 at 16 × 16 pixels, divided into training and validation images."""
    return _hold_out("cifar10@16")


def mnist_16() -> tuple[Split, Split]:
    """Return the training images of MNIST at 16 × 16 pixels, divided into training and validation images."""
    return _hold_out("mnist@16")


VALIDATION = {
    "digits": f"{__name__}:digits",
    "digits-faded": f"{__name__}:digits_faded",
    "cifar10@16": f"{__name__}:cifar10_16",
    "mnist@16": f"{__name__}:mnist_16",
    "omniglot": "omniglot-validation",
    "miniimagenet": "miniimagenet-validation",
}
"""`Config.data` of validation data, by `Config.data`."""


def validation_data(data: str) -> str:
    """Return the name of the validation data of a data set.

    Raises:
        DataError: if the data set has none.
    """
    if data not in VALIDATION:
        raise DataError(f"{data!r} has no validation data for the choice of G. Usable: {' '.join(VALIDATION)}.")
    return VALIDATION[data]


def _hold_out(name: str) -> tuple[Split, Split]:
    return split_at_random(*load_in_memory(name).train)
