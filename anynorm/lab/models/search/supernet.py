"""Supernets: one network with shared weights for all architectures of a search space (Liu, Simonyan & Yang 2019, "DARTS").

Each edge e of a cell has all operations o of the space, and architecture parameters α[e, o]:

    soft mixture     y = Σ_o p[e, o] o(x),   p[e, ·] = softmax(α[e, ·])       by default, for DARTS
    one path         y = a_e(x)    for one operation a_e per edge             inside `with supernet.path(choice):`

Norms may be conditioned on operations (sabn sec. 4.2): operations are sampled from p, once per cell and forward pass for the
whole batch, and the operations of the input edges of a node are the condition of the norms on its output edges. The output of an
edge is still the soft mixture. Inside `path`, the condition is given by the operations of the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor, nn

from anynorm.errors import DataError

ALPHA_STD = 1e-3
"""Standard deviation of the initial α."""
Draw = Callable[[Tensor, int], Tensor]
"""A function of probabilities (edges, ops) and a number of cells that returns indices of operations (cells, edges)."""
Selection = Callable[..., Tensor]
"""A function `selection(edge, ops, *inputs)` that returns the output of an edge with the operations (modules) `ops`."""


class MultinomialDraw:
    """Sampler of operations from the probabilities of each edge.

    Args:
        generator: CPU generator, the only source of randomness.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, probabilities: Tensor, num_cells: int) -> Tensor:
        """Return indices of sampled operations, (cells, edges)."""
        weights = probabilities.detach().float().cpu()
        return torch.multinomial(weights, num_cells, replacement=True, generator=self.generator).T


def first_operations(probabilities: Tensor, num_cells: int) -> Tensor:
    """Return operation 0 for every edge, (cells, edges), so that the condition of all norms is 0."""
    return torch.zeros(num_cells, len(probabilities), dtype=torch.long)


def likeliest_operations(probabilities: Tensor, num_cells: int) -> Tensor:
    """Return the most probable operation of every edge, (cells, edges)."""
    return probabilities.detach().argmax(1).cpu().expand(num_cells, -1)


