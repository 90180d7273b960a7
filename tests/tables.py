"""Planted tables of cells: the accuracy is a sum over edges, so the best cell and every expectation are known."""

import itertools

import numpy as np
import torch

from anynorm.lab.tasks.search.nasbench import EDGE_NAMES, FILE, OP_NAMES, CellTable


def synthetic_gains(num_edges=6, num_ops=5, seed=0):
    """Return the gain of each operation of each edge, (edges, operations), in percent; their sums stay in [10, 90]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num_edges, num_ops, generator=generator, dtype=torch.float64) * 80 / num_edges


def synthetic_table(num_edges=6, num_ops=5, seed=0):
    """Return a table with accuracy 10 + the sum of gains, of 12 and 200 epochs, in random order of cells."""
    generator = torch.Generator().manual_seed(seed + 1)
    ops = torch.tensor(list(itertools.product(range(num_ops), repeat=num_edges)))
    ops = ops[torch.randperm(len(ops), generator=generator)]
    accuracy = 10 + synthetic_gains(num_edges, num_ops, seed).gather(1, ops.T).sum(0)
    keys = [("cifar10", 12, "valid"), ("cifar10", 12, "test"), ("cifar10", 200, "test")]
    return CellTable(ops, OP_NAMES[:num_ops], dict.fromkeys(keys, accuracy))


def write_table(directory, table=None, **changes):
    """Write a table as the file that `load_table` reads; `changes` replaces arrays of it, None removes one."""
    table = table or synthetic_table()
    content = {"ops": table.ops.to(torch.uint8).numpy(), "op_names": np.array(OP_NAMES), "edge_order": np.array(EDGE_NAMES)}
    for (data_set, epochs, split), values in table.accuracies.items():
        content[f"e{epochs}_{data_set}_{split}"] = values.numpy()
    content = {name: values for name, values in {**content, **changes}.items() if values is not None}
    path = directory / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **content)
    return path


def small_table():
    """Return a synthetic table with 27 cells, for tasks that are named by a text."""
    return synthetic_table(3, 3)
