"""Base and novel classes of Omniglot, miniImageNet, folders and other data sets, from files made here."""

import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import anynorm
from anynorm.lab.tasks.few_shot.data import load_few_shot
from tests.helpers import same


@pytest.fixture(autouse=True)
def data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    return tmp_path


CHARACTERS = {
    "background": ["Greek/character01", "Greek/character02", "Latin/character01"],
    "evaluation": ["Oriya/character07", "ULOG/character01", "ULOG/character02"],
}


def stroke(column):
    """Return an image of Omniglot: a black vertical stroke on white, 105 × 105 pixels in one bit."""
    pixels = np.full((105, 105), 255, np.uint8)
    pixels[:, column : column + 8] = 0
    return Image.fromarray(pixels).convert("1")


def write_archives(folder):
    folder.mkdir()
    for part, names in CHARACTERS.items():
        with zipfile.ZipFile(folder / f"images_{part}.zip", "w") as archive:
            archive.writestr(f"images_{part}/readme.txt", "")
            for label, name in enumerate(names):
                for drawer in range(2):
                    buffer = io.BytesIO()
                    stroke(8 + 16 * label).save(buffer, "PNG")
                    archive.writestr(f"images_{part}/{name}/{label:04d}_{drawer:02d}.png", buffer.getvalue())


def test_omniglot_is_read_from_the_archives_of_its_distribution(data_directory):
    write_archives(data_directory / "omniglot")
    data = load_few_shot("omniglot")
    for images, labels in (data.base, data.novel):
        assert images.shape == (6, 1, 28, 28)
        assert images.dtype == torch.uint8
        assert labels.tolist() == [0, 0, 1, 1, 2, 2]
        columns = images[:, 0].float().mean(1).argmax(1)  # the ink is white
        assert columns.tolist() == sorted(columns.tolist())
        assert images.max() > 200
        assert images[:, :, :, 20:].max() == 0
    assert data.novel_groups.tolist() == [0, 1, 1]


def test_validation_characters_of_omniglot_are_those_of_the_last_background_alphabets(data_directory):
    write_archives(data_directory / "omniglot")
    data, validation = load_few_shot("omniglot"), load_few_shot("omniglot-validation")
    same(validation.base[0], data.base[0][:4])  # Greek
    same(validation.novel[0], data.base[0][4:])  # Latin
    assert validation.base[1].tolist() == [0, 0, 1, 1]
    assert validation.novel[1].tolist() == [0, 0]
    assert validation.novel_groups.tolist() == [0]


def test_omniglot_is_read_from_arrays_if_they_are_there(data_directory):
    names = np.array(["Oriya/character07", "Greek/character01", "ULOG/character01", "Greek/character02"])
    x = np.arange(8, dtype=np.uint8)[:, None, None].repeat(28, 1).repeat(28, 2)
    (data_directory / "omniglot").mkdir()
    np.savez(
        data_directory / "omniglot" / "omniglot_28x28.npz",
        x=x,
        char=np.array([0, 0, 1, 1, 2, 2, 3, 3], np.uint16),
        char_names=names,
        char_is_background=np.array([0, 1, 0, 1], bool),
    )
    data = load_few_shot("omniglot")
    assert data.base[0][:, 0, 0, 0].tolist() == [2, 3, 6, 7]
    assert data.base[1].tolist() == [0, 0, 1, 1]
    assert data.novel[0][:, 0, 5, 5].tolist() == [0, 1, 4, 5]
    assert data.novel_groups.tolist() == [0, 1]


def test_files_of_omniglot_that_cannot_be_read_are_named(data_directory):
    (data_directory / "omniglot").mkdir()
    archive = data_directory / "omniglot" / "images_background.zip"
    archive.write_bytes(b"not an archive")
    with pytest.raises(anynorm.DataError, match=r"cannot read .*images_background\.zip: BadZipFile.*run again to download it"):
        load_few_shot("omniglot")
    with zipfile.ZipFile(archive, "w") as empty:
        empty.writestr("readme.txt", "")
    with pytest.raises(anynorm.DataError, match=r"must contain images ALPHABET/CHARACTER/IMAGE\.png; got none"):
        load_few_shot("omniglot")
    np.savez(data_directory / "omniglot" / "omniglot_28x28.npz", x=np.zeros(3))
    with pytest.raises(anynorm.DataError, match=r"hold the arrays x char char_names char_is_background: KeyError.*Delete it"):
        load_few_shot("omniglot")


