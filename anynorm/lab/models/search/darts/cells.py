"""The cells of the DARTS space (Liu et al. 2019, sec. 3): with all operations on each edge, and of a genotype.

    MixedCell       node i = Σ over its i + 2 possible inputs of the edge's output (`anynorm.lab.models.search.supernet`)
    GenotypeCell    node   = Σ over its 2 edges of drop_path(op(input))

The output of a cell is its 4 nodes, concatenated. The norms of a mixed cell have no affine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anynorm.lab.models.search.darts.genotype import NUM_NODES, Cell
from anynorm.lab.models.search.darts.layout import CellLayout
from anynorm.lab.models.search.darts.operations import OPERATIONS, make_operation
from anynorm.lab.models.search.supernet import Selection

NORMAL, REDUCTION = "normal", "reduction"
"""The kinds of cells."""


class MixedCell(nn.Module):
    """A cell with all operations on each edge.

    Args:
        layout: channels and strides of the cell, which depend on its position in the network.
    """

    def __init__(self, layout: CellLayout) -> None:
        super().__init__()
        self.kind = REDUCTION if layout.reduces else NORMAL
        self.preprocessing = layout.make_preprocessing(affine=False)
        inputs = [k for node in range(NUM_NODES) for k in range(node + 2)]
        self.edges = nn.ModuleList(
            nn.ModuleList(make_operation(name, layout.channels, layout.stride(k), search=True) for name in OPERATIONS)
            for k in inputs
        )

    def forward(self, before: Tensor, last: Tensor, selection: Selection) -> Tensor:
        """Return the concatenated nodes.

        Args:
            before: output of the cell before the previous one.
            last: output of the previous cell.
            selection: a function that computes the output of an edge.
        """
        states = [module(x) for module, x in zip(self.preprocessing, (before, last), strict=True)]
        first = 0
        for _ in range(NUM_NODES):
            outputs = [selection(first + k, self.edges[first + k], x) for k, x in enumerate(states)]
            first += len(states)
            states.append(torch.stack(outputs).sum(0))
        return torch.cat(states[-NUM_NODES:], 1)


class DropPath(nn.Module):
    """Layer that zeros samples with probability p in training, and divides the others by 1 − p (Larsson et al. 2017).

    Attributes:
        p: the probability; 0 by default.
    """

    def __init__(self) -> None:
        super().__init__()
        self.p = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Return x with random samples set to 0; in eval mode, return x."""
        if not self.training or self.p == 0:
            return x
        mask = torch.empty(len(x), *[1] * (x.dim() - 1), dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * mask / (1 - self.p)


class GenotypeCell(nn.Module):
    """A cell of a genotype.

    Args:
        layout: channels and strides of the cell, which depend on its position in the network.
        cell: the edges of the cell.
    """

    def __init__(self, layout: CellLayout, cell: Cell) -> None:
        super().__init__()
        self.preprocessing = layout.make_preprocessing(affine=True)
        self.inputs = [[k for _, k in node] for node in cell]
        self.nodes = nn.ModuleList(nn.ModuleList(_make_edge(layout, name, k) for name, k in node) for node in cell)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Return the concatenated nodes; arguments as in `MixedCell.forward`."""
        states = [module(x) for module, x in zip(self.preprocessing, (before, last), strict=True)]
        for edges, inputs in zip(self.nodes, self.inputs, strict=True):
            assert isinstance(edges, nn.ModuleList)
            states.append(torch.stack([edge(states[k]) for edge, k in zip(edges, inputs, strict=True)]).sum(0))
        return torch.cat(states[-NUM_NODES:], 1)


def _make_edge(layout: CellLayout, name: str, index: int) -> nn.Module:
    """Return the operation of an edge, followed by DropPath unless it is the identity."""
    operation = make_operation(name, layout.channels, layout.stride(index), search=False)
    return operation if isinstance(operation, nn.Identity) else nn.Sequential(operation, DropPath())
