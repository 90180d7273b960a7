"""Videos with labels, by name.

    moving                    squares that move left, right, up or down; generated, 320 training and 160 test videos of 12 to 16
                              frames of 24 × 24 pixels; do not flip them
    ut_interaction/FOLD       120 videos of two people, 6 classes, FOLD 0 to 3; ut_interaction/*.npz under the data directory
    frames:PATH               PATH/train/CLASS/VIDEO/*.jpg and PATH/test/CLASS/VIDEO/*.jpg: one folder of images per video
    videos:PATH               PATH/train/CLASS/*.mp4 and PATH/test/CLASS/*.mp4, decoded by PyAV: pip install 'anynorm[video]'
    package.module:factory    a function that returns [(frames, label), …], [(frames, label), …]: train, test

Videos may differ in length and in size. Folders that fit in memory are loaded into it; others are decoded on access.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.checkpoints import call_factory
from anynorm.lab.data.folder import MAX_GIGABYTES
from anynorm.lab.data.names import path_of, resolve
from anynorm.lab.data.standardization import SampleDataset, pooled_moments
from anynorm.lab.tasks.video.moving_squares import DIRECTIONS, moving_squares
from anynorm.lab.tasks.video.sampling import place, regular_positions, resize_frames
from anynorm.lab.tasks.video.ut_interaction import NUM_FOLDS, read_ut_interaction
from anynorm.lab.tasks.video.videos import MemoryVideo, Splits, Video, find_videos
from anynorm.progress import track

Reader = Callable[[str], Splits]
NUM_TRAIN, NUM_TEST = 320, 160
"""Numbers of videos of "moving"."""
_FRAMES_PER_VIDEO, _MAX_VIDEOS = 8, 200
"""Frames per video, and number of training videos, from which mean and standard deviation are estimated."""


class VideoDataset(SampleDataset[Video]):
    """Training and test videos. Each has a label and reads frames as uint8 (t, 3, h, w)."""


def load_video(name: str, side: int = 0, *, skip_unreadable: bool = False) -> VideoDataset:
    """Load a data set of videos.

    Args:
        name: see `anynorm.lab.tasks.video.data`.
        side: videos in memory are resized so that their shorter side has this many pixels; 0 for their own size.
        skip_unreadable: leave out videos of a folder that cannot be decoded, instead of raising. Videos that are decoded when
            they are used are not checked.

    Raises:
        DataError: if the name is unknown, a file is missing or damaged, or the data do not have the required form.

    >>> data = load_video("moving")
    >>> len(data.train), data.class_names, data.train[0].read([0, 5]).shape
    (320, ('left', 'right', 'up', 'down'), torch.Size([2, 3, 24, 24]))
    """
    train, test, classes = resolve(name, "data set of videos", DATASETS, FOLDERS, _call_factory)(name)
    if path_of(name) is not None and _estimate_gigabytes([*train, *test], side) <= MAX_GIGABYTES:
        train, test = (_into_memory(videos, side, name, skip_unreadable=skip_unreadable) for videos in (train, test))
    elif side:
        train, test = ([_resized(video, side) for video in videos] for videos in (train, test))
    return VideoDataset(train, test, classes, *frame_moments(train))


@lru_cache(maxsize=2)
def load_video_cached(name: str, side: int = 0, source_hash: str = "", skip_unreadable: bool = False) -> VideoDataset:  # noqa: ARG001
    """Load videos once per process; `source_hash` is part of the key, so that a folder that has changed is read again."""
    return load_video(name, side, skip_unreadable=skip_unreadable)


def _read_moving(_: str) -> Splits:
    return moving_squares(NUM_TRAIN, seed=0), moving_squares(NUM_TEST, seed=1), tuple(DIRECTIONS)


DATASETS: dict[str, Reader] = {
    "moving": _read_moving,
    **{f"ut_interaction/{fold}": read_ut_interaction for fold in range(NUM_FOLDS)},
}
FOLDERS: dict[str, Reader] = {"frames": find_videos, "videos": find_videos}
"""The reader of a folder, by the prefix of the data set's name."""


def _call_factory(name: str) -> Splits:
    """Call `package.module:factory` and check its result."""
    returned = call_factory(name)
    try:
        train, test = ([_as_video(name, k, *pair) for k, pair in enumerate(split)] for split in returned)
    except DataError:
        raise
    except (TypeError, ValueError):
        raise DataError(
            f"{name} must return [(frames, label), …], [(frames, label), …]: train and test; got {type(returned).__name__}."
        ) from None
    labels = [video.label for video in (*train, *test)]
    if not train or not test or min(labels) < 0 or max(labels) < 1:
        raise DataError(
            f"{name} must return videos of at least 2 classes, numbered from 0, in both splits; got {sorted(set(labels))}."
        )
    return train, test, tuple(map(str, range(max(labels) + 1)))


def _as_video(name: str, number: int, frames: Any, label: Any) -> Video:
    tensor = torch.as_tensor(frames)
    if tensor.dim() != 4 or tensor.shape[1] != 3 or tensor.dtype != torch.uint8 or not len(tensor):
        raise DataError(
            f"{name} must return frames uint8 (t, 3, h, w); got {tensor.dtype} {tuple(tensor.shape)} (video {number})."
        )
    return MemoryVideo(tensor, int(label), f"video {number} of {name}")


# Memory -----------------------------------------------------------------------------------------------------------------------


def _estimate_gigabytes(videos: Sequence[Video], side: int) -> float:
    """Estimate the memory that videos would take in GB, from the first 20."""
    sizes = []
    for video in videos[:20]:
        try:
            height, width = video.read([0]).shape[-2:]
            scale = side / min(height, width) if side else 1.0
            sizes.append(len(video) * 3 * height * width * scale**2)
        except DataError:  # reported, or left out, when all are read
            continue
    return sum(sizes) / max(1, len(sizes)) * len(videos) / 1e9


def _into_memory(videos: Sequence[Video], side: int, name: str, *, skip_unreadable: bool) -> list[Video]:
    """Read all frames of videos."""
    result, errors = [], []
    for video in track(videos, f"reading {name}", len(videos)):
        try:
            result.append(_resized(MemoryVideo(video.read(range(len(video))), video.label, video.name), side))
        except DataError as error:
            errors.append(str(error))
    if errors and not (skip_unreadable and result):
        advice = "No video is left." if skip_unreadable else "Fix them, or leave them out (skip_unreadable=True)."
        raise DataError(
            f"cannot read {len(errors)} of {len(videos)} videos of a split of {name}. The first: {errors[0]} {advice}"
        )
    for message in errors:
        sys.stderr.write(f"skipped unreadable video: {message}\n")
    return result


def _resized(video: Video, side: int) -> Video:
    """Return a video in memory with a shorter side of `side` pixels; 0 for its own size. Videos on disk are not changed."""
    if not side or not isinstance(video, MemoryVideo):
        return video
    return MemoryVideo(resize_frames(video.frames, side), video.label, video.name)


def frame_moments(videos: Sequence[Video]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation per channel, (3, 1, 1), over equally spaced frames of the first videos."""
    positions = regular_positions(_FRAMES_PER_VIDEO)
    return pooled_moments(
        video.read([place(len(video) - 1, position) for position in positions]) for video in videos[:_MAX_VIDEOS]
    )
