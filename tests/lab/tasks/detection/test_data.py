"""Images with objects: folders in all forms, packed data sets against a naive reading, and generated ellipses."""

import io
import json
import pickle
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask

import anynorm
from anynorm.lab.tasks.detection.data.archives import ARCHIVES
from anynorm.lab.tasks.detection.data.datasets import (
    DetectionImages,
    Objects,
    load_detection,
    load_detection_cached,
    make_detection_dataset,
)
from anynorm.lab.tasks.detection.data.masks import encode_label_map, encode_mask, mask_box
from anynorm.lab.training.config import Config, hash_sources
from tests.lab.tasks.detection.object_folders import (
    CLASSES,
    WRITERS,
    make_samples,
    save,
    write_coco,
    write_masks,
    write_voc,
    write_yolo,
)
from tests.real import SHARED, needs_shared


def expected_pixels(pixels):
    """Return RGB pixels (3, h, w) of gray, RGB or RGBA ones."""
    rgb = np.stack([pixels] * 3, -1) if pixels.ndim == 2 else pixels[..., :3]
    return torch.from_numpy(rgb.transpose(2, 0, 1).copy())


def check_split(images, samples, *, has_masks, one_class):
    assert len(images) == len(samples)
    for index, sample in enumerate(samples):
        image, objects = images[index]
        assert torch.equal(image, expected_pixels(sample.pixels))
        assert image.dtype == torch.uint8
        boxes = torch.tensor([box for _, box in sample.objects], dtype=torch.float32).reshape(-1, 4)
        torch.testing.assert_close(objects.boxes, boxes, atol=1e-4, rtol=0)  # YOLO's files have 6 digits
        assert objects.labels.tolist() == [0 if one_class else label for label, _ in sample.objects]
        assert objects.labels.dtype == torch.int64
        assert objects.is_crowd.tolist() == [False] * len(sample.objects)
        assert (objects.masks is not None) == has_masks
        for mask, (_, (x1, y1, x2, y2)) in zip(objects.masks or (), sample.objects, strict=has_masks):
            expected = np.zeros(sample.pixels.shape[:2], np.uint8)
            expected[y1:y2, x1:x2] = 1
            assert (coco_mask.decode(mask) == expected).all()


# Folders ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", WRITERS)
def test_all_forms_of_folders_have_the_same_objects(form, tmp_path):
    samples, one_class = make_samples(), form == "masks"
    WRITERS[form](tmp_path, samples)
    data = load_detection(f"{form}:{tmp_path}")
    assert data.class_names == (("object",) if one_class else CLASSES)
    assert data.num_classes == len(data.class_names)
    assert data.has_masks == (form in ("coco", "masks"))
    for images, split in ((data.train, "train"), (data.test, "test")):
        check_split(images, samples[split], has_masks=data.has_masks, one_class=one_class)
    pixels = np.concatenate([expected_pixels(sample.pixels).reshape(3, -1).numpy() for sample in samples["train"]], 1) / 255
    np.testing.assert_allclose(data.mean.flatten(), pixels.mean(1), rtol=1e-6)
    np.testing.assert_allclose(data.std.flatten(), pixels.std(1), rtol=1e-6)
    assert data.mean.shape == data.std.shape == (3, 1, 1)


def test_polygons_of_yolo_are_masks(tmp_path):
    samples = make_samples()
    write_yolo(tmp_path, samples, polygons=True)
    data = load_detection(f"yolo:{tmp_path}")
    check_split(data.train, samples["train"], has_masks=True, one_class=False)


@pytest.mark.parametrize("form", WRITERS)
def test_a_folder_without_a_test_split_is_split_at_random_but_always_the_same(form, tmp_path):
    first = make_samples()["train"][0]
    samples = [first._replace(name=str(number), objects=first.objects[: number % 3]) for number in range(8)]
    WRITERS[form](tmp_path, {"train": samples})
    with pytest.warns(UserWarning, match="1 classes have no object") if form in ("coco", "yolo") else nullcontext():
        data, again = (load_detection(f"{form}:{tmp_path}") for _ in range(2))
    assert (len(data.train), len(data.test)) == (6, 2)
    assert [len(objects.labels) for _, objects in data.train] == [len(objects.labels) for _, objects in again.train]


