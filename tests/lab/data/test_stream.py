"""Streamed datasets: batches depend on their samples alone; files, workers and data that fail are named."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import anynorm
from anynorm.lab.data import load_dataset
from anynorm.lab.data.loader import StepLoader, _describe_end
from anynorm.lab.data.transforms import TestTransform, TrainTransform

TRANSFORM = TrainTransform(8, color_jitter=0.2)


def save_image(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    Image.fromarray(coarse).resize((24, 20), Image.Resampling.BILINEAR).save(path)


def load(name, image_size=8, **options):
    """load_dataset, without the type of a dataset in memory."""
    return load_dataset(name, image_size, **options)


@pytest.fixture
def folder(tmp_path):
    """Two classes of 20 images, without a test split."""
    for k in range(40):
        save_image(tmp_path / "cd"[k % 2] / f"{k}.png", k)
    return tmp_path


def make_samples(source, batch_size=4):
    def samples(number):
        generator = np.random.default_rng(number)
        return generator.permutation(len(source))[:batch_size], generator.integers(2**60, size=batch_size)

    return samples


def read_naively(source, samples, number):
    indices, seeds = samples(number)
    images = []
    for index, seed in zip(indices, seeds, strict=True):
        with Image.open(source.name(index)) as image:
            images.append(TRANSFORM(image, np.random.default_rng(seed)))
    return torch.from_numpy(np.stack(images)), torch.from_numpy(source.labels[indices])


def read(loader, numbers):
    return [loader.batch(number) for number in numbers]


def same_batch(first, second):
    return torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def is_running(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until_ended(pids, seconds):
    end = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_batch_depends_on_its_samples_alone(folder, num_workers):
    source = load(f"stream:{folder}", image_size=8).train
    samples = make_samples(source)
    state = torch.get_rng_state()
    with StepLoader(source, TRANSFORM, samples, num_workers=num_workers) as loader:
        for number in (0, 1, 2, 3, 4, 7, 8, 2, 3):  # in order, then ahead, then back
            images, labels = loader.batch(number)
            assert (images.dtype, images.shape, labels.dtype) == (torch.uint8, (4, 3, 8, 8), torch.int64)
            assert same_batch((images, labels), read_naively(source, samples, number))
        pids = loader.worker_pids
        assert len(pids) == num_workers
    assert torch.equal(torch.get_rng_state(), state)
    assert wait_until_ended(pids, 5)
    assert loader.worker_pids == []


def test_workers_are_kept_while_batches_are_read_in_order(folder):
    source = load(f"stream:{folder}", image_size=8).train
    with StepLoader(source, TRANSFORM, make_samples(source), num_workers=1, pin_memory=True) as loader:  # ignored without a GPU
        pids = []
        for number in (5, 6, 7, 3, 4):
            loader.batch(number)
            pids.append(loader.worker_pids[0])
        assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4]
        assert wait_until_ended(pids[:1], 5)


def test_a_stream_has_the_images_and_the_split_of_a_folder(folder):
    whole, stream = (load(f"{kind}:{folder}", image_size=8) for kind in ("folder", "stream"))
    assert stream.shape == whole.shape == (3, 8, 8, 2)
    for images, files in ((whole.train, stream.train), (whole.test, stream.test)):
        assert files.labels.tolist() == images[1].tolist()
        samples = (range(len(files)), [0] * len(files))
        with StepLoader(files, TrainTransform(8, min_area=0, flip=False), [samples].__getitem__) as loader:
            assert same_batch(loader.batch(0), images)


def test_a_stream_may_have_a_test_split(tmp_path):
    for k in range(6):
        save_image(tmp_path / "train" / "ab"[k % 2] / f"{k}.png", k)
    save_image(tmp_path / "val" / "b" / "x" / "7.png", 7)
    data = load(f"stream:{tmp_path}", image_size=8)
    assert (len(data.train), len(data.test), data.test.labels.tolist()) == (6, 1, [1])
    assert data.test.name(0) == str(tmp_path / "val" / "b" / "x" / "7.png")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_test_batches_are_the_standardized_test_split_in_order(folder, num_workers):
    data = load(f"stream:{folder}", image_size=8)
    batches = list(data.test_batches(4, num_workers))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert torch.cat([labels for _, labels in batches]).tolist() == data.test.labels.tolist()
    for image, index in zip(torch.cat([images for images, _ in batches]), range(10), strict=True):
        pixels = TestTransform(8)(Image.open(data.test.name(index)))
        assert torch.equal(image, (torch.from_numpy(pixels).float() - data.mean) / data.std)


def test_mean_and_standard_deviation_are_those_of_a_fixed_sample_of_training_images(folder, monkeypatch):
    data = load(f"stream:{folder}", image_size=8)
    pixels = np.stack([TestTransform(8)(Image.open(data.train.name(index))) for index in range(30)]).astype(float)
    assert data.mean.flatten().tolist() == pytest.approx(pixels.mean((0, 2, 3)))
    assert data.std.flatten().tolist() == pytest.approx(pixels.std((0, 2, 3)))
    monkeypatch.setattr("anynorm.lab.data.stream.NUM_SAMPLES", 5)
    first, second = (load(f"stream:{folder}", image_size=8) for _ in range(2))
    assert torch.equal(first.mean, second.mean)
    assert not torch.equal(first.mean, data.mean)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_files_that_are_deleted_or_damaged_during_training_are_named(folder, num_workers):
    source = load(f"stream:{folder}", image_size=8).train
    samples = [([0, 1], [0, 0]), ([2, 3], [0, 0]), ([4, 5], [0, 0]), ([], [])]
    Path(source.name(3)).unlink()
    Path(source.name(4)).write_text("no image")
    with StepLoader(source, TRANSFORM, lambda number: samples[min(number, 3)], num_workers=num_workers) as loader:
        loader.batch(0)
        pids = loader.worker_pids
        for number, message in (
            (1, rf"^{source.name(3)} was deleted while it was in use.*Restore it and run again to resume\.$"),
            (2, rf"^cannot decode {source.name(4)}: UnidentifiedImageError: .*Restore it .*--skip-unreadable"),
            (3, "^a batch must have at least one sample; got none"),
        ):
            with pytest.raises(anynorm.DataError, match=message):
                loader.batch(number)
            assert loader.worker_pids == []
        assert wait_until_ended(pids, 5)
        loader.batch(0)


def test_unreadable_images_are_refused_or_skipped_and_named(folder, capsys):
    (folder / "d" / "bad.png").write_text("no image")
    with pytest.raises(anynorm.DataError, match=r"cannot decode .*bad\.png: .*--skip-unreadable, skip_unreadable=True"):
        list(load(f"stream:{folder}", image_size=8).test_batches(4))
    data = load(f"stream:{folder}", image_size=8, skip_unreadable=True)
    assert len(data.train) + len(data.test) == 40
    assert "skipped unreadable image: " + str(folder / "d" / "bad.png") in capsys.readouterr().err
    for path in folder.glob("*/*.png"):
        path.write_text("no image")
    with pytest.raises(anynorm.DataError, match=rf"cannot read 41 of 41 images of {folder}.*No image is left"):
        load(f"stream:{folder}", image_size=8, skip_unreadable=True)


def test_a_killed_worker_is_reported_with_what_to_do(folder):
    source = load(f"stream:{folder}", image_size=8).train
    with StepLoader(source, TRANSFORM, make_samples(source), num_workers=2) as loader:
        loader.batch(0)
        killed, other = loader.worker_pids
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(
            anynorm.DataError, match=rf"1 of 2 worker.*\(pid {killed}\).*memory.*use fewer workers.*run again to resume"
        ):
            read(loader, range(1, 20))  # first the batches that were prepared ahead
        assert wait_until_ended([killed, other], 5)
        assert same_batch(loader.batch(3), read_naively(source, make_samples(source), 3))


@pytest.mark.slow
def test_no_worker_survives_a_killed_process(folder):
    code = f"""
