"""The networks of NAS-Bench-201: the supernet, and the network of one cell (Dong & Yang 2020, sec. 2).

    conv 3 × 3 – norm ─▶ N cells (C) ─▶ block ─▶ N cells (2C) ─▶ block ─▶ N cells (4C) ─▶ norm – ReLU – mean – linear

A cell has four nodes; node i is the sum over j < i of an operation applied to node j. A convolution is ReLU – conv – norm.
Residual blocks halve the resolution. Node j has j input edges, so a norm on an edge that starts at node j has 5^j conditions
(sabn sec. 4.2): the operations of these input edges, encoded as a number with j digits in base 5.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anynorm.errors import DataError
from anynorm.lab.data.shape import DataShape, scale_channels
from anynorm.lab.models.search.cells import EDGES, NONE, NUM_NODES, OP_NAMES, format_cell, is_connected, parse_cell
from anynorm.lab.models.search.supernet import Selection, Supernet, Zero
from anynorm.layers.conditioning import is_conditional

CHANNELS, NUM_CELLS = 16, 5
"""Number of channels of the first stage, and number of cells per stage, in the benchmark."""


class ConvNorm(nn.Module):
    """ReLU, convolution without bias, norm."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)
        self.norm: Any = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor, condition: int = 0) -> Tensor:
        """Return norm(conv(relu(x))); the condition is passed to a conditional norm."""
        y = self.conv(x.relu())
        inputs = (y, condition) if is_conditional(self.norm) else (y,)
        normalized: Tensor = self.norm(*inputs)
        return normalized


class Skip(nn.Module):
    """The operation `skip_connect`."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """Return x."""
        return x


class AveragePool(nn.Module):
    """The operation `avg_pool_3x3`; positions outside the map are excluded from the mean."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """Return the mean over 3 × 3 positions, by products with two matrices, which take 0.2 of the time of `avg_pool2d`."""
        height, width = (neighbor_means(size, x) for size in x.shape[2:])
        return height @ x @ width.T


def neighbor_means(size: int, like: Tensor) -> Tensor:
    """Return the matrix (size, size) that averages each position of a vector with its neighbors.

    Args:
        size: number of positions.
        like: tensor with the device and dtype of the result.

    >>> neighbor_means(3, torch.empty(()))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333],
            [0.0000, 0.5000, 0.5000]])
    """
    positions = torch.arange(size, device=like.device)
    band = ((positions[:, None] - positions).abs() <= 1).to(like.dtype)
    return band / band.sum(1, keepdim=True)


def make_operation(name: str, channels: int) -> nn.Module:
    """Return an operation of the space by name."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "none": Zero,
        "skip_connect": Skip,
        "nor_conv_1x1": lambda: ConvNorm(channels, channels, 1),
        "nor_conv_3x3": lambda: ConvNorm(channels, channels, 3),
        "avg_pool_3x3": AveragePool,
    }
    return makers[name]()


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


class MixedCell(nn.Module):
    """A cell with all operations on each edge."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.edges = nn.ModuleList(nn.ModuleList(make_operation(name, channels) for name in OP_NAMES) for _ in EDGES)

    def forward(self, x: Tensor, selection: Selection, codes: list[int]) -> Tensor:
        """Return the last node.

        Args:
            x: the first node.
            selection: a function that computes the output of an edge.
            codes: for each node, the condition of the norms on the edges that start at this node.
        """
        nodes: list[Any] = [x, *[0] * (NUM_NODES - 1)]
        for number, (node, source) in enumerate(EDGES):
            nodes[node] = nodes[node] + selection(number, self.edges[number], nodes[source], codes[source])
        y: Tensor = nodes[-1]
        return y


class FixedCell(nn.Module):
    """A cell with one operation per edge."""

    def __init__(self, channels: int, ops: list[int]) -> None:
        super().__init__()
        self.edges = nn.ModuleList(make_operation(OP_NAMES[op], channels) for op in ops)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last node."""
        nodes: list[Any] = [x, *[0] * (NUM_NODES - 1)]
        for (node, source), op in zip(EDGES, self.edges, strict=True):
            nodes[node] = nodes[node] + op(nodes[source])
        y: Tensor = nodes[-1]
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
        for number, cell in enumerate(self.cells):
            if number and number % num_cells == 0:
                x = self.blocks[number // num_cells - 1](x)
            x = cell(x, *(inputs_per_cell[number] if inputs_per_cell else ()))
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

    def num_codes(self) -> dict[str, int]:
        """Return the number of conditions of each norm by path: 5^j for a norm on an edge that starts at node j."""
        codes = {}
        for name, module in self.named_modules():
            if isinstance(module, MixedCell):
                for number, (_, source) in enumerate(EDGES):
                    for path, op in module.edges[number].named_modules(prefix=f"{name}.edges.{number}"):
                        if isinstance(op, ConvNorm):
                            codes[f"{path}.norm"] = len(OP_NAMES) ** source
        return codes


def encode_operations(ops: list[int]) -> list[int]:
    """Encode the operations of the input edges of each node as one number, with one digit in base 5 per edge of `EDGES`.

    >>> encode_operations([3, 0, 1, 2, 4, 3])[:3]
    [0, 3, 1]
    """
    codes = [0] * NUM_NODES
    for (node, _), op in zip(EDGES, ops, strict=True):
        codes[node] = codes[node] * len(OP_NAMES) + op
    return codes


def cell_network(architecture: str, shape: DataShape, width: float = 1.0, num_cells: int = NUM_CELLS) -> nn.Module:
    """Return the untrained network of a cell.

    Args:
        architecture: the cell; see `anynorm.lab.models.search.cells`.
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
