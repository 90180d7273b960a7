"""A norm as a value: cuts for the mean × cuts for the variance × weights × domains × affine.

Two norms are the same when their parts are equal, whatever they are called: hn:32 is bn/en:32.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, NamedTuple

from anynorm.core.affine import PerChannel, PerClass, Stage, Style
from anynorm.core.cuts import ALL, Cut, JointCut
from anynorm.core.mixing import Argmax, Mixing, Softmax, check_groups
from anynorm.errors import SpecError

AnyCut = Cut | JointCut


def check_num_features(num_features: Any, spec: object) -> int:
    """Refuse what is no channel count."""
    if isinstance(num_features, bool) or not isinstance(num_features, Integral) or num_features < 1:
        raise SpecError(f"{spec} needs a channel count of at least 1; num_features={num_features!r} came.")
    return int(num_features)


@dataclass(frozen=True)
class AffineSpec:
    """What may follow the cuts in a spec: the affine, and whether each domain has statistics of its own."""

    stages: tuple[Stage, ...]
    num_domains: int = 0


def affine_specs(classes: int) -> dict[str, AffineSpec]:
    """Name every ending; `classes` fills those that are written with @."""
    shared, own, whole = PerChannel(), PerClass(classes), PerClass(classes, deviation=0.0)
    return {
        "": AffineSpec((shared,)),
        "none": AffineSpec(()),
        "cc": AffineSpec((own,)),
        "sa": AffineSpec((shared, own)),
        "style": AffineSpec((Style(),)),
        "sastyle": AffineSpec((shared, Style())),
        "dom": AffineSpec((shared,), classes),
        "domnone": AffineSpec((), classes),
        "aux": AffineSpec((whole,), classes),
        "saaux": AffineSpec((shared, own), classes),
    }


@dataclass(frozen=True)
class CustomSpec:
    """What a norm beyond the algebra adds to its parts: the row whose class knows, as it is written.

    Args:
        sets: how many sets of statistics it keeps, where no condition chooses among them.
    """

    name: str
    text: str
    num_stat_sets: int = 0


class ResolvedCuts(NamedTuple):
    """The different cuts of a norm for some channel count, and which of them the mean and the variance use."""

    cuts: tuple[Cut, ...]
    mean: tuple[int, ...]
    var: tuple[int, ...]


@dataclass(frozen=True)
class NormSpec:
    """What a norm is made of.

    Args:
        foreign: what no cut, weighing or affine says; None within the algebra.
        name: what the zoo calls it; it takes no part in equality.

    `classes` says how many classes or domains a condition chooses among, `takes_style` whether it is a style.
    """

    mean: tuple[AnyCut, ...]
    var: tuple[AnyCut, ...]
    mixing: Mixing = Softmax()
    affine: AffineSpec = AffineSpec((PerChannel(),))
    custom: CustomSpec | None = None
    name: str = field(default="", compare=False)
    num_classes: int = field(init=False, repr=False, compare=False)
    takes_style: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out what is asked in every pass."""
        classes = [stage.classes for stage in self.affine.stages if isinstance(stage, PerClass)]
        object.__setattr__(self, "num_classes", max([self.affine.num_domains, *classes]))
        object.__setattr__(self, "takes_style", any(isinstance(stage, Style) for stage in self.affine.stages))

    def __str__(self) -> str:
        return self.name or self.canonical()

    def canonical(self) -> str:
        """Write the spec out in cuts and endings.

        >>> import anynorm.core.grammar
        >>> anynorm.core.grammar.parse("hn:32").canonical()
        'bn/en:32'
        """
        mean, var = ("+".join(map(str, cuts)) for cuts in (self.mean, self.var))
        text = mean if self.mean == self.var else f"{mean}/{var}"
        if self.mixing.groups > 1:
            text += f".groups:{self.mixing.groups}"
        if isinstance(self.mixing, Argmax):
            text += ".hard"
        text = self.custom.text if self.custom else text
        ending = next(name for name, ending in affine_specs(self.num_classes).items() if ending == self.affine)
        return text + (f".{ending}" if ending else "") + (f"@{self.num_classes}" if self.num_classes else "")

    @property
    def num_stat_sets(self) -> int:
        """How many sets of statistics are kept, one a domain or mode; 0 where one serves all."""
        return self.custom.num_stat_sets if self.custom else self.affine.num_domains

    @property
    def soft_assignment(self) -> bool:
        """Whether samples are shared out to sets of statistics by the layer itself, in parts."""
        return self.custom is not None and self.custom.num_stat_sets > 0

    def merged(self) -> NormSpec:
        """Join a shared and a class affine into one class affine."""
        own = self.affine.stages[-1]
        return replace(self, affine=replace(self.affine, stages=(own,)), name="")

    def without_affine(self) -> NormSpec:
        """Leave out what would be learned after normalising; a style and the statistics of domains stay."""
        if self.num_classes and not self.affine.num_domains:
            raise SpecError(f"{self} is its affine: affine=False would leave nothing for the condition to choose.")
        ending = "domnone" if self.affine.num_domains else ("style" if self.takes_style else "none")
        bare = self.with_affine(ending, self.affine.num_domains)
        if bare == self:
            return self
        return replace(bare, name=f"{self.name}.none") if self.affine == affine_specs(0)[""] else bare

    def with_affine(self, name: str, classes: int = 0) -> NormSpec:
        """Give the norm another affine (and so no zoo name)."""
        return replace(self, affine=affine_specs(classes)[name], name="")

    def fit(self, num_features: int) -> ResolvedCuts:
        """Resolve the cuts for a channel count, or say why they do not fit."""
        check_groups(self.mixing, num_features)
        mean = [cut.fit(num_features) for cut in self.mean]
        var = [cut.fit(num_features) for cut in self.var]
        cuts = tuple(dict.fromkeys(mean + var))
        for cut in cuts:
            if cut.is_ghost and self.affine.num_domains:
                raise SpecError(f"{self}: {cut} divides the batch and so do domains; only one of them can.")
            if cut.pools_samples and cut.space == ALL:
                raise SpecError(f"{self}: {cut} pools samples at each position, so what is kept would depend on the image size.")
        return ResolvedCuts(cuts, tuple(map(cuts.index, mean)), tuple(map(cuts.index, var)))
