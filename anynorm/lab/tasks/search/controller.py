"""The controller of ENAS: an LSTM that samples the operations of a cell one after another (Pham et al. 2018, sec. 2.4).

    h_e, c_e = LSTM(embedding of the operation of edge e − 1; h, c)            a learned vector before the first edge
    p_e      = softmax(t · tanh(W h_e / T))                                    t: tanh constant, T: temperature

The policy is autoregressive, p(cell) = ∏ p_e(operation of e | operations of earlier edges), and the space is small enough to
evaluate it exactly: `log_policy` runs the LSTM once per prefix, not once per cell.

As in the published controller for micro cells, the LSTM has no bias, and the initialization is U(−0.1, 0.1). The published
controller also has fixed and learned biases that favor the first two operations, which are omitted here, and attention that
chooses input nodes, which is not needed: the edges of a cell of NAS-Bench-201 are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anynorm.errors import SpecError
from anynorm.lab.tasks.search.lstm import NormLSTMCell

INIT = 0.1
NORM_POSITIONS = ("input", "hidden", "cell")
"""Possible positions of norms: on W_x x, on W_h h and on c."""


class Samples(NamedTuple):
    """Cells with their probabilities under a policy.

    Attributes:
        ops: the operation of each edge, (n, edges).
        log_probs: the log-probability of each cell, (n,).
        entropies: the entropies of the distributions of the operations, summed over edges, (n,).
    """

    ops: Tensor
    log_probs: Tensor
    entropies: Tensor


class Controller(nn.Module):
    """A policy over cells with a fixed number of edges.

    Args:
        num_edges: number of edges per cell.
        num_ops: number of operations per edge.
        hidden_size: size of the LSTM state and of the embeddings.
        tanh_constant: t; the probabilities of two operations differ by a factor of at most exp(2 t).
        temperature: T.
        norms: mapping from some of `NORM_POSITIONS` to the spec of the norm there; None for no norms.

    Raises:
        SpecError: if t or T is not positive, or a key of `norms` is not one of `NORM_POSITIONS`.

    >>> controller = Controller(6, 5, norms={"input": "ln", "hidden": "ln", "cell": "ln"})
    >>> round(controller.log_policy().exp().sum().item(), 5)
    1.0
    """

    def __init__(
        self,
        num_edges: int,
        num_ops: int,
        *,
        hidden_size: int = 64,
        tanh_constant: float = 2.5,
        temperature: float = 1.0,
        norms: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        norms = norms or {}
        for name, value in (("tanh_constant", tanh_constant), ("temperature", temperature)):
            if value <= 0:
                raise SpecError(f"{name} must be greater than 0; got {value}.")
        if unknown := set(norms) - set(NORM_POSITIONS):
            raise SpecError(f"norms of the controller must be at {' '.join(NORM_POSITIONS)}; got {' '.join(sorted(unknown))}.")
        self.num_edges, self.num_ops = num_edges, num_ops
        self.tanh_constant, self.temperature = tanh_constant, temperature
        self.start = nn.Parameter(torch.empty(1, hidden_size))
        self.embedding = nn.Embedding(num_ops, hidden_size)
        self.cell = NormLSTMCell(
            hidden_size,
            hidden_size,
            input_norm=norms.get("input"),
            hidden_norm=norms.get("hidden"),
            cell_norm=norms.get("cell"),
            bias=False,
        )
        self.classifier = nn.Linear(hidden_size, num_ops)
        for parameter in (self.start, self.embedding.weight, self.cell.weight_ih, self.cell.weight_hh, self.classifier.weight):
            nn.init.uniform_(parameter, -INIT, INIT)
        nn.init.zeros_(self.classifier.bias)

    def log_probs(self, h: Tensor) -> Tensor:
        """Return the log-probabilities of the operations of an edge, (n, operations), given the hidden state h."""
        logits: Tensor = self.classifier(h)
        return (self.tanh_constant * (logits / self.temperature).tanh()).log_softmax(1)

    def _unroll(self, count: int, choose: Callable[[int, Tensor], Tensor]) -> Samples:
        """Run the LSTM over the edges; `choose(edge, log_probs)` returns the operations of an edge, (n,)."""
        x, state = self.start.expand(count, -1), None
        ops, log_probs, entropies = [], torch.zeros((), device=x.device), torch.zeros((), device=x.device)
        for edge in range(self.num_edges):
            state = self.cell(x, state)
            edge_log_probs = self.log_probs(state[0])
            ops.append(choose(edge, edge_log_probs))
            log_probs = log_probs + edge_log_probs.gather(1, ops[-1][:, None])[:, 0]
            entropies = entropies - (edge_log_probs.exp() * edge_log_probs).sum(1)
            x = self.embedding(ops[-1])
        return Samples(torch.stack(ops, 1), log_probs, entropies)

    def sample(self, uniform: Tensor) -> Samples:
        """Sample cells by inverse transform sampling.

        Args:
            uniform: uniform random numbers in [0, 1), (n, edges), one per operation.
        """

        def choose(edge: int, log_probs: Tensor) -> Tensor:
            cumulative = log_probs.detach().exp().cumsum(1)
            return (uniform[:, edge, None] >= cumulative).sum(1).clamp(max=self.num_ops - 1)  # the sum may round to below 1

        return self._unroll(len(uniform), choose)

    def score(self, ops: Tensor) -> Samples:
        """Return the log-probabilities and entropies of given cells (n, edges)."""
        return self._unroll(len(ops), lambda edge, _: ops[:, edge])

    def log_policy(self) -> Tensor:
        """Return the log-probability of every cell, (operations^edges,), in lexicographic order (see `all_cells`)."""
        x, state = self.start.expand(1, -1), None
        log_probs = torch.zeros(1, device=x.device)
        for edge in range(self.num_edges):
            h, c = self.cell(x, state)
            log_probs = (log_probs[:, None] + self.log_probs(h)).flatten()
            if edge < self.num_edges - 1:  # each prefix has one successor per operation
                state = h.repeat_interleave(self.num_ops, 0), c.repeat_interleave(self.num_ops, 0)
                x = self.embedding.weight.repeat(len(h), 1)
        return log_probs

    def all_cells(self) -> Tensor:
        """Return the operations of every cell, (operations^edges, edges), in lexicographic order."""
        ops = torch.arange(self.num_ops, device=self.start.device)
        return torch.cartesian_prod(*[ops] * self.num_edges).view(-1, self.num_edges)
