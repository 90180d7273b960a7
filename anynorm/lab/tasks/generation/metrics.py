"""Distances between generated and real images in the feature space of a network, computed by torchmetrics.

    FD            Fréchet distance of two Gaussians, ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½)              (Heusel et al. 2017)
    KD            squared maximum mean discrepancy with a cubic kernel, mean over subsets               (Bińkowski et al. 2018)
    class score   exp of the mean KL divergence of p(class | image) from p(class), mean over splits     (Salimans et al. 2016)

With the features of Inception they are the FID, the KID and, with its logits, the IS. Low distances and high scores are good.

    class accuracy   percentage of images that a classifier of real images assigns to the class they were generated for

The classifier is the feature network, if it has the classes of the data; otherwise it is a linear discriminant analysis of the
features of real images. Class score and class accuracy are also computed for real images: a generator that ignores
its class has the accuracy of chance, and a score by which real images are not better than noise measures nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.lab.tasks.generation.feature_networks import distance_name, metric_suffix, score_name
from anynorm.lab.tasks.generation.reference_features import Features

KERNEL_SUBSETS, KERNEL_SUBSET_SIZE = 50, 1000
CHUNK_SIZE = 10_000
"""Number of features that are converted to float64 at a time."""
SHRINKAGE = 0.01
"""Part of the mean variance that is added to the covariance of the linear discriminant analysis."""
REAL = "real "
"""Prefix of the names of metrics of real images."""
MIN_PER_CLASS = 2
"""Minimum number of images for which the distance within a class is defined."""


class PrecomputedFeatures(nn.Identity):
    """A feature extractor for torchmetrics that returns its input, so that one forward pass serves all metrics."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features


def frechet_distance(real: Tensor, fake: Tensor) -> float:
    """Return the Fréchet distance of Gaussians with the moments of real and fake features, each (n, d)."""
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(PrecomputedFeatures(real.shape[1]), sync_on_compute=False)
    for features, is_real in ((real, True), (fake, False)):
        for chunk in torch.split(features, CHUNK_SIZE):
            metric.update(chunk.double(), real=is_real)
    return float(metric.compute())


def kernel_distance(real: Tensor, fake: Tensor) -> float:
    """Return the kernel distance of real and fake features, each (n, d); the subsets are the same in every call."""
    from torchmetrics.image.kid import KernelInceptionDistance

    size = min(KERNEL_SUBSET_SIZE, len(real), len(fake))
    options: dict[str, Any] = {"subsets": KERNEL_SUBSETS, "subset_size": size, "sync_on_compute": False}
    with _ignore_torchmetrics_warnings():
        metric = KernelInceptionDistance(PrecomputedFeatures(real.shape[1]), **options)
    metric.update(real.float(), real=True)
    metric.update(fake.float(), real=False)
    with _fixed_random_numbers():
        return float(metric.compute()[0])


def class_score(logits: Tensor, splits: int) -> float:
    """Return the class score of logits (n, classes): at least 1, at most the number of classes."""
    from torchmetrics.image.inception import InceptionScore

    with _ignore_torchmetrics_warnings():
        metric = InceptionScore(PrecomputedFeatures(logits.shape[1]), splits=splits, sync_on_compute=False)
    metric.update(logits.double())
    with _ignore_torchmetrics_warnings(), _fixed_random_numbers():
        return float(metric.compute()[0])


def class_distances(real: Tensor, real_labels: Tensor, fake: Tensor, fake_labels: Tensor) -> dict[int, float]:
    """Return the Fréchet distance within each class that has at least two images of both kinds."""
    distances = {}
    for label in sorted(set(real_labels.tolist())):
        a, b = real[real_labels == label], fake[fake_labels == label]
        if min(len(a), len(b)) >= MIN_PER_CLASS:
            distances[label] = frechet_distance(a, b)
    return distances


