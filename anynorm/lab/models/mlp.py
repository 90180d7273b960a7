"""Fully connected networks: (linear, norm, ReLU) × depth, linear."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from anynorm.registry import make


def mlp(in_features: int, out_features: int, *, norms: Sequence[str], width: int = 128) -> nn.Sequential:
    """Build an MLP with one hidden layer per entry of `norms`.

    Args:
        in_features: Number of values per sample; inputs are flattened.
        out_features: Number of outputs.
        norms: The spec of the norm of each hidden layer; "none" for a layer without a norm.
        width: Number of neurons of each hidden layer.

    >>> [str(module).partition("(")[0] for module in mlp(4, 2, norms=["gn:4", "none"], width=8)]
    ['Flatten', 'Linear', 'GroupNorm', 'ReLU', 'Linear', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for size, norm in zip([in_features] + [width] * len(norms), norms, strict=False):
        layers += [nn.Linear(size, width), *([] if norm == "none" else [make(norm, width)]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width if norms else in_features, out_features))
