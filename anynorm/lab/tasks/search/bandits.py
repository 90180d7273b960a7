"""Bandit policies over architectures: MANAS (Carlucci et al. 2019) with Exp3 or least squares, and random search.

An architecture is one operation per edge. MANAS has one agent per edge e, with a distribution π_e over operations. In each round
an architecture a is drawn, a_e ~ π_e, and its loss L is observed. Let S be the estimated sum over rounds of the losses per edge
and operation:

    Exp3             S[e, o] ← S[e, o] + L 1{a_e = o} / π[e, o]         (E of the increment: the mean loss given a_e = o)
    LeastSquares     S = t B,  B = argmin_B Σ_rounds (L − mean L − Σ_e B[e, a_e])²       (t rounds; B is centered per edge)
    both             π[e, ·] = softmax(−η S[e, ·]);  recommended: argmin_o S[e, o]
    RandomSearch     π uniform;  recommended: the architecture with the lowest loss observed

An operation that was never drawn has S = 0: the lowest loss for Exp3 with positive losses, the mean of its edge for LeastSquares.
The state of a policy is in buffers, so that it is saved and resumed with its task.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anynorm.errors import DataError, SpecError

ONE_HOT_LOGIT = 30.0
"""Logit of a single choice: the other operations together have a probability below 1e-12."""


class Policy(nn.Module):
    """A distribution over architectures that is updated with observed losses.

    Args:
        num_edges: number of edges of an architecture.
        num_ops: number of operations to choose from per edge.

    Raises:
        SpecError: if a number is less than 1.
    """

    def __init__(self, num_edges: int, num_ops: int) -> None:
        super().__init__()
        if num_edges < 1 or num_ops < 1:
            raise SpecError(f"a policy must have at least 1 edge and 1 operation; got {num_edges} and {num_ops}.")
        self.num_edges, self.num_ops = num_edges, num_ops

    def probabilities(self) -> Tensor:
        """Return π (edges, ops); each row sums to 1."""
        return torch.full((self.num_edges, self.num_ops), 1 / self.num_ops)

    def scores(self) -> Tensor:
        """Return a score per edge and operation (edges, ops), the larger the better."""
        raise NotImplementedError

    def logits(self) -> Tensor:
        """Return logits (edges, ops); `recommend` returns the operation with the largest logit of each edge."""
        raise NotImplementedError

    def recommend(self) -> Tensor:
        """Return the architecture with the best scores: the index of the operation of each edge (edges,)."""
        return self.scores().argmax(1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw an architecture: the index of the operation of each edge (edges,).

        Args:
            generator: CPU random number generator.
        """
        return torch.multinomial(self.probabilities().cpu(), 1, generator=generator)[:, 0]

    def update(self, choice: Tensor, loss: float) -> None:
        """Update the policy with the loss of an architecture that was drawn from `probabilities`.

        Args:
            choice: index of the operation of each edge (edges,).
            loss: its loss.

        Raises:
            DataError: if the architecture is not in the search space, or the loss is not finite.
        """
        if choice.shape != (self.num_edges,) or not 0 <= int(choice.min()) <= int(choice.max()) < self.num_ops:
            raise DataError(
                f"an architecture must be {self.num_edges} operation indices in [0, {self.num_ops}); got {choice.tolist()}."
            )
        if not torch.isfinite(torch.tensor(loss)):
            raise DataError(f"the loss of an architecture must be finite; got {loss} for {choice.tolist()}.")
        self._update(nn.functional.one_hot(choice, self.num_ops).float(), loss)

    def _update(self, one_hot: Tensor, loss: float) -> None:
        raise NotImplementedError


class _Softmax(Policy):
    """A policy with π = softmax(−η S), where `scores` returns −S."""

    def __init__(self, num_edges: int, num_ops: int, lr: float) -> None:
        super().__init__(num_edges, num_ops)
        if not lr > 0:
            raise SpecError(f"the learning rate of a policy must be greater than 0; got {lr}.")
        self.lr = lr

    def logits(self) -> Tensor:
        """Return −η S."""
        return self.lr * self.scores()

    def probabilities(self) -> Tensor:
        """Return softmax(−η S)."""
        return self.logits().softmax(1)


