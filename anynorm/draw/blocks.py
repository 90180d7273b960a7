"""The content of a drawing of the cuts of a norm: which values of a block samples × channels × positions share a statistic.

A norm has one block for mean and variance, two if their cuts differ (`hn`), several for a mixture of cuts (`sn`), and one for the
mean square if its mean is 0 (`rms`). If the norm has separate statistics per domain, the samples of the block are divided among
the domains. A norm without statistics (`dyt`) has one block of single values. Of a large input, a few evenly spaced samples,
channels and positions are drawn, or the first few if there are too many parts to draw them all.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from anynorm.core.cuts import AnyCut, Cut, JointCut
from anynorm.core.mixing import Argmax
from anynorm.core.spec import NormSpec
from anynorm.draw.descriptions import find_parts
from anynorm.errors import ShapeError
from anynorm.layers.norm import Norm
from anynorm.registry import make, parse

MAX_DRAWN = (4, 8, 6)
"""Maximum number of samples, channels and positions to draw."""
Index = tuple[int, ...]


class Block(NamedTuple):
    """The parts of one cut.

    Attributes:
        statistics: the statistics of these parts: "mean", "variance", "mean and variance", "mean square" or "no statistics".
        cut: the name of the cut.
        words: the number of statistics in words, such as "one per channel".
        joined_by: the text before the block in a mixture, "+" or "or"; empty for the first block.
        parts: mapping from the index (sample, channel, position) of a drawn value to the index of its part.
    """

    statistics: str
    cut: str
    words: str
    joined_by: str
    parts: dict[Index, Index]


class Drawing(NamedTuple):
    """The content of the drawing of a norm.

    Attributes:
        spec: the spec of the norm.
        shape: number of samples, channels and positions of the input.
        indices: indices of the drawn samples, channels and positions.
        blocks: one block per cut of the mean and of the variance.
        notes: remarks for the caption, on properties that the blocks do not show.
    """

    spec: str
    shape: tuple[int, int, int]
    indices: list[list[int]]
    blocks: list[Block]
    notes: list[str]


def find_blocks(spec: str, shape: tuple[int, ...] | None = None) -> Drawing:
    """Return the blocks to draw for a norm.

    Args:
        spec: spec of a norm, such as `hn:32`.
        shape: shape of the input, (n, c, …); None for a small shape to which the norm applies.

    Raises:
        SpecError: if the spec is invalid.
        ShapeError: if the spec does not fit the shape.

    >>> [(block.statistics, block.cut, block.words) for block in find_blocks("hn:2").blocks]
    [('mean', 'bn', 'one per channel'), ('variance', 'en:2', 'one per group of channels')]
    """
    shape = small_shape(parse(spec, batch_size=4)) if shape is None else shape
    sizes = (shape[0], shape[1], math.prod(shape[2:]))
    norm = make(spec, shape[1], batch_size=shape[0], device="meta")
    for cut in norm.cuts:
        try:
            cut.check_shape(sizes)
        except ShapeError as error:
            raise ShapeError(f"{error} Input {shape}.") from None
    indices = drawn_indices(norm.cuts, sizes)
    mean, var = (tuple(norm.cuts[k] for k in numbers) for numbers in (norm.mean_cut_indices, norm.var_cut_indices))
    sides = {"mean and variance": mean} if mean == var else {"mean": mean, "variance": var}
    sides = sides if mean else {"mean square": var}
    if not norm.cuts:
        blocks = [_single_values_block(norm.spec, indices)]
    elif getattr(norm, "one_cut_per_channel", False):
        blocks = [_divided_block(mean, sizes, indices)]
    else:
        sign = "or" if isinstance(norm.norm_spec.mixing, Argmax) else "+"
        blocks = [
            _block(norm, statistics, cut, sizes, indices, sign if k else "")
            for statistics, cuts in sides.items()
            for k, cut in enumerate(cuts)
        ]
    return Drawing(norm.spec, sizes, indices, blocks, _notes(norm.norm_spec))


def _block(norm: Norm, statistics: str, cut: Cut, sizes: Index, indices: list[list[int]], sign: str) -> Block:
    parts = find_parts(cut, sizes, indices)
    if cut.crosses_channels:  # one group index, not one index each for channels and positions
        parts = {index: (part[0], part[1] * cut.space + part[2], 0) for index, part in parts.items()}
    num_domains = norm.norm_spec.affine.num_domains
    if num_domains:
        parts = {index: (index[0] * num_domains // sizes[0], *part) for index, part in parts.items()}
    return Block(statistics, str(cut), describe_parts(cut, num_domains), sign, parts)


def _divided_block(cuts: tuple[Cut, ...], sizes: Index, indices: list[list[int]]) -> Block:
    """Return the block of a norm with one cut per group of channels (ibn)."""
    parts = {
        index: part
        for k, cut in enumerate(cuts)
        for index, part in find_parts(cut, sizes, indices).items()
        if index[1] * len(cuts) // sizes[1] == k
    }
    words = ", ".join(f"{cut}: {describe_parts(cut)}" for cut in cuts)
    return Block("mean and variance", " | ".join(map(str, cuts)), words, "", dict(sorted(parts.items())))


def _single_values_block(spec: str, indices: list[list[int]]) -> Block:
    """Return the block of a norm without statistics (dyt), in which every value is a part of its own."""
    parts: dict[Index, Index] = {index: index for index in itertools.product(*indices)}
    return Block("no statistics", spec, "each value alone", "", parts)


def describe_parts(cut: Cut, num_domains: int = 0) -> str:
    """Return the number of statistics of a cut in words.

    >>> from anynorm.core.cuts import ALL
    >>> describe_parts(Cut(ALL, 32, 1)), describe_parts(Cut(1, 1, 1))
    ('one per sample and group of channels', 'one for the whole batch')
    """
    samples = f"{cut.samples_per_part} samples" if cut.is_ghost else "sample"
    names = ["domain"] if num_domains else []
    names += [] if cut.samples == 1 else [samples]
    if cut.crosses_channels:
        names += ["group of channels × positions"]
    else:
        names += [] if cut.channels == 1 else ["group of channels" if cut.channels else "channel"]
        names += [] if cut.space == 1 else ["strip of positions" if cut.space else "position"]
    if not names:
        return "one for the whole batch"
    return "one per " + (", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0])


def _notes(norm_spec: NormSpec) -> list[str]:
    notes = []
    if norm_spec.affine.num_domains:
        notes.append(f"samples of {norm_spec.affine.num_domains} domains, drawn one domain after the other")
    if norm_spec.custom and norm_spec.custom.num_stat_sets:
        notes.append(f"once for each of {norm_spec.custom.num_stat_sets} modes, to which a gate assigns samples by fractions")
    if norm_spec.mixing.groups > 1 and max(len(norm_spec.mean), len(norm_spec.var)) > 1 and not norm_spec.custom:
        notes.append(f"each of {norm_spec.mixing.groups} groups of channels has weights of its own")
    return notes


def small_shape(norm_spec: NormSpec) -> tuple[int, int, int]:
    """Return a small shape in which each part has several values, if possible.

    >>> small_shape(parse("bn")), small_shape(parse("gn:32")), small_shape(parse("bgn:12"))
    ((4, 6, 4), (4, 64, 4), (4, 6, 4))
    """
    cuts = norm_spec.mean + norm_spec.var
    num_samples = max(4, *(2 * cut.samples_per_part for cut in cuts if isinstance(cut, Cut)), 2 * norm_spec.affine.num_domains)
    joint = [cut.groups for cut in cuts if isinstance(cut, JointCut)]
    groups = math.lcm(norm_spec.mixing.groups, *(cut.channels or 1 for cut in cuts if isinstance(cut, Cut)))
    channels = 6 if 6 % groups == 0 and groups < 6 else 2 * groups
    if joint and groups == 1:
        usable = [c for c in (6, 8, 4) if joint[0] % c == 0 or (c % joint[0] == 0 and joint[0] < c)]
        channels = usable[0] if usable else 6
    strips = math.lcm(*(_num_strips(cut, channels) for cut in cuts))
    return num_samples, channels, strips * math.ceil(4 / strips)


def _num_strips(cut: AnyCut, channels: int) -> int:
    return cut.resolve(channels).space or 1 if isinstance(cut, JointCut) else cut.space or 1


def drawn_indices(cuts: tuple[Cut, ...], sizes: tuple[int, int, int]) -> list[list[int]]:
    """Return the indices of the samples, channels and positions to draw.

    >>> from anynorm.core.cuts import ALL
    >>> drawn_indices((Cut(ALL, 2, 1),), (2, 12, 3))
    [[0, 1], [0, 1, 3, 4, 6, 7, 9, 10], [0, 1, 2]]
    >>> drawn_indices((Cut(ALL, 32, 1),), (2, 64, 3))[1]
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    counts = [max(numbers) for numbers in zip((1, 1, 1), *(_num_groups(cut, sizes) for cut in cuts), strict=True)]
    return [_choose(size, limit, count) for size, limit, count in zip(sizes, MAX_DRAWN, counts, strict=True)]


def _num_groups(cut: Cut, sizes: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the number of parts along each axis; 1 if every index is a separate part."""
    return tuple(1 if parts == size else parts for parts, size in zip(cut.parts(sizes), sizes, strict=True))


def _choose(size: int, limit: int, num_parts: int) -> list[int]:
    """Return at most `limit` indices: evenly spaced over the axis, or the first ones if there are too many parts."""
    if 2 * num_parts <= limit or size <= limit:
        count = min(size, limit)
        return [k * size // count for k in range(count)]
    step = max(1, size // num_parts // 2)
    return [k * step for k in range(limit)]
