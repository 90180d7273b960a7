"""Temporal and spatial sampling of videos: clips, views and crops.

    span    (num_frames − 1) · stride + 1, the number of frames that a clip covers
    clip    frames start, start + stride, …; with `loop`, a video shorter than the span is repeated from its first frame
    view    one of num_clips regular positions in time × num_crops squares along the longer side

Positions are relative, in [0, 1): 0 is the first possible position. So they can be drawn before the length of a video is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anynorm.errors import DataError


def clip_span(num_frames: int, stride: int) -> int:
    """Return the number of frames that a clip covers.

    >>> clip_span(32, 2)
    63
    """
    return (num_frames - 1) * stride + 1


def clip_indices(length: int, num_frames: int, stride: int, position: float) -> list[int]:
    """Return the frame indices of a clip at a position in [0, 1); a short video is repeated from its first frame.

    >>> clip_indices(10, 3, 2, position=0.0), clip_indices(10, 3, 2, position=0.99), clip_indices(3, 5, 1, position=0.5)
    ([0, 2, 4], [5, 7, 9], [0, 1, 2, 0, 1])
    """
    start = place(length - clip_span(num_frames, stride), position)
    return [(start + k * stride) % length for k in range(num_frames)]


def regular_positions(count: int) -> list[float]:
    """Return equally spaced positions from the first to the last possible one; the middle if `count` is 1.

    >>> regular_positions(3), regular_positions(1)
    ([0.0, 0.5, 1.0], [0.5])
    """
    return [0.5] if count == 1 else [k / (count - 1) for k in range(count)]


def place(last: int, position: float) -> int:
    """Map a position in [0, 1] to an integer from 0 to `last` (0 if `last` is negative); uniform for uniformly random positions.

    >>> [place(2, position) for position in (0.0, 0.3, 0.4, 0.99, 1.0)]
    [0, 0, 1, 2, 2]
    """
    return max(0, min(last, int(position * (last + 1))))


def resize_frames(frames: Tensor, side: int) -> Tensor:
    """Resize frames (t, c, h, w) so that their shorter side has `side` pixels; returns uint8 with the same aspect ratio."""
    height, width = frames.shape[-2:]
    shorter = min(height, width)
    if shorter == side:
        return frames
    size = [max(side, round(edge * side / shorter)) for edge in (height, width)]
    resized = torch.nn.functional.interpolate(frames.float(), size, mode="bilinear", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)


def crop_square(frames: Tensor, size: int, top: float, left: float) -> Tensor:
    """Crop the same square from all frames; `top` and `left` are positions in [0, 1]."""
    rows, columns = (place(edge - size, position) for edge, position in zip(frames.shape[-2:], (top, left), strict=True))
    return frames[..., rows : rows + size, columns : columns + size]


def check_lengths(names: Sequence[str], lengths: Sequence[int], span: int) -> None:
    """Check that every video is as long as a clip.

    Raises:
        DataError: if one is shorter; the message lists the first ones.
    """
    short = [f"{name} ({length})" for name, length in zip(names, lengths, strict=True) if length < span]
    if short:
        more = ", …" if len(short) > 3 else ""
        raise DataError(
            f"a clip covers {span} frames; {len(short)} of {len(names)} videos have fewer: {', '.join(short[:3])}{more}. "
            "Use a smaller num_frames or frame_stride, or repeat their frames: loop=true."
        )
