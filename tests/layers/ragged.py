"""Padded sequences, masks and points for the tests of masks and batch indices."""

import torch

from tests.helpers import data

N, C = 4, 12
SHAPE = (N, C, 2, 6)
LENGTHS = (7, 3, 10, 5)


def random_mask(seed=0, shape=(N, 2, 6)):
    """A mask with valid positions in every strip of every sample."""
    valid = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    valid[..., 0, ::2] = True
    valid[..., 1, ::3] = True
    valid[0, 0, 1] = valid[1, 1, 1] = False
    return valid


def poisoned(x, valid, value=float("nan")):
    """The input with a value at masked positions."""
    return torch.where(valid[:, None], x, value)


def padded(sequences):
    """A batch (n, c, max length) of sequences (c, length), with NaN in the padding, and its mask."""
    x = torch.full((len(sequences), C, max(len(row[0]) for row in sequences) + 2), float("nan"))
    valid = torch.zeros(len(x), x.shape[2], dtype=torch.bool)
    for i, row in enumerate(sequences):
        x[i, :, : row.shape[1]] = row
        valid[i, : row.shape[1]] = True
    return x, valid


def points(seed=0, n=5):
    """Points in random order, the graph of each, with one graph without points, and the graphs as sequences (c, points)."""
    sequences = [data(C, length, seed=seed + length) for length in (6, 2, 9, 4)]
    graph_of = torch.cat([torch.full((row.shape[1],), g) for g, row in zip((0, 1, 3, n - 1), sequences, strict=True)])
    order = torch.randperm(len(graph_of), generator=torch.Generator().manual_seed(seed))
    return torch.cat(sequences, 1).T[order], graph_of[order], order
