"""Arrays of .npz files, in which data sets are packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anynorm.errors import DataError

Arrays = dict[str, npt.NDArray[Any]]


def load_npz(path: Path, *names: str, advice: str = "") -> Arrays:
    """Load arrays of a .npz file by name.

    Args:
        path: the file.
        names: the names of the arrays.
        advice: what to do about a file of another format, for the message.

    Raises:
        DataError: if the file cannot be read, or lacks an array.
    """
    try:
        with np.load(path) as arrays:
            return {name: arrays[name] for name in names}
    except Exception as error:  # numpy and zipfile raise many types for a file of another format
        raise DataError(f"{path} must hold the arrays {' '.join(names)}: {type(error).__name__}: {error}.{advice}") from None
