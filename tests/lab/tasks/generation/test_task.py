"""Generation: losses, norms of the generator, distances, pictures, and what is refused."""

import copy
import json
import re
import warnings
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.io.pictures import encode_png
from anynorm.lab.comparison.check import check_task
from anynorm.lab.comparison.comparison import Comparison
from anynorm.lab.data.datasets import load_cached
from anynorm.lab.data.folder import choose_indices
from anynorm.lab.tasks import make_task
from anynorm.lab.tasks.generation import feature_networks
from anynorm.lab.tasks.generation import reference_features as reference_features_module
from anynorm.lab.tasks.generation.class_gradients import spread_classes
from anynorm.lab.tasks.generation.feature_networks import Inception, is_classifier_of, make_feature_network, metric_suffix
from anynorm.lab.tasks.generation.metrics import class_accuracies, class_distances, class_score, frechet_distance, kernel_distance
from anynorm.lab.tasks.generation.reference_features import Features, extract_features, reference_features
from anynorm.lab.tasks.generation.sampling import generate, is_collapsed, recalibrated, to_uint8
from anynorm.lab.tasks.generation.task import EVALUATION_SEED, Generation
from anynorm.lab.tasks.run import load_run, make_trainer, run, train
from anynorm.lab.training.config import Config
from anynorm.lab.training.store import Store
from anynorm.layers.norm import Norm
from tests.distributed import train_in_two_processes
from tests.helpers import same

FEATURES = "tests.lab.tasks.generation.test_task:tiny_features"
OPTIONS = {"n_dis": 2, "features": FEATURES, "num_generated": 60, "num_reference": 200, "score_splits": 2}
QUICK = Config(
    task="generation", model="sngan", width=1 / 32, norm="sabn@K", num_train=64, batch_size=16, epochs=2, lr=2e-4, num_evals=2,
    options=OPTIONS,
)  # fmt: skip


class TinyFeatures(nn.Module):
    """Features and logits by fixed random projections of 8 × 8 images."""

    label = "projection"
    projection: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("projection", torch.randn(64, 12, generator=torch.Generator().manual_seed(0)))

    def forward(self, images):
        x = images[:, :1].float().flatten(1) / 255 @ self.projection
        return x[:, :5], x[:, 2:]


class MeanFeatures(nn.Module):
    """The mean of an image, 2048 times."""

    def forward(self, x):
        return x.mean((1, 2, 3))[:, None].expand(-1, 2048)


def tiny_features():
    return TinyFeatures()


def changed(**options):
    return replace(QUICK, options=OPTIONS | options)


# Training -------------------------------------------------------------------------------------------------------------------


def test_the_losses_are_those_of_the_paper():
    trainer: Any = make_trainer(changed(n_dis=1))
    task = copy.deepcopy(trainer.task)
    task.sampler = trainer.task.sampler
    trainer.training_step()
    trainer.evaluate()
    images, labels = task.training_batch(0)
    random = task.sampler.generator(0)
    z, fake_labels = task.draw(16, random)
    with anynorm.condition(task.generator, fake_labels):
        fakes = task.generator(z)
    real, fake = (task.discriminator(*batch).double() for batch in ((images, labels), (fakes, fake_labels)))
    loss = sum(max(0.0, 1 - value) for value in real.tolist()) / 16 + sum(max(0.0, 1 + value) for value in fake.tolist()) / 16
    assert trainer.curve.points[0]["train_discriminator_loss"] == pytest.approx(loss, rel=1e-5)
    assert images.min() >= -1
    assert images.max() <= 1
    # the loss of the generator, with the updated discriminator and other latent vectors
    z, fake_labels = task.draw(16, random)
    with anynorm.condition(task.generator, fake_labels):
        loss = -trainer.task.discriminator.train()(task.generator(z), fake_labels).mean()
    assert trainer.curve.points[0]["train_generator_loss"] == pytest.approx(loss.item(), rel=1e-2)  # u moved once more


