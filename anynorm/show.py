"""A norm in words, numbers and a picture: what `anynorm list` and `anynorm show` print."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from anynorm.core.affine import PerChannel, PerClass, Style
from anynorm.core.cuts import Cut, JointCut
from anynorm.core.grammar import parse, rows
from anynorm.core.mixing import Argmax
from anynorm.core.spec import AnyCut, NormSpec
from anynorm.errors import ShapeError
from anynorm.layers.norm import Norm
from anynorm.registry import make, summary, zoo

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def listing() -> list[dict[str, str]]:
    """Describe every line of the zoo."""
    lines = []
    for entry in zoo():
        parts = parse(entry.spec)
        described = {"spec": entry.spec, "class": entry.norm.__name__, "what": entry.words, "cuts": _sides(parts)}
        lines.append(described | {"population": _population(parts), "affine": _affine(parts), "paper": entry.paper})
    missing = [row for row in rows().values() if row.missing]
    blank = {"cuts": "", "population": "", "affine": ""}
    return lines + [
        {"spec": row.name, "class": "not implemented", "what": summary(row), **blank, "paper": row.paper} for row in missing
    ]


def _sides(parts: NormSpec) -> str:
    mean, var = (" + ".join(_axes(cut) for cut in cuts) for cuts in (parts.mean, parts.var))
    return mean if mean == var else f"{mean} / {var}"


def _axes(cut: AnyCut) -> str:
    if isinstance(cut, JointCut):
        return f"1·{cut.groups}"
    samples = f"N/{cut.samples_per_part}" if cut.is_ghost else cut.samples or "N"
    return f"{samples}·{cut.channels or 'C'}·{cut.space or 'S'}"


def _population(parts: NormSpec) -> str:
    pooling = [cut.pools_samples for cut in parts.mean + parts.var]
    if not any(pooling):
        return "none: live"
    kept = "running" if all(pooling) else "running + live"
    return f"{kept}, {parts.num_stat_sets} {'modes' if parts.soft_assignment else 'domains'}" if parts.num_stat_sets else kept


def _affine(parts: NormSpec) -> str:
    names = {PerChannel: "channel", PerClass: "class", Style: "style"}
    return " → ".join(names[type(stage)] for stage in parts.affine.stages) or "none"


def formula(parts: NormSpec) -> list[str]:
    """Write the norm down.

    >>> for line in formula(parse("hn:32")): print(line)
    mean = μ[bn]
    var  = σ²[en:32]
    y    = γ (x − mean)/√(var + ε) + β
    """
    if parts.custom:
        bare = [] if parts.affine.stages else ["γ = 1, β = 0"]
        return [*rows()[parts.custom.name].formula, *bare]
    mean, var = _mixed(parts.mean, "μ", "w"), _mixed(parts.var, "σ²", "w′")
    mixing = "one-hot(argmax λ)" if isinstance(parts.mixing, Argmax) else "softmax(λ)"
    groups = f", for each of {parts.mixing.groups} channel groups" if parts.mixing.groups > 1 else ""
    y = "(x − mean)/√(var + ε)"
    for stage in parts.affine.stages:
        inner = y if y.startswith("(x") else f"({y})"
        gamma, beta = {PerChannel: ("γ", "β"), PerClass: ("γ[k]", "β[k]"), Style: ("σ(style)", "μ(style)")}[type(stage)]
        y = f"{gamma} {inner} + {beta}"
    lines = [f"mean = {mean}", f"var  = {var}", f"y    = {y}"]
    return [*lines, f"w, w′ = {mixing}{groups}"] if len(parts.mean + parts.var) > 2 else lines


def _mixed(cuts: tuple[AnyCut, ...], symbol: str, weight: str) -> str:
    if len(cuts) == 1:
        return f"{symbol}[{cuts[0]}]"
    return " + ".join(f"{weight}[{cut}] {symbol}[{cut}]" for cut in cuts)


class Counts(NamedTuple):
    """Numbers as in sn Table 1, with the terms they come from; what a norm beyond the algebra takes is in its formula alone."""

    parameters: int
    parameter_terms: str
    statistics: int | None
    statistic_terms: str
    kept: int


def counts(norm: Norm, shape: tuple[int, ...]) -> Counts:
    """Count a layer's parameters, the statistics it takes from a batch, and those it keeps."""
    n, c, s = shape[0], shape[1], math.prod(shape[2:])
    sides = [norm.cuts[k] for k in norm.mean_cuts + norm.var_cuts]
    terms: dict[str, int] = {}
    for cut in sides:
        terms[_term(cut)] = terms.get(_term(cut), 0) + 1
    affine = [
        f"{2 if isinstance(st, PerChannel) else 2 * st.classes}C"
        for st in norm.norm_spec.affine.stages
        if not isinstance(st, Style)
    ]
    known = ("weight", "bias", "class_weight", "class_bias")
    others = sum(p.numel() for name, p in norm.named_parameters() if name not in known)
    kept = sum(buffer.numel() for name, buffer in norm.named_buffers() if name.startswith("running_"))
    return Counts(
        sum(p.numel() for p in norm.parameters()),
        " + ".join(affine + ([str(others)] if others else [])) or "0",
        None if norm.norm_spec.custom else sum(math.prod(cut.parts((n, c, s))) for cut in sides),
        "" if norm.norm_spec.custom else " + ".join(_times(count, term) for term, count in terms.items()),
        kept,
    )


