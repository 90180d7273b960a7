"""Numbers of channels that norms can divide into groups."""

from __future__ import annotations


def scale_channels(channels: int, width: float, divisor: int = 8) -> int:
    """Return `channels * width`, rounded to a positive multiple of `divisor` so that group norms divide it.

    >>> scale_channels(64, 0.35), scale_channels(16, 0.1)
    (24, 8)
    """
    return max(divisor, round(channels * width / divisor) * divisor)
