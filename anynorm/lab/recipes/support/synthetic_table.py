"""A table in the format of NAS-Bench-201 with synthetic accuracies, for presets that need no data.

The accuracy of a cell is the sum of one number per operation.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from anynorm.io.atomic import atomic_write
from anynorm.lab.models.search.nasbench201.notation import EDGES
from anynorm.lab.tasks.search.nasbench import OP_NAMES

GAINS = {"none": 0.0, "skip_connect": 6.0, "nor_conv_1x1": 10.0, "nor_conv_3x3": 13.0, "avg_pool_3x3": 5.0}
"""Percentage points of accuracy that each edge with an operation adds to 10 %."""
NAME = "synthetic"
"""The value that stands for the path of this table in the settings of a recipe."""


def write_synthetic_table(path: Path) -> Path:
    """Write the table unless it exists, and return its path."""
    if not path.exists():
        ops = np.array(list(itertools.product(range(len(OP_NAMES)), repeat=len(EDGES))), dtype=np.uint8)
        accuracy = 10 + np.array([GAINS[name] for name in OP_NAMES])[ops].sum(1)
        keys = ("e12_{}_test", "e12_{}_valid", "e200_{}_test")
        names = [key.format(data_set) for key in keys for data_set in ("cifar10", "cifar100", "imagenet16")]
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, ops=ops, op_names=np.array(OP_NAMES), **dict.fromkeys(names, accuracy))
    return path
