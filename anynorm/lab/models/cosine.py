"""The cosine classifier (Qi et al. 2018; Gidaris & Komodakis 2018).

    logit_c = s · cos(f, w_c) = s · f/‖f‖ · w_c/‖w_c‖

The scale s is learned; there is no bias. Only the direction of the weights of a class matters, so a class can be added by setting
its weights to the normalized mean feature of a few images; see `anynorm.lab.models.imprinting`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

INITIAL_SCALE = 10.0


class CosineLinear(nn.Module):
    """A linear layer whose outputs are scaled cosines.

    Args:
        in_features: size of a feature vector.
        out_features: number of classes.
        scale: initial value of s.

    Attributes:
        weight: (out_features, in_features); only the directions of its rows have an effect.
        scale: s, a scalar.

    >>> CosineLinear(3, 2)(torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """

    def __init__(self, in_features: int, out_features: int, scale: float = INITIAL_SCALE) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(nn.functional.normalize(torch.randn(out_features, in_features), dim=1))
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, out_features)."""
        return self.scale * nn.functional.linear(nn.functional.normalize(x, dim=-1), nn.functional.normalize(self.weight, dim=1))

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return f"in_features={self.in_features}, out_features={self.out_features}"
