"""Spherical K-means, and matching of clusters to classes (Kang et al. 2019, sec. 3.4).

    d(x, y) = ½ (1 − cos(x, y))
    repeat   cluster of x = argmin_k d(x, c_k);   c_k = Σ x/‖x‖ over its samples, normalized
    until    mean_k d(c_k, c_k before) < tolerance

The initial centers are those of the classes of the source. Clusters are matched to classes by the Hungarian method: the
one-to-one assignment with the smallest sum of distances between centers.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from anynorm.errors import DataError
from anynorm.lab.models.imprinting import class_weights

TOLERANCE = 0.005
MAX_ITERATIONS = 100


class Clusters(NamedTuple):
    """Clusters of samples.

    Attributes:
        centers: (k, d), of length 1.
        labels: the cluster of each sample, (n,).
        distances: the distance of each sample to the center of its cluster, (n,).
    """

    centers: Tensor
    labels: Tensor
    distances: Tensor


def cosine_distance(x: Tensor, y: Tensor) -> Tensor:
    """Return ½ (1 − cos) of every pair of rows, (n, m) for (n, d) and (m, d), in [0, 1]."""
    return (1 - normalize(x, dim=1) @ normalize(y, dim=1).T) / 2


def class_centers(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the normalized sum of the normalized features of each class, (num_classes, d).

    Raises:
        DataError: if a class has no sample.
    """
    counts = torch.bincount(labels, minlength=num_classes)
    if int(counts.min()) == 0:
        empty = " ".join(map(str, (counts == 0).nonzero()[:, 0].tolist()))
        raise DataError(f"every class must have at least one labeled sample; got none of class {empty}. Use more images.")
    return class_weights(features, labels, num_classes)


def spherical_kmeans(
    features: Tensor, initial_centers: Tensor, tolerance: float = TOLERANCE, max_iterations: int = MAX_ITERATIONS
) -> Clusters:
    """Cluster samples by the direction of their features.

    A cluster without samples is reset to its initial center; a warning is issued if it is empty at the end.

    Args:
        features: (n, d).
        initial_centers: (k, d).
        tolerance: stop when the mean distance between old and new centers is smaller.
        max_iterations: maximum number of updates of the centers.

    Raises:
        DataError: if the features are not finite.
    """
    if not bool(torch.isfinite(features).all()):
        raise DataError("features must be finite to be clustered; got NaN or infinity. Use a smaller learning rate.")
    initial = centers = normalize(initial_centers, dim=1)
    for _ in range(max_iterations):
        before, labels = centers, cosine_distance(features, centers).argmin(1)
        is_empty = torch.bincount(labels, minlength=len(initial)) == 0
        centers = torch.where(is_empty[:, None], initial, class_weights(features, labels, len(initial)))
        change = (1 - (centers * before).sum(1)).mean() / 2
        if float(change) < tolerance:
            break
    distances, labels = cosine_distance(features, centers).min(1)
    if empty := [k for k in range(len(initial)) if not bool((labels == k).any())]:
        listed = f"cluster {empty[0]} has" if len(empty) == 1 else f"clusters {' '.join(map(str, empty))} have"
        warnings.warn(f"{listed} no sample: the initial center is used, and no sample gets this class.", stacklevel=2)
    return Clusters(centers, labels, distances)


def match_clusters(centers: Tensor, class_centers: Tensor) -> Tensor:
    """Return the class of each cluster, (k,): the one-to-one assignment with the least sum of distances between centers."""
    from scipy.optimize import linear_sum_assignment

    _, classes = linear_sum_assignment(cosine_distance(centers, class_centers).double().cpu().numpy())
    return torch.from_numpy(classes).to(centers.device)