def test_only_the_generator_learns_in_its_update():
    trainer: Any = make_trainer(replace(changed(n_dis=1), lr=1e-3))
    trainer.update = Mock(wraps=trainer.update)
    trainer.training_step()
    assert trainer.update.call_args_list == [call("discriminator"), call("generator")]
    assert all(parameter.grad is None for parameter in trainer.task.parameters())
    assert all(parameter.requires_grad for parameter in trainer.task.discriminator.parameters())


@pytest.mark.parametrize(
    ("norm", "last"),
    [
        ("ccbn@10", "bn"),
        ("sabn@K", "bn"),
        ("hn.sa@K", "bn/en"),
        ("sn.cc@K", "in+ln+bn"),
        ("gn:4.cc@K", "gn:4"),
        ("auxbn@K", "bn"),
    ],
)
def test_norms_of_blocks_take_classes_and_the_last_one_does_not(norm, last):
    trainer: Any = make_trainer(replace(QUICK, norm=norm))
    norms = [module for module in trainer.task.generator.modules() if isinstance(module, Norm)]
    assert [module.takes_condition for module in norms] == [True, True, False]
    assert str(norms[-1].norm_spec) == last
    before = norms[0].class_weight.detach().clone()
    trainer.training_step()
    assert not torch.equal(norms[0].class_weight, before)


def test_class_scales_start_as_in_the_paper():
    task: Any = make_task(replace(QUICK, width=1.0))
    norm = next(module for module in task.generator.modules() if isinstance(module, Norm))
    assert norm.class_weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert norm.class_weight.mean().item() == pytest.approx(1, abs=2e-3)
    same(norm.class_bias, torch.zeros_like(norm.class_bias))
    same(norm.weight, torch.ones_like(norm.weight))


def test_a_generator_without_conditional_norms_is_a_baseline_with_a_warning():
    trainer: Any = make_trainer(replace(QUICK, norm="bn"))
    with pytest.warns(UserWarning, match=r"no norm of the generator takes a class \(norm bn\).* Usable: ccbn@K sabn@K"):
        trainer.training_step()


def test_the_gradient_balance_is_recorded_per_block_and_mode_and_changes_nothing():
    plain: Any
    measured: Any
    plain, measured = (train(changed(balance_interval=interval)).trainer for interval in (0, 3))
    for name, value in plain.task.state_dict().items():
        assert torch.equal(value, measured.task.state_dict()[name]), name
    names = {name for name in measured.curve.points[-1] if name.startswith("train_g_inter")}
    assert names == {f"train_g_inter {stage} ({mode} mode)" for stage in ("linear", "blocks.0") for mode in ("train", "eval")}
    assert measured.curve.points[-1]["train_grad_norm_std blocks.0 (eval mode)"] > 0
    assert not any("g_inter" in name for name in plain.curve.points[-1])


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_gradient_balance_of_single_latents_takes_the_cosine_before_the_mean(mode):
    task: Any = make_trainer(replace(changed(balance_batch_size=1, balance_draws=3), batch_size=8)).task
    metrics = task.gradient_balance(torch.Generator().manual_seed(0))
    random, cosines, norms = torch.Generator().manual_seed(0), [], []
    generator = copy.deepcopy(task.generator).double().train(mode == "train")
    discriminator = copy.deepcopy(task.discriminator).double().eval()
    for _ in range(3):
        z, context = task.draw(8, random)
        gradients = []
        for label in range(10):
            labels = torch.cat([torch.tensor([label]), context[1:]])
            with anynorm.condition(generator, labels if mode == "train" else labels[:1]):
                images = generator(z.double() if mode == "train" else z[:1].double())
            loss = -discriminator(images[:1], labels[:1])
            gradients.append(torch.autograd.grad(loss.sum(), generator.linear.weight)[0].flatten())
        norms.append([float(gradient.norm()) for gradient in gradients])
        pairs = [(a, b) for a in range(10) for b in range(a)]
        cosines.append(np.mean([float(nn.functional.cosine_similarity(gradients[a], gradients[b], 0)) for a, b in pairs]))
    assert float(metrics[f"g_inter linear ({mode} mode)"]) == pytest.approx(np.mean(cosines), abs=1e-4)
    expected = np.std(np.mean(norms, 0), ddof=1)
    assert float(metrics[f"grad_norm_std linear ({mode} mode)"]) == pytest.approx(expected, rel=1e-2)


