"""Spherical K-means against a naive loop, invariance to the length of features, and the Hungarian matching."""

import itertools
import math

import numpy as np
import pytest
import torch

import anynorm
from anynorm.lab.tasks.adaptation.spherical_kmeans import class_centers, cosine_distance, match_clusters, spherical_kmeans


def distance(x, y):
    return (1 - sum(a * b for a, b in zip(x, y, strict=True)) / (math.hypot(*x) * math.hypot(*y))) / 2


def direction(points):
    total = [
        sum(value / math.hypot(*point) for value, point in zip(column, points, strict=True))
        for column in zip(*points, strict=True)
    ]
    return [value / math.hypot(*total) for value in total]


def nearest(x, centers):
    return min(range(len(centers)), key=lambda k: distance(x, centers[k]))


def naive_lloyd(points, centers, tolerance):
    """Return labels and centers of Lloyd's algorithm on the sphere, with loops."""
    initial = [direction([center]) for center in centers]
    centers = initial
    while True:
        labels = [nearest(x, centers) for x in points]
        members = [[x for x, label in zip(points, labels, strict=True) if label == k] for k in range(len(centers))]
        new = [direction(group) if group else initial[k] for k, group in enumerate(members)]
        change = sum(distance(a, b) for a, b in zip(new, centers, strict=True)) / len(new)
        centers = new
        if change < tolerance:
            return [nearest(x, centers) for x in points], centers


def samples(seed, count=60, dimensions=5, clusters=4, spread=0.6):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(clusters, dimensions, generator=generator, dtype=torch.float64)
    labels = torch.arange(count) % clusters
    noise = torch.randn(count, dimensions, generator=generator, dtype=torch.float64)
    initial = means + 0.8 * torch.randn(clusters, dimensions, generator=generator, dtype=torch.float64)
    return means[labels] + spread * noise, initial


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tolerance", [0.005, 1e-9])
@pytest.mark.filterwarnings("ignore:clusters? .* no sample")
def test_clusters_are_those_of_a_naive_loop(seed, tolerance):
    features, initial = samples(seed)
    clusters = spherical_kmeans(features, initial, tolerance)
    labels, centers = naive_lloyd(features.tolist(), initial.tolist(), tolerance)
    assert clusters.labels.tolist() == labels
    torch.testing.assert_close(clusters.centers, torch.tensor(centers, dtype=torch.float64))
    expected = [distance(x, centers[label]) for x, label in zip(features.tolist(), labels, strict=True)]
    torch.testing.assert_close(clusters.distances, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:clusters? .* no sample")
def test_clusters_do_not_depend_on_the_length_of_features():
    features, initial = samples(0)
    lengths = torch.linspace(1e-3, 1e3, len(features), dtype=torch.float64)[:, None]
    one, other = spherical_kmeans(features, initial), spherical_kmeans(features * lengths, 7 * initial)
    assert torch.equal(one.labels, other.labels)
    torch.testing.assert_close(one.centers, other.centers)
    labels = torch.arange(len(features)) % 4
    torch.testing.assert_close(class_centers(features, labels, 4), class_centers(features * lengths, labels, 4))


def test_an_empty_cluster_keeps_its_initial_center_with_a_warning():
    features = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0]])
    initial = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    with pytest.warns(UserWarning, match="cluster 2 has no sample: the initial center is used, and no sample gets this class"):
        clusters = spherical_kmeans(features, initial)
    torch.testing.assert_close(clusters.centers[2], torch.tensor([-1.0, 0.0]))
    assert clusters.labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_the_matching_is_the_best_of_all_permutations(seed):
    generator = torch.Generator().manual_seed(seed)
    clusters, classes = (torch.randn(4, 3, generator=generator) for _ in range(2))
    cost = cosine_distance(clusters, classes).numpy()
    best = min(itertools.permutations(range(4)), key=lambda p: sum(cost[k, p[k]] for k in range(4)))
    assert match_clusters(clusters, classes).tolist() == list(best)


def test_a_cyclic_permutation_of_clusters_is_undone():
    centers = torch.eye(5)
    order = torch.tensor([1, 2, 3, 4, 0])  # not an involution
    classes = match_clusters(centers[order], centers)
    assert torch.equal(classes, order)
    assert np.allclose(cosine_distance(centers, -centers).diagonal(), 1)


def test_features_that_cannot_be_clustered_are_refused():
    with pytest.raises(anynorm.DataError, match="features must be finite to be clustered; got NaN or infinity"):
        spherical_kmeans(torch.tensor([[1.0, math.nan]]), torch.eye(2))
    with pytest.raises(anynorm.DataError, match="at least one labeled sample; got none of class 1 3"):
        class_centers(torch.eye(3), torch.tensor([0, 2, 0]), 4)
