"""The detection task: crops, COCO's metrics, processes, pretrained weights, frozen parts, norm modes, errors."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from anynorm.core.update_rules import Frozen
from anynorm.errors import DataError, SpecError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.data.windows import Window, central_window
from anynorm.lab.models import build_model
from anynorm.lab.models.backbone import make_backbone
from anynorm.lab.recipes.support.catalog import load_recipe
from anynorm.lab.tasks.detection.crops import crop_objects, flip, pad_image, without_crowds
from anynorm.lab.tasks.detection.data.datasets import DetectionImages, Objects, load_detection, make_detection_dataset
from anynorm.lab.tasks.detection.data.masks import encode_mask
from anynorm.lab.tasks.detection.metrics import coco_evaluation, coco_metrics, encode_detections, encode_objects
from anynorm.lab.tasks.detection.networks.build import make_detector
from anynorm.lab.tasks.detection.task import Detection
from anynorm.lab.tasks.run import load_run, make_trainer, train
from anynorm.lab.training.config import Config
from anynorm.lab.training.store import Store
from anynorm.surgery.find import find_norms
from tests.distributed import train_in_two_processes
from tests.helpers import same
from tests.lab.jackknife import check_pseudo_values

TINY = {
    "fpn_channels": 8,
    "fpn_stages": 2,
    "anchor_sizes": (8, 16),
    "anchor_ratios": (1,),
    "num_candidates": 30,
    "num_proposals": 20,
    "anchors_per_image": 16,
    "regions_per_image": 16,
    "box_features": 16,
    "mask_convs": 1,
}
QUICK = Config(
    task="detection",
    data="ellipses",
    model="small",
    width=0.25,
    image_size=32,
    num_train=16,
    num_test=4,
    batch_size=2,
    grad_accum_steps=2,
    epochs=1,
    optimizer="adamw",
    lr=3e-3,
    flip=True,
    num_evals=2,
    options=TINY,
)


def with_options(**options):
    return replace(QUICK, options=TINY | options)


def random_instances(generator, count, noise=0.0, base=None):
    if base is None:
        corner = 40 * torch.rand(count, 2, generator=generator)
        boxes = torch.cat([corner, corner + 4 + 40 * torch.rand(count, 2, generator=generator)], 1)
        return {
            "boxes": boxes,
            "labels": torch.randint(3, (count,), generator=generator),
            "is_crowd": torch.rand(count, generator=generator) < 0.1,
        }
    boxes = base["boxes"].repeat(2, 1)
    boxes = boxes + noise * torch.randn(boxes.shape, generator=generator)
    boxes[:, 2:] = torch.maximum(boxes[:, 2:], boxes[:, :2] + 1)
    return {"boxes": boxes, "labels": base["labels"].repeat(2), "scores": torch.rand(len(boxes), generator=generator)}


# Crops ------------------------------------------------------------------------------------------------------------------------


def make_objects():
    masks = np.zeros((2, 20, 30), bool)
    masks[0, 2:10, 3:13] = True
    masks[1, 12:20, 20:30] = True
    boxes = torch.tensor([[3.0, 2.0, 13.0, 10.0], [20.0, 12.0, 30.0, 20.0]])
    return Objects(boxes, torch.tensor([1, 0]), tuple(encode_mask(mask) for mask in masks), torch.tensor([False, True]))


def test_a_crop_shifts_and_cuts_boxes_and_masks_and_drops_what_is_almost_gone():
    target = crop_objects(make_objects(), Window(4, 5, 12, 12), with_masks=True)
    assert target["boxes"].tolist() == [[0, 0, 8, 6]]
    assert target["labels"].tolist() == [1]
    expected = torch.zeros(1, 12, 12, dtype=torch.bool)
    expected[0, :6, :8] = True
    assert torch.equal(target["masks"], expected)
    assert len(crop_objects(make_objects(), Window(9, 0, 11, 14), with_masks=False)["boxes"]) == 1  # 1 of 8 rows
    assert len(crop_objects(make_objects(), Window(4, 13, 4, 4), with_masks=True)["masks"]) == 0


def test_a_flip_mirrors_boxes_as_masks_and_crowds_are_not_trained_on():
    target = crop_objects(make_objects(), Window(0, 0, 20, 30), with_masks=True)
    image, flipped = flip(target["masks"][:1].float(), target)
    rows, columns = np.nonzero(image[0].numpy())
    assert flipped["boxes"][0].tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert torch.equal(flipped["masks"][0].float(), image[0])
    assert without_crowds(target)["labels"].tolist() == [1]
    assert "is_crowd" not in without_crowds(target)


def test_small_images_are_padded_and_large_ones_cropped_at_the_centre():
    assert pad_image(torch.ones(1, 3, 5), 4).tolist() == [[[1, 1, 1, 1, 1]] * 3 + [[0] * 5]]
    assert central_window(torch.zeros(1, 9, 3), 4) == Window(2, 0, 4, 3)


# Metrics ----------------------------------------------------------------------------------------------------------------------


def test_perfect_detections_have_100_percent_and_none_have_0():
    generator = torch.Generator().manual_seed(0)
    targets = [random_instances(generator, 5) for _ in range(4)]
    objects = [encode_objects(target) for target in targets]
    perfect = [encode_detections({**target, "scores": torch.ones(5)}) for target in targets]
    assert coco_metrics(objects, perfect, 3) == dict.fromkeys(["AP", "AP50", "AP75", "AP small", "AP medium"], 100.0)
    assert set(coco_metrics(objects, [[] for _ in objects], 3).values()) == {0.0}


def test_metrics_are_those_of_pycocotools_on_files(tmp_path):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    generator = torch.Generator().manual_seed(1)
    targets = [random_instances(generator, 6) for _ in range(5)]
    found = [random_instances(generator, 6, noise=3.0, base=target) for target in targets]

    def entries(images):
        for number, each in enumerate(images):
            for index, (x1, y1, x2, y2) in enumerate(each["boxes"].tolist()):
                entry = {"image_id": number, "category_id": int(each["labels"][index]), "bbox": [x1, y1, x2 - x1, y2 - y1]}
                if "scores" in each:
                    yield {**entry, "score": float(each["scores"][index])}
                else:
                    crowd = int(each["is_crowd"][index])
                    yield {**entry, "area": (x2 - x1) * (y2 - y1), "iscrowd": crowd, "id": 100 * number + index + 1}

    images, categories = [{"id": number} for number in range(5)], [{"id": label} for label in range(3)]
    truth = {"info": {}, "images": images, "categories": categories, "annotations": list(entries(targets))}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    (tmp_path / "found.json").write_text(json.dumps(list(entries(found))))
    with redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "truth.json"))
        evaluation = COCOeval(coco, coco.loadRes(str(tmp_path / "found.json")), "bbox")
        evaluation.evaluate(), evaluation.accumulate(), evaluation.summarize()
    metrics = coco_metrics([encode_objects(each) for each in targets], [encode_detections(each) for each in found], 3)
    assert 5 < metrics["AP"] < 95
    assert list(metrics.values()) == pytest.approx([100 * value for value in evaluation.stats[:5]], abs=1e-5)


def test_average_precision_of_one_class_is_the_interpolated_area_under_its_curve():
    """Three objects; detections by score: right, wrong, right. Precision 1 up to recall 1/3, then 2/3 up to recall 2/3."""
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0], [40.0, 0.0, 50.0, 10.0]])
    objects = {"boxes": boxes, "labels": torch.zeros(3).long(), "is_crowd": torch.zeros(3).bool()}
    found = {
        "boxes": torch.stack([boxes[0], boxes[0] + 100, boxes[1]]),
        "labels": torch.zeros(3).long(),
        "scores": torch.tensor([0.9, 0.8, 0.7]),
    }
    recalls = np.linspace(0, 1, 101)
    expected = np.where(recalls <= 1 / 3, 1, np.where(recalls <= 2 / 3, 2 / 3, 0)).mean()
    assert coco_metrics([encode_objects(objects)], [encode_detections(found)], 1)["AP50"] == pytest.approx(100 * expected)


def test_pseudo_values_are_those_of_the_metrics_without_each_image_and_have_their_standard_error():
    generator = torch.Generator().manual_seed(2)
    objects, found = [], []
    for _ in range(30):
        target = random_instances(generator, int(torch.randint(1, 6, (), generator=generator)))
        noise = 4.0 * float(torch.rand(1, generator=generator))
        objects.append(encode_objects(target))
        found.append(encode_detections(random_instances(generator, 0, noise=noise, base=target)))

    def average_precision(chosen):
        return coco_metrics([objects[index] for index in chosen], [found[index] for index in chosen], 3)["AP"]

    evaluation = coco_evaluation(objects, found, 3)
    values, metric = evaluation.items["AP"], evaluation.metrics["AP"]
    assert metric == average_precision(range(30))
    for index in (0, 17):
        rest = average_precision([other for other in range(30) if other != index])
        assert values[index] == pytest.approx(30 * metric - 29 * rest, abs=1e-3)  # of metrics with six decimals
    check_pseudo_values(values, metric, average_precision)
    alone = coco_evaluation([objects[0], []], [found[0], found[1]], 3)
    assert alone.items == {}  # AP is not defined without the only image with objects


def test_metrics_of_masks_use_masks():
    mask = torch.zeros(1, 20, 20, dtype=torch.bool)
    mask[0, 2:12, 2:12] = True
    half = mask.clone()
    half[0, 7:] = False
    box = {"boxes": torch.tensor([[2.0, 2.0, 12.0, 12.0]]), "labels": torch.tensor([0])}
    objects = [encode_objects({**box, "is_crowd": torch.tensor([False]), "masks": mask})]
    found = [encode_detections({**box, "scores": torch.ones(1), "masks": half[:, None].float()})]
    assert coco_metrics(objects, found, 1)["AP"] == 100
    assert coco_metrics(objects, found, 1, masks=True)["AP"] == pytest.approx(10, abs=0.2)  # IoU ½ reaches 1 of 10 thresholds


# The task ---------------------------------------------------------------------------------------------------------------------


def test_perfect_detections_of_the_task_have_100_percent_also_with_two_processes(monkeypatch):
    task = Detection(with_options(masks=True))
    monkeypatch.setattr(task, "model", Perfect(task))
    evaluation = task.evaluate_images(3)
    assert evaluation.metrics["AP"] == evaluation.metrics["mask AP"] == 100
    assert evaluation.items == {"AP": [100.0] * 4, "mask AP": [100.0] * 4}
    halves: list[Any] = []
    for rank in (0, 1):
        task.processes = FakeProcesses(rank, halves)  # type: ignore[assignment]
        if rank == 0:
            with pytest.raises(KeyError):  # the images of the other process are missing
                task.evaluate_images(1)
        else:
            assert task.evaluate_images(1) == evaluation


class Perfect(torch.nn.Module):
    """Returns the objects of the test images in place of detections."""

    def __init__(self, task):
        super().__init__()
        self.answers = {}
        for number in range(task.images.num_tests):
            image, objects = task.data.test[number]
            window = central_window(image, task.config.image_size)
            self.answers[number] = crop_objects(objects, window, with_masks=True)
        self.images = {number: images[0] for (number,), images in task.images.test_batches(1, task.processes)}

    def forward(self, images):
        numbers = [next(n for n, each in self.images.items() if torch.equal(each, image)) for image in images]
        return [
            {
                "boxes": self.answers[n]["boxes"],
                "labels": self.answers[n]["labels"],
                "scores": torch.ones(len(self.answers[n]["labels"])),
                "masks": self.answers[n]["masks"][:, None].float(),
            }
            for n in numbers
        ]


class FakeProcesses:
    """Two processes that run one after the other."""

    count = 2

    def __init__(self, rank, values):
        self.rank, self.values = rank, values

    def gather(self, value):
        self.values.append(value)
        return self.values


def test_a_run_with_masks_has_metrics_in_all_modes_and_a_picture(tmp_path):
    trainer, failure = train(with_options(masks=True, norm_modes=True, recalibration_images=4), tmp_path)
    assert not failure
    first, last = trainer.curve.points
    assert {"test_AP", "test_AP50", "test_AP75", "test_AP small", "test_mask AP", "train_loss_mask"} <= set(first)
    assert {"test_AP, batch statistics", "test_mask AP, recalibrated"} <= set(last) - set(first)
    with Image.open(tmp_path / "artifacts" / "detections.png") as picture:
        assert picture.size == (4 * 256 + 3 * 4, 2 * 256 + 4)


def test_test_images_are_central_crops_or_whole_and_batches_are_crops_with_their_objects(monkeypatch):
    task = make_trainer(with_options(masks=True)).task
    assert [tuple(x.shape) for x in task.eval_batches(500)] == [(4, 3, 32, 32)]
    whole = Detection(with_options(whole_images=True))
    assert [tuple(image.shape) for _, images in whole.images.test_batches(4, whole.processes) for image in images] == [
        (3, 64, 64)
    ] * 4
    sizes = [(64, 64), (32, 64), (64, 64), (128, 64)]
    with monkeypatch.context() as patch:
        patch.setattr(type(whole.data.test), "size", lambda _, number: sizes[number])
        assert whole.images._test_indices(8) == [[0, 2], [1], [3]]
    x, targets = task.training_batch(0)
    assert x.shape == (2, 3, 32, 32)
    for target in targets:
        for box, mask in zip(target["boxes"], target["masks"], strict=True):
            rows, columns = mask.nonzero(as_tuple=True)
            tight = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert float((tight - box).abs().max()) <= 2  # the visible part of a curved mask may be narrower than its box


def small_dataset(objects, size=24):
    images = [torch.randint(256, (3, size, size), dtype=torch.uint8) for _ in range(4)]
    test = DetectionImages.from_tensors(images, [objects] * 4)
    return make_detection_dataset("small", [load_detection("ellipses").train.without_masks(), test], ("disk", "rod"))


def test_images_smaller_than_the_crop_are_padded_and_missing_masks_and_objects_are_errors():
    box = Objects(torch.tensor([[1.0, 1.0, 9.0, 9.0]]), torch.tensor([0]), None, torch.tensor([False]))
    data = small_dataset(box)
    task = Detection(QUICK, data).eval()
    with torch.no_grad():
        assert set(task.evaluate()) >= {"AP", "AP50"}
    assert next(task.eval_batches(4)).shape == (4, 3, 32, 32)
    with pytest.raises(DataError, match="the option masks needs a data set with masks; ellipses has boxes alone"):
        Detection(with_options(masks=True), data)
    nothing = Objects(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), None, torch.zeros(0, dtype=torch.bool))
    with pytest.raises(DataError, match="average precision needs test objects; the 4 test images of ellipses have none"):
        Detection(QUICK, small_dataset(nothing)).evaluate_images(2)


@pytest.mark.parametrize("fpn", [True, False])
def test_weights_of_a_classifier_are_loaded_frozen_and_fitted(fpn, tmp_path):
    classifier: Any = build_model("small", DataShape(3, 32, 32, 10), 0.25)
    for module in classifier.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean)
    path = tmp_path / "model.pt"
    torch.save(classifier.state_dict(), path)
    model: Any = Detection(with_options(fpn=fpn, weights=str(path), frozen_submodule="backbone")).model
    same(model.backbone[1][0].conv1.weight, classifier[1][0].conv1.weight)
    same(model.backbone[0][1].running_mean, classifier[0][1].running_mean)
    if not fpn:
        same(model.heads.box.body[0].conv2.weight, classifier[3][0].conv2.weight)
    prefixes = ("backbone", "heads.box.body") if not fpn else ("backbone",)  # the last stage of a C4 backbone is in its box head
    assert all(isinstance(site.info.update_rule, Frozen) == site.path.startswith(prefixes) for site in find_norms(model))
    with pytest.raises(DataError, match=r"must be those of a classifier with the stem, stages and norms of the backbone"):
        Detection(replace(with_options(weights=str(path)), width=1.0))
    if not fpn:
        return
    fitted: Any = Detection(replace(with_options(fpn=fpn, weights=str(path), fit_images=8), norm="gn:2")).model
    assert {site.label for site in find_norms(fitted.backbone)} == {"gn:2"}
    assert not torch.allclose(fitted.backbone[0][1].bias, classifier[0][1].bias, atol=1e-3)
    same(fitted.backbone[1][0].conv1.weight, classifier[1][0].conv1.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recalibration_images": 0}, "recalibration_images must be at least 1; got 0"),
        ({"max_detections": 300}, "max_detections must be in \\[1, 100\\]; got 300"),
        ({"fit_images": 4, "fpn": False}, "fit_images needs fpn=true"),
    ],
)
def test_options_without_a_meaning_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        Detection(with_options(**options))


@pytest.mark.parametrize("name", ["sn_detection", "xbn_detection"])
def test_the_paper_presets_are_the_published_detectors(name):
    config = load_recipe(name).presets["paper"].training.config
    with torch.device("meta"):
        detector: Any = make_detector(make_backbone(config.model, 3, config.width, 224), 80, Detection.options_of(config))
    assert detector.strides == (4, 8, 16, 32)
    assert detector.heads.rpn.strides == (4, 8, 16, 32, 64)
    assert (detector.positive_fraction, len(detector.heads.box.body)) == (0.25, 4)
    assert config.lr == 0.02


def test_settings_that_cannot_be_used_are_reported():
    with pytest.raises(
        SpecError,
        match=r"frozen_submodule must be a submodule with norms; got 'neck'\. Usable: backbone fpn heads",
    ):
        Detection(with_options(frozen_submodule="neck"))
    with pytest.raises(SpecError, match="anchor_sizes must be comma-separated numbers; got '8;16'"):
        Detection(with_options(anchor_sizes="8;16"))
    with pytest.raises(SpecError, match="regions_per_image must be at least 1; got 0"):
        Detection(with_options(regions_per_image=0))
    with pytest.raises(DataError, match="a backbone must be a residual network with stages; got 'mlp'"):
        Detection(replace(QUICK, model="mlp"))


@pytest.mark.slow
def test_two_processes_train_one_detector_and_share_its_test_images(tmp_path):
    config = replace(with_options(masks=True, norm_modes=True, recalibration_images=4), devices=2, grad_accum_steps=1, sync=True)
    train_in_two_processes([config], tmp_path)
    record = Store(tmp_path).record(config.id)
    assert record.status == "done"
    assert {"test_AP", "test_mask AP", "test_AP, batch statistics", "test_AP, recalibrated"} <= record.metrics.keys()
    task: Any = load_run(tmp_path, config.id)
    with torch.no_grad():
        assert task.evaluate_images(16).metrics["AP"] == pytest.approx(record.metrics["test_AP"], abs=0.01)
