"""Corruptions are those of CIFAR-10-C: against numpy, scipy and colorsys, image by image, and stronger at each severity."""

import colorsys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from anynorm.diagnostics.corruptions import CORRUPTIONS, SEVERITIES, corrupt, corruption_targets
from anynorm.errors import DataError
from tests.helpers import same


def images(channels=3, size=12, dtype=torch.float64):
    x = torch.rand(4, channels, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, :, :2] = 0  # black
    x[1, :, :2] = 1  # white
    return x.to(dtype)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("severity", "std"), list(enumerate((0.4, 0.6, 0.7, 0.8, 1.0), 1)))
@pytest.mark.parametrize("size", [12, 3])
def test_gaussian_blur_is_that_of_scipy(severity, std, size):
    gaussian_filter = pytest.importorskip("scipy.ndimage", reason="needs the lab extra").gaussian_filter
    x = images(size=size)
    expected = [[gaussian_filter(plane, std, mode="nearest", truncate=4.0) for plane in image] for image in x.numpy()]
    same(corrupt(x, "gaussian_blur", severity, generator()), torch.tensor(np.array(expected)))


@pytest.mark.parametrize(("severity", "increase"), list(enumerate((0.05, 0.1, 0.15, 0.2, 0.3), 1)))
def test_brightness_increases_the_value_of_hsv(severity, increase):
    x = images(size=4)
    expected = torch.empty_like(x)
    for n in range(len(x)):
        for row in range(4):
            for column in range(4):
                hue, saturation, value = colorsys.rgb_to_hsv(*x[n, :, row, column].tolist())
                rgb = colorsys.hsv_to_rgb(hue, saturation, min(1.0, value + increase))
                expected[n, :, row, column] = torch.tensor(rgb, dtype=x.dtype)
    same(corrupt(x, "brightness", severity, generator()), expected)
    gray = images(channels=1)
    same(corrupt(gray, "brightness", severity, generator()), (gray + increase).clamp(max=1))


@pytest.mark.parametrize(("severity", "factor"), list(enumerate((0.75, 0.5, 0.4, 0.3, 0.15), 1)))
def test_contrast_scales_deviations_from_the_mean_of_each_image_and_channel(severity, factor):
    x = images()
    expected = [[np.clip((plane - plane.mean()) * factor + plane.mean(), 0, 1) for plane in image] for image in x.numpy()]
    same(corrupt(x, "contrast", severity, generator()), torch.tensor(np.array(expected)))


@pytest.mark.parametrize(("severity", "std"), list(enumerate((0.04, 0.06, 0.08, 0.09, 0.10), 1)))
def test_gaussian_noise_has_its_standard_deviation_and_depends_on_the_generator_alone(severity, std):
    x = torch.full((8, 3, 32, 32), 0.5)
    noisy = corrupt(x, "gaussian_noise", severity, generator())
    assert float((noisy - x).std()) == pytest.approx(std, rel=0.02)
    same(corrupt(x, "gaussian_noise", severity, generator()), noisy, rtol=0, atol=0)
    assert not torch.equal(corrupt(x, "gaussian_noise", severity, generator(1)), noisy)
    clipped = corrupt(images(), "gaussian_noise", severity, generator())
    assert clipped.min() == 0
    assert clipped.max() == 1


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_images_change_more_at_each_severity_and_keep_shape_and_dtype(name):
    for dtype in (torch.float32, torch.uint8):
        x = (images() * 255).round().to(dtype) if dtype == torch.uint8 else images(dtype=dtype)
        corrupted = [corrupt(x, name, severity, generator()) for severity in SEVERITIES]
        assert all((y.dtype, y.shape) == (x.dtype, x.shape) for y in corrupted)
        distances = [float((y.float() - x.float()).square().mean()) for y in corrupted]
        assert all(small < large for small, large in pairwise(distances))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_uint8_images_are_those_in_0_to_1_rounded(name):
    x = (images() * 255).round().to(torch.uint8)
    expected = (255 * corrupt(x.float() / 255, name, 3, generator())).round()
    same(corrupt(x, name, 3, generator()).float(), expected, rtol=0, atol=1)


@pytest.mark.parametrize(
    ("x", "name", "severity", "message"),
    [
        (
            images(),
            "gausian_noise",
            1,
            "unknown corruption 'gausian_noise'. Did you mean gaussian_noise or gaussian_blur. Usable: gaussian_noise gau",
        ),
        (images(), "contrast", 0, "severity must be one of 1 2 3 4 5; got 0"),
        (images(), "contrast", 6, "severity must be one of 1 2 3 4 5; got 6"),
        (
            images()[0],
            "contrast",
            1,
            r"images must be \(n, c, h, w\) of uint8 or floating point; got \(3, 12, 12\) of torch.float64",
        ),
        (images().long(), "contrast", 1, "of uint8 or floating point; got .* of torch.int64"),
        (3 * images() - 1, "contrast", 1, r"must be in \[0, 1\]; got values in \[-1, 2\]. Corrupt images before they are stand"),
    ],
)
def test_wrong_arguments_are_refused(x, name, severity, message):
    with pytest.raises(DataError, match=message):
        corrupt(x, name, severity, generator())


# Targets


MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def standardize(x):
    mean, std = (torch.tensor(values, dtype=x.dtype)[:, None, None] for values in (MEAN, STD))
    return (x - mean) / std


def test_targets_are_the_data_and_each_corruption_of_the_images_before_they_were_standardized():
    x, labels = images(), torch.arange(4)
    batches = [(standardize(x[:2]), labels[:2]), (standardize(x[2:]), labels[2:])]
    options: dict[str, Any] = {"mean": MEAN, "std": STD, "corruptions": ["contrast", "brightness"], "severities": [2, 5]}
    targets = list(corruption_targets(batches, **options))
    assert [target.name for target in targets] == ["uncorrupted", "contrast 2", "contrast 5", "brightness 2", "brightness 5"]
    for target in targets[1:]:
        name, severity = target.name.split()
        expected = standardize(corrupt(x, name, int(severity), generator()))
        same(torch.cat([batch for batch, _ in target.labeled]), expected)
        same(torch.cat(target.unlabeled), expected)  # without other images, those of the test
        same(torch.cat([target for _, target in target.labeled]), labels)
    same(torch.cat(targets[0].unlabeled), standardize(x))


def test_unlabeled_images_get_noise_of_their_own():
    x = torch.full((2, 1, 8, 8), 0.5)
    target: Any
    _, target = corruption_targets([(x, torch.arange(2))], [(x, None)], corruptions=["gaussian_noise"], severities=[5])
    assert not torch.equal(target.unlabeled[0], target.labeled[0][0])
    assert float(target.unlabeled[0].std()) == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mean": (0.0,), "std": (1.0,)},
            r"x · std \+ mean must be in \[0, 1\]; got values in .*. Pass the mean and std",
        ),
        ({"mean": (0.5, 0.4), "std": (1.0,)}, "mean and std must have one value, or one per channel of 3; got 2"),
        ({"corruptions": ["fog"]}, "unknown corruption 'fog'"),
        ({"severities": [9]}, "severity must be one of 1 2 3 4 5; got 9"),
    ],
)
def test_targets_with_wrong_options_are_refused(options, message):
    batches = [(standardize(images()), torch.arange(4))]
    with pytest.raises(DataError, match=message):
        list(corruption_targets(batches, **options))
