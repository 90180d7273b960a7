"""The number of groups G of BGN, chosen on validation data.

The paper chooses G by a sweep (Table 1). In a recipe whose settings have `groups` with candidates, a norm whose spec is `bgn`
without a number gets its G in this way: networks with every candidate are trained with pilot seeds on a part of the training
images, tested on the rest of them, and the G with the largest mean accuracy is used for the measured seeds. The test images have
no part in the choice. The run store keeps the runs of the sweep, so that all cells that differ only in the seed share them; their
rows have G and the accuracies of the sweep. Without candidates, `bgn` has the G of the paper's rule for the batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from anynorm.errors import DataError
from anynorm.lab.recipes.support.recipe import FIRST_PILOT_SEED
from anynorm.lab.training.sweep import Measurement

CANDIDATES = (256, 64, 16, 4, 1)
"""The numbers of groups of the sweep "auto"."""


@dataclass(frozen=True)
class GroupSweep:
    """The sweep that chooses G.

    Args:
        candidates: numbers of groups; empty for no sweep.
        seeds: number of pilot seeds per candidate.

    Raises:
        DataError: if a candidate or the number of seeds is not positive, or a candidate is repeated.
    """

    candidates: tuple[int, ...] = ()
    seeds: int = 2

    def __post_init__(self) -> None:
        if min((*self.candidates, self.seeds)) < 1 or len(set(self.candidates)) < len(self.candidates):
            raise DataError(
                "a sweep of the number of groups must have different candidates and at least 1 seed, all positive; "
                f"got candidates {self.candidates} and {self.seeds} seeds."
            )

    @classmethod
    def from_text(cls, text: str) -> GroupSweep:
        """Return the sweep for a text of the command line.

        Args:
            text: "auto" for `CANDIDATES`, or numbers of groups such as "64,16,4".

        Raises:
            DataError: if the text is something else.

        >>> GroupSweep.from_text("auto"), GroupSweep.from_text("64,16").candidates
        (GroupSweep(candidates=(256, 64, 16, 4, 1), seeds=2), (64, 16))
        """
        if text.strip() == "auto":
            return cls(CANDIDATES)
        numbers = [number.strip() for number in text.split(",")]
        if not all(number.isdecimal() for number in numbers):
            raise DataError(f"groups must be auto, or numbers of groups such as 64,16,4; got {text!r}.")
        return cls(tuple(map(int, numbers)))

    def chooses(self, norm: str) -> bool:
        """Whether the sweep chooses the G of a norm: of `bgn` without a number, also with a suffix.

        >>> [GroupSweep((4, 1)).chooses(norm) for norm in ("bgn", "bgn.aux@2", "bgn:16", "bn")], GroupSweep().chooses("bgn")
        ([True, True, False, False], False)
        """
        return bool(self.candidates) and norm.partition(".")[0] == "bgn"


def with_groups(norm: str, groups: int) -> str:
    """Return the spec of a norm without a number of groups, with this number.

    >>> with_groups("bgn.aux@2", 16)
    'bgn:16.aux@2'
    """
    name, dot, suffix = norm.partition(".")
    return f"{name}:{groups}{dot}{suffix}"


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


def choose_groups(sweep: GroupSweep, accuracy: Callable[[int, int], float | None]) -> ChosenGroups:
    """Return the number of groups with the largest validation accuracy.

    Args:
        sweep: the candidates.
        accuracy: a function of G and a pilot seed that trains a network and returns its validation accuracy in %; None if the
            run failed.

    Raises:
        DataError: if a run of every candidate failed.

    >>> choose_groups(GroupSweep((16, 4, 1)), lambda groups, seed: {16: 50.0, 4: 60.0, 1: None}[groups]).columns
    {'groups': 4, 'group_sweep': {'16': 50.0, '4': 60.0, '1': None}}
    """
    accuracies: dict[int, float | None] = {}
    for groups in sweep.candidates:
        values = [accuracy(groups, FIRST_PILOT_SEED + k) for k in range(sweep.seeds)]
        known = [value for value in values if value is not None]
        accuracies[groups] = round(fmean(known), 3) if len(known) == len(values) else None
    successful = {groups: value for groups, value in accuracies.items() if value is not None}
    if not successful:
        raise DataError(f"a run failed for every number of groups of the sweep: {', '.join(map(str, sweep.candidates))}.")
    return ChosenGroups(max(successful, key=successful.__getitem__), accuracies)
