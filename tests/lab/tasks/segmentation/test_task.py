"""Segmentation: metrics against loops and scikit-learn, ignored pixels, whole images, scales, norm modes, weights."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import metrics as sklearn_metrics
from torch import nn

from anynorm.errors import DataError, SpecError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.tasks import make_task
from anynorm.lab.tasks.run import make_trainer, train
from anynorm.lab.tasks.segmentation.data import SegmentationDataset, load_segmentation
from anynorm.lab.tasks.segmentation.metrics import (
    class_iou,
    confusion_matrix,
    count_pixels,
    segmentation_evaluation,
    segmentation_metrics,
)
from anynorm.lab.tasks.segmentation.options import SegmentationOptions
from anynorm.lab.tasks.segmentation.prediction import average_probabilities, predict_logits
from anynorm.lab.tasks.segmentation.task import Segmentation
from anynorm.lab.training.config import Config
from anynorm.lab.training.norm_layout import Layout
from anynorm.lab.training.norm_modes import BATCH_STATISTICS, RECALIBRATED
from anynorm.surgery.find import find_norms
from tests.helpers import same
from tests.lab.jackknife import check_pseudo_values

OPTIONS = {"dropout": 0.0}
QUICK = Config(
    task="segmentation",
    data="shapes",
    model="resnet10",
    width=0.25,
    num_train=16,
    num_test=6,
    batch_size=4,
    epochs=2,
    lr=0.05,
    num_evals=2,
    image_size=64,
    options=OPTIONS,
)


def build(config) -> Any:
    return make_task(config)


def with_options(**options):
    return replace(QUICK, options=OPTIONS | options)


# Metrics


def random_labels(seed=0, num_classes=5):
    generator = torch.Generator().manual_seed(seed)
    labels, predictions = torch.randint(0, num_classes, (2, 3, 17, 19), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = 255
    return labels.to(torch.uint8), predictions


def test_metrics_are_those_of_scikit_learn_without_ignored_pixels():
    labels, predictions = random_labels()
    counted = labels != 255
    pair = labels[counted].numpy(), predictions[counted].numpy()
    confusion = confusion_matrix(labels, predictions, 5)
    assert confusion.tolist() == sklearn_metrics.confusion_matrix(*pair).tolist()
    counts = count_pixels(confusion)
    same(class_iou(counts), torch.from_numpy(100 * sklearn_metrics.jaccard_score(*pair, average=None)))
    metrics = segmentation_metrics(counts)
    assert metrics["mIoU"] == pytest.approx(100 * sklearn_metrics.jaccard_score(*pair, average="macro"))
    assert metrics["pixel accuracy"] == pytest.approx(100 * sklearn_metrics.accuracy_score(*pair))


def test_the_mean_is_over_classes_that_labels_or_predictions_have():
    labels, predictions = random_labels(1, 3)
    predictions[0, 0, 0], labels[0, 0, 0] = 4, 1  # class 4 is predicted, class 3 does not occur
    ious = []
    for label in (0, 1, 2, 4):
        both = either = 0
        for truth, prediction in zip(labels.flatten().tolist(), predictions.flatten().tolist(), strict=True):
            if truth != 255:
                both += truth == prediction == label
                either += label in (truth, prediction)
        ious.append(100 * both / either)
    counts = count_pixels(confusion_matrix(labels, predictions, 5))
    assert segmentation_metrics(counts)["mIoU"] == pytest.approx(sum(ious) / 4)
    assert torch.isnan(class_iou(counts)[3])


def test_pseudo_values_have_the_standard_error_of_a_bootstrap_over_images():
    generator = torch.Generator().manual_seed(0)
    counts = []
    for _ in range(60):
        labels = torch.multinomial(torch.rand(4, generator=generator), 200, replacement=True, generator=generator)
        is_wrong = torch.rand(200, generator=generator) < torch.rand(1, generator=generator)
        predictions = torch.where(is_wrong, torch.randint(4, (200,), generator=generator), labels)
        counts.append(count_pixels(confusion_matrix(labels, predictions, 4)))
    stacked = torch.stack(counts)
    evaluation = segmentation_evaluation(stacked)
    for name, values in evaluation.items.items():
        check_pseudo_values(
            values,
            evaluation.metrics[name],
            lambda chosen, name=name: segmentation_metrics(stacked[chosen].sum(0))[name],  # type: ignore[misc]
        )
    rest = segmentation_metrics(stacked[1:].sum(0))["mIoU"]
    assert evaluation.items["mIoU"][0] == pytest.approx(60 * evaluation.metrics["mIoU"] - 59 * rest)


# Predictions


class Local(nn.Module):
    """A network whose logits at a pixel depend on that pixel alone."""

    stride = 8

    def forward(self, x):
        assert x.shape[-1] % 8 == x.shape[-2] % 8 == 0
        return torch.cat([x.sum(1, keepdim=True), x[:, :2] - x[:, 1:]], 1)


def test_padding_does_not_change_the_logits_of_the_image():
    x = torch.randn(2, 3, 21, 34)
    whole = torch.randn(2, 3, 24, 40)
    whole[..., :21, :34] = x
    same(predict_logits(Local(), x, (21, 34)), Local()(whole)[..., :21, :34])
    task = build(QUICK).eval()
    x = torch.randn(1, 3, 64, 48)
    same(predict_logits(task.model, x, (64, 48)), task.model(x))
    assert predict_logits(task.model, x, (32, 24)).shape == (1, 4, 32, 24)


def test_several_scales_and_flips_are_the_mean_of_their_probabilities():
    model = build(QUICK).eval().model
    x, size = torch.randn(2, 3, 32, 40), (32, 40)
    small = nn.functional.interpolate(x, (16, 20), mode="bilinear")
    with torch.no_grad():
        parts = [
            predict_logits(model, x, size).softmax(1),
            predict_logits(model, x.flip(-1), size).softmax(1).flip(-1),
            predict_logits(model, small, size).softmax(1),
            predict_logits(model, small.flip(-1), size).softmax(1).flip(-1),
        ]
        same(average_probabilities(model, x, size, (1.0, 0.5), flip=True), sum(parts) / 4)
        same(average_probabilities(model, x, size, (1.0,), flip=False), parts[0])


def test_scales_are_positive_numbers():
    with pytest.raises(SpecError, match="scales must be comma-separated numbers; got '1,two'"):
        SegmentationOptions.from_values({"scales": "1,two"})
    with pytest.raises(SpecError, match=r"scales must be in \(0, 10\]; got \(1\.0, 0\.0\)"):
        SegmentationOptions(scales=(1.0, 0.0))


# The task


def images_of_two_sizes():
    """Return images of two sizes with ignored pixels, some of them ignored altogether."""
    data = load_segmentation("shapes")
    samples = []
    for k, (image, whole) in enumerate(data.train[:8]):
        width = 64 if k % 2 else 52
        labels = whole[:, :width].clone()
        labels[:10] = 255
        samples.append((image[:, :, :width], torch.full_like(labels, 255) if k == 3 else labels))
    return SegmentationDataset(samples, samples, data.class_names, data.mean, data.std)


def test_the_evaluation_is_that_of_a_loop_over_single_images():
    task = build(replace(QUICK, data=f"{__name__}:images_of_two_sizes", num_train=8, num_test=7)).eval()
    truths, predictions = [], []
    for image, labels in task.data.test[:7]:
        prediction = task.predict(image)
        counted = labels != 255
        truths += labels[counted].tolist()
        predictions += prediction[counted].tolist()
    with torch.no_grad():
        metrics = task.evaluate()
    assert metrics["pixel accuracy"] == pytest.approx(100 * np.mean(np.equal(truths, predictions)))
    assert metrics["mIoU"] == pytest.approx(100 * sklearn_metrics.jaccard_score(truths, predictions, average="macro"))


def test_items_are_in_the_order_of_the_images_at_any_batch_size():
    task = build(replace(QUICK, data=f"{__name__}:images_of_two_sizes", num_train=8, num_test=7)).eval()
    with torch.no_grad():
        counts = [task.count_pixels(batch_size) for batch_size in (1, 4)]
        assert torch.equal(counts[0], counts[1])
        for (image, labels), (both, in_labels, _) in zip(task.data.test, counts[0].tolist(), strict=False):
            assert sum(both) == int((task.predict(image) == labels).sum())
            assert sum(in_labels) == int((labels != 255).sum())


def test_ignored_pixels_have_no_loss_and_the_auxiliary_loss_has_its_weight():
    task: Any = make_trainer(QUICK).task
    x, labels = task.training_batch(0)
    labels = labels.clone()
    labels[:, :30] = 255
    logits, auxiliary = (each.detach() for each in task.model(x))
    kept = labels[:, 30:].long()
    expected = sum(
        weight * -each[:, :, 30:].log_softmax(1).gather(1, kept[:, None]).mean()
        for each, weight in ((logits, 1), (auxiliary, 0.4))
    )
    metrics = task.loss((x, labels))
    same(metrics["loss"].detach(), expected)
    same(metrics["pixel accuracy"], 100 * (logits[:, :, 30:].argmax(1) == kept).float().mean())
    assert task.loss((x, torch.full_like(labels, 255)))["loss"].item() == 0


def test_a_short_training_learns_the_textures_and_writes_pictures(tmp_path):
    config = replace(QUICK, num_train=96, num_test=16, epochs=3, schedule="poly", num_evals=1)
    config = replace(config, options=OPTIONS | {"backbone_image_size": 64, "clip_grad_norm": 5.0})
    trainer, failure = train(config, tmp_path)
    assert not failure
    assert trainer.curve.points[-1]["test_mIoU"] > 35
    with Image.open(tmp_path / "artifacts" / "predictions.png") as picture:
        assert picture.size == (3 * 64 + 2 * 2, 4 * 64 + 3 * 2)
    by_class = json.loads((tmp_path / "artifacts" / "class-iou.json").read_text())
    assert list(by_class) == ["background", "stripes", "bars", "checks"]
    assert np.mean(list(by_class.values())) == pytest.approx(trainer.curve.points[-1]["test_mIoU"], abs=1e-3)


def test_a_picture_has_the_colors_of_labels_and_predictions_and_images_of_two_sizes():
    task = build(replace(QUICK, data=f"{__name__}:images_of_two_sizes", num_train=8)).eval()
    with torch.no_grad(), Image.open(io.BytesIO(task.artifacts()["predictions.png"])) as picture:
        pixels = np.asarray(picture)
    image, labels = task.data.test[0]
    assert np.array_equal(pixels[:64, :52], image.permute(1, 2, 0).numpy())
    truth, prediction = pixels[:64, 66 : 66 + 52], pixels[:64, 132 : 132 + 52]
    assert (truth[:10] == 255).all()
    assert (prediction[:10] == 255).all()
    assert len({tuple(color) for color in truth[10:].reshape(-1, 3)}) == len(labels[10:].unique())


def test_the_last_evaluation_has_norm_modes_and_several_scales():
    config = with_options(norm_modes=True, recalibration_images=8, scales=(0.5, 1), flip_test=True)
    trainer = train(config).trainer
    points = trainer.curve.points
    names = {"test_mIoU, multi-scale", *(f"test_mIoU, {mode}" for mode in (BATCH_STATISTICS, RECALIBRATED))}
    assert names <= points[-1].keys()
    assert not names & points[0].keys()
    assert {name.removeprefix("test_") for name in names} <= trainer.task.items.keys()
    without = train(replace(config, norm="gn:4")).trainer.curve.points[-1]
    assert names & without.keys() == {"test_mIoU, multi-scale"}


def test_batch_statistics_are_those_of_batches_as_large_as_in_training():
    task = build(with_options(norm_modes=True)).eval()
    seen = []
    task.model.register_forward_hook(
        lambda module, inputs, output: seen.append((len(inputs[0]), find_norms(module)[0].module.training))
    )
    with torch.no_grad():
        task.evaluate()
    assert [size for size, in_training in seen if in_training][:2] == [4, 2]
    assert seen[0] == (6, False)
    assert seen[-2:] == [(4, False), (2, False)]  # recalibrated


# Pretrained backbones


def save_classifier(path, norm="bn"):
    torch.manual_seed(3)
    classifier = Layout.parse(norm, 4).apply(build_model("resnet10", DataShape(3, 64, 64, 7), 0.25)).train()
    for _ in range(3):
        classifier(2 + torch.randn(8, 3, 64, 64))
    torch.save(classifier.state_dict(), path)
    return classifier


@pytest.mark.parametrize("norm", ["bn", "sn", "gn:4"])
def test_a_backbone_has_the_weights_of_a_classifier_with_its_norms(norm, tmp_path):
    path = tmp_path / "model.pt"
    classifier = save_classifier(path, norm)
    task = build(replace(with_options(weights=str(path), backbone_image_size=64), norm=norm))
    assert all(torch.equal(value, classifier.state_dict()[name]) for name, value in task.model.backbone.state_dict().items())
    with pytest.raises(DataError, match=r"model\.pt must be those of a classifier"):
        build(replace(with_options(weights=str(path), backbone_image_size=64), norm=norm, width=1.0))


def test_frozen_norms_of_a_part_do_not_change_in_training(tmp_path):
    save_classifier(tmp_path / "model.pt")
    config = with_options(weights=str(tmp_path / "model.pt"), frozen_submodule="backbone", backbone_image_size=64)
    before = build(config).model
    frozen = [site.path for site in find_norms(before) if site.path.startswith("backbone")]
    after: Any = train(config).trainer.task.model
    for path in frozen:
        old, new = (model.get_submodule(path).state_dict() for model in (before, after))
        assert all(torch.equal(old[name], new[name]) for name in old if name != "num_batches_tracked")
    head = "head.branches.1.1.running_mean"
    assert not torch.equal(before.state_dict()[head], after.state_dict()[head])
    with pytest.raises(SpecError, match=r"frozen_submodule must be a submodule .*; got 'neck'\. Usable: backbone head aux_head"):
        build(with_options(frozen_submodule="neck"))


def test_other_norms_are_fitted_to_a_pretrained_network(tmp_path):
    """After fitting, GN's features are closer to those of the pretrained BN network than with copied γ and β."""
    save_classifier(tmp_path / "model.pt")
    options = {"weights": str(tmp_path / "model.pt"), "backbone_image_size": 64}
    reference = build(with_options(**options))
    fitted = build(replace(with_options(**options, fit_images=16), norm="gn:4"))
    copied: Any = Layout.parse("gn:4", 4).apply(build(with_options(**options)).model)
    x = fitted.batch(torch.arange(16), torch.Generator())[0]
    with torch.no_grad():
        expected = reference.model.eval().backbone(x)[-1]
        errors = [float((model.eval().backbone(x)[-1] - expected).square().mean()) for model in (fitted.model, copied)]
    assert errors[0] < 0.7 * errors[1]
    with pytest.raises(SpecError, match="fit_images needs the option weights"):
        build(with_options(fit_images=4))


def test_options_out_of_range_are_refused():
    for name, value in (("aux_weight", -1.0), ("clip_grad_norm", -1.0), ("resize", -1)):
        with pytest.raises(SpecError, match=f"{name} must be 0 or more; got -1"):
            build(with_options(**{name: value}))
    with pytest.raises(SpecError, match=r"central squares .* resize must be 0; got 32"):
        build(with_options(whole_images=False, resize=32))
    with pytest.raises(SpecError, match=r"dropout must be in \[0, 1\); got 1"):
        build(with_options(dropout=1.0))
    with pytest.raises(DataError, match="unknown segmentation data set 'digits'"):
        Segmentation(replace(QUICK, data="digits"))
