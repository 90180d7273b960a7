"""Generated videos of a moving square, whose direction is the class.

A bright textured square moves one pixel per frame over a dark textured background. It leaves at one side and comes back at the
other, and every position of the first frame is equally probable. So a single frame does not determine the class.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anynorm.lab.tasks.video.videos import MemoryVideo, Video

DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
"""Rows and columns per frame, by class."""
_SIZE, _SQUARE, _LENGTHS = 24, 8, (12, 16)


def moving_squares(count: int, seed: int) -> list[Video]:
    """Return videos of 24 × 24 pixels with 12 to 16 frames; classes are equally frequent and in a random order.

    Args:
        count: number of videos.
        seed: random seed.

    >>> video = moving_squares(4, seed=0)[0]
    >>> len(video), video.read([0, 1]).shape
    (13, torch.Size([2, 3, 24, 24]))
    """
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % len(DIRECTIONS)
    videos: list[Video] = []
    for index, label in enumerate(generator.permutation(labels).tolist()):
        length = int(generator.integers(_LENGTHS[0], _LENGTHS[1] + 1))
        frames = moving_square(list(DIRECTIONS.values())[label], length, generator)
        videos.append(MemoryVideo(frames, label, f"video {index}"))
    return videos


def moving_square(velocity: tuple[int, int], length: int, generator: np.random.Generator) -> Tensor:
    """Return the frames of one video, uint8 (length, 3, 24, 24).

    Args:
        velocity: rows and columns per frame; a value of `DIRECTIONS`.
        length: number of frames.
        generator: source of the textures and of the first position.
    """
    background = generator.integers(0, 128, (3, _SIZE, _SIZE), np.uint8)
    square = generator.integers(96, 256, (3, _SQUARE, _SQUARE), np.uint8)
    start = generator.integers(0, _SIZE, 2)
    frames = np.repeat(background[None], length, axis=0)
    for index, frame in enumerate(frames):
        rows, columns = ((start[axis] + index * velocity[axis] + np.arange(_SQUARE)) % _SIZE for axis in (0, 1))
        frame[:, rows[:, None], columns] = square
    return torch.from_numpy(frames)