def test_the_compared_classes_are_spread_over_all_labels():
    assert spread_classes(140, 10) == list(range(0, 140, 14))
    assert spread_classes(140, 0) == list(range(140))
    assert spread_classes(4, 10) == [0, 1, 2, 3]


def test_a_collapsed_generator_is_reported_with_its_step(tmp_path):
    task: Any = make_task(QUICK)
    assert isinstance(task, Generation)
    nn.init.zeros_(task.generator.output_conv.weight)
    task.generator.output_conv.requires_grad_(False)
    run(QUICK, tmp_path, task=task)
    record = Store(tmp_path).record(QUICK.id)
    assert record.status == "failed"
    assert record.note == "the generator has collapsed after step 2: all images of each class are equal"


def test_one_image_per_class_is_a_collapse_and_one_image_per_label_is_not():
    images, labels = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1), torch.arange(6) % 3
    assert is_collapsed(images % 3, labels)
    assert not is_collapsed(images, labels)
    assert not is_collapsed(images[:3], labels[:3])


# Evaluation -----------------------------------------------------------------------------------------------------------------


def test_an_averaged_generator_is_evaluated_with_statistics_of_its_own():
    trainer: Any = train(replace(QUICK, ema_decay=0.9, lr=1e-2)).trainer
    with trainer.evaluation_networks() as task, torch.no_grad():
        random = torch.Generator().manual_seed(EVALUATION_SEED + 1)
        batches = [task.draw(32, random) for _ in range(16)]
        generator, inputs = copy.deepcopy(task.generator), []
        for module in generator.modules():
            module.train(isinstance(module, Norm))
        generator.output_norm.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        for batch in batches:
            generate(generator, *batch)
        copied: Any = recalibrated(task.generator, batches)
        before, after = (network.output_norm.running_mean for network in (task.generator, copied))
        same(after, torch.cat(inputs).mean((0, 2, 3)))
        assert (after - before).abs().max() > 0.01  # those of the average are of the weights that it averages
        z, labels = torch.randn(4, 128), torch.arange(4)
        same(task.sample(labels, z), to_uint8(generate(copied, z, labels)))
        task.options = replace(task.options, recalibration_batches=0)
        same(task.sample(labels, z), to_uint8(generate(task.generator, z, labels)))


def test_the_frechet_distance_of_gaussians_is_the_closed_form():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(500, 4, generator=random, dtype=torch.float64)
    x = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T))).T  # mean 0 and covariance 1, exactly
    std, mean = torch.tensor([1.0, 2.0, 0.5, 3.0]), torch.tensor([0.0, 1.0, -2.0, 0.5])
    expected = float((mean**2).sum() + ((std - 1) ** 2).sum())
    assert frechet_distance(x, x * std + mean) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(x, x.flip(0)) == pytest.approx(0, abs=1e-9)


def test_distances_agree_with_torchmetrics_on_images_and_with_scipy():
    from torchmetrics.image.fid import FrechetInceptionDistance

    class Extractor(TinyFeatures):
        num_features = 5

        def forward(self, images):
            return super().forward(images)[0]

    data = load_cached("digits", 64)
    real, fake = data.train[0][:300], data.train[0][300:500].flip(-1)
    own = [extract_features(TinyFeatures(), [(x, torch.zeros(len(x)))]).features for x in (real, fake)]
    metric = FrechetInceptionDistance(Extractor(), input_img_size=(1, 8, 8))
    metric.update(real, real=True)
    metric.update(fake, real=False)
    assert frechet_distance(*own) == pytest.approx(float(metric.compute()), rel=1e-6)
    a, b = (features.double().numpy() for features in own)
    root = scipy.linalg.sqrtm(np.cov(a.T) @ np.cov(b.T)).real
    naive = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(np.cov(a.T) + np.cov(b.T) - 2 * root)
    assert frechet_distance(*own) == pytest.approx(naive, rel=1e-6)


