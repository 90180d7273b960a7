"""String notations of the cells of NAS-Bench-201 (Dong & Yang 2020).

A cell has four nodes. Node i is the sum over j < i of an operation applied to node j, so a cell is defined by one of five
operations for each of six edges. Two notations are supported:

    |nor_conv_3x3~0|+|none~0|skip_connect~1|+|nor_conv_1x1~0|avg_pool_3x3~1|nor_conv_3x3~2|      notation of the benchmark
    3,0,1,2,4,3                                                                                  indices, in the order of EDGES
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import Tensor

from anynorm.errors import DataError

OP_NAMES = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
"""The operations of an edge in NAS-Bench-201, in the order of its tables."""
EDGES = ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2))
"""The edges of a cell, (node, input node)."""
NUM_NODES = 4
NONE, SKIP = OP_NAMES.index("none"), OP_NAMES.index("skip_connect")
_NUMBERS = re.compile(r"[0-4](?:,[0-4]){5}")


def format_cell(ops: Sequence[int] | Tensor) -> str:
    """Return a cell in the notation of the benchmark.

    >>> format_cell([3, 0, 1, 2, 4, 3])
    '|nor_conv_3x3~0|+|none~0|skip_connect~1|+|nor_conv_1x1~0|avg_pool_3x3~1|nor_conv_3x3~2|'
    """
    parts = {node: "|" for node, _ in EDGES}
    for (node, source), op in zip(EDGES, ops, strict=True):
        parts[node] += f"{OP_NAMES[int(op)]}~{source}|"
    return "+".join(parts.values())


def parse_cell(text: str) -> list[int]:
    """Parse a cell and return the indices of its operations, in the order of `EDGES`.

    Raises:
        DataError: if the text is not a cell of the space.

    >>> parse_cell('|nor_conv_3x3~0|+|none~0|skip_connect~1|+|nor_conv_1x1~0|avg_pool_3x3~1|nor_conv_3x3~2|')
    [3, 0, 1, 2, 4, 3]
    >>> parse_cell('3,0,1,2,4,3')
    [3, 0, 1, 2, 4, 3]
    """
    if _NUMBERS.fullmatch(text):
        return [int(number) for number in text.split(",")]
    ops = [OP_NAMES.index(name) for name in re.findall(r"[^|~+]+(?=~)", text) if name in OP_NAMES]
    if len(ops) != len(EDGES) or format_cell(ops) != text:
        raise DataError(
            f"a cell must be in the form {format_cell([0] * 6)}, with operations {' '.join(OP_NAMES)}, or six of their numbers "
            f"such as 3,0,1,2,4,3; got {text!r}."
        )
    return ops


def is_connected(ops: Sequence[int] | Tensor) -> bool:
    """Whether the last node of a cell depends on the first node.

    >>> is_connected([3, 0, 0, 0, 1, 0]), is_connected([3, 3, 3, 0, 0, 0])
    (True, False)
    """
    reached = {0}
    for (node, source), op in zip(EDGES, ops, strict=True):
        if int(op) != NONE and source in reached:
            reached.add(node)
    return NUM_NODES - 1 in reached
