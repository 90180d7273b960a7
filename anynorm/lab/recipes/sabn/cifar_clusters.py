"""CIFAR-10 with 140 classes: each of its ten classes divided into 14 clusters of similar images.

It stands for data sets with many classes, of which a batch holds few. The clusters are those of k-means on features of the
pretrained ResNet-20.
"""

from __future__ import annotations

import torch

from anynorm.lab.data import load_cached
from anynorm.lab.data.datasets import Split
from anynorm.lab.data.folder import choose_indices
from anynorm.lab.tasks.generation.reference_features import reference_features
from anynorm.lab.training.config import Config

DATA, NUM_IMAGES, NUM_TEST, CLUSTERS = "cifar10@16", 15_000, 1000, 14


def cifar10_140() -> tuple[Split, Split]:
    """Return 14000 training and 1000 test images of 16 × 16 pixels with labels below 140, all training images of CIFAR-10."""
    from sklearn.cluster import KMeans

    config = Config(data=DATA)
    data = load_cached(config.data, config.image_size)
    features, labels, _ = reference_features(config, "resnet20", NUM_IMAGES, torch.device("cpu"))
    clustered = torch.empty_like(labels)
    for label in range(10):
        members = labels == label
        clusters = KMeans(CLUSTERS, n_init=1, random_state=0).fit_predict(features[members].double().numpy())
        clustered[members] = CLUSTERS * label + torch.as_tensor(clusters, dtype=labels.dtype)
    images = data.train[0][choose_indices(len(data.train[0]), NUM_IMAGES)]
    return (images[:-NUM_TEST], clustered[:-NUM_TEST]), (images[-NUM_TEST:], clustered[-NUM_TEST:])
