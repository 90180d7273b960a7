"""Fully connected networks: linear, norm, ReLU, and again."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from anynorm.registry import make


def mlp(inputs: int, outputs: int, *, norms: Sequence[str], width: int = 128) -> nn.Sequential:
    """Make a network of hidden layers with a norm each, and a linear layer on top; the norm `none` leaves one out.

    >>> [str(module).partition("(")[0] for module in mlp(4, 2, norms=["gn:4", "none"], width=8)]
    ['Flatten', 'Linear', 'GroupNorm', 'ReLU', 'Linear', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for size, norm in zip([inputs] + [width] * len(norms), norms, strict=False):
        layers += [nn.Linear(size, width), *([] if norm == "none" else [make(norm, width)]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width if norms else inputs, outputs))
