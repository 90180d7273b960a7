"""Bad annotations of objects: nothing is changed or left out silently, and every error has the place of its cause."""

import json
import sys

import numpy as np
import pytest
import torch

import anynorm
from anynorm.errors import ReadError
from anynorm.lab.tasks.detection.data.datasets import DetectionImages, Objects, load_detection, make_detection_dataset
from tests.lab.tasks.detection.object_folders import WRITERS, make_samples, save, write_coco, write_masks, write_voc, write_yolo


def change_coco(root, change):
    """Write a folder of COCO after a change of the content of its training file."""
    write_coco(root, make_samples())
    file = root / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return f"coco:{root}"


# Warnings ---------------------------------------------------------------------------------------------------------------------


def test_boxes_beyond_the_image_are_clipped_and_those_without_area_left_out_with_one_warning(tmp_path):
    def change(content):
        first, second, third = content["annotations"]
        first["bbox"] = [-5, 2, 12, 30]
        second["bbox"] = [3, 4, 0, 5]
        third["bbox"] = [7, 24, 3, 3]  # image b has 24 rows
        content["annotations"] += [{**first, "id": number, "bbox": [-9, 0, 10, 10]} for number in range(10, 14)]

    message = (
        r"^coco:.*: 5 boxes reach beyond their image and were clipped \(instances_train2017.json, annotation 0, .*annotation 10, "
        r".*annotation 11, …\); 1 objects have a size of zero and were left out \(.*annotation 1\); "
        r"1 objects are outside of their image and were left out \(.*annotation 2\); "
        r"2 classes have no object in the training images \(bee, cat\)\.$"
    )
    name = change_coco(tmp_path, change)
    with pytest.warns(UserWarning, match=message) as warnings:
        data = load_detection(name)
    assert [warning.filename for warning in warnings] == [__file__]
    assert data.train.objects(0).boxes.tolist() == [[0, 2, 7, 20]] + [[0, 0, 1, 10]] * 4
    assert len(data.train.objects(1).labels) == 0
    assert len(data.train.objects(0).masks) == 5


def test_boxes_that_reach_beyond_the_image_by_rounding_are_clipped_without_a_warning(tmp_path):
    name = change_coco(tmp_path, lambda content: content["annotations"][0].update(bbox=[-0.4, 0, 30.9, 20]))
    assert load_detection(name).train.objects(0).boxes[0].tolist() == [0, 0, 30, 20]


def test_masks_are_left_out_if_some_objects_have_none(tmp_path):
    name = change_coco(tmp_path, lambda content: content["annotations"][1].update(segmentation=[]))
    with pytest.warns(
        UserWarning, match=r"1 objects have no mask, so that the masks of all others were left out \(.*annotation 1\)"
    ):
        data = load_detection(name)
    assert not data.has_masks
    assert data.train.objects(0).masks is data.test.objects(0).masks is None


def test_polygons_of_two_points_are_left_out(tmp_path):
    """pycocotools would read 4 values as a box."""

    def change(content):
        content["annotations"][1]["segmentation"].append([0, 0, 30, 20])

    with pytest.warns(
        UserWarning, match=r"1 objects have polygons of fewer than 3 points, which were left out \(.*annotation 1\)"
    ):
        data = load_detection(change_coco(tmp_path, change))
    write_coco(tmp_path / "clean", make_samples())
    assert data.train.objects(0).masks == load_detection(f"coco:{tmp_path / 'clean'}").train.objects(0).masks


def test_objects_whose_polygons_all_have_two_points_are_left_out(tmp_path):
    name = change_coco(tmp_path, lambda content: content["annotations"][0].update(segmentation=[[0, 0, 30, 20]]))
    with pytest.warns(
        UserWarning, match=r"fewer than 3 points.*1 objects have a size of zero and were left out \(.*annotation 0\)"
    ):
        assert load_detection(name).train.objects(0).labels.tolist() == [2]


def test_empty_masks_are_left_out(tmp_path):
    write_masks(tmp_path, make_samples())
    save(np.zeros((20, 30), np.uint8), tmp_path / "train" / "a" / "masks" / "9.png")
    with pytest.warns(UserWarning, match=r"1 objects have a size of zero and were left out \(.*9\.png\)"):
        assert len(load_detection(f"masks:{tmp_path}").train.objects(0).labels) == 2


def test_images_without_a_folder_of_masks_are_counted(tmp_path):
    write_masks(tmp_path, make_samples())
    (tmp_path / "train" / "c" / "masks").rmdir()
    with pytest.warns(UserWarning, match=r"1 images have no folder of masks and are used as images without objects \(.*c\)"):
        assert len(load_detection(f"masks:{tmp_path}").train) == 3


