"""Videos from generated data, folders of frames, video files and packed AVIF sequences, from files made here."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features

from anynorm.errors import DataError
from anynorm.lab.tasks.video.data import load_video
from anynorm.lab.tasks.video.moving_squares import DIRECTIONS, moving_square
from anynorm.lab.tasks.video.sampling import (
    check_lengths,
    clip_indices,
    clip_span,
    crop_square,
    place,
    regular_positions,
    resize_frames,
)
from anynorm.lab.training.config import Config, hash_sources
from tests.helpers import same
from tests.real import SHARED, needs_shared

needs_avif = pytest.mark.skipif(not features.check("avif"), reason="Pillow has no AVIF")
CLASSES = ("jump", "run")


@pytest.fixture(autouse=True)
def data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_frames(seed, length=4, height=16, width=32):
    """Return smooth frames, which lossy codecs keep nearly as they are: a gradient that moves."""
    generator = torch.Generator().manual_seed(seed)
    color = torch.randint(60, 200, (3, 1, 1), generator=generator)
    ramp = torch.arange(width)[None, None] - width // 2
    return torch.stack([(color + ramp + 4 * k).expand(3, height, width) for k in range(length)]).to(torch.uint8)


def write_frames(folder, frames):
    folder.mkdir(parents=True)
    for k, frame in enumerate(frames):
        Image.fromarray(frame.permute(1, 2, 0).numpy()).save(folder / f"{k:03d}.png")


def write_video(path, frames):
    av = pytest.importorskip("av")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width = frames.shape[-2:]
        stream.bit_rate = 10_000_000
        for frame in frames:
            pixels = np.ascontiguousarray(frame.permute(1, 2, 0).numpy())
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def write_tree(root, write, name=lambda k: f"v{k}"):
    """Write two videos per class and split, of 4 to 5 frames; return them by split, class and number."""
    written = {}
    for seed, key in enumerate((split, each, k) for split in ("train", "test") for each in CLASSES for k in range(2)):
        written[key] = make_frames(seed, length=4 + key[2])
        write(root / key[0] / key[1] / name(key[2]), written[key])
    return written


def sorted_frames(videos):
    """Return the frames of videos by their names."""
    return [video.read(range(len(video))) for video in sorted(videos, key=lambda video: video.name)]


# Clips ------------------------------------------------------------------------------------------------------------------------


def test_clips_are_those_of_a_naive_loop():
    for length, num_frames, stride in ((20, 4, 3), (10, 10, 1), (7, 3, 2)):
        last = length - clip_span(num_frames, stride)
        starts = set()
        for position in torch.rand(200, generator=torch.Generator().manual_seed(0)).tolist():
            indices = clip_indices(length, num_frames, stride, position)
            expected, index = [], indices[0]
            for _ in range(num_frames):
                expected.append(index)
                index += stride
            assert indices == expected
            assert indices[-1] < length
            starts.add(indices[0])
        assert starts == set(range(last + 1))


def test_random_places_are_equally_probable_and_regular_ones_reach_both_ends():
    positions = torch.rand(40000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    counts = torch.tensor([place(3, position) for position in positions]).bincount()
    assert (counts - 10000).abs().max() < 400  # 4.6 standard deviations
    assert [place(18, position) for position in regular_positions(3)] == [0, 9, 18]
    assert place(18, regular_positions(1)[0]) == 9
    assert place(-2, 0.9) == 0


def test_short_videos_are_refused_with_their_number_and_names_or_repeated():
    with pytest.raises(DataError, match=r"a clip covers 5 frames; 2 of 3 videos have fewer: a \(4\), c \(1\)\. Use .*loop=true"):
        check_lengths(["a", "b", "c"], [4, 5, 1], 5)
    check_lengths(["a", "b"], [5, 6], 5)
    assert clip_indices(2, 5, 1, 0.9) == [0, 1, 0, 1, 0]


def test_resizing_keeps_the_aspect_ratio_and_crops_are_slices():
    frames = torch.randint(0, 256, (2, 3, 12, 18), dtype=torch.uint8)
    assert resize_frames(frames, 12) is frames
    assert resize_frames(frames, 8).shape == (2, 3, 8, 12)
    constant = torch.full((1, 3, 9, 30), 77, dtype=torch.uint8)
    assert resize_frames(constant, 3).unique().tolist() == [77]
    for k, position in enumerate(regular_positions(3)):
        assert torch.equal(crop_square(frames, 12, position, position), frames[..., 3 * k : 3 * k + 12])


# Generated videos -------------------------------------------------------------------------------------------------------------


def test_squares_move_one_pixel_per_frame_as_in_a_naive_loop():
    for rows, columns in DIRECTIONS.values():
        frames = moving_square((rows, columns), 6, np.random.default_rng(3))
        generator = np.random.default_rng(3)
        background = generator.integers(0, 128, (3, 24, 24), np.uint8)
        square = generator.integers(96, 256, (3, 8, 8), np.uint8)
        top, left = generator.integers(0, 24, 2)
        for k, frame in enumerate(frames.numpy()):
            expected = background.copy()
            for i in range(8):
                for j in range(8):
                    expected[:, (top + k * rows + i) % 24, (left + k * columns + j) % 24] = square[:, i, j]
            assert np.array_equal(frame, expected)


def test_a_single_frame_does_not_tell_the_class():
    data = load_video("moving")
    labels = torch.tensor([video.label for video in data.train])
    assert labels.bincount().tolist() == [80] * 4
    assert {len(video) for video in data.train} == set(range(12, 17))
    for index in (0, 11):  # the mean frames of classes differ as much as those of 80 random videos
        bright = torch.stack([video.read([index])[0].float().mean(0) for video in data.train])
        shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
        spread, chance = (
            torch.stack([bright[each == label].mean(0) for label in range(4)]).std(0).mean() for each in (labels, shuffled)
        )
        assert 0.9 < spread / chance < 1.1


# Readers ----------------------------------------------------------------------------------------------------------------------


def test_folders_of_frames_and_video_files_of_the_same_frames_agree(tmp_path):
    expected = write_tree(tmp_path / "frames", write_frames)
    write_tree(tmp_path / "files", write_video, name=lambda k: f"v{k}.mp4")
    folders, files = load_video("frames:frames"), load_video("videos:files")
    assert folders.class_names == files.class_names == CLASSES
    for split in ("train", "test"):
        wanted = [frames for key, frames in sorted(expected.items()) if key[0] == split]
        videos = getattr(folders, split)
        assert all(torch.equal(a, b) for a, b in zip(sorted_frames(videos), wanted, strict=True))
        for a, b in zip(sorted_frames(getattr(files, split)), wanted, strict=True):
            assert a.shape == b.shape
            assert (a.float() - b.float()).abs().mean() < 4  # mpeg4 is lossy; frames differ by 4 from one to the next
            assert (a.float() - b.float()).mean(dim=(1, 2, 3)).abs().max() < 2
        assert [video.label for video in sorted(videos, key=lambda video: video.name)] == [0, 0, 1, 1]
    train = [frames.double() for key, frames in expected.items() if key[0] == "train"]
    values = torch.stack([frames[min(int(k / 7 * len(frames)), len(frames) - 1)] for frames in train for k in range(8)])
    same(folders.mean.flatten(), values.mean(dim=(0, 2, 3)).float())
    same(folders.std.flatten(), values.std(dim=(0, 2, 3), unbiased=False).float())


def test_large_folders_are_decoded_when_they_are_used(tmp_path, monkeypatch):
    written = write_tree(tmp_path / "frames", write_frames)
    write_tree(tmp_path / "files", write_video, name=lambda k: f"v{k}.mp4")
    monkeypatch.setattr("anynorm.lab.tasks.video.data.MAX_GIGABYTES", 1e-9)
    for name in ("frames:frames", "videos:files"):
        data = load_video(name, side=8)
        video = next(each for each in data.test if "run" in each.name and "v1" in each.name)
        assert type(video).__name__ in ("FrameFolder", "VideoFile")
        frames = video.read([3, 1, 1])
        expected = written["test", "run", 1][[3, 1, 1]]
        assert frames.shape == expected.shape
        assert (frames.float() - expected.float()).mean(dim=(1, 2, 3)).abs().max() < 2
        assert len(video) == 5


def test_videos_in_memory_are_resized(tmp_path):
    write_tree(tmp_path / "frames", write_frames)
    assert load_video("frames:frames", side=8).train[0].read([0]).shape == (1, 3, 8, 16)


def two_classes():
    return [(make_frames(k), k % 2) for k in range(4)], [(make_frames(k, length=9), k % 2) for k in range(2)]


def of_floats():
    return [(make_frames(0).float(), 0)], []


def test_a_factory_returns_frames_and_labels():
    data = load_video(f"{__name__}:two_classes")
    assert [len(video) for video in (*data.train, *data.test)] == [4, 4, 4, 4, 9, 9]
    assert data.num_classes == 2
    with pytest.raises(DataError, match=r"must return frames uint8 \(t, 3, h, w\); got torch.float32 \(4, 3, 16, 32\)"):
        load_video(f"{__name__}:of_floats")
    with pytest.raises(DataError, match=r"must return \[\(frames, label\), …\]"):
        load_video("builtins:dict")


@needs_avif
def test_ut_interaction_is_read_from_avif_sequences_and_divided_by_sequence(tmp_path):
    contents, frames = [], []
    for number in range(8):
        frames.append(make_frames(number, length=3 + number % 2))
        pictures = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in frames[-1]]
        buffer = io.BytesIO()
        pictures[0].save(buffer, "AVIF", save_all=True, append_images=pictures[1:], quality=95)
        contents.append(np.frombuffer(buffer.getvalue(), np.uint8))
    (tmp_path / "ut_interaction").mkdir()
    arrays: dict[str, Any] = {
        "clips": np.concatenate(contents),
        "offsets": np.cumsum([0, *map(len, contents)]),
        "labels": np.arange(8, dtype=np.uint8) % 2,
        "sequence": np.arange(1, 9, dtype=np.uint8),
        "names": np.array([f"v{k}" for k in range(8)]),
        "classes": np.array(CLASSES),
    }
    np.savez(tmp_path / "ut_interaction" / "small.npz", **arrays)
    for fold in range(4):
        data = load_video(f"ut_interaction/{fold}")
        assert [video.name for video in data.test] == [f"v{fold}", f"v{fold + 4}"]
        assert len(data.train) == 6
        for video in (*data.train, *data.test):
            expected = frames[int(video.name[1:])]
            assert video.label == int(video.name[1:]) % 2
            assert len(video) == len(expected)
            assert (video.read(range(len(video))).float() - expected.float()).mean(dim=(1, 2, 3)).abs().max() < 2
    np.savez(tmp_path / "ut_interaction" / "small.npz", clips=arrays["clips"])
    with pytest.raises(DataError, match="must hold the arrays clips offsets labels sequence names classes"):
        load_video("ut_interaction/0")


@needs_avif
@needs_shared
def test_the_first_and_last_videos_are_those_of_pillow(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(SHARED))
    path = SHARED / "ut_interaction" / "ut_interaction_128x96.npz"
    with np.load(path) as arrays:
        values = {name: arrays[name] for name in arrays}
    data = load_video("ut_interaction/0")
    videos = {video.name: video for video in (*data.train, *data.test)}
    assert len(videos) == 120
    assert {len(data.train), len(data.test)} == {90, 30}
    assert [len(videos[name]) for name in values["names"]] == values["frames"].tolist()
    for number in (0, 119):
        start, stop = values["offsets"][number : number + 2]
        clip: Any = Image.open(io.BytesIO(values["clips"][start:stop].tobytes()))
        video = videos[values["names"][number]]
        assert video.label == values["labels"][number]
        for k in (0, clip.n_frames - 1):
            clip.seek(k)
            assert np.array_equal(video.read([k])[0].permute(1, 2, 0).numpy(), np.array(clip.convert("RGB")))


# Errors -----------------------------------------------------------------------------------------------------------------------


def test_unknown_names_and_missing_files_are_named():
    with pytest.raises(DataError, match=r"unknown data set of videos 'movin'\. Did you mean moving\? Usable: moving ut_inter"):
        load_video("movin")
    with pytest.raises(DataError, match=r"Did you mean ut_interaction/"):
        load_video("ut_interaction")
    with pytest.raises(DataError, match=r"ut_interaction/\*\.npz not found under"):
        load_video("ut_interaction/1")
    with pytest.raises(DataError, match=r"frames:nothing must be an existing folder with train/CLASS/VIDEO .*does not exist"):
        load_video("frames:nothing")


def test_folders_of_another_structure_are_refused(tmp_path):
    root = tmp_path / "frames"
    (root / "a").mkdir(parents=True)
    with pytest.raises(DataError, match=r"must be a folder with train/CLASS/VIDEO and test/CLASS/VIDEO; .*frames has a\."):
        load_video("frames:frames")
    write_frames(root / "train" / "jump" / "v0", make_frames(0))
    (root / "test").mkdir()
    with pytest.raises(DataError, match=r"one subfolder per class, for at least 2 classes; got 1"):
        load_video("frames:frames")
    (root / "train" / "run").mkdir()
    with pytest.raises(DataError, match=r"must have the same classes; only one has: jump run"):
        load_video("frames:frames")
    for name in CLASSES:
        write_frames(root / "test" / name / "v0", make_frames(0))
    with pytest.raises(DataError, match=r"train/run must contain one folder of frames per video; got none"):
        load_video("frames:frames")
    with pytest.raises(DataError, match=r"train/jump must contain videos \(\.mp4 .*\); got none"):
        load_video("videos:frames")
    (root / "train" / "run" / "v0").mkdir()
    with pytest.raises(DataError, match=r"run/v0 must contain the frames of a video"):
        load_video("frames:frames")


def test_unreadable_frames_and_frames_of_several_sizes_are_named_or_left_out(tmp_path, capsys):
    write_tree(tmp_path / "frames", write_frames)
    (tmp_path / "frames" / "train" / "run" / "v0" / "002.png").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"cannot read 1 of 4 videos of a split .*v0/002\.png: UnidentifiedImageError.*Fix them"):
        load_video("frames:frames")
    assert len(load_video("frames:frames", skip_unreadable=True).train) == 3
    assert "skipped unreadable video: cannot read" in capsys.readouterr().err
    Image.new("RGB", (10, 8)).save(tmp_path / "frames" / "train" / "run" / "v0" / "002.png")
    with pytest.raises(DataError, match=r"must be of one size; .*002\.png has 10 × 8 pixels, 000\.png has 32 × 16"):
        load_video("frames:frames")


def test_damaged_video_files_and_a_missing_pyav_are_named(tmp_path, monkeypatch):
    write_tree(tmp_path / "files", write_video, name=lambda k: f"v{k}.mp4")
    (tmp_path / "files" / "train" / "run" / "v0.mp4").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"cannot read 1 of 4 videos .*v0\.mp4: InvalidDataError"):
        load_video("videos:files")
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(DataError, match=r"videos:PATH needs PyAV: pip install 'anynorm\[video\]'"):
        load_video("videos:files")


@pytest.mark.parametrize("kind", ["frames", "videos"])
def test_a_changed_folder_is_another_run(tmp_path, kind):
    (tmp_path / "data").mkdir()
    before = hash_sources(Config(data=f"{kind}:data", task="video"))
    (tmp_path / "data" / "file").write_text("new")
    assert before != hash_sources(Config(data=f"{kind}:data", task="video"))
