"""Descriptions of norms: properties, formulas, parameter counts and diagrams, printed by `anynorm list` and `anynorm show`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from anynorm.core.affine import PerChannel, PerChannelScale, PerClass, Style
from anynorm.core.cuts import AnyCut, Cut, JointCut
from anynorm.core.mixing import Argmax
from anynorm.core.spec import NormSpec
from anynorm.errors import ShapeError
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY
from anynorm.registry import make, parse, zoo

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
MAX_DRAWN = (3, 8, 16)
"""Maximum number of samples, channels and positions in a diagram."""


def list_norms() -> list[dict[str, str]]:
    """Describe every norm of the zoo.

    Returns:
        One dictionary per norm: `spec`, `class`, `description`, `cuts` (number of parts of samples·channels·space; mean /
        variance if they differ), `running_statistics` ("yes", "no", or "partly" if only some cuts have them), `affine`, `paper`.

    >>> list_norms()[0]["spec"], list_norms()[0]["running_statistics"]
    ('bn', 'yes')
    """
    listed = []
    for entry in zoo():
        norm_spec = parse(entry.spec)
        listed.append(
            {
                "spec": entry.spec,
                "class": entry.norm.__name__,
                "description": entry.summary,
                "cuts": _describe_cuts(norm_spec),
                "running_statistics": _describe_running_statistics(norm_spec),
                "affine": _describe_affine(norm_spec),
                "paper": entry.paper,
            }
        )
    return listed


def _describe_cuts(norm_spec: NormSpec) -> str:
    if not norm_spec.var:
        return "none"
    mean, var = (" + ".join(_describe_axes(cut) for cut in cuts) or "0" for cuts in (norm_spec.mean, norm_spec.var))
    return mean if mean == var else f"{mean} / {var}"


def _describe_axes(cut: AnyCut) -> str:
    """Return the number of parts of samples·channels·space, where N, C or S means one part per sample, channel or position."""
    if isinstance(cut, JointCut):
        return f"{cut.samples or 'N'}·{cut.groups}"
    samples = f"N/{cut.samples_per_part}" if cut.is_ghost else cut.samples or "N"
    return f"{samples}·{cut.channels or 'C'}·{cut.space or 'S'}"


def _describe_running_statistics(norm_spec: NormSpec) -> str:
    """Return "yes", "no", or "partly" if only some cuts pool over samples; with the number of domains or modes, if any."""
    pools_samples = [cut.pools_samples for cut in norm_spec.mean + norm_spec.var]
    if not any(pools_samples):
        return "no"
    answer = "yes" if all(pools_samples) else "partly"
    if not norm_spec.num_stat_sets:
        return answer
    return f"{answer}, {norm_spec.num_stat_sets} {'modes' if norm_spec.soft_assignment else 'domains'}"


def _describe_affine(norm_spec: NormSpec) -> str:
    names = {PerChannel: "channel", PerChannelScale: "channel, without β", PerClass: "class", Style: "style"}
    return " → ".join(names[type(stage)] for stage in norm_spec.affine.stages) or "none"


AFFINE_FORMS = {
    PerChannel: "γ {} + β",
    PerChannelScale: "γ {}",
    PerClass: "γ[k] {} + β[k]",
    Style: "σ(style) {} + μ(style)",
}


def formula(norm_spec: NormSpec) -> list[str]:
    """Return the equations that define a norm, one string per line.

    >>> for line in formula(parse("hn:32")): print(line)
    mean = μ[bn]
    var  = σ²[en:32]
    y    = γ (x − mean)/√(var + ε) + β
    >>> for line in formula(parse("0/bn.none")): print(line)
    mean = 0
    var  = rms²[bn]
    y    = x/√(var + ε)
    """
    if norm_spec.custom:
        without_affine = [] if norm_spec.affine.stages else ["γ = 1, β = 0"]
        return [*REGISTRY[norm_spec.class_name].equations(), *without_affine]
    mean, var = _mixture(norm_spec.mean, "μ", "w"), _mixture(norm_spec.var, "σ²" if norm_spec.mean else "rms²", "w′")
    mixing = "one-hot(argmax λ)" if isinstance(norm_spec.mixing, Argmax) else "softmax(λ)"
    groups = f", for each of {norm_spec.mixing.groups} channel groups" if norm_spec.mixing.groups > 1 else ""
    y = "(x − mean)/√(var + ε)" if norm_spec.mean else "x/√(var + ε)"
    for stage in norm_spec.affine.stages:
        inner = y if y.startswith(("(x", "x")) else f"({y})"
        y = AFFINE_FORMS[type(stage)].format(inner)
    lines = [f"mean = {mean}", f"var  = {var}", f"y    = {y}"]
    weights = "w, w′" if norm_spec.mean else "w′"
    return [*lines, f"{weights} = {mixing}{groups}"] if max(len(norm_spec.mean), len(norm_spec.var)) > 1 else lines


def _mixture(cuts: tuple[AnyCut, ...], symbol: str, weight: str) -> str:
    if len(cuts) == 1:
        return f"{symbol}[{cuts[0]}]"
    return " + ".join(f"{weight}[{cut}] {symbol}[{cut}]" for cut in cuts) or "0"


class Counts(NamedTuple):
    """Numbers of parameters and statistics of a layer, as in sn Table 1.

    Attributes:
        num_parameters: Number of learnable parameters.
        parameter_terms: `num_parameters` in terms of C, such as `2C + 6`.
        num_statistics: Number of statistics computed from a batch; None for a norm outside the algebra (see its formula), unless
            it has none.
        statistic_terms: `num_statistics` in terms of N, C and S, such as `2CN + 2N + 2C`; empty without a formula or statistics.
        num_running_statistics: Number of values in the running statistics.
    """

    num_parameters: int
    parameter_terms: str
    num_statistics: int | None
    statistic_terms: str
    num_running_statistics: int


def count(norm: Norm, shape: tuple[int, ...]) -> Counts:
    """Count the parameters and running statistics of a layer, and the statistics that it computes for an input shape."""
    sizes = _sizes(shape)
    cuts = [norm.cuts[k] for k in norm.mean_cut_indices + norm.var_cut_indices]
    repeats: dict[str, int] = {}
    for cut in cuts:
        repeats[_term(cut)] = repeats.get(_term(cut), 0) + 1
    affine_terms = [
        _multiply(len(stage.names) * math.prod(stage.shape(norm.num_features)[:-1]), "C")
        for stage in norm.norm_spec.affine.stages
        if stage.names
    ]
    affine_names = ("weight", "bias", "class_weight", "class_bias")
    num_others = sum(parameter.numel() for name, parameter in norm.named_parameters() if name not in affine_names)
    is_custom = norm.norm_spec.custom is not None
    return Counts(
        num_parameters=sum(parameter.numel() for parameter in norm.parameters()),
        parameter_terms=" + ".join(affine_terms + ([str(num_others)] if num_others else [])) or "0",
        num_statistics=None if is_custom and cuts else sum(math.prod(cut.parts(sizes)) for cut in cuts),
        statistic_terms="" if is_custom and cuts else " + ".join(_multiply(times, term) for term, times in repeats.items()),
        num_running_statistics=sum(buffer.numel() for name, buffer in norm.named_buffers() if name.startswith("running_")),
    )


def _sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the number of samples, channels and positions of a shape (n, c, …)."""
    return shape[0], shape[1], math.prod(shape[2:])