def _term(cut: Cut) -> str:
    """Write the number of statistics of a cut in N, C and S."""
    numbers = [str(parts) for parts in (cut.channels, cut.space) if parts > 1]
    samples = f"(N/{cut.samples_per_part})" if cut.is_ghost else ("" if cut.samples else "N")
    letters = ("" if cut.channels else "C") + samples + ("" if cut.space else "S")
    return "·".join([*numbers, *filter(None, [letters])]) or "1"


def _times(count: int, term: str) -> str:
    if term == "1" or count == 1:
        return term if count == 1 else str(count)
    return f"{count}·{term}" if term[0].isdigit() or term[0] == "(" else f"{count}{term}"


def drawing(cut: Cut, shape: tuple[int, ...]) -> list[list[str]]:
    """Draw which pixels share a statistic: a panel a sample, a row a channel, a letter a statistic.

    >>> drawing(make("gn:2", 4).cuts[0], (2, 4, 3))
    [['AAA', 'AAA', 'BBB', 'BBB'], ['CCC', 'CCC', 'DDD', 'DDD']]
    """
    sizes = (shape[0], shape[1], math.prod(shape[2:]))
    axes = drawn(shape)
    parts = cut.parts(sizes)
    seen: dict[tuple[int, ...], str] = {}

    def letter(*index: int) -> str:
        part = tuple(i * p // size for i, p, size in zip(index, parts, sizes, strict=True))
        return seen.setdefault(part, LETTERS[len(seen) % len(LETTERS)])

    return [["".join(letter(n, c, s) for s in axes[2]) for c in axes[1]] for n in axes[0]]


def drawn(shape: tuple[int, ...]) -> list[list[int]]:
    """Choose the samples, channels and positions to draw: evenly, so that every part stays in sight while there is room.

    >>> drawn((2, 64, 2, 2))
    [[0, 1], [0, 8, 16, 24, 32, 40, 48, 56], [0, 1, 2, 3]]
    """
    sizes = (shape[0], shape[1], math.prod(shape[2:]))
    return [[k * size // min(size, most) for k in range(min(size, most))] for size, most in zip(sizes, (3, 8, 16), strict=True)]


def describe(spec: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Say everything about a spec at a shape, as plain data."""
    norm = make(spec, shape[1], batch_size=shape[0], device="meta")  # numbers are counted, not kept
    for cut in norm.cuts:
        if shape_error := cut.shape_error((shape[0], shape[1], math.prod(shape[2:]))):
            raise ShapeError(f"{shape_error} Input {shape}.")
    samples, channels, positions = drawn(shape)
    return {
        "spec": norm.spec,
        "means": norm.norm_spec.canonical(),
        "class": type(norm).__name__,
        "shape": list(shape),
        "formula": formula(norm.norm_spec),
        "population": _population(norm.norm_spec),
        "affine": _affine(norm.norm_spec),
        **counts(norm, shape)._asdict(),
        "drawn": {"samples": samples, "channels": channels, "positions": positions},
        "cuts": {str(cut): _cut(cut, shape) for cut in norm.cuts},
    }


def _cut(cut: Cut, shape: tuple[int, ...]) -> dict[str, Any]:
    axes = zip(
        drawn(shape), cut.parts((shape[0], shape[1], math.prod(shape[2:]))), (*shape[:2], math.prod(shape[2:])), strict=True
    )
    seen = math.prod(len({index * parts // size for index in indices}) for indices, parts, size in axes)
    return {"axes": _axes(cut), "drawing": drawing(cut, shape), "letters_repeat": seen > len(LETTERS)}