def discriminant_accuracies(real: Features, fake: Features) -> tuple[float, float]:
    """Return the class accuracies in % of generated and of real images, by a linear discriminant analysis of real features.

    An image is assigned to the nearest class mean, in units of the covariance within classes. Means and covariance are those
    of every other real image; the accuracy of real images is that of the others.
    """
    x, labels = real.features[::2].double(), real.labels[::2]
    classes = torch.tensor(sorted(set(labels.tolist())))
    index = {int(label): position for position, label in enumerate(classes)}
    positions = torch.tensor([index[int(label)] for label in labels])
    means = torch.stack([x[positions == position].mean(0) for position in range(len(classes))])
    residuals = x - means[positions]
    covariance = residuals.T @ residuals / len(x)
    covariance = covariance + SHRINKAGE * covariance.trace() / len(covariance) * torch.eye(len(covariance), dtype=x.dtype)
    whitening = torch.linalg.inv(torch.linalg.cholesky(covariance)).T

    def accuracy(features: Tensor, targets: Tensor) -> float:
        nearest = torch.cdist(features.double() @ whitening, means @ whitening).argmin(1)
        return 100 * float((classes[nearest] == targets).double().mean())

    return accuracy(fake.features, fake.labels), accuracy(real.features[1::2], real.labels[1::2])


def class_accuracies(real: Features, fake: Features, *, has_classes: bool) -> tuple[float, float]:
    """Return the class accuracies in % of generated and of real images.

    Args:
        real: features of real images.
        fake: features of generated images.
        has_classes: whether the logits are those of the classes of the data; otherwise see `discriminant_accuracies`.
    """
    if not has_classes or real.logits is None or fake.logits is None:
        return discriminant_accuracies(real, fake)
    fake_hits, real_hits = (part.logits.argmax(1) == part.labels for part in (fake, real) if part.logits is not None)
    return 100 * float(fake_hits.double().mean()), 100 * float(real_hits.double().mean())


def compare_features(
    real: Features, fake: Features, network: str, *, score_splits: int, intra_class: bool, has_classes: bool
) -> tuple[dict[str, float], dict[int, float]]:
    """Return all metrics of generated images, and their distances within classes.

    Args:
        real: features of real images.
        fake: features of generated images.
        network: the name of the feature network, which is part of the names of metrics.
        score_splits: number of splits of the class score.
        intra_class: whether distances within classes are computed.
        has_classes: whether the logits of the network are those of the classes of the data.
    """
    suffix, name = metric_suffix(network), distance_name(network)
    warn_of_few_images(name, min(len(fake.features), len(real.features)), fake.features.shape[1])
    metrics = {
        name: frechet_distance(real.features, fake.features),
        ("KD" if suffix else "KID") + suffix: kernel_distance(real.features, fake.features),
    }
    score = score_name(network)
    for prefix, part in (("", fake), (REAL, real)):
        if part.logits is not None:
            metrics[prefix + score] = class_score(part.logits, score_splits)
    accuracies = class_accuracies(real, fake, has_classes=has_classes)
    metrics |= {f"{prefix}class accuracy{suffix}": value for prefix, value in zip(("", REAL), accuracies, strict=True)}
    distances = class_distances(real.features, real.labels, fake.features, fake.labels) if intra_class else {}
    if distances:
        smallest = min(int((labels == label).sum()) for labels in (real.labels, fake.labels) for label in distances)
        warn_of_few_images(f"intra-class {name}", smallest, fake.features.shape[1])
        metrics[f"intra-class {name}"] = sum(distances.values()) / len(distances)
    return metrics, distances


def warn_of_few_images(name: str, num_images: int, num_features: int) -> None:
    """Warn if images are too few for a covariance of full rank."""
    if num_images <= num_features:
        warnings.warn(
            f"{name} from {num_images} images is biased: the covariance of {num_features} features needs more than "
            f"{num_features} images (papers use 50000 in all). Set num_generated and num_reference.",
            stacklevel=2,
        )


@contextmanager
def _ignore_torchmetrics_warnings() -> Iterator[None]:
    """Silence the warnings of torchmetrics that features are kept in memory, and that one split has no standard deviation."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Metric `.*` will save all extracted features")
        warnings.filterwarnings("ignore", message=r"std\(\): degrees of freedom")
        yield


@contextmanager
def _fixed_random_numbers() -> Iterator[None]:
    """Seed the global generator inside a `with` block and restore it on exit."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield
