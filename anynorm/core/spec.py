"""The definition of a norm: cuts of the mean × cuts of the variance × mixing × affine.

Without cuts of the mean, the mean is 0, and the variance is the second moment E[x²] (RMSNorm). Two definitions are equal if these
four parts are equal, whatever their names: hn:32 equals bn/en:32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, NamedTuple

from anynorm.core.affine import PerChannel, PerChannelScale, PerClass, Stage, Style
from anynorm.core.cuts import ALL, AnyCut, Cut, nearest_divisor
from anynorm.core.mixing import Argmax, Mixing, Softmax, check_groups
from anynorm.errors import SpecError


def check_positive_int(value: Any, name: str, owner: object) -> int:
    """Return `value` as an int.

    Raises:
        SpecError: if it is not an integer of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise SpecError(f"{name} of {owner} must be an integer of at least 1; got {value!r}.")
    return int(value)


@dataclass(frozen=True)
class AffineSpec:
    """The affine stages after the normalization, and the number of domains.

    Args:
        stages: the stages in the order in which they are applied.
        num_domains: number of domains with separate statistics; 0 if all samples share the same statistics.

    Attributes:
        num_classes: number of classes or domains that the condition may have; 0 without such a condition.
        takes_style: whether the condition is a style.
    """

    stages: tuple[Stage, ...]
    num_domains: int = 0
    num_classes: int = field(init=False, repr=False, compare=False)
    takes_style: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        num_classes, takes_style = self.num_domains, False
        for stage in self.stages:
            if isinstance(stage, PerClass):
                num_classes = stage.num_classes
            takes_style = takes_style or isinstance(stage, Style)
        object.__setattr__(self, "num_classes", num_classes)
        object.__setattr__(self, "takes_style", takes_style)


def affine_specs(num_classes: int) -> dict[str, AffineSpec]:
    """Return the affine spec of each suffix of the grammar; `num_classes` is the number after @."""
    shared, per_class, per_domain = PerChannel(), PerClass(num_classes), PerClass(num_classes, init_std=0.0)
    return {
        "": AffineSpec((shared,)),
        "none": AffineSpec(()),
        "nobias": AffineSpec((PerChannelScale(),)),
        "cc": AffineSpec((per_class,)),
        "sa": AffineSpec((shared, per_class)),
        "style": AffineSpec((Style(),)),
        "sastyle": AffineSpec((shared, Style())),
        "dom": AffineSpec((shared,), num_classes),
        "domnone": AffineSpec((), num_classes),
        "aux": AffineSpec((per_domain,), num_classes),
        "saaux": AffineSpec((shared, per_class), num_classes),
    }


PLAIN_AFFINE, SCALE_AFFINE = AffineSpec((PerChannel(),)), AffineSpec((PerChannelScale(),))


@dataclass(frozen=True)
class CustomSpec:
    """A norm outside the algebra, implemented by a registered class.

    Args:
        text: the registered name with its parameters, as in a spec, such as "modenorm:3".
        num_stat_sets: number of sets of running statistics to which samples are softly assigned (ModeNorm); 0 for all others.
    """

    text: str
    num_stat_sets: int = 0


class ResolvedCuts(NamedTuple):
    """The cuts of a norm for a given number of channels, and the indices of the cuts of the mean and the variance.

    A cut of both sides is in `distinct` once; no index occurs twice in `mean` or in `var`.
    """

    distinct: tuple[Cut, ...]
    mean: tuple[int, ...]
    var: tuple[int, ...]


