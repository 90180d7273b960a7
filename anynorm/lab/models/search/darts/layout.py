"""The common layout of the search network and the evaluation network of the DARTS space (Liu et al. 2019, sec. 3.1).

The stem is a 3 × 3 convolution to 3 C channels and a norm. The inputs of cell k are the outputs of the cells k − 1 and k − 2 (of
the stem for the first cells), each after a 1 × 1 convolution. A cell has 4 C output channels. Of n cells, the cells n // 3 and
2 n // 3 are reduction cells: they halve height and width and double C.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from anynorm.errors import SpecError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.search.darts.genotype import NUM_NODES
from anynorm.lab.models.search.darts.operations import FactorizedReduce, relu_conv_norm

STEM_MULTIPLIER = 3
"""Number of channels of the stem as a multiple of C."""


class CellLayout(NamedTuple):
    """Channels and strides of a cell.

    Args:
        in_channels: number of channels of the two inputs, the outputs of the cell before the previous one and of the previous
            cell.
        channels: C of the cell.
        reduces: whether the cell halves height and width.
        follows_reduction: whether the previous cell does, so that the two inputs differ in size.
    """

    in_channels: tuple[int, int]
    channels: int
    reduces: bool
    follows_reduction: bool

    def make_preprocessing(self, *, affine: bool) -> nn.ModuleList:
        """Return two modules that convert the inputs of the cell to C channels and equal height and width."""
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
        """Return the stride of an edge, given the index of its input: 2 for edges from the inputs of a reduction cell, else 1."""
        return 2 if self.reduces and index < 2 else 1


def layout_cells(num_cells: int, channels: int) -> list[CellLayout]:
    """Return the layout of each cell.

    Args:
        num_cells: number of cells.
        channels: number of channels C of the first cell.

    Raises:
        SpecError: if `num_cells` is smaller than 3.
    """
    if num_cells < 3:
        raise SpecError(f"a network of the DARTS space must have at least 3 cells; got {num_cells}.")
    layouts = []
    before, last, follows_reduction = STEM_MULTIPLIER * channels, STEM_MULTIPLIER * channels, False
    for index in range(num_cells):
        reduces = index in reduction_cells(num_cells)
        channels *= 2 if reduces else 1
        layouts.append(CellLayout((before, last), channels, reduces, follows_reduction))
        before, last, follows_reduction = last, NUM_NODES * channels, reduces
    return layouts


def reduction_cells(num_cells: int) -> tuple[int, int]:
    """Return the indices of the two reduction cells."""
    return num_cells // 3, 2 * num_cells // 3


def make_head(layouts: list[CellLayout], shape: DataShape) -> nn.Sequential:
    """Return the classifier after the last cell."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(NUM_NODES * layouts[-1].channels, shape.num_classes))


def make_stem(shape: DataShape, channels: int) -> nn.Sequential:
    """Return the convolution and the norm before the first cell."""
    out_channels = STEM_MULTIPLIER * channels
    return nn.Sequential(nn.Conv2d(shape.channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels))
