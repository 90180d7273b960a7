"""Batch Kalman normalization: listed because sn compares with it, and not implemented."""

from __future__ import annotations

from anynorm.layers.registered import RegisteredNorm
from anynorm.layers.state import CustomNorm


class BatchKalmanNorm(CustomNorm, RegisteredNorm):
    """Statistics of a layer estimated from those of the layers before it, too; not implemented."""

    name, alias_of, paper = "bkn", "bn", "Wang et al. 2018, in sn sec. 4.1"
    missing = (
        "its estimate for a layer starts from the statistics of the layer before it (a C×C transition matrix a layer), so it "
        "belongs to a network and not to a layer, and what comes before has to be designed for each network (sn sec. 4.1). "
        "For small batches take sn, hn or bgn."
    )