def test_paths_may_be_relative_to_the_data_directory(tmp_path, monkeypatch):
    write_voc(tmp_path / "sets" / "insects", make_samples())
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    assert len(load_detection("voc:sets/insects").train) == 3


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (("train.json", "test.json"), ("images", "images")),
        (("train/_annotations.coco.json", "valid/_annotations.coco.json"), None),
    ],
)
def test_coco_files_and_images_may_lie_elsewhere(names, folders, tmp_path):
    samples = make_samples()
    write_coco(tmp_path / "original", samples)
    for index, (split, name) in enumerate(zip(("train", "test"), names, strict=True)):
        destination = tmp_path / "moved" / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.write_text((tmp_path / "original" / "annotations" / f"instances_{split}2017.json").read_text())
        for sample in samples[split]:
            folder = tmp_path / "moved" / folders[index] if folders else destination.parent
            save(sample.pixels, folder / f"{sample.name}.png")
    data = load_detection(f"coco:{tmp_path / 'moved'}")
    check_split(data.train, samples["train"], has_masks=True, one_class=False)
    check_split(data.test, samples["test"], has_masks=True, one_class=False)


def test_other_files_of_coco_are_not_used_and_a_test_file_without_annotations_neither(tmp_path):
    write_coco(tmp_path, {("val" if split == "test" else split): rows for split, rows in make_samples().items()})
    folder = tmp_path / "annotations"
    for name in ("captions_train2017", "person_keypoints_train2017", "image_info_test2017"):
        (folder / f"{name}.json").write_text("not read")
    assert len(load_detection(f"coco:{tmp_path}").test) == 1
    (folder / "instances_test2017.json").write_text(json.dumps({"images": [], "categories": []}))
    assert len(load_detection(f"coco:{tmp_path}").test) == 1


def test_coco_crowds_and_encoded_masks_are_read(tmp_path):
    samples = make_samples()
    write_coco(tmp_path, samples)
    file = tmp_path / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    mask = np.zeros((20, 30), np.uint8)
    mask[2:7, 4:9] = 1
    runs = [0, *np.flatnonzero(np.diff(mask.ravel(order="F"))) + 1, 600]
    content["annotations"][0].update(iscrowd=1, segmentation={"size": [20, 30], "counts": np.diff(runs).tolist()})
    encoded = coco_mask.encode(np.asfortranarray(mask))
    content["annotations"][1].update(segmentation={"size": [20, 30], "counts": encoded["counts"].decode()}, bbox=None)
    file.write_text(json.dumps(content))
    objects = load_detection(f"coco:{tmp_path}").train.objects(0)
    assert objects.is_crowd.tolist() == [True, False]
    assert all((coco_mask.decode(each) == mask).all() for each in objects.masks)
    assert objects.boxes[1].tolist() == [4, 2, 9, 7]  # that of the mask: there is no bbox


def test_difficult_objects_of_voc_are_crowds_and_sizes_may_be_missing(tmp_path):
    write_voc(tmp_path, make_samples())
    file = tmp_path / "Annotations" / "a.xml"
    text = file.read_text().replace("<bndbox>", "<difficult>1</difficult><bndbox>", 1)
    file.write_text(text[: text.index("<size>")] + text[text.index("</size>") + 7 :])
    data = load_detection(f"voc:{tmp_path}")
    assert data.train.objects(0).is_crowd.tolist() == [True, False]
    assert data.train.size(0) == (20, 30)


def test_voc_uses_train_and_val_if_test_has_no_annotations(tmp_path):
    write_voc(tmp_path, make_samples())
    lists = tmp_path / "ImageSets" / "Main"
    (lists / "test.txt").write_text("2012_000001\n")
    (lists / "train.txt").write_text("a\nb\n\n")
    (lists / "val.txt").write_text("d\n")
    data = load_detection(f"voc:{tmp_path}")
    assert (len(data.train), len(data.test)) == (2, 1)


