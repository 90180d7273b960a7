"""The networks of NAS-Bench-201: the supernet, and the network of one cell (Dong & Yang 2020, sec. 2).

    conv 3 × 3 – norm ─▶ N cells (C) ─▶ block ─▶ N cells (2C) ─▶ block ─▶ N cells (4C) ─▶ norm – ReLU – mean – linear

Residual blocks halve the resolution. `cells` has the cells, and the conditions of their norms.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn

from anynorm.errors import DataError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels
from anynorm.lab.models.search.nasbench201.cells import FixedCell, MixedCell, encode_operations
from anynorm.lab.models.search.nasbench201.notation import EDGES, NONE, OP_NAMES, format_cell, is_connected, parse_cell
from anynorm.lab.models.search.nasbench201.operations import ConvNorm
from anynorm.lab.models.search.supernet import Supernet

CHANNELS, NUM_CELLS = 16, 5
"""Number of channels of the first stage, and number of cells per stage, in the benchmark."""


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions, the first with stride 2, and a shortcut of 2 × 2 average pooling and a 1 × 1 convolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = ConvNorm(in_channels, out_channels, 3, 2), ConvNorm(out_channels, out_channels, 3)
        self.pool = nn.AvgPool2d(2, ceil_mode=True)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, at half the resolution of x."""
        y: Tensor = self.conv2(self.conv1(x)) + self.shortcut(self.pool(x))
        return y


class Layout(nn.Module):
    """The common layout of the supernet and the network of a cell: stem, three stages of cells, residual blocks, classifier.

    Args:
        shape: shape of the images, and the number of classes.
        channels: number of channels of the first stage.
        num_cells: number of cells per stage.
        make_cell: a function that returns a cell for a number of channels.
    """

    def __init__(self, shape: DataShape, channels: int, num_cells: int, make_cell: Callable[[int], nn.Module]) -> None:
        super().__init__()
        widths = [channels, 2 * channels, 4 * channels]
        self.stem = nn.Sequential(nn.Conv2d(shape.channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.cells = nn.ModuleList(make_cell(width) for width in widths for _ in range(num_cells))
        self.blocks = nn.ModuleList(ResidualBlock(before, after) for before, after in pairwise(widths))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.linear = nn.Linear(widths[-1], shape.num_classes)

    def forward(self, x: Tensor, *inputs_per_cell: tuple[Any, ...]) -> Tensor:
        """Return logits (n, num_classes).

        Args:
            x: images.
            inputs_per_cell: further arguments of each cell besides its first node; none by default.
        """
        x = self.stem(x)
        num_cells = len(self.cells) // (len(self.blocks) + 1)
        for index, cell in enumerate(self.cells):
            if index and index % num_cells == 0:
                x = self.blocks[index // num_cells - 1](x)
            x = cell(x, *(inputs_per_cell[index] if inputs_per_cell else ()))
        logits: Tensor = self.linear(self.norm(x).relu().mean((2, 3)))
        return logits


class NasBench201(Supernet):
    """The supernet of NAS-Bench-201.

    Args:
        shape: shape of the images, and the number of classes.
        width: multiplier of the 16 channels of the first stage.
        num_cells: cells per stage.

    >>> supernet = NasBench201(DataShape(3, 16, 16, 10), width=0.5, num_cells=1)
    >>> supernet.alphas["cell"].shape
    torch.Size([6, 5])
    """

    op_names: ClassVar[tuple[str, ...]] = OP_NAMES

    def __init__(self, shape: DataShape, width: float = 1.0, num_cells: int = NUM_CELLS) -> None:
        super().__init__({"cell": len(EDGES)})
        self.shape, self.width, self.num_cells = shape, width, num_cells
        self.network = Layout(shape, scale_channels(CHANNELS, width), num_cells, MixedCell)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, num_classes)."""
        selection = self.selection("cell")
        operations = self.draw_operations("cell", len(self.network.cells))
        logits: Tensor = self.network(x, *[(selection, encode_operations(ops)) for ops in operations])
        return logits

    def architecture(self) -> str:
        """Return the cell with the largest α on each edge, in the notation of the benchmark."""
        return format_cell(self.alphas["cell"].argmax(1))

    def build(self, architecture: str) -> nn.Module:
        """Return the untrained network of a cell, with the channels and number of cells of this supernet."""
        return cell_network(architecture, self.shape, self.width, self.num_cells)

    def num_conditions(self) -> dict[str, int]:
        """Return the number of conditions of each norm by path: 5^j for a norm on an edge that starts at node j."""
        conditions = {}
        for name, module in self.named_modules():
            if isinstance(module, MixedCell):
                for index, (_, source) in enumerate(EDGES):
                    for path, op in module.edges[index].named_modules(prefix=f"{name}.edges.{index}"):
                        if isinstance(op, ConvNorm):
                            conditions[f"{path}.norm"] = len(OP_NAMES) ** source
        return conditions


def cell_network(architecture: str, shape: DataShape, width: float = 1.0, num_cells: int = NUM_CELLS) -> nn.Module:
    """Return the untrained network of a cell.

    Args:
        architecture: the cell; see `anynorm.lab.models.search.nasbench201.notation`.
        shape: shape of the images, and the number of classes.
        width: multiplier of the 16 channels of the first stage.
        num_cells: cells per stage.

    Raises:
        DataError: if the text is not a cell, or the output of the cell does not depend on its input.
    """
    ops = parse_cell(architecture)
    if not is_connected(ops):
        raise DataError(
            f"the output of a cell must depend on its input; every path of {format_cell(ops)} has the operation "
            f"{OP_NAMES[NONE]}, so its logits are the same for all images."
        )
    return Layout(shape, scale_channels(CHANNELS, width), num_cells, lambda channels: FixedCell(channels, ops))
