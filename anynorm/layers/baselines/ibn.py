"""IBN (Pan et al. 2018, IBN-a; in xbn Table 2): IN for the first half of the channels, BN for the second half.

IN removes the style of an image from the first half. In the algebra, this is a mixture of IN and BN with two channel groups and
fixed one-hot weights.
"""

from __future__ import annotations

import torch

from anynorm.core.mixing import Argmax
from anynorm.core.spec import NormSpec, check_positive_int
from anynorm.errors import SpecError
from anynorm.layers.norm import CustomNorm
from anynorm.layers.registered import RegisteredNorm
from anynorm.norms import BN, IN


class InstanceBatchNorm(CustomNorm, RegisteredNorm):
    """Instance-Batch Normalization (IBN-Net): IN for the first half of the channels, BN for the second.

        c < C/2:  mean, var = μ, σ² [in]
        c ≥ C/2:  mean, var = μ, σ² [bn]
        y = γ (x − mean)/√(var + ε) + β

    For its arguments, see `RegisteredNorm`.
    """

    name, paper = "ibn", "Pan et al. 2018, in xbn Table 2"
    use = "Models that are evaluated on other domains than they were trained on."
    define = staticmethod(lambda: NormSpec((IN, BN), (IN, BN), mixing=Argmax(2)))
    one_cut_per_channel = True

    @classmethod
    def check_channels(cls, num_features: int) -> None:
        """Check that the number of channels is even.

        Raises:
            SpecError: if it is odd.
        """
        if check_positive_int(num_features, "num_features", cls.name) % 2:
            raise SpecError(
                f"num_features of ibn must be even; got {num_features}. Use in or bn for this layer, or an even width."
            )

    def reset_parameters(self) -> None:
        """Reset the running statistics, the affine, and λ, which selects IN for the first group and BN for the second."""
        super().reset_parameters()
        for logits in (self.mean_weight, self.var_weight):
            assert logits is not None  # two cuts are mixed
            with torch.no_grad():
                logits.copy_(torch.eye(2))