def write_image(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (value, value, value)).save(path)


def test_mini_imagenet_is_read_from_folders_or_lists(data_directory):
    root = data_directory / "mini-imagenet"
    values = {"train": {"n01": 10, "n02": 20}, "test": {"n03": 30, "n04": 40, "n05": 50}}
    for split, classes in values.items():
        lines = ["filename,label"]
        for name, value in classes.items():
            write_image(root / split / name / "a.png", value)
            write_image(root / "images" / f"{name}a.png", value)
            lines.append(f"{name}a.png,{name}")
        (root / f"{split}.csv").write_text("\n".join(lines))
    from_folders = load_few_shot("miniimagenet", 8)
    for split in values:
        (root / split).rename(root / f"unused-{split}")
    from_lists = load_few_shot("miniimagenet", 8)
    for data in (from_folders, from_lists):
        assert data.base[0][:, 0, 0, 0].tolist() == [10, 20]
        assert data.novel[0][:, 2, 7, 7].tolist() == [30, 40, 50]
        assert data.novel[1].tolist() == [0, 1, 2]
        assert data.novel_groups is None
    (root / "images").rename(root / "pictures")
    with pytest.raises(anynorm.DataError, match=r"images of .*train\.csv must be in .*images; n01a\.png is not there"):
        load_few_shot("miniimagenet", 8)
    (root / "train.csv").write_text("file,class\na.png,n01\n")
    with pytest.raises(anynorm.DataError, match=r"train\.csv must have the columns filename and label.*; got 1 rows"):
        load_few_shot("miniimagenet", 8)


def test_missing_mini_imagenet_is_explained():
    with pytest.raises(anynorm.DataError, match=r"must be in .*miniimagenet, as train/CLASS.*no public address.*ANYNORM_DATA"):
        load_few_shot("miniimagenet")


@pytest.mark.parametrize("parts", [("base", "novel"), ("train", "test"), ("train", "val")])
def test_a_folder_has_base_and_novel_classes(parts, data_directory):
    for part, names in zip(parts, (("cat", "dog"), ("eel", "fox")), strict=True):
        for k, name in enumerate(names):
            write_image(data_directory / "photos" / part / name / "a.png", 50 * k)
    data = load_few_shot("folder:photos", 8)
    same(data.base[1], torch.tensor([0, 1]))
    assert data.novel[0].shape == (2, 3, 8, 8)
    write_image(data_directory / "photos" / parts[1] / "cat" / "a.png", 0)
    with pytest.raises(anynorm.DataError, match=r"base and novel classes must be disjoint; .* have in common: cat\."):
        load_few_shot("folder:photos", 8)


def test_a_folder_without_the_parts_is_refused(data_directory):
    write_image(data_directory / "photos" / "cat" / "a.png", 0)
    with pytest.raises(
        anynorm.DataError, match=r"folder:photos must be a folder with base/CLASS/… and novel/CLASS/…, or train/CL"
    ):
        load_few_shot("folder:photos", 8)


def test_the_classes_of_another_data_set_are_divided_and_images_padded():
    data = load_few_shot("digits")
    assert data.num_base_classes == 6
    assert sorted(data.novel[1].unique().tolist()) == [0, 1, 2, 3]
    assert len(data.base[1]) + len(data.novel[1]) == 1797
    padded = data.pad(4)
    assert padded.base[0].shape[2:] == (16, 16)
    same(padded.novel[0][:, :, 4:12, 4:12], data.novel[0])
    assert padded.base[0][:, :, :4].max() == 0
    assert data.pad(0) is data


def test_base_classes_are_chosen_by_the_seed_and_numbered_from_0():
    data = load_few_shot("digits")
    first, again, other = (data.choose_base_classes(3, seed) for seed in (0, 0, 1))
    assert torch.equal(first.base[0], again.base[0])
    assert not torch.equal(first.base[0][:50], other.base[0][:50])
    assert first.base[1].unique().tolist() == [0, 1, 2]
    originals = [int(data.base[1][(data.base[0] == first.base[0][first.base[1] == k][0]).all((1, 2, 3))][0]) for k in range(3)]
    assert originals == sorted(originals)
    assert data.choose_base_classes(0, 5) is data
