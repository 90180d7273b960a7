"""Architecture search by the controller of ENAS on the tables of NAS-Bench-201 (sn appendix G).

    R    = Binomial(160, accuracy of the sampled cell) / 160 + entropy_weight · entropy       the reward of a minibatch
    loss = −mean (R − b) log p(cell)                                                          REINFORCE (Williams 1992)
    b    ← decay · b + (1 − decay) · R, once per sample                                       the baseline, from 0

The accuracy is that on the validation images after 12 epochs of training. The norm of the run is the norm inside the LSTM, at the
places of the option `places`. Accuracies of an evaluation are exact expectations under the policy: they have no sampling noise.

As published, the entropy is part of the reward and has no gradient of its own. The published code updates the baseline before or
after it is read (the order is not defined); here a step reads the baseline of the steps before.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.checkpoints import import_object
from anynorm.lab.tasks.search.controller import Controller
from anynorm.lab.tasks.search.nasbench import FILE, CellTable, load_table
from anynorm.lab.tasks.search.options import ControllerOptions
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.task import FUSED, Metric, Metrics, Task

ADAM_BETA2 = 0.999


class ControllerSearch(Task[ControllerOptions]):
    """Architecture search by reinforcement learning, with the controller of ENAS (Pham et al. 2018).

    The rewards are accuracies in the tables of NAS-Bench-201, so that only the LSTM of the controller is trained. A batch has
    `config.batch_size` sampled cells, and an epoch `steps_per_epoch` steps. With several devices the baseline is that of the
    first process.

    Args:
        config: the run.
        table: the accuracies; None for the table of the options.

    Raises:
        DataError: if the table cannot be read.
        SpecError: if an option is out of range.
    """

    metric: ClassVar[Metric] = Metric("accuracy", "%", higher_is_better=True)
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("ln", "gn:32", "ln+gn:32"),
        batch_sizes=(10,),
        lr_scaling="none",
        base=Config(model="resnet10", epochs=12, lr=0.0035, weight_decay=0.0, schedule="constant", num_evals=12),
    )
    baseline: Tensor
    best_reward: Tensor
    best_cell: Tensor

    def __init__(self, config: Config, table: CellTable | None = None) -> None:
        super().__init__(config)
        self.table = _read_table(self.options.table) if table is None else table
        data_set = self.options.data_set
        self.valid = self.table.accuracy(data_set, 12, "valid")
        self.test = self.table.accuracy(data_set)
        torch.manual_seed(config.seed)
        places = self.options.places
        controller = Controller(
            self.table.num_edges,
            len(self.table.op_names),
            hidden_size=self.options.hidden_size,
            tanh_constant=self.options.tanh_constant,
            temperature=self.options.temperature,
            norms=dict.fromkeys(places, "ln"),
        )
        self.controller: Any = self.apply_norms(controller) if places else controller
        self.register_buffer("baseline", torch.zeros(()))
        self.register_buffer("best_reward", torch.tensor(-1.0))
        self.register_buffer("best_cell", torch.zeros((), dtype=torch.int64))

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Read the table."""
        _ = cls(config)

    @property
    def num_samples(self) -> int:
        """Number of cells sampled per epoch."""
        config = self.config
        return self.options.steps_per_epoch * config.batch_size * config.grad_accum_steps * config.devices

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        config, options = self.config, self.options
        return torch.optim.Adam(
            self.controller.parameters(),
            config.lr,
            (options.beta1, ADAM_BETA2),
            options.eps,
            config.weight_decay,
            fused=FUSED,
        )

    def batch(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return uniform random numbers, (n, edges + images): the cells are drawn with the first, the rewards with the others."""
        return torch.rand(len(indices), self.table.num_edges + self.options.reward_images, generator=generator)

    def loss(self, batch: Tensor) -> Metrics:
        """Return the REINFORCE loss, the mean reward and the mean entropy of sampled cells; update the baseline."""
        samples = self.controller.sample(batch[:, : self.table.num_edges])
        rows = self.table.index(samples.ops)
        observed = observe(self.valid, rows, batch[:, self.table.num_edges :])
        rewards = observed + self.options.entropy_weight * samples.entropies.detach()
        loss = -((rewards - self.baseline) * samples.log_probs).mean()
        if self.training:
            self._update(rows, observed, rewards)
        return {"loss": loss, "accuracy": 100 * observed.mean(), "entropy": samples.entropies.detach().mean()}

    @torch.no_grad()
    def _update(self, rows: Tensor, observed: Tensor, rewards: Tensor) -> None:
        """Update the baseline by each reward, and the cell with the largest observed accuracy."""
        decay = self.options.baseline_decay
        powers = decay ** torch.arange(len(rewards) - 1, -1, -1, device=rewards.device)
        self.baseline.mul_(decay ** len(rewards)).add_((1 - decay) * (powers * rewards).sum())
        reward, index = observed.max(0)
        is_better = reward > self.best_reward
        self.best_cell.copy_(torch.where(is_better, rows[index], self.best_cell))
        self.best_reward.copy_(torch.where(is_better, reward, self.best_reward))

    def evaluate(self) -> dict[str, float]:
        """Return metrics of the exact policy.

        Returns:
            `accuracy`: expected accuracy on validation images after 12 epochs; `full_accuracy`: on test images after 200 epochs;
            `entropy` of the policy, in nats; `mode_accuracy` and `best_accuracy`: the 12-epoch accuracy of the cell with the
            largest probability, and of the sampled cell with the largest reward.
        """
        log_policy = self.controller.log_policy().double()
        policy = log_policy.exp().cpu()
        rows = self.table.index(self.controller.all_cells()).cpu()
        return {
            "accuracy": float(policy @ self.valid[rows]),
            "full_accuracy": float(policy @ self.test[rows]),
            "entropy": float(-(log_policy.exp() @ log_policy)),
            "mode_accuracy": float(self.valid[rows[policy.argmax()]]),
            "best_accuracy": float(self.valid[int(self.best_cell)]),
        }


def observe(accuracies: Tensor, rows: Tensor, uniform: Tensor) -> Tensor:
    """Return accuracies in [0, 1] as measured on a minibatch: Binomial(images, accuracy of a cell) / images, (n,).

    Args:
        accuracies: accuracies of all cells, in percent.
        rows: row indices of the cells, (n,).
        uniform: random numbers in [0, 1), (n, images); an image is correct if its number is below the accuracy.
    """
    return (uniform < accuracies.to(uniform)[rows, None] / 100).to(uniform).mean(1)


def _read_table(name: str) -> CellTable:
    if ":" not in name:
        return load_table(None if name == FILE else name)
    table = import_object(name)()
    if not isinstance(table, CellTable):
        raise DataError(f"{name!r} must return an anynorm.lab.tasks.search.nasbench.CellTable; got {type(table).__name__}.")
    return table
