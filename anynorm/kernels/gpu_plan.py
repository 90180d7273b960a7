"""The plan of a pass of the Triton kernels: the norm and the shape of x as plain values, tiles of x, and the number of programs.

A program reads tiles of x one after the other. Long rows are divided among programs, so that a single image fills a GPU too.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import torch

from anynorm.core.affine import PerClass
from anynorm.core.cuts import ALL
from anynorm.kernels.interface import ForwardSpec

TILE = 4096
"""Size of a tile of x in bytes: one load of 16 bytes for each of 256 threads (4 warps of 64 on AMD), or two for each of 128."""
TILES = 8
"""Maximum number of tiles that one program reads; longer rows are split."""
PROGRAMS = 2 * 132
"""Number of programs below which they read fewer tiles: two for each of the 132 multiprocessors of an H100, so that one computes
while the other waits for memory."""
COLUMNS, SAMPLES, TABLE = 16, 32, 512
"""Shape of the tiles of tables that are summed over samples, and maximum number of entries of all other tiles of tables."""


def triton_kernels() -> ModuleType:
    """Import and return the module of the kernels, so that `import anynorm` does not import Triton."""
    from anynorm.kernels import gpu_kernels

    return gpu_kernels


class Plan(NamedTuple):
    """The description of a forward pass for one input shape, and the grid (number of programs) of the kernels that read x."""

    shape: Any
    norm: Any
    layout: Any
    activation: Any
    grid: int

    def size(self, k: int) -> tuple[int, int]:
        """Return the number of rows and columns of the table of statistics of cut k."""
        cut = self.norm.cuts[k]
        return self.shape.n // cut.samples_per_part if cut.samples_per_part else self.num_domains, (
            cut.channels or self.shape.c
        ) * cut.strips

    def slice(self, k: int) -> slice:
        """Return the slice of the statistics of cut k in the table of the statistics of all cuts."""
        begin = sum(math.prod(self.size(i)) for i in range(k))
        return slice(begin, begin + math.prod(self.size(k)))

    def programs(self, k: int) -> int:
        """Return the number of programs that compute the statistics of cut k."""
        rows, width = self.size(k)
        return rows * num_blocks(width, int(self.norm.cuts[k].parts))

    @property
    def num_columns(self) -> int:
        """Number of columns (channel, strip)."""
        return int(self.shape.c * self.norm.strips)

    @property
    def num_domains(self) -> int:
        """Number of sets of statistics of a cut that pools samples: the number of domains, or 1."""
        return int(max(self.norm.domains, 1))


def power_of_2(number: int, limit: int) -> int:
    """Return the smallest power of 2 that is not smaller than a number, or the limit if that is smaller."""
    return int(min(limit, 1 << max(number - 1, 0).bit_length()))


def num_blocks(size: int, block: int) -> int:
    """Return the number of blocks of a size."""
    return -(-size // block)


class Tiling(NamedTuple):
    """The tiles (rows, positions) of x, of which a program reads those of `chunk` positions, and the number of programs."""

    rows: int
    positions: int
    chunk: int
    num_splits: int
    grid: int


def _make_tiling(num_strips: int, c: int, length: int, tile: int, max_tiles: int, last: bool) -> Tiling:
    """Return the tiling with tiles of up to `tile` values, of which a program reads up to `max_tiles`.

    Args:
        num_strips: number of strips of all samples.
        c: number of channels.
        length: number of positions per strip.
        tile: maximum number of values per tile.
        max_tiles: maximum number of tiles per program.
        last: whether x is channels_last instead of contiguous.
    """
    if last:
        rows = power_of_2(c, min(tile, 128))
        positions, blocks = power_of_2(length, tile // rows), num_strips * num_blocks(c, rows)
    else:
        positions = power_of_2(length, tile)
        rows = power_of_2(num_strips * c, tile // positions)
        blocks = num_blocks(num_strips * c, rows)
    chunk = positions * max_tiles
    num_splits = max(1, num_blocks(length, chunk))
    return Tiling(rows, positions, chunk, num_splits, num_splits * blocks)


def _choose_tiling(num_strips: int, c: int, length: int, itemsize: int, last: bool) -> Tiling:
    """Return the tiling with the most tiles per program that has at least PROGRAMS programs; otherwise the one with the most.

    The numbers of programs of gn:32 at batch 1 in float16 are below. All kernels but row_sums and apply read small tables: three
    float32 numbers per row and split, which pool_rows and gradients read, are 5 % of x at 8 tiles of a channels_last x, and
    19 % at the 2 tiles of (1, 320, 64, 64).

        x                    layout           row_sums, apply   pool_rows   coefficients   gradients   reduce
        (1, 320, 64, 64)     contiguous                   320           1              2          20       44
                             channels_last                384          32              2          20      106
        (1, 128, 512, 512)   contiguous                  2048           4              1           8       26
                             channels_last               2048          32              1           8       82
    """
    tilings = [_make_tiling(num_strips, c, length, TILE // itemsize, TILES >> k, last) for k in range(TILES.bit_length())]
    return next((tiling for tiling in tilings if tiling.grid >= PROGRAMS), tilings[-1])


@lru_cache(maxsize=1024)
def make_plan(spec: ForwardSpec, size: torch.Size, itemsize: int, last: bool, style_rows: int) -> Plan:
    """Return the plan of a forward pass.

    Args:
        spec: the description of the forward pass.
        size: the shape of x.
        itemsize: bytes per value of x.
        last: whether x is channels_last instead of contiguous.
        style_rows: number of rows of the style, n or 1; 0 without a style.
    """
    k = triton_kernels()
    n, c, strips = size[0], size[1], math.lcm(*(cut.space for cut in spec.cuts.distinct))
    length, norm = math.prod(size[2:]) // strips, spec.norm_spec

    tiling = _choose_tiling(n * strips, c, length, itemsize, last)

    def make_cut(samples: int, channels: int, space: int, uses_batch: bool = True, index: int = -1) -> Any:
        width = (channels or c) * space
        num_tables = samples * tiling.num_splits if samples and index >= 0 else 1  # of the sums that are pooled
        members = power_of_2(num_tables * c * strips // width, TABLE)
        sides = (side.index(index) if index in side else -1 for side in (spec.cuts.mean, spec.cuts.var))
        return k.KernelCut(samples, channels, space, uses_batch, *sides, power_of_2(width, TABLE // members), members)

    def of_samples(samples: int, space: int) -> Any:
        return make_cut(samples, ALL, space)._replace(parts=COLUMNS, members=SAMPLES)

    cuts = [
        make_cut(cut.samples_per_part if cut.samples == ALL and uses else 0, cut.channels, cut.space, uses, index)
        for index, (cut, uses) in enumerate(zip(spec.cuts.distinct, spec.uses_batch, strict=True))
    ]
    second = "class" if any(isinstance(stage, PerClass) for stage in norm.affine.stages) else "sample" if style_rows > 1 else ""
    cut_second = of_samples(int(second == "sample"), 1)
    description = k.KernelNorm(
        tuple(cuts), of_samples(0, strips), of_samples(0, 1), cut_second, make_cut(1, norm.mixing.groups, 1), strips,
        spec.num_domains, type(norm.mixing).__name__.lower(), norm.mixing.groups, len(spec.cuts.mean), len(spec.cuts.var), second,
        any(cut.uses_batch and not cut.samples_per_part for cut in cuts),
    )  # fmt: skip
    shape = k.KernelShape(n, c, length, tiling.chunk, tiling.num_splits, n * c * strips, 0)
    layout = k.KernelLayout(last, math.gcd(c if last else length, 16) or 1, strips, tiling.rows, tiling.positions)
    activation = k.NONE if spec.activation is None else k.KernelActivation(spec.activation.name, spec.activation.negative_slope)
    plan = Plan(shape, description, layout, activation, tiling.grid)
    return plan._replace(shape=shape._replace(num_stats=plan.slice(len(cuts) - 1).stop))
