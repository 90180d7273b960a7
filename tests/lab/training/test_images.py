"""Streamed images train as images in memory do, resume, and do not lose a run when they cannot be read."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import anynorm
from anynorm.lab.data import load_dataset
from anynorm.lab.tasks.run import load_run, run, train
from anynorm.lab.training.config import Config
from anynorm.lab.training.devices import Hardware
from anynorm.lab.training.images import InMemoryImages, StreamedImages
from anynorm.lab.training.items import unpack_items
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


def test_held_out_images_are_the_same_for_all_seeds_and_are_not_trained_on(folder):
    data = load_dataset("digits")
    runs = [InMemoryImages(data, replace(QUICK, num_validation=300, num_train=400, seed=seed)).data for seed in (0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(runs[0].test, runs[1].test, strict=True))
    assert not torch.equal(runs[0].train[0], runs[1].train[0])
    held_out = {image.numpy().tobytes() for image in runs[0].test[0]}
    assert len(runs[0].test[1]) == 300
    trained = {image.numpy().tobytes() for run in runs for image in run.train[0]}
    assert len(trained & held_out) <= 1  # digits has one image twice
    streamed = StreamedImages(load_dataset(f"stream:{folder}", 16), replace(QUICK, num_validation=10)).data
    assert (len(streamed.train), len(streamed.test)) == (38, 10)
    with pytest.raises(anynorm.DataError, match="num_validation must be between 1 and the 1347 images of the data set; got 9999"):
        InMemoryImages(data, replace(QUICK, num_validation=9999))


def test_a_task_that_cannot_hold_out_samples_refuses_to(tmp_path):
    with pytest.raises(
        anynorm.SpecError, match="num_validation must be 0 for Generation, which cannot hold out training samples"
    ):
        train(Config(data="digits", model="sngan", task="generation", num_validation=100))


def test_the_record_of_a_run_says_which_test_images_were_classified_correctly(tmp_path):
    config = replace(QUICK, data="digits", num_train=64, num_test=100)
    run(config, tmp_path)
    record = Store(tmp_path).record(config.id)
    hits, losses = (unpack_items(record.items[name]) for name in ("error", "loss"))
    assert len(hits) == len(losses) == 100
    assert 100 - hits.mean() == pytest.approx(record.metrics["test_error"])
    assert losses.mean() == pytest.approx(record.metrics["test_loss"], rel=1e-5)  # of numbers with six digits
    task = load_run(tmp_path, config.id)
    with torch.no_grad():
        expected = torch.cat([task.network(x).argmax(1) == labels for x, labels in task.eval_batches(50) or ()])
    assert hits.tolist() == (100 * expected).tolist()
