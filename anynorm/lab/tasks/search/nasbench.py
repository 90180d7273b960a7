"""NAS-Bench-201: the accuracy of every cell of a search space, as a table.

A cell has four nodes. Node j is the sum over i < j of an operation applied to node i. Each of the six edges j<-i has one of five
operations, so there are 5^6 = 15 625 cells, each trained for 12 and for 200 epochs by the benchmark's authors (Dong and Yang,
"NAS-Bench-201: Extending the Scope of Reproducible Neural Architecture Search", ICLR 2020).

For a policy that chooses the operations of the edges independently, the expected accuracy is exact:

    E[accuracy] = sum over cells of accuracy(cell) · prod over edges e of p_e(operation of e)

The table is read from nasbench201/nb201.npz under the data directory, with the arrays `ops` (cells × edges, indices of
operations), `op_names`, `edge_order`, and accuracies in percent named `e{epochs}_{data set}_{split}`, such as e200_cifar10_test.
`convert_nats_bench` writes such a file from that of the benchmark.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write
from anynorm.lab.data.download import find_file, find_path
from anynorm.lab.models.search.nasbench201.notation import EDGES, OP_NAMES, format_cell, parse_cell

__all__ = [
    "EDGES",
    "EDGE_NAMES",
    "FILE",
    "OP_NAMES",
    "CellTable",
    "NatsBench",
    "convert_nats_bench",
    "format_cell",
    "load_table",
    "parse_cell",
]

FILE = "nasbench201/nb201.npz"
EDGE_NAMES = tuple(f"{node}<-{source}" for node, source in EDGES)
KEY = re.compile(r"e(\d+)_(.+)_(test|valid)")


@dataclass(frozen=True, eq=False)
class CellTable:
    """The accuracy of every cell of a search space.

    Args:
        ops: the operation of each edge of each cell, (cells, edges), as indices into `op_names`; each combination occurs once.
        op_names: the names of the operations.
        accuracies: accuracies in percent, (cells,), by (data set, epochs, split).

    Raises:
        DataError: if a cell is missing or duplicated, or `accuracies` does not have one number in [0, 100] per cell.
    """

    ops: Tensor
    op_names: tuple[str, ...]
    accuracies: Mapping[tuple[str, int, str], Tensor]

    def __post_init__(self) -> None:
        _check_cells(self.ops, len(self.op_names))
        for key, values in self.accuracies.items():
            if values.shape != (len(self),) or not bool(((values >= 0) & (values <= 100)).all()):
                raise DataError(
                    f"accuracies of {_describe(key)} must be {len(self)} numbers in [0, 100]; got shape {tuple(values.shape)} "
                    f"with values from {values.min():.4g} to {values.max():.4g}."
                )

    def __len__(self) -> int:
        return len(self.ops)

    @property
    def num_edges(self) -> int:
        """Number of edges of a cell."""
        return self.ops.shape[1]

    def accuracy(self, data_set: str, epochs: int = 200, split: str = "test") -> Tensor:
        """Return the accuracy of each cell in percent, (cells,) in float64.

        Args:
            data_set: cifar10, cifar100 or imagenet16.
            epochs: training epochs, 12 or 200.
            split: "test" or "valid".

        Raises:
            DataError: if the table has no such accuracies.
        """
        key = (data_set, epochs, split)
        if key not in self.accuracies:
            raise DataError(
                f"the table has no accuracies of {_describe(key)}. Usable: {'; '.join(map(_describe, self.accuracies))}."
            )
        return self.accuracies[key]

    def index(self, ops: Tensor | Sequence[int]) -> Tensor:
        """Return the rows of cells in the table.

        Args:
            ops: indices of operations, (..., edges).

        Returns:
            Row indices, (...).

        Raises:
            DataError: if the number of edges is wrong, or an index is out of range.
        """
        ops = torch.as_tensor(ops)
        if ops.shape[-1:] != (self.num_edges,):
            raise DataError(f"ops must have {self.num_edges} edges in the last dimension; got shape {tuple(ops.shape)}.")
        if ops.numel() and not 0 <= int(ops.min()) <= int(ops.max()) < len(self.op_names):
            raise DataError(
                f"ops must be numbers in [0, {len(self.op_names)}); got values from {int(ops.min())} to {int(ops.max())}."
            )
        return self._rows[_codes(ops, len(self.op_names)).cpu()].to(ops.device)

    @cached_property
    def _rows(self) -> Tensor:
        """The row of each cell, indexed by its code; see `_codes`."""
        return _codes(self.ops, len(self.op_names)).argsort()

    def log_probabilities(self, log_probabilities: Tensor) -> Tensor:
        """Return the log-probability of each cell, (cells,), under a policy that chooses the operations of edges independently.

        Args:
            log_probabilities: log-probability of each operation per edge, (edges, operations).
        """
        self._check_policy(log_probabilities)
        return log_probabilities.gather(1, self.ops.T.to(log_probabilities.device)).sum(0)

    def expected(self, probabilities: Tensor, values: Tensor) -> Tensor:
        """Return the exact expectation of a value under a policy that chooses the operations of edges independently.

        The result is differentiable with respect to `probabilities`.

        Args:
            probabilities: probability of each operation per edge, (edges, operations).
            values: value of each cell, (cells,), such as `accuracy("cifar10")`.
        """
        self._check_policy(probabilities)
        cells = probabilities.gather(1, self.ops.T.to(probabilities.device)).prod(0)
        return (cells * values.to(cells)).sum()

    def random_mean(self, values: Tensor) -> float:
        """Return the mean of a value over all cells: its expectation for a uniformly random cell."""
        return float(values.mean())

    def best(self, values: Tensor) -> tuple[int, float]:
        """Return the row of the cell with the largest value, and that value."""
        row = int(values.argmax())
        return row, float(values[row])

    def _check_policy(self, probabilities: Tensor) -> None:
        expected = (self.num_edges, len(self.op_names))
        if probabilities.shape != expected:
            raise DataError(f"a policy must be of shape (edges, operations) = {expected}; got {tuple(probabilities.shape)}.")


def load_table(path: str | os.PathLike[str] | None = None) -> CellTable:
    """Load the table of NAS-Bench-201.

    Args:
        path: a file written by `convert_nats_bench`, relative to the working directory or the data directory; None for
            nasbench201/nb201.npz under the data directory.

    Raises:
        DataError: if the file does not exist, cannot be read, or does not have the 15 625 cells of the search space.
    """
    file = find_file(FILE) if path is None else find_path(os.fspath(path))
    try:
        with np.load(file, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"cannot read the table {file}: {error}. It must be an .npz file "
            "as anynorm.lab.tasks.search.nasbench.convert_nats_bench writes it."
        ) from None
    _check_space(file, content)
    accuracies = {}
    for name, values in content.items():
        if match := KEY.fullmatch(name):
            accuracies[match[2], int(match[1]), match[3]] = torch.from_numpy(values.astype(np.float64))
    return CellTable(torch.from_numpy(content["ops"].astype(np.int64)), OP_NAMES, accuracies)


def _check_space(file: Path, content: Mapping[str, Any]) -> None:
    """Check that the arrays have the edges and operations of NAS-Bench-201."""
    if missing := {"ops", "op_names"} - set(content):
        raise DataError(f"the table {file} must have the arrays ops and op_names; it has no {' '.join(sorted(missing))}.")
    names = tuple(map(str, content["op_names"]))
    if names != OP_NAMES:
        raise DataError(f"operations of {file} must be {' '.join(OP_NAMES)}, in this order; got {' '.join(names)}.")
    edges = tuple(map(str, content.get("edge_order", EDGE_NAMES)))
    if edges != EDGE_NAMES:
        raise DataError(f"edges of {file} must be {' '.join(EDGE_NAMES)}, in this order; got {' '.join(edges)}.")
    if content["ops"].ndim != 2 or content["ops"].shape[1] != len(EDGES):
        raise DataError(f"ops of {file} must be of shape (cells, {len(EDGES)} edges); got {content['ops'].shape}.")


def _check_cells(ops: Tensor, num_ops: int) -> None:
    """Check that a table has every cell of its search space exactly once."""
    if ops.dim() != 2 or not ops.numel():
        raise DataError(f"ops must be of shape (cells, edges); got {tuple(ops.shape)}.")
    if not 0 <= int(ops.min()) <= int(ops.max()) < num_ops:
        raise DataError(f"ops must be numbers in [0, {num_ops}); got values from {int(ops.min())} to {int(ops.max())}.")
    counts = torch.bincount(_codes(ops, num_ops), minlength=num_ops ** ops.shape[1])
    missing, repeated = int((counts == 0).sum()), int((counts > 1).sum())
    if missing or repeated:
        raise DataError(
            f"the table must have each of the {len(counts)} cells once; {missing} are missing "
            f"and {repeated} occur more than once."
        )


def _codes(ops: Tensor, num_ops: int) -> Tensor:
    """Return the code of each cell: the integer whose digits in base `num_ops` are its operations."""
    powers = num_ops ** torch.arange(ops.shape[-1] - 1, -1, -1, device=ops.device)
    return (ops * powers).sum(-1)


def _describe(key: tuple[str, int, str]) -> str:
    data_set, epochs, split = key
    return f"{data_set}, {epochs} epochs, {split}"


# The benchmark's own names and files ------------------------------------------------------------------------------------------


class NatsBench(Protocol):
    """The methods of `nats_bench.create(path, "tss")` that are used here."""

    def __len__(self) -> int:
        """Return the number of cells."""

    def arch(self, index: int) -> str:
        """Return the architecture string of a cell, in the format of `parse_cell`."""

    def get_more_info(self, index: int, dataset: str, iepoch: int | None, hp: str, is_random: bool) -> Mapping[str, Any]:
        """Return the results of a cell; `hp` is the number of epochs, and `is_random=False` averages over the trials."""


_RESULTS = {
    "cifar10_test": ("cifar10", "test-accuracy"),
    "cifar10_valid": ("cifar10-valid", "valid-accuracy"),
    "cifar100_test": ("cifar100", "test-accuracy"),
    "cifar100_valid": ("cifar100", "valid-accuracy"),
    "imagenet16_test": ("ImageNet16-120", "test-accuracy"),
    "imagenet16_valid": ("ImageNet16-120", "valid-accuracy"),
}
"""Name of the data set and of the metric in the benchmark, by name in the table."""


def convert_nats_bench(api: NatsBench, path: str | os.PathLike[str]) -> CellTable:
    """Convert the benchmark to the table that `load_table` reads, write it to a file, and return it.

        convert_nats_bench(nats_bench.create("NATS-tss-v1_0-3ffb9-simple", "tss", fast_mode=True, verbose=False), "nb201.npz")

    Args:
        api: the API object of nats_bench (package nats-bench), or of a version of nas_201_api whose `get_more_info` takes `hp`.
            Accuracies are averaged over trials.
        path: the file to write.

    Raises:
        DataError: if the benchmark lacks a cell, or a result of one.
    """
    ops = [parse_cell(api.arch(index)) for index in range(len(api))]
    content: dict[str, Any] = {"ops": np.array(ops, dtype=np.uint8), "op_names": OP_NAMES, "edge_order": EDGE_NAMES}
    _check_cells(torch.tensor(ops), len(OP_NAMES))
    for epochs in (12, 200):
        for name, (data_set, metric) in _RESULTS.items():
            values = [_result(api, index, data_set, metric, epochs) for index in range(len(api))]
            content[f"e{epochs}_{name}"] = np.array(values, dtype=np.float32)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **content)
    return load_table(path)


def _result(api: NatsBench, index: int, data_set: str, metric: str, epochs: int) -> float:
    info = api.get_more_info(index, data_set, iepoch=None, hp=str(epochs), is_random=False)
    if metric not in info:
        raise DataError(f"cell {index} has no {metric} on {data_set} after {epochs} epochs; got {' '.join(info) or 'nothing'}.")
    return float(info[metric])