class Exp3(_Softmax):
    """MANAS with Exp3: an agent adds its loss, divided by the probability of its operation, to the sum of that operation.

    Args:
        num_edges: number of edges of an architecture.
        num_ops: number of operations to choose from per edge.
        lr: η.

    Attributes:
        loss_sums: S (edges, ops).
    """

    loss_sums: Tensor

    def __init__(self, num_edges: int, num_ops: int, lr: float = 0.01) -> None:
        super().__init__(num_edges, num_ops, lr)
        self.register_buffer("loss_sums", torch.zeros(num_edges, num_ops))

    def scores(self) -> Tensor:
        """Return −S."""
        return -self.loss_sums

    def _update(self, one_hot: Tensor, loss: float) -> None:
        increments = loss / self.probabilities()  # infinite where a probability is 0, so that the operation is never drawn
        self.loss_sums += increments.where(one_hot.to(increments) > 0, 0.0)


class LeastSquares(_Softmax):
    """MANAS with least squares: the loss of an architecture is modeled as a sum over agents.

    Args:
        num_edges: number of edges of an architecture.
        num_ops: number of operations to choose from per edge.
        lr: η.

    Attributes:
        gram: Σ x xᵀ over rounds, where x is the one-hot encoding of an architecture (edges · ops).
        moments: Σ L x.
        rounds: number of rounds.
    """

    gram: Tensor
    moments: Tensor
    rounds: Tensor

    def __init__(self, num_edges: int, num_ops: int, lr: float = 0.05) -> None:
        super().__init__(num_edges, num_ops, lr)
        size = num_edges * num_ops
        self.register_buffer("gram", torch.zeros(size, size))
        self.register_buffer("moments", torch.zeros(size))
        self.register_buffer("rounds", torch.zeros(()))

    def effects(self) -> Tensor:
        """Return B (edges, ops): the effect of each operation on the loss, with mean 0 over the rounds for each edge."""
        gram, moments = self.gram.cpu().double(), self.moments.cpu().double()
        rounds = self.rounds.cpu().double().clamp(min=1)
        counts = gram.diagonal()
        mean_loss = moments.sum() / (rounds * self.num_edges)
        # The Gram matrix is singular: a constant can move from an edge to another, which the centering below removes. With few
        # rounds there are further solutions; the one of the smallest norm has no effects if all losses are equal to their mean.
        effects = torch.linalg.pinv(gram, hermitian=True, rtol=1e-9) @ (moments - mean_loss * counts)
        effects, counts = (vector.view(self.num_edges, self.num_ops) for vector in (effects, counts))
        centered = effects - (counts * effects).sum(1, keepdim=True) / rounds
        return centered.where(counts > 0, 0.0).to(self.gram)

    def scores(self) -> Tensor:
        """Return −S = −t B."""
        return -self.rounds * self.effects()

    def _update(self, one_hot: Tensor, loss: float) -> None:
        x = one_hot.flatten().to(self.gram)
        self.gram += torch.outer(x, x)
        self.moments += loss * x
        self.rounds += 1


class RandomSearch(Policy):
    """The best of n uniformly drawn architectures.

    Args:
        num_edges: number of edges of an architecture.
        num_ops: number of operations to choose from per edge.

    Attributes:
        best_loss: the lowest loss observed; infinite at first.
        best: one-hot encoding of the architecture with this loss (edges, ops).
    """

    best_loss: Tensor
    best: Tensor

    def __init__(self, num_edges: int, num_ops: int) -> None:
        super().__init__(num_edges, num_ops)
        self.register_buffer("best_loss", torch.tensor(torch.inf))
        self.register_buffer("best", torch.zeros(num_edges, num_ops))

    def scores(self) -> Tensor:
        """Return 1 for the operations of the best architecture, 0 for others."""
        return self.best

    def logits(self) -> Tensor:
        """Return logits whose softmax is the best architecture, or uniform before the first round.

        The logits of edges differ a little, in an order that is random but the same for an architecture: a space that keeps the
        strongest edges (DARTS) keeps random ones.
        """
        code = sum(op * 31**edge for edge, op in enumerate(self.best.argmax(1).tolist())) % 2**63
        order = torch.rand(self.num_edges, 1, generator=torch.Generator().manual_seed(code))
        return (ONE_HOT_LOGIT + order.to(self.best)) * self.best

    def _update(self, one_hot: Tensor, loss: float) -> None:
        if loss < self.best_loss:
            self.best_loss.fill_(loss)
            self.best.copy_(one_hot)


POLICIES: dict[str, Callable[..., Policy]] = {"exp3": Exp3, "least-squares": LeastSquares, "random": RandomSearch}
"""Policies by name."""
