"""Videos, and how they are found in a folder. Each reads frames as uint8 (t, 3, h, w).

MemoryVideo    frames in memory
FrameFolder    a folder of images, one per frame, in alphabetical order; only the requested frames are decoded
VideoFile      a file that PyAV (package `av`) decodes, from its start to the last requested frame
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES
from anynorm.lab.data.folder import class_names
from anynorm.lab.data.image_sources import read_image
from anynorm.lab.data.names import find_folder

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg")


class Video:
    """A labeled video.

    Args:
        name: name in error messages.
        label: index of the class.
    """

    def __init__(self, name: str, label: int) -> None:
        self.name, self.label = name, label

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of frames."""

    @abstractmethod
    def read(self, indices: Sequence[int]) -> Tensor:
        """Return the frames at some indices, uint8 (t, 3, h, w).

        Raises:
            DataError: if the video cannot be read.
        """


class MemoryVideo(Video):
    """A video in memory, frames uint8 (t, 3, h, w)."""

    def __init__(self, frames: Tensor, label: int, name: str = "") -> None:
        super().__init__(name, label)
        self.frames = frames

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, indices: Sequence[int]) -> Tensor:
        """Return the frames at some indices."""
        return self.frames[list(indices)]


class FrameFolder(Video):
    """A folder with one image per frame."""

    def __init__(self, path: Path, label: int) -> None:
        super().__init__(str(path), label)
        self.files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
        if not self.files:
            raise DataError(f"{path} must contain the frames of a video ({' '.join(IMAGE_SUFFIXES)}); got none.")

    def __len__(self) -> int:
        return len(self.files)

    def read(self, indices: Sequence[int]) -> Tensor:
        """Return the frames at some indices; raise DataError if one cannot be decoded or differs from the others in size."""
        frames = {index: read_image(self.files[index], apply_exif=False) for index in indices}
        first = frames[indices[0]]
        for index, frame in frames.items():
            if frame.shape != first.shape:
                one, other = (f"{each.shape[2]} × {each.shape[1]}" for each in (frame, first))
                raise DataError(
                    f"the frames of a video must be of one size; {self.files[index]} has {one} pixels, "
                    f"{self.files[indices[0]].name} has {other}."
                )
        return torch.stack([frames[index] for index in indices])


class VideoFile(Video):
    """A file in a format that FFmpeg reads."""

    def __init__(self, path: Path, label: int) -> None:
        super().__init__(str(path), label)

    def __len__(self) -> int:
        return self._num_frames

    @cached_property
    def _num_frames(self) -> int:
        """The number of frames according to the header, or counted if the header has none."""
        try:
            with _av().open(self.name) as container:
                stream = container.streams.video[0]
                return int(stream.frames) or sum(1 for _ in container.decode(stream))
        except _readable_errors() as error:
            raise self._unreadable(error) from None

    def read(self, indices: Sequence[int]) -> Tensor:
        """Return the frames at some indices; raise DataError if the file cannot be decoded up to the last one."""
        wanted, frames = set(indices), {}
        try:
            with _av().open(self.name) as container:
                for number, frame in enumerate(container.decode(container.streams.video[0])):
                    if number in wanted:
                        frames[number] = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
                        if len(frames) == len(wanted):
                            break
        except _readable_errors() as error:
            raise self._unreadable(error) from None
        if missing := sorted(wanted - frames.keys()):
            raise DataError(f"cannot read frame {missing[0]} of {self.name}: its header has {len(self)} frames, the file fewer.")
        return torch.stack([frames[index] for index in indices])

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"cannot read {self.name}: {type(error).__name__}: {error}.")


def _av() -> Any:
    """Import PyAV at first use: it is part of the `video` extra."""
    try:
        import av
    except ImportError:
        raise DataError("videos:PATH needs PyAV: pip install 'anynorm[video]'. Or extract the frames: frames:PATH.") from None
    return av


def _readable_errors() -> tuple[type[Exception], ...]:
    return _av().FFmpegError, IndexError, ValueError, OSError


Splits = tuple[list[Video], list[Video], tuple[str, ...]]
"""Training videos, test videos, and the names of the classes."""


# Folders ----------------------------------------------------------------------------------------------------------------------


def find_videos(name: str) -> Splits:
    """Find the videos of `frames:PATH` or `videos:PATH`; nothing is decoded.

    Args:
        name: the name of the data set. PATH has train/CLASS/… and test/CLASS/… (or val, valid). A video is a folder of images
            for `frames:`, a file for `videos:`.

    Returns:
        Training videos, test videos, and the names of the classes. Videos are shuffled with a fixed seed, so that the
        first ones cover all classes.

    Raises:
        DataError: if the folder does not have this structure, a class has no video, or the splits differ in their classes.
    """
    layout = "train/CLASS/VIDEO and test/CLASS/VIDEO"
    root = find_folder(name, layout)
    test = next((root / split for split in ("test", "val", "valid") if (root / split).is_dir()), None)
    if test is None or not (root / "train").is_dir():
        got = " ".join(class_names(root)[:5]) or "no subfolder"
        raise DataError(f"{name} must be a folder with {layout}; {root.absolute()} has {got}.")
    classes = class_names(root / "train")
    if len(classes) < 2:
        raise DataError(f"{root / 'train'} must have one subfolder per class, for at least 2 classes; got {len(classes)}.")
    if differing := sorted(set(classes) ^ set(class_names(test))):
        raise DataError(f"{root / 'train'} and {test} must have the same classes; only one has: {' '.join(differing[:5])}.")
    find = _find_folders if name.startswith("frames:") else _find_files
    splits = [
        _shuffle([video for k, each in enumerate(classes) for video in find(path / each, k)]) for path in (root / "train", test)
    ]
    return splits[0], splits[1], tuple(classes)


def _find_folders(path: Path, label: int) -> list[Video]:
    folders = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    if not folders:
        raise DataError(f"{path} must contain one folder of frames per video; got none.")
    return [FrameFolder(folder, label) for folder in folders]


def _find_files(path: Path, label: int) -> list[Video]:
    files = sorted(each for each in path.rglob("*") if each.suffix.lower() in VIDEO_SUFFIXES)
    if not files:
        raise DataError(f"{path} must contain videos ({' '.join(VIDEO_SUFFIXES)}); got none.")
    return [VideoFile(file, label) for file in files]


def _shuffle(videos: list[Video]) -> list[Video]:
    order = torch.randperm(len(videos), generator=torch.Generator().manual_seed(0))
    return [videos[k] for k in order.tolist()]
