"""Architecture search by bandits on a supernet: MANAS (Carlucci et al. 2019), and random search as a baseline.

Each step is one round of a policy (`anynorm.lab.tasks.search.bandits`):

    a ~ π;   w_a ← w_a − SGD(∇ L_train(w_a)) on a batch of one half of the training images;
    L = L_val(w_a) on a batch of the other half;   the policy is updated with (a, L)

Only the weights of the drawn architecture are computed and updated. α of the supernet follows the policy: softmax(α) is π of
MANAS, and the best architecture of random search. So the metrics are those of `anynorm.lab.tasks.search.task`; the
error is that of the recommended path instead of the mixture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.lab.data import ImageDataset, StreamedDataset
from anynorm.lab.tasks.search.bandits import Exp3, LeastSquares, Policy, RandomSearch
from anynorm.lab.tasks.search.options import Exp3Options, LeastSquaresOptions, SupernetOptions
from anynorm.lab.tasks.search.task import ALPHA, ArchitectureSearch, SearchOptions_co
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import DivergedError
from anynorm.lab.training.sampler import derive_seed
from anynorm.lab.training.task import Metrics, Optimizers, TrainingLoop

STREAM = 4
"""Random stream of the policy; see `anynorm.lab.training.sampler`. All processes draw the same architecture."""


class BanditSearch(ArchitectureSearch[SearchOptions_co]):
    """The base class of searches by a policy.

    Attributes:
        policy: the policy, over the edges of all kinds of cells in the order of `Supernet.alphas`.
    """

    def __init__(self, config: Config, data: ImageDataset | StreamedDataset | None = None) -> None:
        super().__init__(config, data)
        num_edges = sum(len(alpha) for alpha in self.model.alphas.values())
        self.policy = self.make_policy(num_edges, len(self.model.op_names))
        for alpha in self.model.alpha_parameters():
            alpha.requires_grad_(False)
        self._set_alphas()

    def make_policy(self, num_edges: int, num_ops: int) -> Policy:
        """Return the policy."""
        raise NotImplementedError

    def configure_optimizers(self) -> Optimizers:
        """Return the optimizer of the weights."""
        return {"weights": self.weight_optimizer()}

    def training_step(self, trainer: TrainingLoop) -> Metrics:
        """Run one round of the policy."""
        choice = self.policy.sample(torch.Generator().manual_seed(derive_seed(self.config.seed, STREAM, trainer.step)))
        with self.model.path(self.split(choice)):
            metrics = self.update_weights(trainer)
            with torch.no_grad(), preserve_buffers(self.model), trainer.autocast():
                alpha_metrics = self.batch_loss(trainer.step, ALPHA)
        [total] = self.processes.sum([float(alpha_metrics["loss"])])
        loss = total / self.processes.count
        if not torch.isfinite(torch.tensor(loss)):
            raise DivergedError(
                f"the loss of an architecture is not finite in step {trainer.step}; use a lower lr ({self.config.lr:g})"
            )
        self.policy.update(choice, loss)
        self._set_alphas()
        return {**metrics, **{f"alpha_{name}": value for name, value in alpha_metrics.items()}}

    def split(self, ops: Tensor) -> dict[str, Tensor]:
        """Return the rows of all edges by kind of cell."""
        sizes = [len(alpha) for alpha in self.model.alphas.values()]
        return dict(zip(self.model.alphas, ops.split(sizes), strict=True))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _set_alphas(self) -> None:
        for kind, rows in self.split(self.policy.logits()).items():
            self.model.alphas[kind].copy_(rows)

    def evaluate(self) -> dict[str, float]:
        """Return the error of the recommended path with batch statistics, and metrics of the architecture."""
        with self.model.path(self.split(self.policy.recommend())):
            return super().evaluate()


class Exp3Search(BanditSearch[Exp3Options]):
    """Architecture search by multi-agent bandits with the policy Exp3 (MANAS, Carlucci et al. 2019)."""

    def make_policy(self, num_edges: int, num_ops: int) -> Policy:
        """Return Exp3."""
        return Exp3(num_edges, num_ops, self.options.policy_lr)


class LeastSquaresSearch(BanditSearch[LeastSquaresOptions]):
    """Architecture search by multi-agent bandits with a least-squares policy (MANAS, Carlucci et al. 2019)."""

    def make_policy(self, num_edges: int, num_ops: int) -> Policy:
        """Return least squares."""
        return LeastSquares(num_edges, num_ops, self.options.policy_lr)


class RandomArchitectureSearch(BanditSearch[SupernetOptions]):
    """Architecture search by random sampling with shared weights, a baseline.

    The architecture with the lowest loss on a batch of validation images is the result.
    """

    def make_policy(self, num_edges: int, num_ops: int) -> Policy:
        """Return random search."""
        return RandomSearch(num_edges, num_ops)
