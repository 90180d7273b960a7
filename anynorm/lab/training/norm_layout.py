"""Norm layouts: one string that assigns norms to the layers of a model.

gn:8            every norm
gn:4~bn         alternating in the order of the modules: gn:4 first, then bn, then gn:4 …
xbn=gn:64       the second norm of each residual block, as in `anynorm.xbn`
xbn.p3.d2=in    the third norm of every second residual block
sabn@K          every norm; K stands for the number of classes of the task's data set
sn;heads=gn:8   gn:8 in the submodule `heads`, sn in the rest; a layout per submodule, such as backbone=xbn=gn:64;heads=gn:8

A submodule is called a part here. The layout of the rest comes first and is `bn` if it is omitted. Parts are replaced in the
given order, so a submodule of another part must come after that part.
"""

from __future__ import annotations

import re

from torch import nn

from anynorm.errors import SpecError
from anynorm.registry import parse
from anynorm.surgery.batches import Calibration
from anynorm.surgery.convert import replace_norms
from anynorm.surgery.find import find_norms
from anynorm.surgery.xbn import xbn

_XBN = re.compile(r"xbn(?:\.p([123]))?(?:\.d([1-9]\d?))?=(.+)")
_PART = re.compile(r"(?!xbn[.=])(\w+(?:\.\w+)*)=(.+)")
_CLASSES = re.compile(r"\.(?:cc|sa|aux|saaux)@\w+|(?:cc|sa|aux|saaux)(?=bn@)|(?<=bn)@\w+")


def apply_norms(
    model: nn.Module, norms: str, batch_size: int, num_classes: int | None = None, fit: Calibration | None = None
) -> nn.Module:
    """Replace the norms of a model according to a layout.

    If a number of groups does not divide the channels of a layer, the nearest divisor is used.

    Args:
        model: a network with norms.
        norms: the layout.
        batch_size: number of samples per device in training, from which `bgn` without a number chooses its number of groups.
        num_classes: the number that replaces "K" in "@K"; None if there are no classes.
        fit: calibration batches on which γ and β are fitted, as in `anynorm.convert`; None to copy γ and β.

    Raises:
        SpecError: if the model or a part has no norm, a part does not exist, the layout has "@K" without `num_classes`, or `fit`
            is given for an XBN layout.
    """
    network = model
    for part, layout in split_parts(set_num_classes(norms, num_classes)):
        if not part:
            network = _apply_layout(model, layout, batch_size, fit)
            continue
        *parents, name = part.split(".")
        parent = _find_part(network, ".".join(parents), part)
        setattr(parent, name, _apply_layout(_find_part(network, part, part), layout, batch_size, fit))
    return network


def _find_part(model: nn.Module, path: str, part: str) -> nn.Module:
    """Return the submodule at a path; `part` is the name in the error message.

    Raises:
        SpecError: if the model does not have the submodule.
    """
    try:
        return model.get_submodule(path)
    except AttributeError:
        children = [name for name, child in model.named_children() if find_norms(child)]
        usable = f"Parts with norms: {' '.join(children)}" if children else "It has no parts with norms"
        raise SpecError(f"{type(model).__name__} has no part {part!r}. {usable}.") from None


def _apply_layout(model: nn.Module, norms: str, batch_size: int, fit: Calibration | None) -> nn.Module:
    """Replace the norms of a model according to a layout without parts."""
    if match := _XBN.fullmatch(norms):
        if fit is not None:
            raise SpecError(f"the norms of XBN blocks cannot be fitted; got {norms}. Usable: the spec of a norm, such as gn:8.")
        position, distance, spec = match.groups()
        return xbn(model, spec, int(position or 2), int(distance or 1), batch_size=batch_size).model
    specs = norms.split("~")
    chosen = {site: specs[k % len(specs)] for k, site in enumerate(find_norms(model))}
    if not chosen:
        raise SpecError(f"{norms} cannot be applied: {type(model).__name__} has no norm to replace.")
    return replace_norms(model, chosen, fit=fit, groups="nearest", optimizer=None, options={"batch_size": batch_size}).model


