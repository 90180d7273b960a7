"""Batch Kalman normalization: listed because sn compares with it, and not implemented."""

from __future__ import annotations

from anynorm.layers.algebra import BN, same_cut
from anynorm.layers.norm import CustomNorm
from anynorm.layers.registered import RegisteredNorm


class BatchKalmanNorm(CustomNorm, RegisteredNorm):
    """Statistics of a layer estimated from those of the layers before it as well; not implemented."""

    name, paper = "bkn", "Wang et al. 2018, in sn sec. 4.1"
    define = staticmethod(lambda: same_cut(BN))
    not_implemented_reason = (
        "its estimate for a layer starts from the statistics of the previous layer (one C×C transition matrix per layer), so it "
        "belongs to a network and not to a layer, and must be designed for each network (sn sec. 4.1). "
        "For small batches use sn, hn or bgn."
    )