def _term(cut: Cut) -> str:
    """Return the number of statistics of a cut in terms of N, C and S."""
    counts = (cut.channels * cut.space,) if cut.crosses_channels else (cut.channels, cut.space)
    numbers = [str(parts) for parts in counts if parts > 1]
    samples = f"(N/{cut.samples_per_part})" if cut.is_ghost else ("" if cut.samples else "N")
    letters = ("" if cut.channels else "C") + samples + ("" if cut.space else "S")
    return "·".join([*numbers, *filter(None, [letters])]) or "1"


def _multiply(times: int, term: str) -> str:
    if term == "1" or times == 1:
        return term if times == 1 else str(times)
    return f"{times}·{term}" if term[0].isdigit() or term[0] == "(" else f"{times}{term}"


def find_parts(cut: Cut, shape: tuple[int, ...], indices: Sequence[Sequence[int]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Find the part of a cut to which each value of an input belongs; all values of a part share a mean and a variance.

    Args:
        cut: a cut that was resolved for the number of channels.
        shape: shape of the input, (n, c, …).
        indices: indices of the samples, channels and flattened positions to include.

    Returns:
        A dictionary from the index (sample, channel, position) of each value to the index of its part.

    >>> find_parts(make("gn:2", 4).cuts[0], (2, 4, 3), [[1], [1, 2], [0]])
    {(1, 1, 0): (1, 0, 0), (1, 2, 0): (1, 1, 0)}
    """
    sizes = _sizes(shape)
    return {index: cut.part_of(index, sizes) for index in itertools.product(*indices)}


def draw_cut(cut: Cut, shape: tuple[int, ...]) -> list[list[str]]:
    """Draw a diagram of a cut, in which values with the same letter share a mean and a variance.

    Returns:
        One panel per drawn sample, with one row per drawn channel and one letter per drawn position.

    >>> draw_cut(make("gn:2", 4).cuts[0], (2, 4, 3))
    [['AAA', 'AAA', 'BBB', 'BBB'], ['CCC', 'CCC', 'DDD', 'DDD']]
    """
    samples, channels, positions = drawn_indices(shape)
    parts = find_parts(cut, shape, (samples, channels, positions))
    letters = {part: LETTERS[k % len(LETTERS)] for k, part in enumerate(dict.fromkeys(parts.values()))}
    return [["".join(letters[parts[n, c, s]] for s in positions) for c in channels] for n in samples]


def drawn_indices(shape: tuple[int, ...]) -> list[list[int]]:
    """Return the indices of the samples, channels and positions to draw: evenly spaced, at most `MAX_DRAWN`.

    >>> drawn_indices((2, 64, 2, 2))
    [[0, 1], [0, 8, 16, 24, 32, 40, 48, 56], [0, 1, 2, 3]]
    """
    counts = [min(size, limit) for size, limit in zip(_sizes(shape), MAX_DRAWN, strict=True)]
    return [[k * size // count for k in range(count)] for size, count in zip(_sizes(shape), counts, strict=True)]


def describe(spec: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Describe a norm for inputs of a given shape.

    Args:
        spec: The spec string, such as `hn:32`.
        shape: Shape of the input, (n, c, …).

    Returns:
        A JSON-compatible dictionary: `spec`, `canonical` (the spec in terms of cuts), `class`, `shape`, `formula`,
        `running_statistics`, `affine`, the fields of `Counts`, `drawn` (the indices in the diagrams), and `cuts`: `axes`,
        `drawing` and `letters_repeat` (whether there are more parts than letters) of each cut.

    Raises:
        SpecError: if the spec is invalid.
        ShapeError: if the norm does not support the shape.
    """
    norm = make(spec, shape[1], batch_size=shape[0], device="meta")  # allocates no memory
    for cut in norm.cuts:
        try:
            cut.check_shape(_sizes(shape))
        except ShapeError as error:
            raise ShapeError(f"{error} Input {shape}.") from None
    samples, channels, positions = drawn_indices(shape)
    return {
        "spec": norm.spec,
        "canonical": norm.norm_spec.canonical(),
        "class": type(norm).__name__,
        "shape": list(shape),
        "formula": formula(norm.norm_spec),
        "running_statistics": _describe_running_statistics(norm.norm_spec),
        "affine": _describe_affine(norm.norm_spec),
        **count(norm, shape)._asdict(),
        "drawn": {"samples": samples, "channels": channels, "positions": positions},
        "cuts": {str(cut): _describe_cut(cut, shape) for cut in norm.cuts},
    }


def _describe_cut(cut: Cut, shape: tuple[int, ...]) -> dict[str, Any]:
    num_drawn = len(set(find_parts(cut, shape, drawn_indices(shape)).values()))
    return {"axes": _describe_axes(cut), "drawing": draw_cut(cut, shape), "letters_repeat": num_drawn > len(LETTERS)}