def test_images_and_files_of_labels_of_yolo_without_each_other_are_counted(tmp_path):
    write_yolo(tmp_path, make_samples())
    (tmp_path / "labels" / "train" / "c.txt").rename(tmp_path / "labels" / "train" / "e.txt")
    message = (
        r"1 images have no file of labels and are used as images without objects \(.*c\.png\); "
        r"1 files of labels have no image and were left out \(.*e\.txt\)"
    )
    with pytest.warns(UserWarning, match=message):
        assert len(load_detection(f"yolo:{tmp_path}").train) == 3


# Errors of all forms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("coco", r"must have annotations/instances_train….json, or another \.json of COCO; got none"),
        ("voc", r"must have the folders Annotations and JPEGImages of PASCAL VOC\."),
        ("yolo", r"must have images/train and labels/train, train/images and train/labels, or images and labels"),
        ("masks", r"must have folders ID/images and ID/masks, one per image; got none"),
    ],
)
def test_empty_and_missing_folders_are_refused(form, message, tmp_path):
    with pytest.raises(anynorm.DataError, match=message):
        load_detection(f"{form}:{tmp_path}")
    with pytest.raises(anynorm.DataError, match=rf"{form}:.* must be an existing folder; .*nowhere does not exist"):
        load_detection(f"{form}:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("form", WRITERS)
def test_training_images_without_any_object_are_refused(form, tmp_path):
    samples = make_samples()
    WRITERS[form](tmp_path, {"train": samples["train"][2:], "test": samples["test"]})
    with pytest.raises(anynorm.DataError, match=rf"{form}:.* must have objects in its training images; got none in 1 images"):
        load_detection(f"{form}:{tmp_path}")


def test_a_split_without_images_is_refused(tmp_path):
    samples = make_samples()
    write_coco(tmp_path, {"train": samples["train"], "test": []})
    with pytest.raises(anynorm.DataError, match=r"coco:.* must have at least one test image; got none"):
        load_detection(f"coco:{tmp_path}")


def test_images_that_cannot_be_decoded_are_named(tmp_path):
    write_coco(tmp_path, make_samples())
    data = load_detection(f"coco:{tmp_path}")
    (tmp_path / "train2017" / "b.png").write_text("no image")
    with pytest.raises(ReadError, match=r"cannot decode .*b\.png: UnidentifiedImageError.*run again to resume"):
        data.train[1]
    write_yolo(tmp_path / "yolo", make_samples())
    (tmp_path / "yolo" / "images" / "train" / "b.png").write_text("no image")
    with pytest.raises(anynorm.DataError, match=r"cannot read the image .*b\.png: UnidentifiedImageError"):
        load_detection(f"yolo:{tmp_path / 'yolo'}")


def test_images_of_another_size_than_annotated_are_refused(tmp_path):
    write_voc(tmp_path, make_samples())
    data = load_detection(f"voc:{tmp_path}")
    save(np.zeros((21, 30, 3), np.uint8), tmp_path / "JPEGImages" / "a.png")
    with pytest.raises(anynorm.DataError, match=r"a\.png must have the 30 × 20 pixels of its annotations; got 30 × 21"):
        data.train[0]


# COCO -------------------------------------------------------------------------------------------------------------------------


def update(key, index, **values):
    return lambda content: content[key][index].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            update("images", 1, file_name="x.png"),
            r"names 3 images, of which 1 do not exist, such as x\.png\. Searched: .*train2017\.",
        ),
        (
            update("annotations", 1, category_id=4),
            r"category_id .* one of 3 categories; got 1 others, such as 4 \(annotations\[1\]\)",
        ),
        (update("annotations", 2, image_id=7), r"image_id .* one of 3 images; got 1 others, such as 7 \(annotations\[2\]\)"),
        (lambda content: content["annotations"].append(3), r"the image_id of annotations .*such as None \(annotations\[3\]\)"),
        (update("images", 1, id=100), r"the ids of images must differ; got 3 images with 2 ids"),
        (lambda content: content["images"][0].pop("file_name"), r"each image must have an id and a file_name"),
        (lambda content: content["categories"][0].pop("name"), r"each category must have an id and a name"),
        (update("categories", 1, id=90), r"the ids of categories must differ"),
        (
            update("categories", 0, name="dog"),
            r"category 90 must be the same in all files; got 'dog' in .*train.* and 'cat' in .*test",
        ),
        (lambda content: content.pop("annotations"), r"the lists images, categories, annotations; annotations is missing"),
        (update("annotations", 1, bbox=[1, 2, 3]), r"annotation 1: bbox must be x y width height, and segmentation polygons"),
        (update("annotations", 1, bbox=[1, 2, 3, float("nan")]), r"annotation 1: a box must have 4 finite numbers; got .*nan"),
        (update("annotations", 1, bbox=None, segmentation=[]), r"annotation 1 must have a bbox or a segmentation; got neither"),
        (
            update("annotations", 1, segmentation=[[1, 2, 3, 4, 5, 6, 7]]),
            r"annotation 1: a polygon must have pairs of coordinates",
        ),
        (
            update("annotations", 1, segmentation={"size": [20, 30], "counts": [1, 2, 3]}),
            r"annotation 1: the counts of a mask must have the sum 20 · 30; got 6",
        ),
        (
            update("annotations", 1, segmentation={"size": [30, 20], "counts": [1, 599]}),
            r"annotation 1: the mask must have the 30 × 20 pixels of its image; got 20 × 30",
        ),
    ],
)
def test_malformed_files_of_coco_are_refused(change, message, tmp_path):
    name = change_coco(tmp_path, change)
    with pytest.raises(anynorm.DataError, match=message):
        load_detection(name)


