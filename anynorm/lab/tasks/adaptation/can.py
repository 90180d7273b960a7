"""CAN, contrastive adaptation networks (Kang et al. 2019): the labels of the target are clusters, the loss contrasts classes.

Each loop, in eval mode:

    1. class centers of the source, with the norms of the source
    2. spherical K-means of the target's features, with the norms of the target, from these centers; see
       `anynorm.lab.tasks.adaptation.spherical_kmeans`
    3. clusters matched to classes by the Hungarian method
    4. only samples within `max_distance` of their center keep their label, and only classes with at least `min_samples` of them

Each step: cross entropy on a batch of the source + `cdd_weight` · CDD (see `cdd`) of `samples_per_class` images per
domain and class, of `classes_per_batch` random classes that kept their label.

The adaptation stops when the mean distance between the centers of a class in source and target is below `stop_distance`.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from anynorm.lab.tasks.adaptation.cdd import cdd_of_all_classes, cdd_of_sampled_classes
from anynorm.lab.tasks.adaptation.data import DomainPair
from anynorm.lab.tasks.adaptation.loops import LoopedAdaptation
from anynorm.lab.tasks.adaptation.options import CANOptions
from anynorm.lab.tasks.adaptation.spherical_kmeans import class_centers, cosine_distance, match_clusters, spherical_kmeans
from anynorm.lab.tasks.adaptation.task import SOURCE, TARGET
from anynorm.lab.training.config import Config
from anynorm.lab.training.task import Metrics

UNLABELED = -1
Layers = list[Tensor]


class CAN(LoopedAdaptation[CANOptions]):
    """Unsupervised domain adaptation by contrastive adaptation networks (CAN, Kang et al. 2019).

    The contrastive loss is a mean over the classes of a batch.

    Attributes:
        assignments: a buffer, the class of each training image of the target in this loop, (n,); −1 for none.
        center_distance: a buffer, the mean distance between the centers of a class in source and target in this loop.
    """

    assignments: Tensor
    center_distance: Tensor

    def __init__(self, config: Config, data: DomainPair | None = None) -> None:
        super().__init__(config, data)
        self.register_buffer("assignments", torch.full((len(self.target_images),), UNLABELED))
        self.register_buffer("center_distance", torch.ones(()))

    # Labels -------------------------------------------------------------------------------------------------------------------

    def assign_labels(self, progress: float) -> None:
        """Cluster the images of the target and assign classes to the clusters."""
        images, labels = self.data.train
        num_classes = self.data.num_classes
        centers = class_centers(self.outputs(images, SOURCE)[0], self.to_device(labels), num_classes)
        clusters = spherical_kmeans(self.outputs(self.target_images, TARGET)[0], centers)
        matched = match_clusters(clusters.centers, centers)
        classes = matched[clusters.labels]
        self.center_distance.copy_(cosine_distance(clusters.centers, centers)[range(num_classes), matched].mean())
        options = self.options
        self.assignments.copy_(filter_labels(classes, clusters.distances, options.max_distance, options.min_samples, num_classes))
        if len(set(self.assignments.tolist()) - {UNLABELED}) < 2:
            warnings.warn(
                f"fewer than 2 classes of the target have {options.min_samples} samples within max_distance="
                f"{options.max_distance} in loop {int(self.num_loops)}: it trains on the source alone. "
                "Use a larger max_distance.",
                stacklevel=2,
            )

    def is_adapted(self) -> bool:
        """Whether the centers of source and target are closer than `stop_distance`."""
        return float(self.center_distance) < self.options.stop_distance

    # Updates ------------------------------------------------------------------------------------------------------------------

    def adaptation_loss(self, source: Tensor, labels: Tensor, generator: torch.Generator) -> Metrics:
        """Return the cross entropy on the source + cdd_weight · CDD on a class-aware batch."""
        source_loss = self.metrics(self.forward_in(SOURCE, source)[1], labels)["loss"]
        assignments = self.assignments.cpu()
        labeled_fraction = (assignments >= 0).float().mean()
        classes = choose_classes(assignments, self.options.classes_per_batch, generator)
        if len(classes) < 2:
            return {"loss": source_loss, "source_loss": source_loss, "labeled_fraction": labeled_fraction}
        count = self.options.samples_per_class
        images, source_labels = self.data.train
        source_layers = self._layers(SOURCE, images, draw_per_class(source_labels, classes, count, generator))
        target_layers = self._layers(TARGET, self.target_images, draw_per_class(assignments, classes, count, generator))
        cdd = self.discrepancy(source_layers, target_layers)
        loss = source_loss + self.options.cdd_weight * cdd
        return {"loss": loss, "source_loss": source_loss, "cdd": cdd, "labeled_fraction": labeled_fraction}

    def discrepancy(self, source: Layers, target: Layers) -> Tensor:
        """Return CDD of the layers of a class-aware batch."""
        return cdd_of_sampled_classes(source, target)

    def _layers(self, domain: int, images: Tensor, indices: Tensor) -> Layers:
        """Return features and class probabilities of images (classes, samples), each (classes, samples, d)."""
        batch = self.data.standardize(self.to_device(images[indices.flatten()]))
        features, logits = self.forward_in(domain, batch)
        return [layer.float().reshape(*indices.shape, -1) for layer in (features, logits.softmax(1))]


class CANAllClasses(CAN):
    """Unsupervised domain adaptation by CAN (Kang et al. 2019), with the loss of the authors' code.

    The contrastive loss is divided by the number of all classes.
    """

    def discrepancy(self, source: Layers, target: Layers) -> Tensor:
        """Return CDD of the layers of a class-aware batch, divided by the number of all classes."""
        return cdd_of_all_classes(source, target, self.data.num_classes)


def filter_labels(labels: Tensor, distances: Tensor, max_distance: float, min_samples: int, num_classes: int) -> Tensor:
    """Return labels with −1 for samples at `max_distance` or farther, and for classes with fewer than `min_samples` others.

    >>> filter_labels(torch.tensor([0, 0, 1, 1]), torch.tensor([0.1, 0.2, 0.1, 0.4]), 0.3, 2, 2).tolist()
    [0, 0, -1, -1]
    """
    labels = torch.where(distances < max_distance, labels, UNLABELED)
    counts = torch.bincount(labels[labels >= 0], minlength=num_classes)
    return torch.where((labels >= 0) & (counts[labels.clamp(min=0)] >= min_samples), labels, UNLABELED)


def choose_classes(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return up to `count` random classes that have samples, in random order."""
    classes = torch.tensor(sorted(set(labels.tolist()) - {UNLABELED}), dtype=torch.long)
    return classes[torch.randperm(len(classes), generator=generator)[:count]]


def draw_per_class(labels: Tensor, classes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the indices of random samples of each class, (classes, count); with replacement if a class has fewer."""
    rows = []
    for label in classes.tolist():
        samples = (labels == label).nonzero()[:, 0]
        order = torch.randperm(len(samples), generator=generator)
        rows.append(samples[order.repeat(-(-count // len(samples)))[:count]])
    return torch.stack(rows)
