"""Half IN, half BN (Pan et al. 2018, IBN-a; in xbn Table 2): the first half of the channels loses its style, the second keeps it.

In the algebra: IN and BN, weighed by groups of channels, the first group having IN alone and the second BN alone. λ is fixed.
"""

from __future__ import annotations

import torch

from anynorm.errors import SpecError
from anynorm.layers.registered import RegisteredNorm
from anynorm.layers.state import CustomNorm


class InstanceBatchNorm(CustomNorm, RegisteredNorm):
    """IN for the first half of the channels, BN for the second."""

    name, alias_of, paper = "ibn", "in+bn.groups:2.hard", "Pan et al. 2018, in xbn Table 2"
    formula = ("c < C/2:  mean, var = μ, σ² [in]", "c ≥ C/2:  mean, var = μ, σ² [bn]", "y = γ (x − mean)/√(var + ε) + β")
    one_cut_per_channel = True

    @classmethod
    def check(cls, num_features: int) -> None:
        """Refuse channels that have no halves."""
        if num_features % 2:
            raise SpecError(f"ibn halves the channels, and {num_features} is odd. Take in or bn there, or an even width.")

    def reset_parameters(self) -> None:
        """Start over, with one cut a half."""
        super().reset_parameters()
        for logits in (self.mean_weight, self.var_weight):
            assert logits is not None  # two cuts are weighed
            with torch.no_grad():
                logits.copy_(torch.eye(2))