def test_all_searched_folders_are_named_if_no_image_of_coco_exists(tmp_path):
    write_coco(tmp_path, make_samples())
    (tmp_path / "train2017").rename(tmp_path / "elsewhere")
    with pytest.raises(
        anynorm.DataError, match=r"of which 3 do not exist, such as a\.png\. Searched: .*train2017, .*images/train2017, "
    ):
        load_detection(f"coco:{tmp_path}")


def test_files_of_coco_that_are_ambiguous_or_not_json_are_refused(tmp_path):
    write_coco(tmp_path, make_samples())
    folder = tmp_path / "annotations"
    (folder / "instances_train2014.json").write_text("{")
    with pytest.raises(anynorm.DataError, match=r"must have one training file.*; got 2\. Files: instances_train2014\.json inst"):
        load_detection(f"coco:{tmp_path}")
    (folder / "instances_train2017.json").unlink()
    with pytest.raises(anynorm.DataError, match=r"instances_train2014\.json must be a JSON file of COCO: Expecting .*line 1"):
        load_detection(f"coco:{tmp_path}")
    write_coco(tmp_path, make_samples())
    (folder / "instances_train2014.json").unlink()
    (folder / "instances_test2015.json").write_text("{}")
    with pytest.raises(anynorm.DataError, match=r"at most one test file; got instances_test2015\.json instances_test2017\.json"):
        load_detection(f"coco:{tmp_path}")


# PASCAL VOC -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("</annotation>", "", r"a\.xml must be an XML file of PASCAL VOC: no element found: line 1"),
        ("<xmin>1</xmin>", "", r"a\.xml, object 1: bndbox must have the numbers xmin ymin xmax ymax"),
        ("<xmin>4</xmin>", "<xmin>four</xmin>", r"a\.xml, object 2: bndbox must have the numbers .*four"),
        ("<name>ant</name>", "<name> </name>", r"a\.xml, object 1 must have a name; got none"),
        ("<width>30</width>", "<width>wide</width>", r"a\.xml: the size must have the numbers width and height: .*wide"),
    ],
)
def test_malformed_files_of_voc_are_refused(old, new, message, tmp_path):
    write_voc(tmp_path, make_samples())
    file = tmp_path / "Annotations" / "a.xml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(anynorm.DataError, match=message):
        load_detection(f"voc:{tmp_path}")


def test_missing_files_of_voc_are_counted(tmp_path):
    write_voc(tmp_path / "VOC2007", make_samples())
    with pytest.raises(anynorm.DataError, match=r"must have the folders Annotations .*Use a folder in it: VOC2007\."):
        load_detection(f"voc:{tmp_path}")
    root = tmp_path / "VOC2007"
    (root / "JPEGImages" / "b.png").unlink()
    with pytest.raises(anynorm.DataError, match=r"must have images of 3 IDs; 1 are missing, such as 'b'"):
        load_detection(f"voc:{root}")
    (root / "Annotations" / "c.xml").unlink()
    with pytest.raises(anynorm.DataError, match=r"must have annotations of 3 IDs; 1 are missing, such as 'c'"):
        load_detection(f"voc:{root}")
    for file in [*root.glob("Annotations/*"), *root.glob("ImageSets/Main/*")]:
        file.unlink()
    with pytest.raises(anynorm.DataError, match=r"Annotations must contain \.xml files; got none"):
        load_detection(f"voc:{root}")


