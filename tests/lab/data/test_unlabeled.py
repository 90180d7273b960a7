"""Images without labels: folders, .npz files and data sets; crops of them."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

import anynorm
from anynorm.lab.data.image_sources import read_image
from anynorm.lab.data.transforms import CenterCrop, RandomCrop, resize_shorter_side
from anynorm.lab.data.unlabeled import load_unlabeled

GENERATOR = np.random.default_rng(0)


def write(path, width=20, height=12, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (value, 0, 0)).save(path)


def colors(source):
    return [source.open(index).getpixel((0, 0))[0] for index in range(len(source))]


def test_a_folder_without_splits_is_split_in_the_same_way_every_time(tmp_path):
    for value in range(8):
        write(tmp_path / "deep" / f"{value}.png", value=value)
    (tmp_path / "notes.txt").write_text("not an image")
    (train, test), again = load_unlabeled(f"folder:{tmp_path}"), load_unlabeled(f"folder:{tmp_path}")
    assert sorted(colors(train) + colors(test)) == list(range(8))
    assert len(test) == 2
    assert colors(train) == colors(again[0])


@pytest.mark.parametrize("name", ["test", "val"])
def test_a_folder_with_splits_keeps_them_and_a_path_may_be_relative_to_the_data_directory(tmp_path, monkeypatch, name):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    for split, values in (("train", (1, 2, 3)), (name, (4,))):
        for value in values:
            write(tmp_path / "photos" / split / f"{value}.png", value=value)
    train, test = load_unlabeled("folder:photos")
    assert (colors(train), colors(test)) == ([1, 2, 3], [4])


def test_encoded_images_of_a_file_are_those_that_were_encoded(tmp_path):
    files = []
    for value in range(5):
        buffer = io.BytesIO()
        Image.new("RGB", (4, 4), (value, 0, 0)).save(buffer, "PNG")
        files.append(np.frombuffer(buffer.getvalue(), np.uint8))
    offsets = np.cumsum([0, *map(len, files)]).astype(np.uint32)
    np.savez(tmp_path / "images.npz", bytes=np.concatenate(files), offsets=offsets)
    train, test = load_unlabeled(f"npz:{tmp_path / 'images.npz'}")
    assert sorted(colors(train) + colors(test)) == list(range(5))
    assert train.name(0).startswith(f"{tmp_path / 'images.npz'}, image ")
    assert colors(train.select([1, 0])) == colors(train)[1::-1]


def test_a_data_set_is_used_without_its_labels():
    train, test = load_unlabeled("digits")
    data = anynorm.lab.data.load_dataset("digits")
    assert (len(train), len(test)) == (len(data.train[0]), len(data.test[0]))
    pixels = np.asarray(train.open(3))
    assert pixels.shape == (8, 8, 3)
    assert (pixels == data.train[0][3, 0].numpy()[..., None]).all()
    assert train.select([3]).open(0).tobytes() == train.open(3).tobytes()


def test_crops_are_squares_of_the_resized_image():
    gradient = Image.fromarray(np.arange(40, dtype=np.uint8)[None].repeat(20, 0)).convert("RGB")  # 40 × 20, value = column
    assert resize_shorter_side(gradient, 10).size == (20, 10)
    assert resize_shorter_side(gradient.transpose(Image.Transpose.ROTATE_90), 10).size == (10, 20)
    center = CenterCrop(20, 12)(gradient, GENERATOR)
    assert (center[0] == np.arange(14, 26)).all()
    lefts = {int(RandomCrop(20, 12)(gradient, np.random.default_rng(seed))[0, 0, 0]) for seed in range(300)}
    assert lefts == set(range(29))  # every position


def test_a_picture_is_read_upright_and_in_color(tmp_path):
    image = Image.new("L", (6, 3), 7)
    exif = image.getexif()
    exif[0x0112] = 6  # rotated by 90 degrees
    image.save(tmp_path / "a.png", exif=exif)
    assert torch.equal(read_image(tmp_path / "a.png"), torch.full((3, 6, 3), 7, dtype=torch.uint8))


def test_missing_empty_and_unreadable_images_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "one" / "a.png")
    (tmp_path / "bad.png").write_text("not an image")
    (tmp_path / "bad.npz").write_text("not an archive")
    for name, message in {
        f"folder:{tmp_path / 'none'}": r"must be an existing folder with images; .*none does not exist",
        f"folder:{tmp_path / 'empty'}": r"must contain images \(\.png .*\); got none in .*empty",
        f"folder:{tmp_path / 'one'}": r"must have at least 2 images, for training and testing; got 1",
        f"npz:{tmp_path / 'none.npz'}": r"must be an existing \.npz file; .*none\.npz does not exist",
        f"npz:{tmp_path / 'bad.npz'}": r"must hold the arrays bytes offsets",
    }.items():
        with pytest.raises(anynorm.DataError, match=message):
            load_unlabeled(name)
    with pytest.raises(anynorm.DataError, match=r"cannot read the image .*bad\.png: UnidentifiedImageError"):
        read_image(tmp_path / "bad.png")
    with pytest.raises(anynorm.DataError, match=r"image not found: .*none\.png"):
        read_image(tmp_path / "none.png")


def test_unreadable_images_of_a_folder_can_be_left_out(tmp_path, capsys):
    for value in range(4):
        write(tmp_path / f"{value}.png", value=value)
    (tmp_path / "bad.png").write_text("not an image")
    train, test = load_unlabeled(f"folder:{tmp_path}", skip_unreadable=True)
    assert len(train) + len(test) == 4
    assert "bad.png" in capsys.readouterr().err
