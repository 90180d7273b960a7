"""Which test images a network classified correctly: one bit per image, as text in a record.

>>> pack_hits([True, False, True])
'3:oA=='
>>> unpack_hits("3:oA==")
array([1., 0., 1.])
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pack_hits(hits: Sequence[bool]) -> str:
    """Return "COUNT:BITS" with the bits in base64, eight images per byte."""
    bits = np.packbits(np.asarray(hits, dtype=bool))
    return f"{len(hits)}:{base64.b64encode(bits.tobytes()).decode()}"


def unpack_hits(text: str) -> NDArray[np.float64]:
    """Return 1.0 for each image that was classified correctly and 0.0 for each other, from the text of `pack_hits`."""
    count, _, bits = text.partition(":")
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), dtype=np.uint8), count=int(count)).astype(float)
