"""Which norm stands where in a model.

gn:8            every norm
gn:4~bn         in turn, in the order of the modules: gn:4 first, then bn, then gn:4 …
xbn=gn:64       the second norm of each residual block, as `anynorm.xbn` places it
xbn.p3.d2=in    the third norm, of every second block
"""

from __future__ import annotations

import re

from torch import nn

from anynorm.errors import SpecError
from anynorm.registry import parse
from anynorm.surgery.convert import replace_norms
from anynorm.surgery.find import find_norms
from anynorm.surgery.xbn import xbn

_XBN = re.compile(r"xbn(?:\.p([123]))?(?:\.d([1-9]\d?))?=(.+)")


def apply_norms(model: nn.Module, norms: str, batch_size: int) -> nn.Module:
    """Put norms in their places; group numbers are clipped to what divides a layer's channels.

    Args:
        batch_size: samples a device in training, by which `bgn` without a number chooses its groups.
    """
    if placed := _XBN.fullmatch(norms):
        position, every, spec = placed.groups()
        return xbn(model, spec, int(position or 2), int(every or 1), batch_size=batch_size).model
    specs = norms.split("~")
    sites = find_norms(model)
    chosen = {site: specs[k % len(specs)] for k, site in enumerate(sites)}
    if not chosen:
        raise SpecError(f"This {type(model).__name__} has no norm that {norms} could take the place of.")
    return replace_norms(model, chosen, fit=None, groups="nearest", optimizer=None, options={"batch_size": batch_size}).model


def validate_norms(norms: str, batch_size: int = 1) -> None:
    """Refuse what no model could take."""
    placed = _XBN.fullmatch(norms)
    if norms.startswith("xbn") and not placed:
        raise SpecError(f"{norms!r} places nothing; write xbn=gn:64, or with place 1 to 3 and distance xbn.p1.d2=gn:64.")
    for spec in [placed[3]] if placed else norms.split("~"):
        parse(spec, batch_size=batch_size)


def split_norms(text: str) -> list[str]:
    """Split a list of norms at its commas, except those inside a spec.

    >>> split_norms("bn,gbgn:8,32,gn:4~bn")
    ['bn', 'gbgn:8,32', 'gn:4~bn']
    """
    return [part.strip() for part in re.split(r",(?!\s*\d)", text) if part.strip()]