class Zero(nn.Module):
    """The operation `none`; a soft mixture does not compute it."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """Return zeros of the shape of x."""
        return torch.zeros_like(x)


class SoftMixture:
    """Selection that returns the sum over all operations of an edge, weighted by probabilities (edges, ops)."""

    def __init__(self, probabilities: Tensor) -> None:
        self.weights = [row.unbind() for row in probabilities.unbind()]

    def __call__(self, edge: int, ops: Sequence[nn.Module], *inputs: object) -> Tensor:
        """Return Σ_o p[edge, o] o(x)."""
        pairs = [pair for pair in zip(self.weights[edge], ops, strict=True) if not isinstance(pair[1], Zero)]
        terms: list[Tensor] = [weight * op(*inputs) for weight, op in pairs]
        return reduce(torch.add, terms)


class OnePath:
    """Selection of one operation per edge; the other operations are not computed."""

    def __init__(self, choice: Tensor) -> None:
        self.choice: list[int] = choice.tolist()

    def __call__(self, edge: int, ops: Sequence[nn.Module], *inputs: object) -> Tensor:
        """Return a(x) for the selected operation a of the edge."""
        y: Tensor = ops[self.choice[edge]](*inputs)
        return y


class Supernet(nn.Module):
    """The base class of supernets.

    A subclass defines `forward`, `architecture`, `build` and, if norms can be conditioned on operations, `num_conditions`.

    Args:
        num_edges: number of edges of each kind of cell, such as {"cell": 6}; cells of one kind share α.

    Attributes:
        op_names: the operations of the space, in the order of α.
        alphas: α (edges, ops) of each kind of cell.
    """

    op_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, num_edges: Mapping[str, int]) -> None:
        super().__init__()
        num_ops = len(self.op_names)
        self.alphas = nn.ParameterDict(
            {kind: nn.Parameter(ALPHA_STD * torch.randn(edges, num_ops)) for kind, edges in num_edges.items()}
        )
        self._choice: dict[str, Tensor] = {}
        self._draw: Draw = likeliest_operations

    # Methods that subclasses define -------------------------------------------------------------------------------------------

    def architecture(self) -> str:
        """Return the best architecture according to α, as a string."""
        raise NotImplementedError

    def build(self, architecture: str) -> nn.Module:
        """Return an untrained network with a fixed architecture, of the same size as this supernet.

        Raises:
            DataError: if `architecture` is not in the space, or its output does not depend on its input.
        """
        raise NotImplementedError

    def num_conditions(self) -> dict[str, int]:
        """Return the number of conditions of each norm that can be conditioned on operations, by path."""
        return {}

    # Parameters ---------------------------------------------------------------------------------------------------------------

    def alpha_parameters(self) -> list[nn.Parameter]:
        """Return the architecture parameters."""
        return list(self.alphas.values())

    def weight_parameters(self) -> list[nn.Parameter]:
        """Return all parameters except the architecture parameters."""
        return [parameter for name, parameter in self.named_parameters() if not name.startswith("alphas.")]

    def probabilities(self, kind: str) -> Tensor:
        """Return softmax(α) of a kind of cell, (edges, ops)."""
        probabilities: Tensor = self.alphas[kind].softmax(1)
        return probabilities

    def choice(self) -> dict[str, Tensor]:
        """Return the index of the operation with the largest α on each edge, by kind of cell; see `path`."""
        return {kind: alpha.detach().argmax(1) for kind, alpha in self.alphas.items()}

    # Forward passes -----------------------------------------------------------------------------------------------------------

    def selection(self, kind: str) -> Selection:
        """Return the function that computes the output of an edge of a kind of cell."""
        return OnePath(self._choice[kind]) if kind in self._choice else SoftMixture(self.probabilities(kind))

    def draw_operations(self, kind: str, num_cells: int) -> list[list[int]]:
        """Return, for each cell, the operations on which norms are conditioned, one per edge: those of the path, or sampled."""
        if kind in self._choice:
            return [self._choice[kind].tolist()] * num_cells
        operations: list[list[int]] = self._draw(self.probabilities(kind), num_cells).tolist()
        return operations

    @contextmanager
    def path(self, choice: Mapping[str, Tensor | Sequence[int]]) -> Iterator[None]:
        """Compute one operation per edge inside a `with` block.

        Args:
            choice: the index of one operation per edge, by kind of cell.

        Raises:
            DataError: if a kind of cell is missing, or an index is out of range.
        """
        previous, self._choice = self._choice, {kind: self._check_choice(kind, choice) for kind in self.alphas}
        try:
            yield
        finally:
            self._choice = previous

    def _check_choice(self, kind: str, choice: Mapping[str, Tensor | Sequence[int]]) -> Tensor:
        num_edges, num_ops = self.alphas[kind].shape
        if kind not in choice:
            raise DataError(f"a path must have operations for {' '.join(self.alphas)}; got {' '.join(choice) or 'none'}.")
        ops = torch.as_tensor(choice[kind])
        valid = ops.shape == (num_edges,) and not ops.is_floating_point()
        if not valid or not 0 <= int(ops.min()) <= int(ops.max()) < num_ops:
            raise DataError(f"a path must have {num_edges} operation indices in [0, {num_ops}); got {ops.tolist()}.")
        return ops

    @contextmanager
    def set_condition_sampler(self, draw: Draw) -> Iterator[None]:
        """Set the function that samples the operations on which norms are conditioned, inside a `with` block.

        Args:
            draw: `MultinomialDraw(generator)`, `first_operations`, or `likeliest_operations`, which is used outside such blocks.
        """
        previous, self._draw = self._draw, draw
        try:
            yield
        finally:
            self._draw = previous
