"""A norm as a value: cuts for the mean × cuts for the variance × weights × domains × affine.

Two norms are the same when their parts are equal, whatever they are called: hn:32 is bn/en:32.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, NamedTuple

from anynorm.core.affine import PerChannel, PerClass, Stage, Style
from anynorm.core.cut import ALL, Cut, JointCut
from anynorm.core.mix import Hard, Soft, Weighing, check_groups
from anynorm.errors import SpecError

AnyCut = Cut | JointCut


def check_features(num_features: Any, spec: object) -> int:
    """Refuse what is no channel count."""
    if isinstance(num_features, bool) or not isinstance(num_features, Integral) or num_features < 1:
        raise SpecError(f"{spec} needs a channel count of at least 1; num_features={num_features!r} came.")
    return int(num_features)


@dataclass(frozen=True)
class Ending:
    """What may follow the cuts in a spec: the affine, and whether each domain has statistics of its own."""

    affine: tuple[Stage, ...]
    domains: int = 0


def endings(classes: int) -> dict[str, Ending]:
    """Name every ending; `classes` fills those that are written with @."""
    shared, own, whole = PerChannel(), PerClass(classes), PerClass(classes, deviation=0.0)
    return {
        "": Ending((shared,)),
        "none": Ending(()),
        "cc": Ending((own,)),
        "sa": Ending((shared, own)),
        "style": Ending((Style(),)),
        "sastyle": Ending((shared, Style())),
        "dom": Ending((shared,), classes),
        "domnone": Ending((), classes),
        "aux": Ending((whole,), classes),
        "saaux": Ending((shared, own), classes),
    }


@dataclass(frozen=True)
class Foreign:
    """What a norm beyond the algebra adds to its parts: the row whose class knows, as it is written.

    Args:
        sets: how many sets of statistics it keeps, where no condition chooses among them.
    """

    row: str
    text: str
    sets: int = 0


class Fitted(NamedTuple):
    """The different cuts of a norm for some channel count, and which of them the mean and the variance use."""

    cuts: tuple[Cut, ...]
    mean: tuple[int, ...]
    var: tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """What a norm is made of.

    Args:
        foreign: what no cut, weighing or affine says; None within the algebra.
        name: what the zoo calls it; it takes no part in equality.

    `classes` says how many classes or domains a condition chooses among, `takes_style` whether it is a style.
    """

    mean: tuple[AnyCut, ...]
    var: tuple[AnyCut, ...]
    weighing: Weighing = Soft()
    ending: Ending = Ending((PerChannel(),))
    foreign: Foreign | None = None
    name: str = field(default="", compare=False)
    classes: int = field(init=False, repr=False, compare=False)
    takes_style: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out what is asked in every pass."""
        classes = [stage.classes for stage in self.ending.affine if isinstance(stage, PerClass)]
        object.__setattr__(self, "classes", max([self.ending.domains, *classes]))
        object.__setattr__(self, "takes_style", any(isinstance(stage, Style) for stage in self.ending.affine))

    def __str__(self) -> str:
        return self.name or self.spelled()

    def spelled(self) -> str:
        """Write the spec out in cuts and endings.

        >>> import anynorm.spec
        >>> anynorm.spec.parse("hn:32").spelled()
        'bn/en:32'
        """
        mean, var = ("+".join(map(str, cuts)) for cuts in (self.mean, self.var))
        text = mean if self.mean == self.var else f"{mean}/{var}"
        if self.weighing.groups > 1:
            text += f".groups:{self.weighing.groups}"
        if isinstance(self.weighing, Hard):
            text += ".hard"
        text = self.foreign.text if self.foreign else text
        ending = next(name for name, ending in endings(self.classes).items() if ending == self.ending)
        return text + (f".{ending}" if ending else "") + (f"@{self.classes}" if self.classes else "")

    @property
    def sets(self) -> int:
        """How many sets of statistics are kept, one a domain or mode; 0 where one serves all."""
        return self.foreign.sets if self.foreign else self.ending.domains

    @property
    def shares(self) -> bool:
        """Whether samples are shared out to sets of statistics by the layer itself, in parts."""
        return self.foreign is not None and self.foreign.sets > 0

    def merged(self) -> Parts:
        """Join a shared and a class affine into one class affine."""
        own = self.ending.affine[-1]
        return replace(self, ending=replace(self.ending, affine=(own,)), name="")

    def without_affine(self) -> Parts:
        """Leave out what would be learned after normalising; a style and the statistics of domains stay."""
        if self.classes and not self.ending.domains:
            raise SpecError(f"{self} is its affine: affine=False would leave nothing for the condition to choose.")
        ending = "domnone" if self.ending.domains else ("style" if self.takes_style else "none")
        bare = self.with_ending(ending, self.ending.domains)
        if bare == self:
            return self
        return replace(bare, name=f"{self.name}.none") if self.ending == endings(0)[""] else bare

    def with_ending(self, name: str, classes: int = 0) -> Parts:
        """Give the norm another affine (and so no zoo name)."""
        return replace(self, ending=endings(classes)[name], name="")

    def fit(self, num_features: int) -> Fitted:
        """Resolve the cuts for a channel count, or say why they do not fit."""
        check_groups(self.weighing, num_features)
        mean = [cut.fit(num_features) for cut in self.mean]
        var = [cut.fit(num_features) for cut in self.var]
        cuts = tuple(dict.fromkeys(mean + var))
        for cut in cuts:
            if cut.is_ghost and self.ending.domains:
                raise SpecError(f"{self}: {cut} divides the batch and so do domains; only one of them can.")
            if cut.pools_samples and cut.space == ALL:
                raise SpecError(f"{self}: {cut} pools samples at each position, so what is kept would depend on the image size.")
        return Fitted(cuts, tuple(map(cuts.index, mean)), tuple(map(cuts.index, var)))
