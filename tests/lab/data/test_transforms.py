"""Crops, flips and color jitter of one image, against crops and resizes made with Pillow directly."""

import io
import math

import numpy as np
import pytest
from PIL import Image, ImageEnhance

import anynorm
from anynorm.lab.data.transforms import TestTransform, TrainTransform, random_box

BILINEAR = Image.Resampling.BILINEAR


def make_image(width, height):
    """An image with smooth colors and edges."""
    coarse = np.random.default_rng(0).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), BILINEAR)


def as_jpeg(image):
    """The same image as an opened JPEG file that is not decoded yet."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95)
    file.seek(0)
    return Image.open(file)


def pixels(image):
    return np.asarray(image).transpose(2, 0, 1)


def random_crop_reference(generator, width, height, min_area):
    """The random-resized crop of torchvision (RandomResizedCrop.get_params), as (left, top, width, height)."""
    for _ in range(10):
        area = width * height * generator.uniform(min_area, 1)
        ratio = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(generator.integers(0, width - w + 1))
            return left, int(generator.integers(0, height - h + 1)), w, h
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


@pytest.mark.parametrize(("width", "height"), [(50, 40), (40, 50), (60, 7), (7, 60), (33, 33)])
@pytest.mark.parametrize("min_area", [0.08, 0.5, 1.0])
def test_training_images_are_random_resized_crops(width, height, min_area):
    image = make_image(width, height)
    for seed in range(20):
        left, top, w, h = random_crop_reference(np.random.default_rng(seed), width, height, min_area)
        expected = image.crop((left, top, left + w, top + h)).resize((16, 16), BILINEAR)
        result = TrainTransform(16, min_area, flip=False)(image, np.random.default_rng(seed))
        assert result.dtype == np.uint8
        assert np.array_equal(result, pixels(expected))


def test_boxes_that_never_fit_are_the_largest_central_box_with_an_allowed_aspect_ratio():
    generator = np.random.default_rng(0)
    assert random_box(100, 10, min_area=1.0, generator=generator) == (43, 0, 56, 10)
    assert random_box(10, 100, min_area=1.0, generator=generator) == (0, 43, 10, 56)


def test_crops_have_areas_and_aspect_ratios_within_the_limits():
    generator = np.random.default_rng(0)
    boxes = np.array([random_box(400, 300, min_area=0.25, generator=generator) for _ in range(2000)])
    width, height = (boxes[:, 2:] - boxes[:, :2]).T
    areas = width * height / (400 * 300)
    assert 0.245 < areas.min() < 0.27
    assert 0.95 < areas.max() <= 1
    assert 0.74 < (width / height).min() < 0.77
    assert 1.3 < (width / height).max() < 1.35
    assert boxes.min() == 0
    assert boxes.max(0).tolist()[2:] == [400, 300]


def test_half_of_the_training_images_are_flipped():
    image, transform = make_image(12, 12), TrainTransform(12, min_area=0)
    results = [transform(image, np.random.default_rng(seed)) for seed in range(200)]
    flipped = sum(np.array_equal(result, pixels(image)[:, :, ::-1]) for result in results)
    assert 70 < flipped < 130
    assert flipped + sum(np.array_equal(result, pixels(image)) for result in results) == 200


def test_without_crops_the_central_square_is_resized_as_in_folders(tmp_path):
    from anynorm.lab.data.folder import decode_image

    make_image(30, 20).save(tmp_path / "a.png")
    result = TrainTransform(8, min_area=0, flip=False)(Image.open(tmp_path / "a.png"), np.random.default_rng(0))
    assert np.array_equal(result, decode_image(tmp_path / "a.png", 8))


def test_color_jitter_multiplies_brightness_contrast_and_saturation_in_random_order():
    image, transform = make_image(12, 12), TrainTransform(12, min_area=0, flip=False, color_jitter=0.4)
    orders = set()
    for seed in range(12):
        generator = np.random.default_rng(seed)
        factors, order = generator.uniform(0.6, 1.4, 3), generator.permutation(3)
        expected = image
        for index in order:
            expected = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color][index](expected).enhance(
                factors[index]
            )
        assert np.array_equal(transform(image, np.random.default_rng(seed)), pixels(expected))
        orders.add(tuple(order))
    assert len(orders) > 3


@pytest.mark.parametrize(("size", "resized"), [((60, 40), (55, 37)), ((40, 60), (37, 55)), ((41, 41), (37, 37))])
def test_test_images_are_the_center_after_the_shorter_side_was_resized(size, resized):
    image = make_image(*size)  # 32 · 256/224 = 36.6
    left, top = round((resized[0] - 32) / 2), round((resized[1] - 32) / 2)
    expected = image.resize(resized, BILINEAR).crop((left, top, left + 32, top + 32))
    assert np.array_equal(TestTransform(32)(image), pixels(expected))


@pytest.mark.parametrize("size", [(401, 299), (800, 600)])
def test_a_jpeg_decoded_at_a_reduced_size_gives_nearly_the_same_pixels(size):
    image = make_image(*size)
    exact = Image.fromarray(np.asarray(as_jpeg(image)))  # not a JPEG file: cannot be decoded at a reduced size
    reduced = 0
    for seed in range(20):
        opened = as_jpeg(image)
        result = TrainTransform(32, 0.08)(opened, np.random.default_rng(seed)).astype(int)
        reduced += opened.size != size
        error = np.abs(result - TrainTransform(32, 0.08)(exact, np.random.default_rng(seed)))
        assert error[:, 1:-1, 1:-1].max() < 10
        assert error.max() < 32  # at the border, where the exact crop has no neighbors
    assert reduced > 10
    opened = as_jpeg(image)
    assert np.abs(TestTransform(32)(opened).astype(int) - TestTransform(32)(exact)).max() < 10
    assert opened.size != size


def test_a_jpeg_that_is_not_much_larger_than_needed_is_decoded_exactly():
    image = make_image(100, 90)
    exact = Image.fromarray(np.asarray(as_jpeg(image)))
    for seed in range(5):
        result, expected = (TrainTransform(50)(opened, np.random.default_rng(seed)) for opened in (as_jpeg(image), exact))
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_images_of_all_modes_become_three_channels(mode):
    assert TrainTransform(8)(make_image(20, 20).convert(mode), np.random.default_rng(0)).shape == (3, 8, 8)
    assert TestTransform(8)(make_image(20, 20).convert(mode)).shape == (3, 8, 8)


def test_arguments_out_of_range_are_refused():
    for make, message in (
        (lambda: TrainTransform(0), "image_size must be at least 1; got 0"),
        (lambda: TestTransform(-2), "image_size must be at least 1; got -2"),
        (lambda: TrainTransform(8, min_area=1.5), r"min_area must be in \[0, 1\]; got 1.5"),
        (lambda: TrainTransform(8, color_jitter=-1), r"color_jitter must be in \[0, 1\]; got -1"),
    ):
        with pytest.raises(anynorm.DataError, match=message):
            make()
