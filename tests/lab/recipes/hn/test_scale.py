"""Networks that are trained with central squares (Caltech-256) are tested at the same scale."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from anynorm.errors import DataError
from anynorm.lab.data import load_dataset
from anynorm.lab.data.transforms import TestTransform
from anynorm.lab.recipes.support.presets import CALTECH_256, IMAGENET
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.images import StreamedImages
from anynorm.lab.training.sampler import Sampler

SIZE, OBJECT = 224, 74


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Wide images, all the same, with a white object of 74 × 74 pixels on black."""
    root = tmp_path_factory.mktemp("objects")
    pixels = np.zeros((SIZE, 300, 3), dtype=np.uint8)
    pixels[75 : 75 + OBJECT, 113 : 113 + OBJECT] = 255
    for split in ("train", "test"):
        for label in ("a", "b"):
            (root / split / label).mkdir(parents=True)
            for number in range(4):
                Image.fromarray(pixels).save(root / split / label / f"{number}.png")
    return root


def object_width(images):
    return int((images[0, 0] > images.float().mean()).any(0).sum())


@pytest.mark.parametrize(("training", "width"), [(CALTECH_256, OBJECT), (IMAGENET, 85)])
def test_an_object_in_a_test_image_has_the_size_that_the_training_crops_suit(folder, training, width):
    config = replace(training.config, data=f"stream:{folder}", batch_size=4, devices=1)
    images = StreamedImages(load_dataset(config.data, SIZE), config)
    (x, _), *_ = images.test_batches(4, 0, Processes())
    assert abs(object_width(x) - width) <= 1
    if not config.min_area:
        batch, _ = images.batch(Sampler(config, len(images), micro_batches_per_step=1), 0, 0)
        assert object_width(batch) == object_width(x)


def test_a_resize_ratio_below_one_is_refused():
    with pytest.raises(DataError, match=r"resize_ratio must be at least 1; got 0\.5"):
        TestTransform(8, 0.5)
