"""Clips of videos: random ones for training, regular views for testing.

A training clip has `num_frames` frames, `frame_stride` apart, from a random position in time. Their shorter side is resized to a
random size between `min_side` and `max_side`, and a random square of `config.image_size` pixels is cropped. The views of a test
video are `num_clips` regular positions in time × `num_crops` regular squares of `min_side` pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from anynorm.lab.tasks.video.options import VideoOptions
from anynorm.lab.tasks.video.sampling import (
    check_lengths,
    clip_indices,
    clip_span,
    crop_square,
    place,
    regular_positions,
    resize_frames,
)
from anynorm.lab.tasks.video.videos import Video, VideoFile
from anynorm.lab.training.config import Config


class ClipReader:
    """Reader of training clips and of test views, as uint8 frames (t, 3, h, w).

    Args:
        config: the run; `image_size` is the side of training crops, and with `flip` half of the clips are flipped horizontally.
        options: the options of `VideoClassification`.

    Raises:
        SpecError: if a side of the frames is too short.
    """

    def __init__(self, config: Config, options: VideoOptions) -> None:
        self.config, self.options = config, options
        self.min_side, self.max_side = options.sides(config.image_size)
        self._threads: ThreadPoolExecutor | None = None

    def check_videos(self, videos: Sequence[Video]) -> None:
        """Check that videos are as long as a clip, without opening files, unless the option `loop` repeats their frames.

        Raises:
            DataError: if one is shorter.
        """
        if not self.options.loop:
            opened = [video for video in videos if not isinstance(video, VideoFile)]
            check_lengths([video.name for video in opened], [len(video) for video in opened], self._span)

    @property
    def _span(self) -> int:
        return clip_span(self.options.num_frames, self.options.frame_stride)

    def random_clips(self, videos: Sequence[Video], numbers: Sequence[Sequence[float]], num_workers: int = 0) -> Iterable[Tensor]:
        """Return a random clip of each video.

        Args:
            videos: the videos.
            numbers: five random numbers per video; see `random_clip`.
            num_workers: number of threads that decode; fewer than 2 for none.
        """
        return self._map(num_workers, self.random_clip, videos, numbers)

    def random_clip(self, video: Video, numbers: Sequence[float]) -> Tensor:
        """Return a training clip, uint8 (t, 3, image_size, image_size).

        Args:
            video: the video.
            numbers: in [0, 1): position in time, shorter side, position in rows and in columns, flip.
        """
        time, scale, top, left, flip = numbers
        side = self.min_side + place(self.max_side - self.min_side, scale)
        frames = crop_square(resize_frames(self._read(video, time), side), self.config.image_size, top, left)
        return frames.flip(-1) if self.config.flip and flip < 0.5 else frames

    def views(self, videos: Sequence[Video], num_workers: int = 0) -> Iterator[list[Tensor]]:
        """Yield the views of videos: lists with the same view of each."""
        for position in regular_positions(self.options.num_clips):
            clips = list(self._map(num_workers, self._test_frames, videos, [position] * len(videos)))
            for crop_position in regular_positions(self.options.num_crops):
                yield [crop_square(frames, self.min_side, crop_position, crop_position) for frames in clips]

    def central_clip(self, video: Video) -> Tensor:
        """Return the central square of the clip in the middle of a video."""
        return crop_square(self._test_frames(video, 0.5), self.min_side, 0.5, 0.5)

    def _test_frames(self, video: Video, position: float) -> Tensor:
        return resize_frames(self._read(video, position), self.min_side)

    def _read(self, video: Video, position: float) -> Tensor:
        length = len(video)
        if not self.options.loop:
            check_lengths([video.name], [length], self._span)
        return video.read(clip_indices(length, self.options.num_frames, self.options.frame_stride, position))

    def _map(self, num_workers: int, function: Callable[..., Tensor], *arguments: Iterable[Any]) -> Iterable[Tensor]:
        """Apply a function to videos, in threads if there are several workers: decoders release the global interpreter lock."""
        if num_workers < 2:
            return map(function, *arguments)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(num_workers)
        return self._threads.map(function, *arguments)

    def close(self) -> None:
        """Stop the threads."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
