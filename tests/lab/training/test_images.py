"""Streamed images train as images in memory do, resume, and do not lose a run when they cannot be read."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import anynorm
from anynorm.lab.data import load_dataset
from anynorm.lab.tasks.run import run, train
from anynorm.lab.training.config import Config
from anynorm.lab.training.devices import Hardware
from anynorm.lab.training.images import InMemoryImages, StreamedImages
from anynorm.lab.training.sampler import Sampler
from anynorm.lab.training.store import Store

QUICK = Config(model="small", width=0.25, batch_size=8, epochs=2, lr=0.05, image_size=16, flip=True, num_evals=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of 16 × 16 pixels in two classes, dark and bright."""
    root, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 8)):
        for label, level in (("dark", 0), ("light", 120)):
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(level, level + 120, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / label / f"{number:02d}.png")
    return root


@pytest.mark.parametrize("num_workers", [0, 1])
def test_streamed_batches_are_those_in_memory(folder, num_workers):
    config = replace(QUICK, num_train=40, num_test=10)
    memory = InMemoryImages(load_dataset(f"folder:{folder}", 16), config)
    stream = StreamedImages(load_dataset(f"stream:{folder}", 16), config)
    sampler = Sampler(replace(config, batch_size=4), len(memory), micro_batches_per_step=2)
    assert (len(stream), stream.num_tests) == (len(memory), memory.num_tests) == (40, 10)
    try:
        for step, number in ((0, 0), (0, 1), (1, 0), (4, 1), (5, 0), (0, 1)):  # 5 is in the second epoch
            decoded = stream.batch(sampler, step, number, num_workers=num_workers)
            for streamed, expected in zip(decoded, memory.batch(sampler, step, number), strict=True):
                assert torch.equal(streamed, expected)
    finally:
        stream.close()


def test_processes_share_the_test_images(folder):
    for data in (load_dataset(f"folder:{folder}", 16), load_dataset(f"stream:{folder}", 16)):
        whole = [labels.tolist() for _, labels in data.test_batches(3)]
        shares = [[labels.tolist() for _, labels in data.test_batches(3, rank=rank, world_size=4)] for rank in range(4)]
        assert [share[0] for share in shares] + [shares[0][1], shares[1][1]] == whole


def test_a_streamed_run_resumes_in_the_middle_of_an_epoch_to_the_same_bits(folder, tmp_path):
    config = replace(QUICK, data=f"stream:{folder}", min_area=0.3, color_jitter=0.2)
    uninterrupted = train(config).trainer

    def stop(trainer):
        if trainer.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, seconds=0.0, callback=stop)
    resumed = train(config, tmp_path, hardware=Hardware("cpu", num_workers=1)).trainer
    for name, value in uninterrupted.task.state_dict().items():
        assert torch.equal(resumed.task.state_dict()[name], value)
    assert resumed.curve.points == uninterrupted.curve.points
    assert uninterrupted.curve.points[-1]["test_error"] < 40


def test_an_image_that_disappears_stops_the_run_which_resumes_when_it_is_back(folder, tmp_path):
    config = replace(QUICK, data=f"stream:{folder}")
    image = folder / "train" / "dark" / "05.png"
    content = image.read_bytes()

    def delete(trainer):
        image.unlink(missing_ok=True)

    try:
        with pytest.raises(anynorm.ReadError, match=r"05\.png was deleted while it was in use; .* run again to resume"):
            run(config, tmp_path, callback=delete, hardware=Hardware("cpu", num_workers=0))
        assert Store(tmp_path).runs()[0].status == "stopped"
    finally:
        image.write_bytes(content)
    assert run(config, tmp_path)
    assert Store(tmp_path).record(config.id).status == "done"
