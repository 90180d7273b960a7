"""Norm layouts: which norm each layer of a model gets, and their text form in configurations and on the command line.

gn:8            every norm
gn:4~bn         alternating in the order of the modules: gn:4 first, then bn, then gn:4 …
xbn=gn:64       the second norm of each residual block, as in `anynorm.xbn`
xbn.p3.d2=in    the third norm of every second residual block
xbn.p1.p2=gn:8  the first and the second norm of each residual block
xbn.stem=gn:64  the second norm of each residual block and the norm before the first block, as in the authors' networks
sabn@K          every norm; K stands for the number of classes of the task's data set
sn;heads=gn:8   gn:8 in the submodule `heads`, sn in the rest; a layout per submodule, such as backbone=xbn=gn:64;heads=gn:8

The layout of the rest comes first and is `bn` if it is omitted. Submodules are changed in the given order, so a submodule of
another one must come after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from anynorm.core.spec import NormSpec
from anynorm.errors import SpecError
from anynorm.registry import parse
from anynorm.surgery.batches import Calibration
from anynorm.surgery.find import find_norms
from anynorm.surgery.replace import replace_norms
from anynorm.surgery.xbn import xbn

_XBN = re.compile(r"xbn((?:\.p[123])*)(?:\.d([1-9]\d?))?(\.stem)?=(.+)")
_SUBMODULE = re.compile(r"(?!xbn[.=])(\w+(?:\.\w+)*)=(.+)")
_LIST_ENTRY = re.compile(r"(?:\[[^\]]*\]|,\s*\d|[^,])+")


@dataclass(frozen=True)
class Alternating:
    """Norms that alternate in the order of the modules; one norm is used for all layers.

    Args:
        norms: the definitions of the norms.
    """

    norms: tuple[NormSpec, ...]

    def __str__(self) -> str:
        return "~".join(map(str, self.norms))

    def map(self, change: Callable[[NormSpec], NormSpec]) -> Alternating:
        """Return the layout with every norm changed by a function."""
        return Alternating(tuple(change(norm) for norm in self.norms))

    def apply(self, model: nn.Module, fit: Calibration | None = None) -> nn.Module:
        """Replace the norms of a model.

        Raises:
            SpecError: if the model has no norm.
        """
        specs = {site: self.norms[k % len(self.norms)] for k, site in enumerate(find_norms(model))}
        if not specs:
            raise SpecError(f"{self} cannot be applied: {type(model).__name__} has no norm to replace.")
        return replace_norms(model, specs, fit=fit, groups="nearest", optimizer=None, options={}).model


@dataclass(frozen=True)
class XBNBlocks:
    """A norm in each residual block, as in `anynorm.xbn`; the others are those of the model.

    Args:
        norm: the definition of the norm.
        positions: which norms of a block to replace, of 1, 2 and 3.
        every: distance between the blocks.
        stem: whether to replace the norm before the first block too.
    """

    norm: NormSpec
    positions: tuple[int, ...] = (2,)
    every: int = 1
    stem: bool = False

    def __str__(self) -> str:
        positions = "".join(f".p{position}" for position in self.positions)
        return f"xbn{positions}.d{self.every}{'.stem' if self.stem else ''}={self.norm}"

    @property
    def norms(self) -> tuple[NormSpec, ...]:
        """The definitions of the norms: one."""
        return (self.norm,)

    def map(self, change: Callable[[NormSpec], NormSpec]) -> XBNBlocks:
        """Return the layout with its norm changed by a function."""
        return replace(self, norm=change(self.norm))

    def apply(self, model: nn.Module, fit: Calibration | None = None) -> nn.Module:
        """Replace the norms of a model.

        Raises:
            SpecError: if calibration batches are given.
            SurgeryError: if the model has no residual blocks.
        """
        if fit is not None:
            raise SpecError(f"the norms of XBN blocks cannot be fitted; got {self}. Usable: the spec of a norm, such as gn:8.")
        return xbn(model, self.norm, self.positions, self.every, self.stem).model


@dataclass(frozen=True)
class Layout:
    """The norms of a network.

    Args:
        rest: the norms of all layers that are in none of the submodules.
        submodules: pairs of the path of a submodule and its norms, in the order in which they are replaced.

    >>> layout = Layout.parse("sabn@K;heads=xbn.d2=gn:8", num_classes=10)
    >>> print(layout)
    sabn@10;heads=xbn.p2.d2=gn:8
    >>> print(layout.without_classes())
    bn;heads=xbn.p2.d2=gn:8
    """

    rest: Alternating | XBNBlocks
    submodules: tuple[tuple[str, Alternating | XBNBlocks], ...] = ()

    @classmethod
    def parse(cls, text: str, batch_size: int = 1, num_classes: int | None = None) -> Layout:
        """Parse a layout.

        Args:
            text: the layout, such as "gn:8" or "sn;heads=gn:8".
            batch_size: number of samples per device in training, from which `bgn` without a number chooses its number of groups.
            num_classes: the number for which "K" in "@K" stands; None if there are no classes.

        Raises:
            SpecError: if the layout or one of its specs is invalid, or the layout has "@K" without `num_classes`.
        """
        if "@K" in text and num_classes is None:
            raise SpecError(
                f"@K in {text} stands for the number of classes on which a task conditions its norms; this task has no "
                f"conditions. Write a number: {text.replace('@K', '@10')}."
            )
        pairs: list[tuple[str, Alternating | XBNBlocks]] = []
        for entry in text.replace("@K", f"@{num_classes}").split(";"):
            match = _SUBMODULE.fullmatch(entry.strip())
            if match is None and pairs:
                raise SpecError(f"a layout per submodule must be LAYOUT;SUBMODULE=LAYOUT;…; got {text!r}. Usable: sn;heads=gn:8.")
            if match is not None and not pairs:
                pairs.append(("", _parse_norms("bn", batch_size)))
            path, norms = match.groups() if match else ("", entry.strip())
            pairs.append((path, _parse_norms(norms, batch_size)))
        return cls(pairs[0][1], tuple(pairs[1:]))

    def __str__(self) -> str:
        return ";".join([str(self.rest), *(f"{path}={norms}" for path, norms in self.submodules)])

    @property
    def norms(self) -> list[NormSpec]:
        """The definitions of all norms."""
        return [norm for layout in (self.rest, *dict(self.submodules).values()) for norm in layout.norms]

    def of_submodule(self, path: str) -> Layout:
        """Return the layout of a submodule; that of the rest if it has none of its own."""
        return Layout(dict(self.submodules).get(path, self.rest))

    def without_classes(self) -> Layout:
        """Return the layout with one affine and one set of statistics per norm, in place of those per class or domain."""

        def change(norm: NormSpec) -> NormSpec:
            return norm.with_affine("") if norm.num_classes else norm

        return Layout(self.rest.map(change), tuple((path, norms.map(change)) for path, norms in self.submodules))

    def apply(self, model: nn.Module, fit: Calibration | None = None) -> nn.Module:
        """Replace the norms of a model.

        If a number of groups does not divide the channels of a layer, the nearest divisor is used.

        Args:
            model: a network with norms.
            fit: calibration batches on which γ and β are fitted, as in `anynorm.convert`; None to copy γ and β.

        Raises:
            SpecError: if the model or a submodule has no norm, a submodule does not exist, or `fit` is given for XBN blocks.
        """
        network = self.rest.apply(model, fit)
        for path, norms in self.submodules:
            parent, _, name = path.rpartition(".")
            setattr(_find_submodule(network, parent, path), name, norms.apply(_find_submodule(network, path, path), fit))
        return network


def _parse_norms(text: str, batch_size: int) -> Alternating | XBNBlocks:
    """Parse a layout without submodules."""
    match = _XBN.fullmatch(text)
    if match:
        positions, every, stem, spec = match.groups()
        numbers = tuple(sorted({int(digit) for digit in re.findall(r"\d", positions)})) or (2,)
        return XBNBlocks(parse(spec, batch_size=batch_size), numbers, int(every or 1), stem is not None)
    if text.startswith("xbn"):
        raise SpecError(
            f"an XBN layout must be xbn=SPEC or xbn.pP.dD.stem=SPEC, with position P in 1 to 3 and distance D in 1 to 99; "
            f"got {text!r}. Usable: xbn=gn:64, xbn.p1.d2=gn:64, xbn.p1.p2=gn:64, xbn.stem=in.none."
        )
    return Alternating(tuple(parse(spec, batch_size=batch_size) for spec in text.split("~")))


def _find_submodule(model: nn.Module, path: str, name: str) -> nn.Module:
    """Return the submodule at a path; `name` is its name in the error message.

    Raises:
        SpecError: if the model does not have the submodule.
    """
    try:
        return model.get_submodule(path)
    except AttributeError:
        children = [key for key, child in model.named_children() if find_norms(child)]
        usable = f"Submodules with norms: {' '.join(children)}" if children else "It has no submodules with norms"
        raise SpecError(f"{type(model).__name__} has no submodule {name!r}. {usable}.") from None


def split_norms(text: str) -> list[str]:
    """Split the comma-separated list of layouts of a command; commas inside a spec are not separators.

    >>> split_norms("bn,gbgn:8,32,[1,*,1]/[*,9],gn:4~bn")
    ['bn', 'gbgn:8,32', '[1,*,1]/[*,9]', 'gn:4~bn']
    """
    return [entry.strip() for entry in _LIST_ENTRY.findall(text) if entry.strip()]