def test_the_kernel_distance_is_the_unbiased_discrepancy_of_a_cubic_kernel():
    random = torch.Generator().manual_seed(0)
    a, b = torch.randn(40, 3, generator=random), 1 + torch.randn(40, 3, generator=random)

    def mean_kernel(x, y, leave_out_diagonal):
        table = (x.double() @ y.double().T / 3 + 1) ** 3
        count = table.numel()
        return ((table.sum() - table.trace()) / (count - len(x)) if leave_out_diagonal else table.mean()).item()

    expected = mean_kernel(a, a, True) + mean_kernel(b, b, True) - 2 * mean_kernel(a, b, False)
    before = torch.get_rng_state()
    assert kernel_distance(a, b) == pytest.approx(expected, rel=1e-4)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_class_score_is_one_for_one_class_and_their_number_for_all():
    labels = torch.arange(200) % 5
    certain = 100.0 * nn.functional.one_hot(labels, 5)
    assert class_score(torch.zeros(200, 5), 1) == pytest.approx(1)
    assert class_score(certain, 1) == pytest.approx(5, rel=1e-3)
    assert class_score(certain[labels == 0], 1) == pytest.approx(1, rel=1e-3)


def test_distances_within_classes_see_classes_that_are_mixed_up():
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    x = torch.randn(400, 2, generator=random) + 4.0 * labels[:, None]
    assert max(class_distances(x, labels, x, labels).values()) == pytest.approx(0, abs=1e-6)
    assert min(class_distances(x, labels, x, 1 - labels).values()) == pytest.approx(32, rel=0.2)
    assert list(class_distances(x, labels, x[:3], labels[:3])) == [0]  # one image of class 1 has no covariance