def validate_norms(norms: str, batch_size: int = 1) -> None:
    """Check that a layout is valid.

    Raises:
        SpecError: if the layout or one of its specs is not valid.
    """
    for _, layout in split_parts(norms):
        match = _XBN.fullmatch(layout)
        if layout.startswith("xbn") and not match:
            raise SpecError(
                f"an XBN layout must be xbn=SPEC or xbn.pP.dD=SPEC, with position P in 1 to 3 and distance D in 1 to 99; "
                f"got {layout!r}. Usable: xbn=gn:64, xbn.p1.d2=gn:64."
            )
        for spec in [match[3]] if match else layout.split("~"):
            parse(set_num_classes(spec, 1), batch_size=batch_size)


def split_parts(norms: str) -> list[tuple[str, str]]:
    """Split a layout into pairs (part, layout); the first pair has the part "" and is the layout of the rest of the network.

    Raises:
        SpecError: if an entry after the first does not have the form PART=LAYOUT.

    >>> split_parts("sn;heads=gn:8"), split_parts("backbone=xbn=gn:64"), split_parts("xbn.d2=gn:4")
    ([('', 'sn'), ('heads', 'gn:8')], [('', 'bn'), ('backbone', 'xbn=gn:64')], [('', 'xbn.d2=gn:4')])
    """
    pairs: list[tuple[str, str]] = []
    for text in norms.split(";"):
        match = _PART.fullmatch(text.strip())
        if match is None and pairs:
            raise SpecError(f"a layout of parts must be LAYOUT;PART=LAYOUT;…; got {norms!r}. Usable: sn;heads=gn:8.")
        pairs.append((match[1], match[2]) if match else ("", text.strip()))
    return pairs if not pairs[0][0] else [("", "bn"), *pairs]


def split_layout(norms: str, num_classes: int | None) -> list[str]:
    """Return the specs of a layout, with "K" in "@K" replaced by the number of classes.

    >>> split_layout("ccbn@K~sabn@K", 10), split_layout("xbn.d2=gn:4", None)
    (['ccbn@10', 'sabn@10'], ['gn:4'])
    """
    layouts = [layout for _, layout in split_parts(set_num_classes(norms, num_classes))]
    matches = [(_XBN.fullmatch(layout), layout) for layout in layouts]
    return [spec for match, layout in matches for spec in (match[3] if match else layout).split("~")]


def set_num_classes(norms: str, num_classes: int | None) -> str:
    """Replace "K" in "@K" by the number of classes.

    Raises:
        SpecError: if the layout has "@K" and `num_classes` is None.

    >>> set_num_classes("sabn@K", 10)
    'sabn@10'
    """
    if "@K" in norms and num_classes is None:
        raise SpecError(
            f"@K in {norms} stands for the number of classes on which a task conditions its norms; this task has no conditions. "
            f"Write a number: {norms.replace('@K', '@10')}."
        )
    return norms.replace("@K", f"@{num_classes}")


def without_classes(norms: str) -> str:
    """Remove the parts of specs that depend on classes or domains, so that all share one affine and one set of statistics.

    >>> without_classes("gn:8.cc@2"), without_classes("bn.aux@2~sabn@K"), without_classes("hn:4")
    ('gn:8', 'bn~bn', 'hn:4')
    """
    return _CLASSES.sub("", norms)


def split_norms(text: str) -> list[str]:
    """Split a comma-separated list of layouts; commas inside a spec are not separators.

    >>> split_norms("bn,gbgn:8,32,[1,*,1]/[*,9],gn:4~bn")
    ['bn', 'gbgn:8,32', '[1,*,1]/[*,9]', 'gn:4~bn']
    """
    return [part.strip() for part in re.split(r",(?!\s*\d)(?![^\[]*\])", text) if part.strip()]
