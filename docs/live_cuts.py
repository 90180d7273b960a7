"""The live picture of cuts on the home page: its table of norms, from the registry, and its place in the page.

`static/cuts.js` parses a spec as `anynorm.core.grammar` does, with the regular expressions, norms and suffixes of this table. A
new norm of the algebra appears there by itself: `define` is called with numbers that occur nowhere else, and where they occur in
the definition, the table has the name of the argument.
"""

from __future__ import annotations

import json
from typing import Any

from anynorm.core import grammar
from anynorm.core.affine import PerChannel, PerChannelScale, PerClass, Style
from anynorm.core.cuts import AnyCut, JointCut
from anynorm.core.mixing import Argmax
from anynorm.core.spec import AffineSpec, NormSpec, affine_specs
from anynorm.draw.descriptions import AFFINE_FORMS
from anynorm.layers.registered import REGISTRY, RegisteredNorm
from anynorm.registry import summary

PLACE = "<!-- live picture of cuts -->"
"""Where the picture stands in a page."""
MARKERS = (100003, 100019)
"""Values of the arguments of a norm, which are found in its definition."""
STAGES = {PerChannel: "channel", PerChannelScale: "scale", PerClass: "class", Style: "style"}
EXAMPLES = ("bn", "in", "gn:2", "hn:2", "gn:4/en", "sn", "bgn:16", "gbgn:2,4", "0/pn", "sabn@10", "[1,4,2]/[*,*,1]")


def table() -> dict[str, Any]:
    """Return what the script has to know of the grammar, JSON-compatible."""
    own = {name: norm for name, norm in REGISTRY.items() if norm.__module__.startswith("anynorm.")}
    marker = MARKERS[0]
    return {
        "patterns": {
            "token": grammar._TOKEN.pattern,
            "name": grammar._NAME.pattern,
            "cut": grammar._CUT.pattern,
            "joint": grammar._JOINT_CUT.pattern,
        },
        "norms": {name: describe_norm(norm) for name, norm in own.items()},
        "suffixes": {name: describe_affine(affine, {marker: "number"}) for name, affine in affine_specs(marker).items() if name},
        "stages": {
            STAGES[type(stage)]: {"form": AFFINE_FORMS[type(stage)], "tensors": len(stage.names)}
            for stage in (PerChannel(), PerChannelScale(), PerClass(1), Style())
        },
        "examples": EXAMPLES,
    }


def describe_norm(norm: type[RegisteredNorm]) -> dict[str, Any]:
    """Return the arguments, cuts, mixing and affine of a registered norm; numbers are the names of arguments where they vary."""
    values = dict(zip(norm.arguments, MARKERS, strict=False))
    names = {value: name for name, value in values.items()}
    norm_spec: NormSpec = norm.named_spec(values)
    return {
        "summary": summary(norm),
        "usage": norm.usage(),
        "arguments": dict(norm.arguments),
        "afterColon": norm._after_colon,
        "afterAt": norm._after_at,
        "isCustom": norm_spec.custom is not None,
        "mean": [_describe_cut(cut, names) for cut in norm_spec.mean],
        "var": [_describe_cut(cut, names) for cut in norm_spec.var],
        "groups": names.get(norm_spec.mixing.groups, norm_spec.mixing.groups),
        "isHard": isinstance(norm_spec.mixing, Argmax),
        **describe_affine(norm_spec.affine, names),
    }


def describe_affine(affine: AffineSpec, names: dict[int, str]) -> dict[str, Any]:
    """Return the stages of an affine, the number of classes, and the number of domains."""
    classes, domains = (names.get(number, number) for number in (affine.num_classes, affine.num_domains))
    return {"stages": [STAGES[type(stage)] for stage in affine.stages], "classes": classes, "domains": domains}


def _describe_cut(cut: AnyCut, names: dict[int, str]) -> dict[str, Any]:
    """Return the numbers of parts of a cut, and its name: that of a norm, and the arguments in it."""
    name, _, numbers = cut.name.partition(":")
    arguments = [names[int(number)] for number in numbers.split(",")] if numbers else []
    if isinstance(cut, JointCut):
        parts: dict[str, Any] = {"samples": cut.samples, "joint": cut.groups}
    else:
        parts = {"samples": cut.samples, "channels": cut.channels, "space": cut.space, "perPart": cut.samples_per_part}
    return {key: names.get(value, value) for key, value in parts.items()} | {"name": name, "numbers": arguments}


def html() -> str:
    """Return the picture as a block of raw HTML for MyST."""
    data = json.dumps(table(), ensure_ascii=False).replace("</", "<\\/")
    return "\n".join(
        [
            "```{raw} html",
            '<div id="live-cuts"><noscript>The live picture needs JavaScript.</noscript></div>',
            f'<script type="application/json" id="live-cuts-table">{data}</script>',
            '<script src="_static/cuts.js"></script>',
            "```",
        ]
    )