@pytest.mark.parametrize(
    "names",
    [
        "names: [ant, 'bee', \"cat\"]",
        "nc: 3\nnames:\n- ant\n- bee # second\n- 'cat'\nroboflow:\n  license: MIT",
        "names:\n  0: ant\n  1: bee\n  2: cat\n",
        "names: {0: ant, 1: bee, 2: cat}",
        "names: [\n  ant, bee,\n  cat\n  ]\nval: images/val",
    ],
)
def test_names_of_yolo_are_read_from_simple_yaml_files(names, tmp_path):
    write_yolo(tmp_path, make_samples())
    (tmp_path / "data.yaml").write_text(names)
    assert load_detection(f"yolo:{tmp_path}").class_names == CLASSES


def test_names_of_yolo_are_read_from_classes_txt_or_are_numbers(tmp_path):
    write_yolo(tmp_path, make_samples())
    (tmp_path / "data.yaml").write_text("nc: 3\n")
    assert load_detection(f"yolo:{tmp_path}").class_names == ("0", "1", "2")
    (tmp_path / "labels" / "classes.txt").write_text("ant\nbee\nlarge cat\n")
    assert load_detection(f"yolo:{tmp_path}").class_names == ("ant", "bee", "large cat")


def test_yolo_folders_may_be_below_their_splits(tmp_path):
    samples = make_samples()
    write_yolo(tmp_path / "first", samples)
    for split, name in (("train", "train"), ("test", "valid")):
        for kind in ("images", "labels"):
            (tmp_path / "second" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "first" / kind / split).rename(tmp_path / "second" / name / kind)
    data = load_detection(f"yolo:{tmp_path / 'second'}")
    check_split(data.train, samples["train"], has_masks=False, one_class=False)


def test_the_original_test_folder_of_the_data_science_bowl_is_named_and_not_used(tmp_path):
    samples = make_samples()
    write_masks(tmp_path, {"stage1_train": samples["train"] + samples["test"], "stage1_test": samples["test"]})
    for file in tmp_path.glob("stage1_test/*/masks/*"):
        file.unlink()
    message = r"masks:.*: 1 folders of test images have no masks and are not used \(.*stage1_test\)\."
    with pytest.warns(UserWarning, match=message):
        data = load_detection(f"masks:{tmp_path}")
    assert (len(data.train), len(data.test)) == (3, 1)


def test_masks_may_be_boolean_rgba_or_of_16_bits(tmp_path):
    write_masks(tmp_path, make_samples())
    mask = np.zeros((20, 30), np.uint8)
    mask[2:7, 4:9] = 1
    folder = tmp_path / "train" / "a" / "masks"
    save(mask.astype(bool), folder / "0.png")
    save(np.stack([0 * mask, 0 * mask, mask, 0 * mask + 255], -1), folder / "1.png")
    save(mask.astype(np.uint16), folder / "2.png")
    assert load_detection(f"masks:{tmp_path}").train.objects(0).boxes.tolist() == [[4, 2, 9, 7]] * 3


# Pixels -----------------------------------------------------------------------------------------------------------------------


