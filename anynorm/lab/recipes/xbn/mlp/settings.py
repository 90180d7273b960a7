"""Settings of the recipe `xbn_mlp`."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.lab.recipes.support.settings import Settings

MOMENTUM, PRINTED_MOMENTUM = 0.1, 0.9
"""Weight of the newest batch in the running statistics: with α = 0.9 as the weight of the old value, and as eq. 3 prints it."""


@dataclass(frozen=True, kw_only=True)
class MlpSettings(Settings):
    """Settings of the MLPs.

    Args:
        data: "mnist" or "digits".
        depth: number of layers.
        width: number of neurons per layer.
        lr: learning rate.
        iterations: number of full-batch steps.
        early_iterations: number of first iterations that claims compare with the later ones.
        train_sizes: numbers of training images |S|.
        inits: initializations of the weights, "default" first.
        no_norm_lrs: learning rates of the network without norms.
        no_norm_iterations: numbers of steps of the network without norms.
        equal_training: whether BN is also trained as the network without norms, with each of its learning rates and steps.
        first_batch_start: whether to measure running statistics that start from those of the first batch, not from (0, 1), too.
        momenta: further weights of the newest batch in the running statistics, besides 0.1.
        lrs: further learning rates.
        depths: further numbers of layers.
        groups: further numbers of groups of GN, besides 4.
        measure_subsets: whether to keep the curves of runs on subsets, and to recompute their statistics on the training set.
        first_random_seed: the random seed of seed 0; not 0 for networks that the record of `paper` does not have.
    """

    data: str
    depth: int
    width: int
    lr: float
    iterations: int
    early_iterations: int
    train_sizes: tuple[int, ...]
    inits: tuple[str, ...]
    no_norm_lrs: tuple[float, ...]
    no_norm_iterations: tuple[int, ...]
    equal_training: bool = False
    first_batch_start: bool = False
    momenta: tuple[float, ...] = ()
    lrs: tuple[float, ...] = ()
    depths: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    measure_subsets: bool = False
    first_random_seed: int = 0
