"""Validation data of tasks whose `Config.num_validation` does not hold out what they are tested on.

Domain adaptation is tested on images of the target, few-shot classification on novel classes. Runs with pilot seeds (sweeps of G,
and pilots) are tested on other data than the measured runs: held-out training images of the target, or validation classes.
"""

from __future__ import annotations

from anynorm.errors import DataError
from anynorm.lab.data.datasets import Split, load_in_memory, split_at_random
from anynorm.lab.recipes.support.recipe import FIRST_PILOT_SEED


def digits() -> tuple[Split, Split]:
    """Return the training images of digits, divided into training and validation images."""
    return _hold_out("digits")


def digits_faded() -> tuple[Split, Split]:
    """Return the training images of faded digits, divided into training and validation images."""
    return _hold_out("digits-faded")


def mnist_16() -> tuple[Split, Split]:
    """Return the training images of MNIST at 16 × 16 pixels, divided into training and validation images."""
    return _hold_out("mnist@16")


def mnist_m_16() -> tuple[Split, Split]:
    """Return the training images of MNIST-M at 16 × 16 pixels, divided into training and validation images."""
    return _hold_out("mnist-m@16")


VALIDATION = {
    "digits": f"{__name__}:digits",
    "digits-faded": f"{__name__}:digits_faded",
    "mnist@16": f"{__name__}:mnist_16",
    "mnist-m@16": f"{__name__}:mnist_m_16",
    "omniglot": "omniglot-validation",
    "miniimagenet": "miniimagenet-validation",
}
"""`Config.data` of validation data, by `Config.data`."""


def is_pilot(seed: int) -> bool:
    """Whether runs with a seed are for choosing settings."""
    return seed >= FIRST_PILOT_SEED


def validation_data(data: str) -> str:
    """Return the name of the validation data of a data set.

    Raises:
        DataError: if the data set has none.
    """
    if data not in VALIDATION:
        raise DataError(f"{data!r} has no validation data. Usable: {' '.join(VALIDATION)}.")
    return VALIDATION[data]


def _hold_out(name: str) -> tuple[Split, Split]:
    return split_at_random(*load_in_memory(name).train)
