"""The cells of NAS-Bench-201 (Dong & Yang 2020, sec. 2): with all operations on each edge, and with one.

A cell has four nodes; node i is the sum over j < i of an operation applied to node j. Node j has j input edges, so a norm on an
edge that starts at node j has 5^j conditions (sabn sec. 4.2): the operations of these input edges, encoded as a number with j
digits in base 5.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from anynorm.lab.models.search.nasbench201.notation import EDGES, NUM_NODES, OP_NAMES
from anynorm.lab.models.search.nasbench201.operations import make_operation
from anynorm.lab.models.search.supernet import Selection


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
        for index, (node, source) in enumerate(EDGES):
            nodes[node] = nodes[node] + selection(index, self.edges[index], nodes[source], codes[source])
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


def encode_operations(ops: list[int]) -> list[int]:
    """Encode the operations of the input edges of each node as one number, with one digit in base 5 per edge of `EDGES`.

    >>> encode_operations([3, 0, 1, 2, 4, 3])[:3]
    [0, 3, 1]
    """
    codes = [0] * NUM_NODES
    for (node, _), op in zip(EDGES, ops, strict=True):
        codes[node] = codes[node] * len(OP_NAMES) + op
    return codes
