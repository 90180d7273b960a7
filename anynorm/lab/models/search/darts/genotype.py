"""Genotypes of the DARTS space: 4 nodes per cell, each with 2 input edges, as strings in the notation of NAS-Bench-201.

    |sep_conv_3x3~0|sep_conv_3x3~1|+|sep_conv_3x3~0|skip_connect~1|+|…|+|…|      one cell; op~k is an operation on input k
    NORMAL//REDUCTION                                                          a genotype

The possible inputs of node i are the outputs of the two previous cells (0 and 1) and the earlier nodes (2, …, i + 1).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.models.search.darts.operations import NONE, OPERATIONS

NUM_NODES = 4
NUM_EDGES = sum(range(2, 2 + NUM_NODES))
"""Number of edges of a cell, 14: node i has i + 2 possible inputs."""
_EDGE = re.compile(r"(\w+)~(\d)")

Edge = tuple[str, int]
"""The name of an operation and the index of its input."""
Cell = tuple[tuple[Edge, ...], ...]
"""The edges of each node."""


class Genotype(NamedTuple):
    """An architecture of the DARTS space.

    Args:
        normal: the cell that keeps height and width.
        reduction: the cell that halves height and width and doubles the channels.
    """

    normal: Cell
    reduction: Cell

    def __str__(self) -> str:
        """Return the genotype as a string that `parse_genotype` accepts."""
        return "//".join("+".join("|".join(["", *(f"{op}~{k}" for op, k in node), ""]) for node in cell) for cell in self)


def parse_genotype(text: str) -> Genotype:
    """Parse a genotype; `text` is a genotype as a string, or a key of `GENOTYPES`.

    Raises:
        DataError: if the text is not a genotype.

    >>> parse_genotype("v2").normal[2]
    (('sep_conv_3x3', 1), ('skip_connect', 0))
    """
    text = GENOTYPES.get(text, text)
    cells = text.split("//")
    if len(cells) != 2:
        raise DataError(
            f"a genotype must be one of {' '.join(GENOTYPES)} or NORMAL//REDUCTION, the texts of two cells; got {text!r}."
        )
    return Genotype(*(_parse_cell(cell) for cell in cells))


def _parse_cell(text: str) -> Cell:
    nodes = text.split("+")
    if len(nodes) != NUM_NODES:
        raise DataError(f"a cell must have {NUM_NODES} nodes, separated by '+'; got {len(nodes)} in {text!r}.")
    return tuple(_parse_node(node, index) for index, node in enumerate(nodes))


def _parse_node(text: str, number: int) -> tuple[Edge, ...]:
    matches = [_EDGE.fullmatch(edge) for edge in text.strip().strip("|").split("|")]
    edges = tuple((match[1], int(match[2])) for match in matches if match)
    names = {name for name, _ in edges}
    if len(edges) != 2 or len(matches) != 2 or len({k for _, k in edges}) != 2:
        raise DataError(
            f"node {number} must have 2 edges from different inputs, such as |skip_connect~0|sep_conv_3x3~1|; got {text!r}."
        )
    usable = [name for name in OPERATIONS if name != OPERATIONS[NONE]]
    if unknown := names - set(usable):  # with the operation none, the output might not depend on the input
        raise DataError(f"an operation of a genotype must be one of {' '.join(usable)}; got {unknown.pop()!r}.")
    if too_large := [k for _, k in edges if k >= number + 2]:
        raise DataError(f"the inputs of node {number} must be in 0 to {number + 1}; got {too_large[0]} in {text!r}.")
    return edges


def log_odds(alpha: Tensor) -> Tensor:
    """Return the log odds log(p / (1 − p)) of p = softmax(α) per edge; unlike p, they do not saturate at 1.

    >>> log_odds(torch.tensor([[100.0, 0.0, 0.0], [50.0, 0.0, 0.0]])).argmax(0)[0]
    tensor(0)
    """
    alpha = alpha.detach().cpu().double()
    others = alpha[:, None, :].masked_fill(torch.eye(alpha.shape[1], dtype=torch.bool), -torch.inf)
    return alpha - others.logsumexp(2)


def strongest_edges(scores: Tensor) -> Cell:
    """Return, for each node, the two input edges with the highest scores, each with its best operation except `none`.

    Args:
        scores: the score of each operation on each edge, (14, 8); edges are sorted by node, then by input.
    """
    best, ops = scores.detach().cpu()[:, NONE + 1 :].max(1)
    nodes, first = [], 0
    for index in range(NUM_NODES):
        count = index + 2
        chosen = sorted(best[first : first + count].argsort(descending=True, stable=True)[:2].tolist())
        nodes.append(tuple((OPERATIONS[NONE + 1 + int(ops[first + k])], k) for k in chosen))
        first += count
    return tuple(nodes)


GENOTYPES = {
    "v1": "|sep_conv_3x3~1|sep_conv_3x3~0|+|skip_connect~0|sep_conv_3x3~1|+|skip_connect~0|sep_conv_3x3~1|"
    "+|sep_conv_3x3~0|skip_connect~2|//|max_pool_3x3~0|max_pool_3x3~1|+|skip_connect~2|max_pool_3x3~0|"
    "+|max_pool_3x3~0|skip_connect~2|+|skip_connect~2|avg_pool_3x3~0|",
    "v2": "|sep_conv_3x3~0|sep_conv_3x3~1|+|sep_conv_3x3~0|sep_conv_3x3~1|+|sep_conv_3x3~1|skip_connect~0|"
    "+|skip_connect~0|dil_conv_3x3~2|//|max_pool_3x3~0|max_pool_3x3~1|+|skip_connect~2|max_pool_3x3~1|"
    "+|max_pool_3x3~0|skip_connect~2|+|skip_connect~2|max_pool_3x3~1|",
}
"""The genotypes that Liu et al. found on CIFAR-10 by the first-order method (v1) and by the second-order method (v2)."""
