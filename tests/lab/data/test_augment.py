"""Augmentation: what each function may do to an image, and with which probability."""

import pytest
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from anynorm.lab.data import augment
from tests.helpers import same


def generator():
    return torch.Generator().manual_seed(0)


def test_crops_are_windows_of_the_padded_image():
    x = torch.arange(2 * 5 * 6, dtype=torch.float32).reshape(1, 2, 5, 6).repeat(200, 1, 1, 1) + 1
    y = augment.random_crop(x, 2, generator())
    padded = torch.nn.functional.pad(x[0], (2, 2, 2, 2))
    windows = [padded[:, i : i + 5, j : j + 6] for i in range(5) for j in range(5)]
    counts = [sum(torch.equal(crop, window) for crop in y) for window in windows]
    assert sum(counts) == 200
    assert min(counts) > 0


def test_half_of_the_images_are_flipped():
    x = torch.rand(400, 1, 4, 4)
    y = augment.random_flip(x, generator())
    num_flipped = sum(torch.equal(a, b.flip(-1)) and not torch.equal(a, b) for a, b in zip(y, x, strict=True))
    assert 150 < num_flipped < 250
    assert num_flipped + sum(torch.equal(a, b) for a, b in zip(y, x, strict=True)) == 400


def test_cutout_sets_one_square_to_zero_in_all_channels():
    y = augment.cutout(torch.ones(400, 3, 8, 8), 4, generator())
    assert set(y.unique().tolist()) == {0.0, 1.0}
    zeros = (y[:, 0] == 0).sum((1, 2))
    assert int(zeros.max()) == 16
    assert torch.equal(y[:, 0], y[:, 2])


def test_mixup_mixes_images_and_targets_with_the_same_weight():
    x = torch.rand(400, 1, 4, 4)
    targets = torch.nn.functional.one_hot(torch.arange(400), 400).float()
    mixed, soft = augment.mixup(x, targets, 0.4, generator())
    same(soft.sum(1), torch.ones(400))
    assert not torch.equal(mixed, x)
    same(mixed.flatten(1), soft @ x.flatten(1), rtol=1e-5, atol=1e-6)


def test_mixup_depends_on_the_seed_of_the_generator_alone():
    x, targets = torch.rand(8, 1, 2, 2), torch.eye(8)
    first = augment.mixup(x, targets, 0.4, generator())
    torch.rand(3)
    second = augment.mixup(x, targets, 0.4, generator())
    other = augment.mixup(x, targets, 0.4, torch.Generator().manual_seed(1))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_mixup_weights_follow_the_beta_distribution(alpha):
    source, x = generator(), torch.zeros(2, 1, 1, 1)
    mixed = [augment.mixup(x, torch.eye(2, dtype=torch.float64), alpha, source)[1] for _ in range(4000)]
    weights = [float(targets[0, 0]) for targets in mixed if targets[0, 1] != 0]  # else the permutation is the identity
    assert 1800 < len(weights) < 2200
    assert stats.kstest(weights, stats.beta(alpha, alpha).cdf).pvalue > 0.01


class RecordCopies(TorchDispatchMode):
    """Record the devices and `non_blocking` of all copies between devices."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") is not None:
            self.copies.append((args[0].device.type, kwargs["device"].type, kwargs.get("non_blocking", False)))
        return func(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "num_copies"),
    [
        (lambda x, source: augment.random_crop(x, 2, source), 0),  # positions are arguments of views
        (augment.random_flip, 1),
        (lambda x, source: augment.cutout(x, 4, source), 1),
        (lambda x, source: augment.mixup(x, torch.zeros(5, 3, device=x.device), 0.3, source)[0], 1),
    ],
    ids=["crop", "flip", "cutout", "mixup"],
)
def test_random_numbers_are_drawn_on_the_cpu_and_copied_to_the_device_of_x_without_waiting(function, num_copies):
    on_cpu, on_device = generator(), generator()
    function(torch.zeros(5, 3, 8, 6), on_cpu)
    with RecordCopies() as record:
        y = function(torch.zeros(5, 3, 8, 6, device="meta"), on_device)
    assert (y.device.type, y.shape) == ("meta", (5, 3, 8, 6))
    assert record.copies == [("cpu", "meta", True)] * num_copies
    assert torch.equal(on_cpu.get_state(), on_device.get_state())
