"""A model is called with the inputs of a batch, whatever its form: tensors, lists of images, or dictionaries."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anynorm
from anynorm.diagnostics.statistics import num_samples
from anynorm.surgery.batches import call, duplicate, gather, size_of
from tests.helpers import same
from tests.surgery.detectors import BATCHED_INPUTS, DATA, IMAGES, TARGETS


class Record(nn.Module):
    """Returns its input."""

    def forward(self, x):
        return x


X, LABELS = torch.zeros(8, 3, 4, 4), torch.zeros(8)
SIGNALS = torch.zeros(3, 5, 7)


@pytest.mark.parametrize(
    ("batch", "expected", "size"),
    [
        (X, X, 8),
        ((X, LABELS), X, 8),
        ([X, LABELS], X, 8),
        ([X], X, 8),
        ([X, X], X, 8),  # two views, or an autoencoder
        ((SIGNALS, SIGNALS), SIGNALS, 3),  # a tuple is (x, …), whatever its shape
        ([SIGNALS, torch.zeros(3, 5, 7, dtype=torch.int64)], SIGNALS, 3),
        ([torch.zeros(8, 5, 7), torch.zeros(8, 5, 7)], torch.zeros(8, 5, 7), 8),
        ([torch.zeros(3, 5, 7), torch.zeros(3, 5)], torch.zeros(3, 5, 7), 3),
        (IMAGES, IMAGES, 3),
        ((IMAGES, TARGETS), IMAGES, 3),
        ([IMAGES, TARGETS], IMAGES, 3),
        ((tuple(IMAGES), tuple(TARGETS)), IMAGES, 3),  # tuple(zip(*samples)), the collate function of torchvision's reference
        (([torch.zeros(6, 4, 4), torch.zeros(6, 5, 4)],), [torch.zeros(6, 4, 4), torch.zeros(6, 5, 4)], 2),
        (BATCHED_INPUTS, BATCHED_INPUTS, 3),
        ([BATCHED_INPUTS, "a name"], BATCHED_INPUTS, 3),
        ([{"image": X}, {"mask": X}], {"image": X}, 8),  # default_collate of (dict, dict): its images have four dimensions
        ({"image": X, "label": LABELS}, {"image": X, "label": LABELS}, 8),
        (DATA, DATA, 3),
    ],
)
def test_the_model_gets_the_inputs_and_the_images_are_counted(batch, expected, size):
    given = call(Record(), batch)
    assert type(given) is type(expected)
    torch.testing.assert_close(_tensors(given), _tensors(expected))
    assert size_of(batch) == size
    assert num_samples(batch) == size


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [tensor for entry in entries for tensor in _tensors(entry)]


def test_batches_of_a_data_loader_are_lists_and_the_model_gets_x():
    loader = DataLoader(TensorDataset(torch.randn(12, 3, 4, 4), torch.zeros(12)), batch_size=6)
    assert isinstance(next(iter(loader)), list)
    model = nn.Sequential(nn.BatchNorm2d(3))
    assert "on 12 samples" in anynorm.recalibrate(model, loader).finding


def test_a_dictionary_with_data_samples_goes_to_the_test_step_of_the_model():
    class Model(Record):
        def test_step(self, data):
            return "preprocessed"

    assert call(Model(), DATA) == "preprocessed"
    assert call(Model(), {"inputs": X}) == {"inputs": X}


@pytest.mark.parametrize("batch", [IMAGES, (IMAGES, TARGETS), (tuple(IMAGES), tuple(TARGETS)), BATCHED_INPUTS, DATA])
def test_a_batch_of_images_can_be_duplicated_and_gathered(batch):
    twice = duplicate(batch)
    assert size_of(twice) == 6
    images, expected = _tensors(call(Record(), twice)), _tensors(call(Record(), batch))
    for new, old in zip(images, expected + expected, strict=True):
        same(new, old)
    if isinstance(batch, tuple):
        assert len(twice[1]) == 6
    assert size_of(gather([batch, batch, batch])) == 9


def test_a_batch_without_a_tensor_counts_as_one_sample():
    assert size_of(["text"]) == 1
    assert size_of(()) == 1