@dataclass(frozen=True)
class NormSpec:
    """The definition of a norm.

    Args:
        mean: the cuts of the mean; none if the mean is 0.
        var: the cuts of the variance.
        mixing: how the statistics of several cuts are mixed.
        affine: the affine stages after the normalization.
        custom: what the registered class of a norm outside the algebra adds; None within the algebra.
        name: the spec string; ignored in comparisons.
        class_name: the registered name of the layer class; empty for a combination of cuts and suffixes, whose class is `Norm`;
            ignored in comparisons.
        arguments: the numbers in the spec of a registered norm, such as {"num_groups": 32}; ignored in comparisons.

    Attributes:
        num_classes: number of classes or domains that the condition may have; 0 without such a condition.
        takes_style: whether the condition is a style.
    """

    mean: tuple[AnyCut, ...]
    var: tuple[AnyCut, ...]
    mixing: Mixing = Softmax()
    affine: AffineSpec = PLAIN_AFFINE
    custom: CustomSpec | None = None
    name: str = field(default="", compare=False)
    class_name: str = field(default="", compare=False)
    arguments: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    num_classes: int = field(init=False, repr=False, compare=False)
    takes_style: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Copy the attributes that every forward pass reads."""
        object.__setattr__(self, "num_classes", self.affine.num_classes)
        object.__setattr__(self, "takes_style", self.affine.takes_style)

    def __str__(self) -> str:
        return self.name or self.canonical()

    def canonical(self) -> str:
        """Return the spec string in terms of cuts and suffixes instead of the name of the norm.

        Raises:
            SpecError: if no suffix of the grammar stands for the affine stages.

        >>> import anynorm
        >>> anynorm.make("hn:32", 64).norm_spec.canonical()
        'bn/en:32'
        """
        mean, var = ("+".join(map(str, cuts)) or "0" for cuts in (self.mean, self.var))
        text = mean if self.mean == self.var else f"{mean}/{var}"
        if self.mixing.groups > 1:
            text += f".groups:{self.mixing.groups}"
        if isinstance(self.mixing, Argmax):
            text += ".hard"
        text = self.custom.text if self.custom else text
        if self.custom and self.takes_style:  # part of its own definition: no suffix adds a style to a custom norm
            return text
        suffix = next((name for name, affine in affine_specs(self.num_classes).items() if affine == self.affine), None)
        if suffix is None:
            raise SpecError(f"The affine stages must be those of a suffix of the grammar; got {self.affine.stages}.")
        return text + (f".{suffix}" if suffix else "") + (f"@{self.num_classes}" if self.num_classes else "")

    @property
    def correction(self) -> int:
        """Bessel's correction of the running variance: 1 if the mean is estimated from the same values, 0 if it is 0."""
        return 1 if self.mean else 0

    @property
    def num_stat_sets(self) -> int:
        """Number of sets of running statistics, one per domain or mode; 0 if all samples share one set."""
        return self.custom.num_stat_sets if self.custom else self.affine.num_domains

    @property
    def soft_assignment(self) -> bool:
        """Whether samples are assigned to several sets of statistics with fractional weights (ModeNorm)."""
        return self.custom is not None and self.custom.num_stat_sets > 0

    def merged(self) -> NormSpec:
        """Return this norm with its shared affine merged into its per-class affine."""
        return self._changed(affine=AffineSpec((self.affine.stages[-1],), self.affine.num_domains))

    def without_affine(self) -> NormSpec:
        """Return this norm without learned affine; a style affine and separate statistics per domain are kept.

        Raises:
            SpecError: if the condition selects nothing but the affine.
        """
        if self.num_classes and not self.affine.num_domains:
            raise SpecError(f"{self} requires affine=True: its condition selects the affine; got affine=False.")
        suffix = "domnone" if self.affine.num_domains else ("style" if self.takes_style else "none")
        bare = self.with_affine(suffix, self.affine.num_domains)
        if bare == self:
            return self
        return self._suffixed(bare, "none")

    def without_bias(self) -> NormSpec:
        """Return this norm with a scale per channel and no shift, as torch's `bias=False`; a norm without affine is unchanged.

        Raises:
            SpecError: if the affine is of another kind.
        """
        if self.affine == SCALE_AFFINE or not self.affine.stages:
            return self
        if self.custom or self.affine != PLAIN_AFFINE:
            raise SpecError(
                f"{self} requires bias=True: only an affine per channel of a norm made of cuts can do without β; got bias=False."
            )
        return self._suffixed(self.with_affine("nobias"), "nobias")

    def _suffixed(self, changed: NormSpec, suffix: str) -> NormSpec:
        """Return `changed`, this norm with the affine of a suffix, with the class of this norm, and its name and the suffix."""
        takes_suffix = self.affine == PLAIN_AFFINE or (self.affine == SCALE_AFFINE and not self.name.endswith(".nobias"))
        name = f"{self.name}.{suffix}" if takes_suffix and self.name else ""
        return replace(changed, name=name, class_name=self.class_name, arguments=self.arguments)

    def with_affine(self, suffix: str, num_classes: int = 0) -> NormSpec:
        """Return this norm, without a name, with the affine of a suffix such as "sa" or "none"."""
        return self._changed(affine=affine_specs(num_classes)[suffix])

    def with_mixing(self, mixing: Mixing) -> NormSpec:
        """Return this norm, without a name, with another mixing of its cuts."""
        return self._changed(mixing=mixing)

    def nearest(self, num_features: int) -> NormSpec:
        """Return this norm with the nearest numbers of groups that divide a number of channels.

        A norm that is changed has no class and no name; see `anynorm.registry.nearest_spec` for registered norms.
        """
        mean, var = (tuple([cut.nearest(num_features) for cut in cuts]) for cuts in (self.mean, self.var))
        mixing = replace(self.mixing, groups=nearest_divisor(self.mixing.groups, num_features))
        if (mean, var, mixing) == (self.mean, self.var, self.mixing):
            return self
        return self._changed(mean=mean, var=var, mixing=mixing)

    def _changed(self, **changes: Any) -> NormSpec:
        """Return this norm with other parts; only a norm outside the algebra keeps its class, which no cuts can express."""
        if not self.custom:
            changes |= {"class_name": "", "arguments": {}}
        return replace(self, **changes, name="")

    def _has_class_stage(self) -> bool:
        return any(isinstance(stage, PerClass) for stage in self.affine.stages)

    def resolve(self, num_features: int) -> ResolvedCuts:
        """Return the cuts for a given number of channels.

        Raises:
            SpecError: if a cut does not divide the number of channels, or the definition is inconsistent.
        """
        if not self.var:
            raise SpecError("A norm needs at least one cut of the variance; got none. Only the mean can be 0, as in '0/pn'.")
        if self.mixing.groups > 1:
            check_groups(self.mixing, num_features)
        mean = [cut.resolve(num_features) for cut in self.mean]
        cuts: list[Cut] = []
        mean_indices = var_indices = _index_cuts(mean, cuts)
        if self.var != self.mean:
            var_indices = _index_cuts([cut.resolve(num_features) for cut in self.var], cuts)
        if self.affine.num_domains and not any([cut.pools_samples for cut in cuts]) and not self._has_class_stage():
            raise SpecError(
                f"{self}: domains select running statistics, but no cut of this norm pools samples. Use .cc@K for an affine per "
                "domain."
            )
        for cut in cuts:
            if cut.is_ghost and self.affine.num_domains:
                raise SpecError(f"{self}: {cut} divides the batch, and so do domains. Use only one of them.")
            if cut.pools_samples and cut.space == ALL:
                raise SpecError(
                    f"{self}: {cut} pools samples separately at each position, so its running statistics would depend on the "
                    "image size. Use a number of strips instead of * for the space axis."
                )
        return ResolvedCuts(tuple(cuts), mean_indices, var_indices)


def _index_cuts(side: list[Cut], distinct: list[Cut]) -> tuple[int, ...]:
    """Return the index of each cut of a side in `distinct`, to which missing cuts are appended.

    Cuts of one side that are equal for this number of channels, such as bgn:1 and en, remain two cuts with separate weights.
    """
    indices: list[int] = []
    for cut in side:
        index = 0
        while index < len(distinct) and (distinct[index] != cut or index in indices):
            index += 1
        if index == len(distinct):
            distinct.append(cut)
        indices.append(index)
    return tuple(indices)
