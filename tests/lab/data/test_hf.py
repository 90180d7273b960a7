"""Datasets of Hugging Face, saved to the disk by the test."""

import sys

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import anynorm
from anynorm.lab.data import load_dataset
from anynorm.lab.data.loader import StepLoader
from anynorm.lab.data.transforms import TrainTransform

LABELS = datasets.ClassLabel(names=["ant", "bee", "cat"])


def load(name, image_size=8, **options):
    """load_dataset, without the type of a dataset in memory."""
    return load_dataset(name, image_size, **options)


def make_split(count, *, label=LABELS, image="image", offset=0):
    pixels = [np.full((10, 12, 3), offset + k, np.uint8) for k in range(count)]
    columns = {image: [Image.fromarray(array) for array in pixels], "label": [k % 2 for k in range(count)]}
    return datasets.Dataset.from_dict(columns, features=datasets.Features({image: datasets.Image(), "label": label}))


def save(path, **splits):
    datasets.DatasetDict(splits).save_to_disk(path)
    return f"hf:{path}"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_rows_are_decoded_with_their_labels(tmp_path, num_workers):
    data = load(save(tmp_path / "a", train=make_split(8), test=make_split(3, offset=100)), image_size=4)
    assert data.shape == (3, 4, 4, 3)
    assert float(data.mean[0]) == pytest.approx(3.5)
    with StepLoader(data.train, TrainTransform(4), lambda _: ([5, 2, 2], [0, 1, 2]), num_workers=num_workers) as loader:
        images, labels = loader.batch(0)
    assert images[:, :, 0, 0].tolist() == [[5] * 3, [2] * 3, [2] * 3]
    assert labels.tolist() == [1, 0, 0]
    ((images, labels),) = data.test_batches(10)
    assert torch.equal(images[:, 0, 0, 0], (torch.tensor([100.0, 101.0, 102.0]) - data.mean[0, 0]) / data.std[0, 0])
    assert labels.tolist() == [0, 1, 0]


def test_a_validation_split_replaces_a_test_split_with_hidden_labels(tmp_path):
    hidden = make_split(3, label=datasets.Value("int64")).map(lambda row: {"label": -1})
    number = datasets.Value("int64")
    splits = {"train": make_split(8, label=number), "test": hidden, "validation": make_split(4, label=number, offset=50)}
    data = load(save(tmp_path / "a", **splits), image_size=4)
    assert (len(data.train), len(data.test), data.num_classes) == (8, 4, 2)
    assert data.test.name(1) == f"row 1 of hf:{tmp_path / 'a'}, split validation"


def test_a_dataset_without_a_test_split_is_split_at_random(tmp_path):
    make_split(8, image="photo").save_to_disk(tmp_path / "a")
    data = load(f"hf:{tmp_path / 'a'}", image_size=4)
    assert sorted(np.concatenate([data.train.indices, data.test.indices]).tolist()) == list(range(8))
    assert len(data.test) == 2
    assert data.test.labels.tolist() == (data.test.indices % 2).tolist()


def test_unreadable_rows_are_refused_or_skipped_and_named(tmp_path, capsys):
    encoded = make_split(6).cast_column("image", datasets.Image(decode=False))
    damaged = encoded.map(lambda row, k: {"image": {"bytes": b"?", "path": None}} if k == 2 else row, with_indices=True)
    name = save(tmp_path / "a", train=damaged.cast_column("image", datasets.Image()), test=make_split(2))
    with pytest.raises(anynorm.DataError, match=rf"cannot decode row 2 of {name}, split train: UnidentifiedImageError"):
        load(name, image_size=4)
    data = load(name, image_size=4, skip_unreadable=True)
    assert data.train.indices.tolist() == [0, 1, 3, 4, 5]
    assert "skipped unreadable image: row 2 of" in capsys.readouterr().err


def test_datasets_without_the_required_form_are_refused(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    text = datasets.Dataset.from_dict({"text": ["a"], "label": [0]})
    negative = make_split(4, label=datasets.Value("int64")).map(lambda row: {"label": -1})
    for name, message in (
        (
            save(tmp_path / "text", train=text),
            r"text, split train, must have a column of type Image .*; got text \(Value\), label",
        ),
        (save(tmp_path / "splits", other=make_split(4)), "must have a split train; got: other"),
        (save(tmp_path / "negative", train=negative), r"the labels of .*, split train must be at least 0; got -1"),
        (save(tmp_path / "one", train=make_split(1, label=datasets.Value("int8"))), "must have at least 2 classes; got 1"),
        (f"hf:{tmp_path / 'empty'}", r"cannot load hf:.*empty: FileNotFoundError.*written by save_to_disk"),
    ):
        with pytest.raises(anynorm.DataError, match=message):
            load(name)
    monkeypatch.setattr("datasets.load_dataset", lambda name: {}[name])
    with pytest.raises(anynorm.DataError, match=r"cannot load hf:someone/photos: KeyError.*a dataset on the Hugging Face hub"):
        load("hf:someone/photos")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(anynorm.DataError, match=r"needs the package datasets: pip install 'anynorm\[hf\]'"):
        load("hf:someone/photos")