import sys, time
from anynorm.lab.data import load_dataset
from anynorm.lab.data.loader import StepLoader, _describe_end
from anynorm.lab.data.transforms import TrainTransform
source = load_dataset("stream:{folder}", image_size=8).train
loader = StepLoader(source, TrainTransform(8), lambda number: ([0], [0]), num_workers=1)
loader.batch(0)
print(*loader.worker_pids, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 1
        assert is_running(pids[0])
        process.kill()
    assert wait_until_ended(pids, 15)


def test_a_worker_that_failed_by_itself_is_distinguished_from_a_killed_one():
    message = _describe_end([SimpleNamespace(pid=7, exitcode=1)], 2)
    assert message.startswith(
        "1 of 2 worker process(es) that decode images ended unexpectedly (pid 7). Its error is printed above."
    )
    assert "inside `if __name__ == '__main__':`" in message  # the usual error: a script without it
    assert "memory" in _describe_end([SimpleNamespace(pid=7, exitcode=-9)], 2)


def test_wrong_arguments_are_refused(folder):
    source = load(f"stream:{folder}", image_size=8).train
    with pytest.raises(anynorm.DataError, match="num_workers must be at least 0; got -1"):
        StepLoader(source, TRANSFORM, make_samples(source), num_workers=-1)
    with pytest.raises(anynorm.DataError, match=r"stream:.*none must be an existing folder with train/CLASS"):
        load(f"stream:{folder}/none")
