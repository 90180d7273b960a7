"""Segmentation data: generated shapes, folders as people have them, and what is wrong with them."""

import numpy as np
import pytest
import torch
from PIL import Image

from anynorm.errors import DataError, SpecError
from anynorm.lab.data.download import data_dir
from anynorm.lab.tasks.segmentation.data import SegmentationDataset, load_segmentation
from anynorm.lab.tasks.segmentation.masks import IGNORED
from anynorm.lab.tasks.segmentation.readers import CAMVID
from anynorm.lab.tasks.segmentation.shapes import CLASSES
from anynorm.lab.tasks.segmentation.transforms import CentralSquares, RandomScaleCrop, read_batches, sample_size, size_batches
from anynorm.lab.training.config import Config, hash_sources
from tests.helpers import same

RNG = np.random.default_rng(0)


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


def random_image(height=12, width=10):
    return RNG.integers(0, 256, (height, width, 3))


def make_camvid(root, masks=None):
    """Write two training images and one test image; masks by name replace those with every class and void."""
    default = np.arange(120).reshape(12, 10) % 12
    for split, name in (("train", "a"), ("train", "b"), ("test", "c")):
        save(root / split / f"{name}.png", random_image())
        save(root / f"{split}annot" / f"{name}.png", (masks or {}).get(name, default))
    return f"camvid:{root}"


# Data sets


def test_shapes_are_the_same_in_every_call_and_every_training_image_differs():
    data, again = load_segmentation("shapes"), load_segmentation("shapes")
    assert data.class_names == CLASSES
    assert all(torch.equal(a, b) for pair in zip(data.train, again.train, strict=True) for a, b in zip(*pair, strict=True))
    assert len({image.numpy().tobytes() for image, _ in [*data.train, *data.test]}) == 240
    for image, labels in data.train:
        assert image.dtype == labels.dtype == torch.uint8
        assert 0 < (labels > 0).float().mean() < 0.8
    pixels = torch.stack([image for image, _ in data.train]).double()
    same(data.mean.flatten(), pixels.mean((0, 2, 3)).float())
    same(data.std.flatten(), pixels.std((0, 2, 3), unbiased=False).float())


def test_a_camvid_folder_has_eleven_classes_and_ignores_void(tmp_path):
    data = load_segmentation(make_camvid(tmp_path))
    image, labels = data.train[1]
    assert data.class_names == CAMVID
    assert (len(data.train), len(data.test)) == (2, 1)
    assert torch.equal(image, torch.from_numpy(np.array(Image.open(tmp_path / "train" / "b.png"))).permute(2, 0, 1))
    values = torch.arange(120).reshape(12, 10) % 12
    assert torch.equal(labels.long(), torch.where(values == 11, IGNORED, values))
    assert [tuple(each.shape) for each in data.train[:1][0]] == [(3, 12, 10), (12, 10)]


def test_a_palette_mask_has_the_indices_of_its_palette(tmp_path):
    name = make_camvid(tmp_path)
    path = tmp_path / "trainannot" / "a.png"
    expected = load_segmentation(name).train[0][1]
    with Image.open(path) as mask:
        palette = Image.fromarray(np.array(mask)).convert("P")
    palette.putdata(list((np.arange(120) % 12).tolist()))
    palette.putpalette([value for k in range(256) for value in (255 - k, 0, k)])
    palette.save(path)
    assert torch.equal(load_segmentation(name).train[0][1], expected)


@pytest.mark.parametrize("train_ids", [False, True])
@pytest.mark.filterwarnings("ignore:cityscapes")  # few classes have pixels
def test_cityscapes_has_19_classes_by_either_kind_of_label(tmp_path, train_ids):
    for split in ("train", "val", "test"):
        save(tmp_path / "leftImg8bit" / split / "ulm" / "ulm_0_1_leftImg8bit.png", random_image(2, 3))
        folder = tmp_path / "gtFine" / split / "ulm"
        save(folder / "ulm_0_1_gtFine_labelIds.png", [[7, 8, 33], [0, 6, 29]])
        save(folder / "ulm_0_1_gtFine_color.png", random_image(2, 3))
        if train_ids:
            save(folder / "ulm_0_1_gtFine_labelTrainIds.png", [[0, 1, 18], [255, 255, 255]])
    data = load_segmentation(f"cityscapes:{tmp_path}")
    assert (data.num_classes, data.class_names[0], data.class_names[18]) == (19, "road", "bicycle")
    assert [len(data.train), len(data.test)] == [1, 1]
    assert data.train[0][1].tolist() == [[0, 1, 18], [255, 255, 255]]


