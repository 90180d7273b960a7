"""Classification: which images are used, and what the metrics mean."""

from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.data import load_dataset
from anynorm.lab.tasks import make_task, task_class
from anynorm.lab.tasks.classification.task import Classification
from anynorm.lab.tasks.run import make_trainer
from anynorm.lab.training.config import Config
from anynorm.lab.training.sampler import Sampler

DATA = load_dataset("digits")


class Constant(nn.Module):
    """Predicts one class for every image, with certainty."""

    def __init__(self, label):
        super().__init__()
        self.label = label

    def forward(self, x):
        return 50 * nn.functional.one_hot(torch.full((len(x),), self.label), 10).float()


def test_training_images_are_chosen_by_the_seed_and_test_images_are_the_first():
    first, again, other = (Classification(Config(num_train=50, num_test=30, seed=seed), DATA) for seed in (0, 0, 1))
    assert first.num_samples == 50
    assert torch.equal(first.data.train[0], again.data.train[0])
    assert not torch.equal(first.data.train[0], other.data.train[0])
    for images, test_images in zip(first.data.test, DATA.test, strict=True):
        assert torch.equal(images, test_images[:30])
    assert make_task(Config()).num_samples == len(DATA.train[0])


@pytest.mark.parametrize(("name", "available"), [("num_train", 1348), ("num_test", 449)])
@pytest.mark.parametrize("count", [0, 100000])
def test_a_number_of_images_that_the_data_set_does_not_have_is_refused(name, available, count):
    message = f"{name} must be between 1 and the {available} images of the data set; got {count}"
    with pytest.raises(anynorm.DataError, match=message):
        Classification(Config(**{name: count}), DATA)


def batch_of(task, step=0):
    """Return the batch of a step, as the trainer asks for it."""
    task.sampler = Sampler(task.config, task.num_samples, 1)
    return task.training_batch(step)


def test_inputs_have_mean_0_and_standard_deviation_1_over_the_training_images():
    x, targets = batch_of(Classification(Config(batch_size=len(DATA.train[0])), DATA))
    assert float(x.mean()) == pytest.approx(0, abs=1e-4)
    assert float(x.std()) == pytest.approx(1, abs=1e-3)
    assert torch.equal(targets.bincount(), DATA.train[1].bincount())


@pytest.mark.parametrize("options", [{"crop": 2}, {"flip": True}, {"cutout": 3}, {"mixup": 0.4}])
def test_augmentation_depends_on_the_seed_and_the_step_alone(options):
    task, plain = Classification(Config(**options), DATA), Classification(Config(), DATA)
    x, targets = batch_of(task)
    assert torch.equal(batch_of(task)[0], x)
    assert not torch.equal(batch_of(task, step=1)[0], x)
    assert not torch.equal(batch_of(plain)[0], x)
    assert torch.equal(batch_of(plain)[1], targets) == ("mixup" not in options)


def with_model(task, model):
    task.model = model
    return task


def test_errors_are_counted_in_percent():
    task = with_model(Classification(Config(num_train=200, num_test=100, batch_size=200), DATA), Constant(3))
    metrics = task.loss(batch_of(task))
    assert float(metrics["error"]) == pytest.approx(100 * float((task.data.train[1] != 3).double().mean()))
    metrics = task.evaluate()
    wrong = float((task.data.test[1] != 3).float().mean())
    assert metrics["error"] == pytest.approx(100 * wrong, rel=1e-6)
    assert metrics["loss"] == pytest.approx(50 * wrong, rel=1e-6)


def test_label_smoothing_is_part_of_the_training_loss_alone():
    smooth, plain = (
        with_model(Classification(Config(num_train=50, num_test=50, label_smoothing=value), DATA), Constant(3))
        for value in (0.1, 0.0)
    )
    batch = batch_of(plain)
    assert float(smooth.loss(batch)["loss"]) != float(plain.loss(batch)["loss"])
    assert smooth.evaluate() == plain.evaluate()


def test_a_task_is_found_by_its_name():
    assert task_class("classification") is Classification
    assert task_class("tests.lab.tasks.classification.test_task:Classification") is Classification
    with pytest.raises(
        anynorm.DataError, match=r"unknown task 'clasification'\. Did you mean classification\? Usable: classification"
    ):
        task_class("clasification")
    with pytest.raises(anynorm.DataError, match=r"'torch\.nn:Linear' must be a subclass of anynorm\.Task; got <class"):
        task_class("torch.nn:Linear")


@pytest.mark.parametrize(
    ("options", "is_tiny"),
    [
        ({"batch_size": 2}, True),
        ({"batch_size": 8}, True),
        ({"batch_size": 16}, False),
        ({"model": "mobilenetv2", "batch_size": 2}, False),
    ],
)
def test_onednn_is_off_for_tiny_batches_of_dense_convolutions_during_a_step_alone(options, is_tiny):
    trainer = make_trainer(Config(**({"model": "small", "num_train": 64} | options)))
    states: list[Any] = []
    trainer.task.network.register_forward_pre_hook(lambda *_: states.append(torch.backends.mkldnn.enabled))
    trainer.training_step()
    assert states == [not is_tiny]
    assert torch.backends.mkldnn.enabled


def test_he_initialization_scales_convolutions_by_their_outputs():
    default, he = (Classification(Config(initialization=name), DATA) for name in ("default", "he"))
    weight, other = (task.model.get_parameter("3.0.conv2.weight") for task in (he, default))  # 64 channels of 3 × 3
    assert float(weight.detach().std()) == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)
    assert not torch.equal(weight, other)
    with pytest.raises(anynorm.SpecError, match="initialization must be one of default he; got 'xavier'"):
        Config(initialization="xavier")


@pytest.mark.parametrize(("norm", "has_average"), [("bn", True), ("sn", True), ("gn:4", False)])
def test_batch_averages_are_evaluated_beside_moving_averages_and_change_nothing(norm, has_average):
    options = {"averaged_samples": 48}
    trainer = make_trainer(Config(num_train=64, num_test=64, epochs=1, batch_size=16, norm=norm, options=options))
    assert isinstance(trainer.task, Classification)
    for _ in range(4):
        trainer.training_step()
    before = {name: value.clone() for name, value in trainer.task.model.state_dict().items()}
    trainer.evaluate()
    point = trainer.curve.points[-1]
    assert ("test_error, batch average" in point) == has_average
    for name, value in trainer.task.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    if has_average:
        batches = [trainer.task.training_batch(step)[0] for step in range(3)]
        anynorm.recalibrate(trainer.task.model, batches, estimator="averaged_biased")
        trainer.evaluate()
        assert trainer.curve.points[-1]["test_loss"] == pytest.approx(point["test_loss, batch average"], rel=1e-5)
