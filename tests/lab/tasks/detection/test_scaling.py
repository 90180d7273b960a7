"""Images scaled to a length of their shorter side: sizes, pixels, boxes, masks, metrics at the original size, a training run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from anynorm.errors import SpecError
from anynorm.lab.tasks.detection.data.datasets import DetectionImages, Objects, make_detection_dataset
from anynorm.lab.tasks.detection.data.masks import encode_mask
from anynorm.lab.tasks.detection.scaling import resize, scale_boxes, scale_detections, scale_objects, scaled_size
from anynorm.lab.tasks.detection.task import Detection
from anynorm.lab.tasks.run import train
from tests.helpers import same
from tests.lab.tasks.detection.test_task import QUICK, TINY


def with_options(**options):
    return replace(QUICK, options=TINY | options)


# Geometry ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((480, 640), (800, 1067)),  # height, width
        ((640, 480), (1067, 800)),
        ((300, 500), (800, 1333)),  # 1333.3, limited
        ((480, 960), (667, 1333)),
        ((800, 1333), (800, 1333)),
        ((1600, 1600), (800, 800)),
        ((427, 640), (800, 1199)),
        ((4, 4000), (1, 1333)),
        ((1, 4000), (1, 1333)),
    ],
)
def test_sizes_are_those_of_the_published_rule(size, expected):
    assert scaled_size(size, short_side=800, max_side=1333) == expected


def test_images_are_resized_as_pillow_does_it():
    image = torch.randint(256, (3, 21, 34), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for height, width in ((42, 68), (30, 49), (9, 14)):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((width, height), Image.Resampling.BILINEAR)
        difference = resize(image, (height, width)).int() - torch.from_numpy(np.array(picture)).permute(2, 0, 1).int()
        assert int(difference.abs().max()) <= 1  # rounding of 8 bits
    assert resize(image, (21, 34)) is image
    assert resize(image[:0], (5, 6)).shape == (0, 5, 6)


def test_many_masks_are_resized_in_parts_as_at_once(monkeypatch):
    masks = torch.rand(5, 8, 6, generator=torch.Generator().manual_seed(0))
    expected = resize(masks, (12, 9))
    monkeypatch.setattr("anynorm.lab.tasks.detection.scaling.MAX_VALUES", 250)
    same(resize(masks, (12, 9)), expected)


def random_objects(generator, height, width, count=6):
    """Return rectangles whose masks fill their boxes."""
    sides = torch.randint(3, 10, (count, 2), generator=generator)
    corners = torch.stack([torch.randint(side - 10, (count,), generator=generator) for side in (width, height)], 1)
    boxes = torch.cat([corners, corners + sides], 1)
    masks = torch.zeros(count, height, width, dtype=torch.bool)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.tolist(), strict=True):
        mask[y1:y2, x1:x2] = True
    return {"boxes": boxes.float(), "labels": torch.randint(2, (count,), generator=generator), "masks": masks}


def test_scaling_by_2_repeats_pixels_of_masks_and_scaling_back_is_the_identity():
    target = random_objects(torch.Generator().manual_seed(1), 20, 31)
    scaled = scale_objects(target, (20, 31), (40, 62))
    assert torch.equal(scaled["boxes"], 2 * target["boxes"])
    assert torch.equal(scaled["masks"], target["masks"].repeat_interleave(2, 1).repeat_interleave(2, 2))
    back = scale_detections({**scaled, "masks": scaled["masks"][:, None].float()}, (40, 62), (20, 31))
    assert torch.equal(back["boxes"], target["boxes"])
    assert torch.equal(back["labels"], target["labels"])
    assert torch.equal(back["masks"][:, 0] >= 0.5, target["masks"])


def test_boxes_stay_at_the_edges_of_their_pixels_when_the_axes_have_different_scales():
    """Of 640 × 480 pixels, the right half has its left edge at the middle of the 1067 columns."""
    boxes = torch.tensor([[320.0, 0.0, 640.0, 480.0], [0.0, 120.0, 160.0, 240.0]])
    scaled = scale_boxes(boxes, (480, 640), (800, 1067))
    same(scaled, torch.tensor([[533.5, 0.0, 1067.0, 800.0], [0.0, 200.0, 266.75, 400.0]]))
    same(scale_boxes(scaled, (800, 1067), (480, 640)), boxes)


def test_objects_that_are_too_small_after_scaling_are_dropped():
    masks = torch.zeros(3, 16, 16, dtype=torch.bool)
    masks[0, 4:12, 4:12] = masks[1, :3, :9] = masks[2, 3, 3] = True  # after scaling: 2 × 2 pixels, less than a row, nothing
    boxes = torch.tensor([[4.0, 4.0, 12.0, 12.0], [0.0, 0.0, 9.0, 3.0], [0.0, 0.0, 8.0, 8.0]])
    target = {"boxes": boxes, "labels": torch.arange(3), "masks": masks}
    assert scale_objects(target, (16, 16), (4, 4))["labels"].tolist() == [0]
    without_masks = {name: value for name, value in target.items() if name != "masks"}
    assert scale_objects(without_masks, (16, 16), (4, 4))["labels"].tolist() == [0, 2]


# The task ---------------------------------------------------------------------------------------------------------------------


def dataset_of_sizes(sizes):
    """Return images of different sizes with rectangles; each image is the mask of its first object."""
    generator = torch.Generator().manual_seed(2)
    images, objects = [], []
    for height, width in sizes:
        target = random_objects(generator, height, width)
        images.append(255 * target["masks"][:1].expand(3, -1, -1).to(torch.uint8))
        masks = tuple(encode_mask(mask.numpy()) for mask in target["masks"])
        objects.append(Objects(target["boxes"], target["labels"], masks, torch.zeros(6, dtype=torch.bool)))
    half = len(sizes) // 2
    splits = [DetectionImages.from_tensors(images[part], objects[part]) for part in (slice(half), slice(half, None))]
    return make_detection_dataset("rectangles", splits, ("a", "b"))


class Perfect(torch.nn.Module):
    """Returns the scaled objects of the test images, which it knows in their order, in place of detections."""

    def __init__(self, task):
        super().__init__()
        self.task, self.next = task, 0

    def forward(self, images):
        return [self.detect(image) for image in images]

    def detect(self, image):
        objects = self.task.data.test.objects(self.next)
        size, scaled = self.task.data.test.size(self.next), tuple(image.shape[1:])
        self.next += 1
        masks = torch.stack([torch.from_numpy(decode(mask)) for mask in objects.masks])
        return {
            "boxes": objects.boxes * torch.tensor([scaled[1] / size[1], scaled[0] / size[0]] * 2),
            "labels": objects.labels,
            "scores": torch.ones(len(objects.labels)),
            "masks": torch.nn.functional.interpolate(masks[None].float(), scaled, mode="bilinear").swapaxes(0, 1),
        }


def decode(mask):
    from pycocotools import mask as masks

    return masks.decode(mask).astype(bool)


@pytest.mark.parametrize(("short_side", "max_side"), [(48, 1333), (60, 100), (37, 50)])
def test_scaled_objects_have_100_percent_at_the_original_size(short_side, max_side, monkeypatch):
    config = replace(with_options(masks=True, short_side=short_side, max_side=max_side), num_train=None, num_test=None)
    task = Detection(config, dataset_of_sizes([(24, 24)] * 4 + [(24, 30), (24, 48), (33, 24), (24, 24)]))
    monkeypatch.setattr(task, "model", Perfect(task))
    metrics = task.evaluate_images(2).metrics
    assert metrics["AP"] == metrics["mask AP"] == metrics["AP small"] == 100
    assert "AP medium" not in metrics  # 9 × 9 pixels are small, whatever the scale


def test_training_images_are_whole_and_flipped_with_their_objects():
    data = dataset_of_sizes([(20, 30), (30, 20), (20, 60), (25, 25)] * 2)
    task = Detection(replace(with_options(masks=True, short_side=40, max_side=100), num_train=None, num_test=None), data)
    flips = 0
    for seed in range(4):
        images, targets = task.batch(torch.arange(4), torch.Generator().manual_seed(seed))
        assert [tuple(image.shape) for image in images] == [(3, 40, 60), (3, 60, 40), (3, 33, 100), (3, 40, 40)]
        for image, target, (original, objects) in zip(images, targets, data.train, strict=True):
            assert [mask.shape for mask in target["masks"]] == [image.shape[1:]] * 6
            inside = (data.std * image[:, target["masks"][0]].unsqueeze(2) + data.mean)[0]
            assert float(inside.min()) >= 0.4  # bright, with values near ½ at the border
            x = float(objects.boxes[0, 0]) * image.shape[2] / original.shape[2]
            flips += abs(float(target["boxes"][0, 0]) - x) > 1e-3
    assert 2 < flips < 14
    assert [tuple(x.shape) for x in task.eval_batches(500)] == [(4, 3, 40, 40)]  # 33 rows are padded


def test_a_run_on_scaled_images_has_metrics_a_picture_and_norm_modes(tmp_path):
    options = with_options(masks=True, short_side=96, norm_modes=True, recalibration_images=4)
    trainer, failure = train(replace(options, num_train=8, num_test=2, num_evals=1), tmp_path)
    assert not failure
    last = trainer.curve.points[-1]
    assert {"test_AP", "test_mask AP", "train_loss_mask", "test_AP, batch statistics", "test_AP, recalibrated"} <= set(last)
    images, _ = trainer.task.training_batch(0)
    assert [tuple(image.shape) for image in images] == [(3, 96, 96)] * 2
    with Image.open(tmp_path / "artifacts" / "detections.png") as picture:
        assert picture.size == (2 * 256 + 4, 2 * 256 + 4)  # the original images, magnified


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"short_side": -1}, "short_side must be 0 or more; got -1"),
        ({"short_side": 800, "max_side": 600}, "max_side must be at least short_side=800 pixels; got 600"),
        ({"short_side": 96.5}, r"short_side must be an integer; got 96\.5"),
    ],
)
def test_sides_that_cannot_be_used_are_reported(options, message):
    with pytest.raises(SpecError, match=message):
        Detection(with_options(**options))