# YOLO -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 0.5 0.5 0.1", r"b\.txt, line 3 must have 4 coordinates, or pairs of at least 3 points; got 3 values"),
        ("1 0.5 0.5 0.1 0.1 0.9", r"b\.txt, line 3 must have 4 coordinates.*; got 5 values"),
        ("bee 0.5 0.5 0.1 0.1", r"b\.txt, line 3 must be the number of a class and coordinates; got 'bee 0\.5 0\.5 0\.1 0\.1'"),
        ("3 0.5 0.5 0.1 0.1", r"b\.txt, line 3: the class must be from 0 to 2, the last of 3 classes; got 3"),
        ("-1 0.5 0.5 0.1 0.1", r"b\.txt, line 3: the class must be from 0 to 2.*; got -1"),
        ("1 7 5 9 11", r"b\.txt, line 3: coordinates must be relative to the size of the image, in \[0, 1\]; got 7 5 9 11"),
        ("1 0.5 0.5 nan 0.1", r"b\.txt, line 3: coordinates must be relative .*nan"),
    ],
)
def test_malformed_lines_of_yolo_are_refused_with_their_number(line, message, tmp_path):
    write_yolo(tmp_path, make_samples())
    file = tmp_path / "labels" / "train" / "b.txt"
    file.write_text(f"{file.read_text()}\n\n{line}\n")
    with pytest.raises(anynorm.DataError, match=message):
        load_detection(f"yolo:{tmp_path}")


def test_lines_of_boxes_and_of_polygons_are_boxes_alone(tmp_path):
    write_yolo(tmp_path, make_samples())
    file = tmp_path / "labels" / "train" / "b.txt"
    file.write_text("1 0.5 0.25 1.0 0.25 1.0 0.75\n")
    with pytest.warns(
        UserWarning, match=r"4 objects have no mask, so that the masks of all others were left out \(.*a\.txt, line 1,"
    ):
        data = load_detection(f"yolo:{tmp_path}")
    assert not data.has_masks
    assert data.train.objects(1).boxes.tolist() == [[8, 6, 16, 18]]


def test_yolo_folders_without_images_or_labels_are_refused(tmp_path):
    write_yolo(tmp_path, make_samples())
    for file in (tmp_path / "labels" / "train").glob("*"):
        file.unlink()
    with pytest.raises(
        anynorm.DataError, match=r"labels/train must have a \.txt file for the images of .*; got none for 3 images"
    ):
        load_detection(f"yolo:{tmp_path}")
    for file in (tmp_path / "images" / "train").glob("*"):
        file.unlink()
    with pytest.raises(anynorm.DataError, match=r"images/train must contain images \(\.png .*\); got none"):
        load_detection(f"yolo:{tmp_path}")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("names:\n  first: ant", r"data\.yaml: names must be \[a, b, …\], lines `- a`, or lines `0: a`; got 'first: ant'"),
        ("names:\n  0: ant\n  2: cat", r"data\.yaml: names must be those of the classes 0, 1, …; got the numbers \[0, 2\]"),
        ("names: []", r"data\.yaml: names must be those of the classes 0, 1, …; got the numbers \[\]"),
    ],
)
def test_names_of_yolo_in_another_form_are_refused(names, message, tmp_path):
    write_yolo(tmp_path, make_samples())
    (tmp_path / "data.yaml").write_text(names)
    with pytest.raises(anynorm.DataError, match=message):
        load_detection(f"yolo:{tmp_path}")


# Folders of masks, and images in memory ---------------------------------------------------------------------------------------


def test_malformed_folders_of_masks_are_refused(tmp_path):
    write_masks(tmp_path, make_samples())
    save(np.ones((30, 20), np.uint8), tmp_path / "train" / "a" / "masks" / "1.png")
    with pytest.raises(
        anynorm.DataError, match=r"a/masks/1\.png: the mask must have the 30 × 20 pixels of its image; got 20 × 30"
    ):
        load_detection(f"masks:{tmp_path}")
    (tmp_path / "train" / "a" / "masks" / "1.png").write_text("no image")
    with pytest.raises(anynorm.DataError, match=r"cannot read the mask .*1\.png: UnidentifiedImageError"):
        load_detection(f"masks:{tmp_path}")
    save(np.ones((3, 3), np.uint8), tmp_path / "train" / "a" / "images" / "second.png")
    with pytest.raises(anynorm.DataError, match=r"a/images must contain one image; got 2"):
        load_detection(f"masks:{tmp_path}")


def test_objects_in_memory_must_fit_their_images_and_classes():
    image = torch.zeros(3, 8, 9, dtype=torch.uint8)
    objects = Objects(torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([1]), None, torch.tensor([False]))
    with pytest.raises(anynorm.DataError, match="there must be objects for each of 2 images; got 1"):
        DetectionImages.from_tensors([image, image], [objects])
    images = DetectionImages.from_tensors([image], [objects])
    with pytest.raises(
        anynorm.DataError, match="own: labels must be from 0 to 0, the last of 1 classes; got 1 to 1 in the training"
    ):
        make_detection_dataset("own", [images, images], ["thing"])


def test_masks_need_pycocotools(tmp_path, monkeypatch):
    write_yolo(tmp_path, make_samples())
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    assert len(load_detection(f"yolo:{tmp_path}").train) == 3
    with pytest.raises(anynorm.DataError, match=r"masks of objects need pycocotools: pip install 'anynorm\[lab\]'"):
        load_detection("ellipses")
