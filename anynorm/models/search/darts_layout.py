"""The layout that the search and the evaluation network of the DARTS space share (Liu et al. 2019, sec. 3.1).

stem: 3 × 3 convolution to 3 C channels, norm
n cells; cell k reads the outputs of the cells k − 1 and k − 2 (the stem before the first), each through a 1 × 1 convolution
cells number n // 3 and 2 n // 3 halve height and width and double C; a cell has 4 C output channels
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from anynorm.errors import SpecError
from anynorm.models.search.darts_operations import FactorizedReduce, relu_conv_norm
from anynorm.models.search.genotype import NUM_NODES
from anynorm.models.shape import DataShape

STEM_MULTIPLIER = 3
"""Channels of the stem per C."""


class CellLayout(NamedTuple):
    """Position of a cell in a network.

    Args:
        in_channels: channels of the outputs of the last cell but one and of the last cell.
        channels: C.
        reduces: whether the cell halves height and width.
        follows_reduction: whether the last cell does, so that its two inputs differ in size.
    """

    in_channels: tuple[int, int]
    channels: int
    reduces: bool
    follows_reduction: bool

    def make_preprocessing(self, *, affine: bool) -> nn.ModuleList:
        """Return the two modules that give both inputs C channels and one size."""
        first, second = self.in_channels
        return nn.ModuleList(
            [
                FactorizedReduce(first, self.channels, affine=affine)
                if self.follows_reduction
                else relu_conv_norm(first, self.channels, affine=affine),
                relu_conv_norm(second, self.channels, affine=affine),
            ]
        )

    def stride(self, index: int) -> int:
        """Return the stride of an edge by the number of its input: edges from the inputs of a reduction cell halve the size."""
        return 2 if self.reduces and index < 2 else 1


def layout_cells(num_cells: int, channels: int) -> list[CellLayout]:
    """Return the layout of each cell.

    Args:
        num_cells: number of cells.
        channels: C of the first cell.

    Raises:
        SpecError: if there are fewer than 3 cells, in which case one would have to reduce twice.
    """
    if num_cells < 3:
        raise SpecError(f"a network of the DARTS space must have at least 3 cells; got {num_cells}.")
    layouts = []
    before, last, follows_reduction = STEM_MULTIPLIER * channels, STEM_MULTIPLIER * channels, False
    for number in range(num_cells):
        reduces = number in reduction_cells(num_cells)
        channels *= 2 if reduces else 1
        layouts.append(CellLayout((before, last), channels, reduces, follows_reduction))
        before, last, follows_reduction = last, NUM_NODES * channels, reduces
    return layouts


def reduction_cells(num_cells: int) -> tuple[int, int]:
    """Return the numbers of the cells that reduce."""
    return num_cells // 3, 2 * num_cells // 3


def make_head(layouts: list[CellLayout], shape: DataShape) -> nn.Sequential:
    """Return the classifier after the last cell."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(NUM_NODES * layouts[-1].channels, shape.num_classes))


def make_stem(shape: DataShape, channels: int) -> nn.Sequential:
    """Return the convolution and the norm before the first cell."""
    out_channels = STEM_MULTIPLIER * channels
    return nn.Sequential(nn.Conv2d(shape.channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels))