def test_16_bit_images_are_scaled_to_8_bits(tmp_path):
    samples = make_samples()
    samples["train"][1] = samples["train"][1]._replace(pixels=np.full((24, 16), 30000, np.uint16))
    write_coco(tmp_path, samples)
    image, _ = load_detection(f"coco:{tmp_path}").train[1]
    assert torch.equal(image, torch.full((3, 24, 16), 30000 // 257, dtype=torch.uint8))


@pytest.mark.parametrize("form", ["coco", "voc", "yolo"])
def test_the_orientation_of_exif_is_applied(form, tmp_path):
    """Image a is stored as if the camera had been turned by 90°; objects are annotated as a viewer displays it."""
    samples = make_samples()
    WRITERS[form](tmp_path, samples)
    displayed = samples["train"][0].pixels
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90° clockwise to display
    save(np.rot90(displayed), next(tmp_path.rglob("a.png")), exif=exif)
    data = load_detection(f"{form}:{tmp_path}")
    check_split(data.train, samples["train"], has_masks=data.has_masks, one_class=False)


def test_the_orientation_of_exif_is_not_applied_if_the_annotations_are_for_the_stored_pixels(tmp_path):
    samples = make_samples()
    write_coco(tmp_path, samples)
    exif = Image.Exif()
    exif[0x0112] = 6
    save(samples["train"][0].pixels, next(tmp_path.rglob("a.png")), exif=exif)
    check_split(load_detection(f"coco:{tmp_path}").train, samples["train"], has_masks=True, one_class=False)


# Sequences --------------------------------------------------------------------------------------------------------------------


def test_a_part_of_the_images_has_its_own_objects(tmp_path):
    write_masks(tmp_path, make_samples())
    for images in (load_detection(f"masks:{tmp_path}").train, load_detection("ellipses").train):
        chosen = torch.tensor([2, 0, 2])
        part = images.select(chosen)
        assert len(part) == 3
        for index, number in enumerate(chosen.tolist()):
            (image, objects), (expected_image, expected) = part[index], images[number]
            assert torch.equal(image, expected_image)
            assert torch.equal(objects.boxes, expected.boxes)
            assert objects.masks == expected.masks
        assert len(images.select([])) == images.select([]).num_objects == 0


def test_images_are_a_sequence_that_can_be_sent_to_other_processes(tmp_path):
    write_coco(tmp_path, make_samples())
    data = load_detection(f"coco:{tmp_path}")
    received = pickle.loads(pickle.dumps(data)).train
    assert torch.equal(received[-1][0], data.train[2][0])
    assert [len(objects.labels) for _, objects in received] == [2, 1, 0]
    for index in (3, -4):
        with pytest.raises(IndexError, match="index must be below 3"):
            data.train[index]


def test_objects_do_not_share_memory_with_the_data_set():
    images = load_detection("ellipses").train
    images.objects(0).boxes.zero_()
    assert images.objects(0).boxes.any()


# Masks ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_label_maps_are_encoded_like_one_mask_per_object(seed):
    label_map = np.random.default_rng(seed).integers(0, 4, (5, 7)).repeat(2, 0).astype(np.uint16) * 3
    numbers = [number for number in np.unique(label_map) if number]
    masks = encode_label_map(label_map)
    assert masks == [coco_mask.encode(np.asfortranarray(label_map == number).astype(np.uint8)) for number in numbers]
    for mask, number in zip(masks, numbers, strict=True):
        rows, columns = np.nonzero(label_map == number)
        assert mask_box(mask) == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert encode_label_map(np.zeros((3, 4), np.uint8)) == []
    assert encode_label_map(np.ones((3, 4), np.uint8)) == [encode_mask(np.ones((3, 4)))]


# Generated and packed data sets -----------------------------------------------------------------------------------------------


def test_ellipses_are_the_same_in_every_call_and_their_boxes_are_those_of_their_masks():
    torch.manual_seed(1)
    data, again = load_detection("ellipses"), load_detection("ellipses")
    assert all(torch.equal(first, second) for (first, _), (second, _) in zip(data.train, again.train, strict=True))
    for images in (data.train, data.test):
        for image, objects in images:
            assert 3 <= len(objects.labels) <= 10
            assert image.shape == (3, 64, 64)
            masks = np.stack([coco_mask.decode(mask) for mask in objects.masks])
            assert masks.sum(0).max() == 1
            for mask, (x1, y1, x2, y2) in zip(masks, objects.boxes.int().tolist(), strict=True):
                assert mask.sum() == mask[y1:y2, x1:x2].sum() >= 12
                assert mask[y1].any()
                assert mask[:, x2 - 1].any()
    assert set(data.train.labels.values) == {0, 1}


def test_a_data_set_is_loaded_once_per_process():
    assert load_detection_cached("ellipses", "a") is load_detection_cached("ellipses", "a")
    assert load_detection_cached("ellipses", "a") is not load_detection_cached("ellipses", "b")


def naive_archive(name):
    """Return images, and per image the boxes, labels, masks and split, read as the description of the files says."""
    with np.load(SHARED / ARCHIVES[name]) as archive:
        z = {key: archive[key] for key in archive.files}
    rows, end = [], 0
    for index, split in enumerate(z["split"]):
        content = z["images"][z["offsets"][index] : z["offsets"][index + 1]].tobytes()
        if name == "nuclei":
            height, width = map(int, z["shapes"][index])
            label_map = z["labels"][end : end + height * width].reshape(height, width)
            end += height * width
            rows.append((content, split, None, None, label_map))
        else:
            own = z["box_image"] == index
            rows.append((content, split, z["boxes"][own], z["labels"][own], None))
    return rows


@needs_shared
@pytest.mark.parametrize(("name", "counts"), [("nuclei", (498, 166)), ("bccd", (205, 72)), ("coco128", (128, 128))])
def test_packed_data_sets_equal_a_naive_reading(name, counts, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(SHARED))
    data = load_detection(name)
    assert (len(data.train), len(data.test)) == counts
    assert data.has_masks == (name == "nuclei")
    rows = naive_archive(name)
    test_split = max(split for _, split, *_ in rows)
    for images, number in ((data.train, 0), (data.test, test_split)):
        own = [row for row in rows if row[1] == number]
        for index in range(0, len(own), 17):
            content, _, boxes, labels, label_map = own[index]
            image, objects = images[index]
            pixels = np.array(Image.open(io.BytesIO(content)).convert("RGB"))
            assert torch.equal(image, torch.from_numpy(pixels.transpose(2, 0, 1).copy()))
            if label_map is None:
                np.testing.assert_allclose(objects.boxes, boxes, atol=1)  # some reach beyond the image by a fraction of a pixel
                assert objects.labels.tolist() == labels.tolist()
                height, width = pixels.shape[:2]
                assert (objects.boxes <= torch.tensor([width, height] * 2)).all()
            else:
                expected = [label_map == value for value in range(1, label_map.max() + 1)]
                assert len(expected) == len(objects.masks)
                for mask, decoded, box in zip(expected, objects.masks, objects.boxes.tolist(), strict=True):
                    assert (coco_mask.decode(decoded) == mask).all()
                    ys, xs = np.nonzero(mask)
                    assert box == [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_missing_packed_data_set_is_named_with_its_place(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    with pytest.raises(anynorm.DataError, match=rf"{name} needs the file {tmp_path / ARCHIVES[name]}, .*set ANYNORM_DATA"):
        load_detection(name)
    (tmp_path / name).mkdir()
    np.savez(tmp_path / ARCHIVES[name], images=np.zeros(3))
    with pytest.raises(anynorm.DataError, match=r"npz must hold the arrays images offsets split .*KeyError"):
        load_detection(name)


# Factories and names ----------------------------------------------------------------------------------------------------------


def test_a_factory_returns_a_data_set(monkeypatch):
    image = torch.zeros(3, 8, 9, dtype=torch.uint8)
    objects = Objects(torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([0]), None, torch.tensor([False]))
    images = DetectionImages.from_tensors([image], [objects])
    module = SimpleNamespace(make=lambda: make_detection_dataset("own", [images, images], ["thing"]), nothing=lambda: 3)
    monkeypatch.setitem(sys.modules, "own_objects", module)
    data = load_detection("own_objects:make")
    assert data.train[0][1].boxes.tolist() == [[1, 2, 3, 4]]
    assert not data.has_masks
    with pytest.raises(anynorm.DataError, match=r"own_objects:nothing must return a DetectionDataset .*; got int"):
        load_detection("own_objects:nothing")


def test_a_name_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(anynorm.DataError, match=r"unknown data set of objects 'ellipse'\. Did you mean ellipses.*coco:PATH"):
        load_detection("ellipse")


@pytest.mark.parametrize("form", WRITERS)
def test_a_changed_file_of_a_folder_makes_another_run(form, tmp_path):
    WRITERS[form](tmp_path, make_samples())
    config = Config(data=f"{form}:{tmp_path}")
    before = hash_sources(config)
    assert before
    assert hash_sources(config) == before
    (tmp_path / "more.txt").write_text("1")
    assert hash_sources(config) != before