def test_class_accuracies_are_those_of_the_logits_or_of_a_linear_discriminant_of_real_features():
    random = torch.Generator().manual_seed(0)
    labels = (torch.arange(400) // 2) % 4
    x = torch.randn(400, 3, generator=random) + 10.0 * labels[:, None] * torch.tensor([1.0, 0, 0])
    logits = nn.functional.one_hot((labels + (torch.arange(400) < 100)) % 4, 4).float()  # wrong for the first quarter
    real = Features(x, labels, logits)
    fake = Features(x, torch.zeros_like(labels), logits)  # a generator that ignores its class
    assert class_accuracies(real, fake, has_classes=True) == (24.5, 75.0)  # 98 of 400 logits are largest for class 0
    assert class_accuracies(real, fake, has_classes=False) == pytest.approx((25.0, 100.0), abs=1)


def test_inception_has_logits_without_bias_if_the_user_has_its_last_layer(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    assert feature_networks.inception_logits_weight() is None
    path = tmp_path / feature_networks.LOGITS_FILE
    path.parent.mkdir()
    torch.save({"fc.weight": torch.zeros(1000, 2048)}, path)
    with pytest.raises(anynorm.DataError, match=r"must have fc.weight of shape \(1008, 2048\).* got \(1000, 2048\)"):
        feature_networks.inception_logits_weight()
    weight = torch.randn(1008, 2048)
    torch.save({"fc.weight": weight, "fc.bias": torch.ones(1008)}, path)
    monkeypatch.setattr(torch.jit, "load", lambda path: MeanFeatures())
    network = Inception(tmp_path, feature_networks.inception_logits_weight())
    features, logits = network(torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8))
    same(logits, features @ weight.T)
    assert Inception(tmp_path)(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).shape == (1, 2048)


def test_images_are_rounded_to_uint8():
    assert to_uint8(torch.tensor([-1.0, 0.0, 1.0, 2.0])).tolist() == [0, 128, 255, 255]


def test_metrics_carry_the_name_of_their_network(tmp_path):
    metrics = train(QUICK, tmp_path).trainer.curve.points[-1]
    suffix = " (projection)"
    names = {name.removeprefix("test_") for name in metrics if name.startswith("test_")}
    assert names == {
        f"FD{suffix}", f"KD{suffix}", f"class score{suffix}", f"class accuracy{suffix}", f"intra-class FD{suffix}",
        f"real class score{suffix}", f"real class accuracy{suffix}",
    }  # fmt: skip
    assert Generation.metric_for(QUICK).name == f"FD{suffix}"
    assert Generation.metric_for(changed(features="inception")).name == "FID"
    assert Generation.metric_for(changed(features="resnet56")).name == "FD (ResNet-56)"
    files = sorted(path.name for path in (tmp_path / "artifacts").rglob("*.*"))
    assert files == ["intra-class.json", "step-00000002.png", "step-00000004.png"]
    with Image.open(tmp_path / "artifacts" / "samples" / files[1]) as image:
        assert image.size == (6 * 9 - 1, 10 * 9 - 1)  # 60 images of 10 classes, one row per class
    assert len(json.loads((tmp_path / "artifacts" / files[0]).read_text())[f"intra-class FD{suffix}"]) == 10


def test_samples_of_a_stored_run_have_the_classes_asked_for(tmp_path):
    run(QUICK, tmp_path)
    task: Any = load_run(tmp_path, QUICK.id)
    z = torch.randn(4, 128)
    zeros, mixed = task.sample(torch.zeros(4, dtype=torch.long), z), task.sample(torch.tensor([0, 1, 0, 1]), z)
    assert zeros.dtype == torch.uint8
    assert torch.equal(zeros[::2], mixed[::2])
    assert not torch.equal(zeros[1::2], mixed[1::2])
    with pytest.raises(anynorm.DataError, match=r"labels must be in \[0, 10\); got values from 0 to 10"):
        task.sample(torch.tensor([0, 10]))
    with pytest.raises(anynorm.DataError, match=r"z must be of shape \(2, 128\); got \(2, 64\)"):
        task.sample(torch.tensor([0, 1]), torch.randn(2, 64))


@pytest.mark.slow
def test_processes_share_an_evaluation(tmp_path):
    config = replace(QUICK, devices=2, batch_size=8, norm="sn.cc@K")
    train_in_two_processes([config], tmp_path)
    stored = Store(tmp_path).record(config.id).metrics
    assert list(Store(tmp_path).folder(config.id).rglob("*.png"))
    task = load_run(tmp_path, config.id)
    with torch.no_grad():
        metrics = task.evaluate()
    for name, value in metrics.items():
        assert stored[f"test_{name}"] == pytest.approx(value, rel=0.02), name  # recalibrated on the batches of both processes


# Feature networks -----------------------------------------------------------------------------------------------------------


def test_the_classifier_is_trained_once_and_tells_classes_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    monkeypatch.setattr(feature_networks, "CLASSIFIER_STEPS", 60)
    feature_networks._classifier.cache_clear()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with torch.no_grad():
        network = make_feature_network(QUICK, "classifier")
    assert torch.equal(torch.get_rng_state(), state)
    data = load_cached("digits", 64)
    features, labels, logits = extract_features(network, [data.test])
    assert features.shape == (len(labels), 64)
    assert float((logits.argmax(1) == labels).float().mean()) > 0.8
    feature_networks._classifier.cache_clear()
    monkeypatch.setattr(feature_networks, "Trainer", None)  # a second call reads the file
    again = make_feature_network(QUICK, "classifier")
    assert torch.equal(extract_features(again, [data.test]).features, features)
    feature_networks._classifier.cache_clear()


def test_reference_features_are_those_of_images_of_all_classes_and_are_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    data, cpu = load_cached("digits", 64), torch.device("cpu")
    every = reference_features(QUICK, FEATURES, 0, cpu)
    same(every.features, TinyFeatures()(data.train[0])[0])
    assert torch.equal(every.labels, data.train[1])
    some = reference_features(QUICK, FEATURES, 130, cpu)
    chosen = choose_indices(len(data.train[0]), 130)
    same(some.features, every.features[chosen])
    assert torch.equal(some.labels, every.labels[chosen])
    monkeypatch.setattr(reference_features_module, "extract_features", None)  # read, not computed
    assert torch.equal(reference_features(QUICK, FEATURES, 130, cpu).features, some.features)


def test_chosen_images_have_all_classes_of_a_folder_that_is_sorted_by_class(folder):
    labels = torch.cat([labels for _, labels in load_cached(f"stream:{folder}", 8).train_batches(10, 20)])
    assert len(labels) == 20
    assert len(set(labels.tolist())) == 2


def test_images_are_resized_for_inception_as_tensorflow_did():
    x = torch.tensor([[0.0, 4.0]]).expand(1, 1, 2, 2)
    same(feature_networks._resize_tf(x, 4)[0, 0, 0], torch.tensor([0.0, 2.0, 4.0, 4.0]))
    same(feature_networks._resize_tf(x.transpose(2, 3), 4)[0, 0, :, 0], torch.tensor([0.0, 2.0, 4.0, 4.0]))
    x = torch.randn(1, 3, 5, 7)
    same(feature_networks._resize_tf(x, 1)[..., 0, 0], x[..., 0, 0])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            "resnet57",
            r"unknown feature network 'resnet57'\. Did you mean resnet56 or resnet44\? Usable: classifier .* package",
        ),
        ("tests.lab.tasks.generation.test_networks:single", "must return an nn.Module with the attribute label"),
    ],
)
def test_unknown_feature_networks_are_refused(features, message):
    with pytest.raises(anynorm.DataError, match=message):
        metric_suffix(features)