@pytest.mark.filterwarnings("ignore:ade20k")
def test_ade20k_has_150_classes_from_1_and_ignores_0(tmp_path):
    for split in ("training", "validation"):
        (tmp_path / "images" / split).mkdir(parents=True)
        Image.fromarray(random_image(2, 2).astype(np.uint8)).save(tmp_path / "images" / split / "ADE_1.jpg")
        save(tmp_path / "annotations" / split / "ADE_1.png", [[0, 1], [2, 150]])
    data = load_segmentation(f"ade20k:{tmp_path}")
    assert data.test[0][1].tolist() == [[255, 0], [1, 149]]
    assert (data.num_classes, data.class_names[149]) == (150, "class 150")
    lines = ["Idx\tRatio\tTrain\tVal\tName", *(f"{k}\t0.1\t1\t1\tname {k}, other" for k in range(1, 151))]
    (tmp_path / "objectInfo150.txt").write_text("\n".join(lines))
    assert load_segmentation(f"ade20k:{tmp_path}").class_names[:2] == ("name 1", "name 2")


def pairs():
    """Return a data set of a user: images of two sizes, with two classes."""
    samples = [(torch.full((3, 4, size), size, dtype=torch.uint8), torch.tensor([[0, 1] * (size // 2)] * 4)) for size in (4, 6)]
    return samples, samples, ["sky", "ground"]


def wrong_pairs():
    return [(torch.zeros(3, 4, 4, dtype=torch.uint8), torch.zeros(4, 5, dtype=torch.uint8))], [], ["sky"]


def whole_dataset():
    data = load_segmentation("shapes")
    return SegmentationDataset(data.train[:4], data.test[:2], data.class_names, data.mean, data.std)


def test_a_factory_returns_samples_or_a_data_set():
    data = load_segmentation(f"{__name__}:pairs")
    assert (data.class_names, len(data.train)) == (("sky", "ground"), 2)
    same(data.mean.flatten(), torch.full((3,), (16 * 4 + 24 * 6) / 40))
    assert len(load_segmentation(f"{__name__}:whole_dataset").train) == 4
    with pytest.raises(DataError, match=r"must return \(train, test, class_names\).*image \(3, 4, 4\).*labels \(4, 5\)"):
        load_segmentation(f"{__name__}:wrong_pairs")
    with pytest.raises(DataError, match=r"labels of .* must be from 0 to 255; got -1 to 3"):
        load_segmentation(f"{__name__}:wrong_labels")


def wrong_labels():
    image, labels = torch.zeros(3, 4, 4, dtype=torch.uint8), torch.arange(16).reshape(4, 4) % 5 - 1
    return [(image, labels)], [(image, labels)], ["sky", "ground"]


def test_images_have_the_orientation_of_their_masks_whatever_their_exif_data(tmp_path):
    name = make_camvid(tmp_path)
    path = tmp_path / "train" / "a.png"
    with Image.open(path) as image:
        pixels, exif = np.array(image), image.getexif()
        exif[0x0112] = 3  # upside down
        image.save(path, exif=exif)
    assert torch.equal(load_segmentation(name).train[0][0], torch.from_numpy(pixels).permute(2, 0, 1))


# What is wrong with a folder


def test_masks_of_another_size_are_counted_and_the_first_is_named(tmp_path):
    name = make_camvid(tmp_path, {"a": np.zeros((12, 9)), "b": np.zeros((6, 5))})
    with pytest.raises(DataError, match=r"2 of 2 do not, first .*trainannot/a\.png: 9 × 12 pixels, its image 10 × 12"):
        load_segmentation(name)


def test_images_without_masks_and_masks_without_images_are_named(tmp_path):
    name = make_camvid(tmp_path)
    (tmp_path / "trainannot" / "b.png").rename(tmp_path / "moved.png")
    with pytest.raises(DataError, match=r"every image must have a mask .*; 1 of 2 have none, first .*train/b\.png"):
        load_segmentation(name)
    (tmp_path / "moved.png").rename(tmp_path / "trainannot" / "b.png")
    (tmp_path / "test" / "c.png").rename(tmp_path / "test" / "d.png")
    save(tmp_path / "testannot" / "d.png", np.zeros((12, 10)))
    with pytest.raises(DataError, match=r"every mask must have an image .*; 1 of 2 have none, first .*testannot/c\.png"):
        load_segmentation(name)


def test_labels_outside_the_classes_are_named_with_their_file(tmp_path):
    name = make_camvid(tmp_path, {"b": np.full((12, 10), 12)})
    with pytest.raises(DataError, match=r"got 12 in .*trainannot/b\.png, of shape \(12, 10\)"):
        load_segmentation(name)
    save(tmp_path / "trainannot" / "b.png", random_image())
    with pytest.raises(DataError, match=r"one value per pixel.*trainannot/b\.png, of shape \(12, 10, 3\)"):
        load_segmentation(name)


def test_classes_without_a_training_pixel_are_a_warning(tmp_path):
    without_sky = np.arange(120).reshape(12, 10) % 11 + 1
    name = make_camvid(tmp_path, {"a": without_sky, "b": without_sky})
    with pytest.warns(UserWarning, match="1 of 11 classes have no pixel in the training images, such as 'sky'"):
        load_segmentation(name)


def test_empty_and_missing_folders_and_damaged_masks_are_refused(tmp_path):
    name = make_camvid(tmp_path)
    (tmp_path / "testannot" / "c.png").write_text("damaged")
    with pytest.raises(DataError, match=r"cannot read .*test/c\.png or .*testannot/c\.png"):
        load_segmentation(name)
    for file in (tmp_path / "train").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"must have images .* in .*/train; got none"):
        load_segmentation(name)
    with pytest.raises(DataError, match=r"must have the folder .*/none/train; it does not exist"):
        load_segmentation(f"camvid:{tmp_path / 'none'}")


def test_a_missing_file_of_the_data_directory_is_named_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    for name in ("camvid", "nuclei", "pets"):
        with pytest.raises(DataError, match=rf"{name}/{name}_\*\.npz not found under {data_dir()}\. Put it there"):
            load_segmentation(name)


def test_unknown_names_have_a_suggestion():
    with pytest.raises(
        DataError, match=r"unknown segmentation data set 'shape'\. Did you mean shapes\? Usable: shapes .*ade20k:PATH"
    ):
        load_segmentation("shape")


def test_files_of_the_data_directory_are_read_with_their_splits(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    encoded = []
    for k in range(3):
        save(tmp_path / "one.png", np.full((2, 3, 3), 40 * k))
        encoded.append((tmp_path / "one.png").read_bytes())
    offsets = np.cumsum([0, *map(len, encoded)])
    images = np.frombuffer(b"".join(encoded), np.uint8)
    (tmp_path / "nuclei").mkdir()
    labels = np.array([0, 3, 0, 0, 0, 9, *[0] * 6, 7, 7, 7, 0, 0, 0], np.uint16)
    np.savez(
        tmp_path / "nuclei" / "nuclei_x.npz", images=images, offsets=offsets, labels=labels, shapes=[[2, 3]] * 3, split=[0, 1, 2]
    )
    data = load_segmentation("nuclei")
    assert [int(image[0, 0, 0]) for image, _ in (*data.train, *data.test)] == [0, 80]
    assert data.train[0][1].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert data.test[0][1].tolist() == [[1, 1, 1], [0, 0, 0]]
    (tmp_path / "pets").mkdir()
    trimaps = np.array([[[1, 2, 3]] * 2] * 3, np.uint8)
    np.savez(tmp_path / "pets" / "pets_x.npz", images=images, offsets=offsets, trimaps=trimaps, split=[0, 0, 1])
    data = load_segmentation("pets")
    assert (len(data.train), len(data.test), data.test[0][1].tolist()[0]) == (2, 1, [0, 1, 2])


def test_a_changed_folder_makes_another_run(tmp_path):
    config = Config(data=make_camvid(tmp_path))
    before = hash_sources(config)
    save(tmp_path / "train" / "a.png", random_image(8, 8))
    assert before
    assert hash_sources(config) != before


# Crops and batches


def test_a_crop_has_the_pixels_and_labels_of_one_place():
    """Labels are the number of their pixel, so a crop shows where it comes from."""
    labels = torch.arange(12 * 15, dtype=torch.uint8).reshape(12, 15)
    data = SegmentationDataset([], [], ("a",), torch.zeros(3, 1, 1), torch.ones(3, 1, 1))
    places = set()
    for seed in range(40):
        crop = RandomScaleCrop(8, flip=True)
        x, cropped = crop(data, (labels.expand(3, 12, 15), labels), torch.Generator().manual_seed(seed))
        assert torch.equal(x[2], cropped.float())
        first = cropped.flip(-1) if cropped[0, 0] > cropped[0, 1] else cropped
        top, left = divmod(int(first[0, 0]), 15)
        assert torch.equal(first, labels[top : top + 8, left : left + 8])
        places.add((top, left, first is cropped))
    assert {top for top, *_ in places} == set(range(5))
    assert {left for _, left, _ in places} == set(range(8))
    assert len({flipped for *_, flipped in places}) == 2


def test_a_small_image_is_padded_with_its_mean_color_and_ignored_labels():
    data = SegmentationDataset([], [], ("a",), torch.full((3, 1, 1), 7.0), torch.ones(3, 1, 1))
    sample = torch.full((3, 4, 6), 9, dtype=torch.uint8), torch.zeros(4, 6, dtype=torch.uint8)
    x, labels = RandomScaleCrop(8)(data, sample, torch.Generator())
    assert (x[:, :4, :6] == 2).all()
    assert x.sum() == 3 * 2 * 24
    assert (labels[:4, :6] == 0).all()
    assert (labels == IGNORED).sum() == 64 - 24


def test_a_scaled_crop_has_classes_of_the_image_alone_and_the_scale_of_its_range():
    data = SegmentationDataset([], [], ("a",), torch.zeros(3, 1, 1), torch.ones(3, 1, 1))
    labels = torch.zeros(20, 20, dtype=torch.uint8)
    labels[5:15, 5:15] = 9
    sample = (labels * 20).expand(3, 20, 20), labels
    areas = []
    for seed in range(20):
        crop = RandomScaleCrop(40, min_scale=0.5, max_scale=2.0)
        x, scaled = crop(data, sample, torch.Generator().manual_seed(seed))
        assert set(scaled.unique().tolist()) <= {0, 9, IGNORED}
        assert float(x.max()) == 180
        areas.append(float((scaled == 9).sum() / 100))
    assert 0.25 <= min(areas) < 0.6
    assert 2.5 < max(areas) <= 4
    _, half = RandomScaleCrop(10, resize=10)(data, sample, torch.Generator())
    assert torch.equal(half, labels[1::2, 1::2])
    with pytest.raises(SpecError, match=r"0 < min_scale <= max_scale; got 2\.0 and 1\.0"):
        RandomScaleCrop(8, min_scale=2.0)


def test_batches_have_images_of_one_size_and_every_image_once():
    sizes = [(4, 6), (6, 4), (4, 6), (4, 6), (4, 6), (8, 8)]
    samples = [(torch.full((3, *size), k, dtype=torch.uint8), torch.full(size, k)) for k, size in enumerate(sizes)]
    for max_pixels, lengths in ((1000, [3, 1, 1, 1]), (48, [2, 2, 1, 1])):
        batches = size_batches(samples, 3, max_pixels)
        assert batches == size_batches(samples, 3, max_pixels)
        assert [len(batch) for batch in batches] == lengths
        assert sorted(index for batch in batches for index in batch) == list(range(6))
        assert [{sizes[index] for index in batch} for batch in batches][-2:] == [{(6, 4)}, {(8, 8)}]
    data = SegmentationDataset(samples, samples, ("a",), torch.zeros(3, 1, 1), torch.ones(3, 1, 1))
    x, labels = next(read_batches(data, samples, [[0, 2]], resize=2))
    assert (tuple(x.shape), tuple(labels.shape)) == ((2, 3, 2, 3), (2, 4, 6))
    assert x[:, 0, 0, 0].tolist() == [0, 2]


def test_central_squares_have_the_middle_of_images_and_labels(tmp_path):
    data = load_segmentation(make_camvid(tmp_path))
    squares = CentralSquares(data.train, 11)
    image, labels = squares[1]
    assert torch.equal(image, data.train[1][0][:, :11])
    assert torch.equal(labels, data.train[1][1][:11])
    assert sample_size(squares, 0) == labels.shape == (11, 10)
    assert torch.equal(CentralSquares(data.train, 4)[0][1], data.train[0][1][4:8, 3:7])
