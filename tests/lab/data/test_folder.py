"""Folders of images: splits, classes, 16-bit images, unreadable files."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import anynorm
from anynorm.lab.data import load_dataset
from anynorm.lab.data.folder import decode_image


def save_image(path, color):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), color).save(path)


def test_folders_are_read_with_their_splits_or_split_at_random(tmp_path):
    for name in ("cats", "dogs"):
        for k in range(8):
            save_image(tmp_path / "unsplit" / name / f"{k}.png", (250, 0, 0) if name == "cats" else (0, 0, 250))
            save_image(tmp_path / "split" / "train" / name / f"{k}.png", "red")
            save_image(tmp_path / "split" / "val" / name / f"{k}.png", "blue")
    data = load_dataset(f"folder:{tmp_path / 'unsplit'}", image_size=6)
    assert data.shape == (3, 6, 6, 2)
    assert len(data.train[0]) + len(data.test[0]) == 16
    assert len(data.test[0]) == 4
    for image, label in zip(*data.train, strict=True):
        assert int(image[0, 0, 0]) == (250 if label == 0 else 0)
    split = load_dataset(f"folder:{tmp_path / 'split'}", image_size=6)
    assert len(split.train[0]) == len(split.test[0]) == 16


def test_folders_without_the_required_structure_are_refused(tmp_path):
    save_image(tmp_path / "one" / "cats" / "1.png", "red")
    (tmp_path / "bare" / "a").mkdir(parents=True)
    (tmp_path / "bare" / "b").mkdir()
    for part in ("train/a", "train/b", "test/a", "test/c"):
        save_image(tmp_path / "more" / part / "1.png", "red")
    for name, message in (
        ("one", r"one subfolder per class, for at least 2 classes; got 1 subfolder\(s\)"),
        ("bare", "must contain images .*; got none"),
        ("none", r"must be an existing folder with train/CLASS.*none does not exist"),
        ("more", r"the classes of .*test must be among those of .*train; got also: c\."),
    ):
        with pytest.raises(anynorm.DataError, match=message):
            load_dataset(f"folder:{tmp_path / name}")


def test_folders_that_do_not_fit_in_memory_are_refused_before_they_are_decoded(tmp_path):
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "1.png").write_text("never decoded")
    message = (
        rf"folder:.* at most 4 GB of memory; got 2 images of 3 × 40000 × 40000: 9\.6 GB\. Use stream:{tmp_path} .*image_size"
    )
    with pytest.raises(anynorm.DataError, match=message):
        load_dataset(f"folder:{tmp_path}", image_size=40000)


def test_16_bit_images_are_scaled_to_8_bits(tmp_path):
    Image.fromarray(np.full((8, 8), 30000, np.uint16)).save(tmp_path / "deep.png")
    assert int(decode_image(tmp_path / "deep.png", 4)[0, 0, 0]) == 30000 // 257


def test_unreadable_images_are_refused_or_skipped_and_named(tmp_path, capsys):
    for name in ("cats", "dogs"):
        for k in range(4):
            save_image(tmp_path / name / f"{k}.png", "red")
    (tmp_path / "dogs" / "bad.png").write_text("no image")
    with pytest.raises(anynorm.DataError, match=r"cannot read 1 of 9 images of .*, such as .*bad\.png\..*--skip-unreadable"):
        load_dataset(f"folder:{tmp_path}", image_size=6)
    data = load_dataset(f"folder:{tmp_path}", image_size=6, skip_unreadable=True)
    assert len(data.train[0]) + len(data.test[0]) == 8
    assert "bad.png" in capsys.readouterr().err
    for path in tmp_path.glob("*/*.png"):
        path.write_text("no image")
    with pytest.raises(anynorm.DataError, match=r"cannot read 9 of 9 images of .*No image is left"):
        load_dataset(f"folder:{tmp_path}", image_size=6, skip_unreadable=True)


@pytest.mark.slow
def test_many_images_are_decoded_by_several_processes(tmp_path):
    for k in range(240):
        save_image(tmp_path / ("a" if k % 2 else "b") / f"{k}.png", (k, k, k))
    data = load_dataset(f"folder:{tmp_path}", image_size=4)
    assert sorted(torch.cat([data.train[0], data.test[0]])[:, 0, 0, 0].tolist()) == list(range(240))


@pytest.mark.slow
def test_compare_passes_skip_unreadable_to_the_processes_that_train(tmp_path):
    for name in ("cats", "dogs"):
        for k in range(12):
            save_image(tmp_path / "data" / name / f"{k}.png", "red" if name == "cats" else "blue")
    (tmp_path / "data" / "dogs" / "bad.png").write_text("no image")
    command = [sys.executable, "-m", "anynorm", "compare", "--data", f"folder:{tmp_path / 'data'}", "--model", "small"]
    command += ["--set", "image_size=8", "--norms", "bn", "--batch-sizes", "4", "--seeds", "1", "--epochs", "1"]
    command += ["--runs", str(tmp_path / "runs"), "--json"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "cannot read 1 of 25 images" in refused.stderr
    done = subprocess.run([*command, "--skip-unreadable"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["norm"] == "bn"


@pytest.mark.parametrize("prefix", ["folder", "stream"])
def test_a_folder_is_also_searched_in_the_data_directory(tmp_path, monkeypatch, prefix):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    for name in ("cats", "dogs"):
        for k in range(4):
            save_image(tmp_path / "pets" / name / f"{k}.png", "red")
    assert load_dataset(f"{prefix}:pets", image_size=6).shape == (3, 6, 6, 2)