def test_the_accuracy_of_classes_needs_a_network_that_has_these_classes():
    logits = torch.zeros(3, 10)
    assert is_classifier_of("digits", "classifier", 10, logits)
    assert is_classifier_of("cifar10@16", "resnet20", 10, logits)
    assert is_classifier_of("digits", FEATURES, 10, logits)
    assert not is_classifier_of("digits", "resnet20", 10, logits)
    assert not is_classifier_of("digits", "classifier", 12, logits)
    assert not is_classifier_of("digits", "inception", 10, None)


def test_a_missing_inception_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(feature_networks, "find_spec", lambda name: None)
    with pytest.raises(anynorm.DataError, match=re.escape("pip install 'anynorm[generation]'")):
        make_feature_network(QUICK, "inception")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_inception_gets_three_channels_in_its_own_range(tmp_path):
    path = tmp_path / "network.pt"

    class Pixels(nn.Module):
        def forward(self, x):
            return x[:, :, 0, 0]

    torch.jit.trace(Pixels(), torch.zeros(1, 3, 299, 299)).save(path)
    features = Inception(path)(torch.full((2, 1, 8, 8), 255, dtype=torch.uint8))
    same(features, torch.full((2, 3), 127 / 128))


def test_too_few_images_are_warned_about():
    with pytest.warns(UserWarning, match=r"FD \(projection\) from 5 images is biased: .* needs more than 5 images"):
        make_trainer(changed(num_generated=5, intra_class=False)).evaluate()


# What is refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(QUICK, norm="sabn@3"), "sabn@3 has 3 classes; the data have 10. Usable: @10 or @K"),
        (
            replace(changed(shared_embedding=True), model="biggan"),
            "needs shared_embedding=true, .* got sabn@K and shared_embedding=true",
        ),
        (replace(QUICK, norm="bn.style"), "needs shared_embedding=true, .* got bn.style and shared_embedding=false"),
        (changed(num_generated=1), "num_generated must be at least 2; got 1"),
        (changed(recalibration_batches=-1), "recalibration_batches must be 0 or more; got -1"),
        (changed(beta1=2.0), r"beta1 must be in \[0, 1\); got 2.0"),
        (replace(QUICK, grad_accum_steps=2), "generation takes n_dis batches per step; grad_accum_steps must be 1, got 2"),
        (changed(n_dis=0), "n_dis must be at least 1; got 0"),
    ],
)
def test_settings_without_meaning_are_refused(config, message):
    with pytest.raises(anynorm.SpecError, match=message):
        make_task(config)


class WrongSize(nn.Module):
    latent_size = 4

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 16), nn.BatchNorm2d(1)

    def forward(self, z):
        return self.norm(self.linear(z).unflatten(1, (1, 4, 4)))


class WrongLogits(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images, labels):
        return images


