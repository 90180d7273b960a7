"""Settings of `hn_fluctuation`."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.lab.recipes.support.settings import Settings

NUM_LAYERS = 4
LAYERS = range(1, NUM_LAYERS + 1)
STATISTICS = ("bn_mean", "bn_std", "en_mean", "en_std")


@dataclass(frozen=True, kw_only=True)
class FluctuationSettings(Settings):
    """Settings of the fluctuation of batch statistics.

    Args:
        data: "mnist" or "digits".
        epochs: number of epochs.
        last_steps: number of last steps over which the fluctuation is measured.
        batch_sizes: batch sizes.
        momenta: momenta of SGD.
        standardize: whether pixels are standardized to mean 0 and std 1 over the training set; otherwise they are in 0 … 1.
        min_train_accuracy: training accuracy in % that every network must reach; None to use the loss of the last step, for
            records that do not have the accuracy.
    """

    data: str
    epochs: int
    last_steps: int
    batch_sizes: tuple[int, ...]
    momenta: tuple[float, ...]
    standardize: bool = False
    min_train_accuracy: float | None = None
