"""The options of architecture searches."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.lab.tasks.search.controller import NORM_POSITIONS
from anynorm.lab.tasks.search.nasbench import FILE
from anynorm.lab.training.options import Options, option


@dataclass(frozen=True)
class SupernetOptions(Options):
    """The options of every search with a supernet; all of them for random search."""

    clip_grad_norm: float = option(5.0, "maximum norm of the gradient of the weights; 0 for no clipping.", minimum=0)
    alpha_from_test: bool = option(
        False, "whether α is trained on half of the test images, and the weights on all training images (sabn Table 2)."
    )
    sample_conditions: bool = option(
        True, "whether norms with classes get operations drawn from softmax(α); if not, they always get class 0."
    )
    weights_first: bool = option(
        False,
        "whether a step updates the weights before the architecture, as in the public code of sabn; Algorithm 1 of DARTS has the "
        "architecture first.",
    )
    table: str = option(
        "",
        'file with the accuracies of NAS-Bench-201, by which runs are then compared; "" for none. See '
        "`anynorm.lab.tasks.search.nasbench`.",
    )


@dataclass(frozen=True)
class DartsOptions(SupernetOptions):
    """The options of the searches of `anynorm.lab.tasks.search.darts`."""

    alpha_lr: float = option(3e-4, "learning rate of Adam for the architecture parameters α; constant.", above=0)
    alpha_weight_decay: float = option(1e-3, "weight decay of Adam for the architecture parameters α.", minimum=0)


@dataclass(frozen=True)
class Exp3Options(SupernetOptions):
    """The options of `anynorm.lab.tasks.search.manas.Exp3Search`."""

    policy_lr: float = option(0.01, "learning rate η of the policy that draws architectures.", above=0)


@dataclass(frozen=True)
class LeastSquaresOptions(SupernetOptions):
    """The options of `anynorm.lab.tasks.search.manas.LeastSquaresSearch`."""

    policy_lr: float = option(0.05, "learning rate η of the policy that draws architectures.", above=0)


@dataclass(frozen=True)
class ControllerOptions(Options):
    """The options of `anynorm.lab.tasks.search.controller_task.ControllerSearch`."""

    table: str = option(
        FILE,
        "file of the table, relative to the working directory or the data directory, or `package.module:function` that returns "
        "an `anynorm.lab.tasks.search.nasbench.CellTable`.",
    )
    data_set: str = option("cifar10", "data set of the accuracies: cifar10, cifar100 or imagenet16.")
    places: tuple[str, ...] = option(
        NORM_POSITIONS, 'where the LSTM has norms: input, hidden and cell; "" for an LSTM without norms.'
    )
    hidden_size: int = option(64, "size of the LSTM and of the embeddings of operations.", minimum=1)
    tanh_constant: float = option(
        2.5, "t of the probabilities softmax(t · tanh(logits / T)); see `anynorm.lab.tasks.search.controller`."
    )
    temperature: float = option(
        1.0, "T of the probabilities softmax(t · tanh(logits / T)); see `anynorm.lab.tasks.search.controller`."
    )
    entropy_weight: float = option(1e-4, "weight of the entropy of the policy in the reward.", minimum=0)
    baseline_decay: float = option(
        0.99, "decay of the moving average of rewards, which is the baseline of REINFORCE.", minimum=0, below=1
    )
    reward_images: int = option(160, "number of validation images of the accuracy in a reward.", minimum=1)
    steps_per_epoch: int = option(30, "number of updates of the controller per epoch.", minimum=1)
    beta1: float = option(0.0, "β₁ of Adam.", minimum=0, below=1)
    eps: float = option(1e-3, "ε of Adam.", minimum=0)