def wrong_size(shape):
    return WrongSize(), anynorm.lab.tasks.generation.networks.build_gan("sngan", shape, 1 / 32).discriminator


def wrong_logits(shape):
    return anynorm.lab.tasks.generation.networks.build_gan("sngan", shape, 1 / 32).generator, WrongLogits()


class TakesLabels(nn.Module):
    """A generator that passes labels to its norm."""

    latent_size = 4

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 64), nn.BatchNorm2d(1)

    def forward(self, z, labels):
        return self.norm(self.linear(z).unflatten(1, (1, 8, 8)), labels).tanh()


def takes_labels(shape):
    return TakesLabels(), anynorm.lab.tasks.generation.networks.build_gan("sngan", shape, 1 / 32).discriminator


def one_argument(shape):
    return TakesLabels(), nn.Linear(1, 1)


def test_a_generator_may_take_labels():
    config = replace(QUICK, model="tests.lab.tasks.generation.test_task:takes_labels")
    trainer = train(config).trainer
    z, labels = torch.randn(8, 4), torch.arange(8)
    generator: Any = trainer.task.get_submodule("generator").eval()
    same(generate(generator, z, labels), generator(z, labels))
    assert isinstance(generator.norm, Norm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it needs no norm with classes to tell them apart
        train(replace(config, norm="bn", epochs=1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one_argument", r"must take images and labels: forward\(images, labels\)"),
        ("wrong_size", r"must return images of shape \(16, 1, 8, 8\); got \(16, 1, 4, 4\)"),
        ("wrong_logits", r"must return one logit per image, \(16,\); got \(16, 1, 8, 8\)"),
    ],
)
def test_a_pair_that_does_not_fit_the_images_is_refused(name, message):
    trainer: Any = make_trainer(replace(QUICK, model=f"tests.lab.tasks.generation.test_task:{name}"))
    with pytest.raises(anynorm.DataError, match=message):
        trainer.task.check()


@pytest.fixture
def folder(tmp_path):
    random = torch.Generator().manual_seed(0)
    for label, brightness in (("dark", 60), ("light", 255)):
        (tmp_path / "images" / label).mkdir(parents=True)
        for index in range(40):
            image = torch.randint(0, brightness, (3, 8, 8), dtype=torch.uint8, generator=random)
            (tmp_path / "images" / label / f"{index}.png").write_bytes(encode_png(image))
    return tmp_path / "images"


def test_streamed_images_give_the_run_of_images_in_memory(folder):
    streamed, in_memory = (
        train(replace(QUICK, data=f"{kind}:{folder}", image_size=8, num_train=None)).trainer for kind in ("stream", "folder")
    )
    assert streamed.curve.points == in_memory.curve.points


def test_norms_of_generators_are_compared_on_a_folder_of_images_by_class(folder, tmp_path):
    arguments = ["compare", "--task", "generation", "--data", f"folder:{folder}", "--width", 1 / 32, "--seeds", 1]
    arguments += ["--batch-sizes", 16, "--epochs", 1, "--runs", tmp_path / "runs", "--processes", 1]
    for setting in ("image_size=8", f"features={FEATURES}", "num_generated=40", "score_splits=2"):
        arguments += ["--set", setting]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert "FD (projection)" in result.output
    page = (tmp_path / "runs" / "report.html").read_text()
    pictures = list((tmp_path / "runs").rglob("*.png"))
    assert len({picture.parents[2] for picture in pictures}) == 2  # one run per norm
    assert page.count("data:image/png;base64,") == len(pictures)
    store = Store(tmp_path / "runs")
    assert {store.config(row.id).norm for row in store.runs()} == {"ccbn@K", "sabn@K"}


def test_a_comparison_may_have_norms_that_need_a_shared_embedding(tmp_path):
    base = replace(changed(shared_embedding=True), model="biggan", norm="bn.style")
    check_task(Comparison(base, ["bn.style"], [16], root=tmp_path))
    with pytest.raises(anynorm.SpecError, match=r"needs shared_embedding=true, .* got ccbn@K"):
        check_task(Comparison(base, ["ccbn@K"], [16], root=tmp_path))
