"""Features of the training images, computed once per data set and network and kept in the data directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anynorm.data import ImageDataset, StreamedDataset
from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write
from anynorm.progress import track
from anynorm.tasks.feature_networks import cached_file, make_feature_network
from anynorm.training.config import Config
from anynorm.training.distributed import Processes

BATCH_SIZE = 100
ALL = 1 << 62


class Features(NamedTuple):
    """Features (n, d), labels (n,) and logits (n, classes) of images; no logits if the network has none."""

    features: Tensor
    labels: Tensor
    logits: Tensor | None

    def gather(self, processes: Processes, count: int) -> Features:
        """Return the features of all processes, of which process k has the images k, k + P and so on.

        Args:
            processes: the P processes.
            count: number of images of all of them.
        """
        if processes.count == 1:
            return self
        own = slice(processes.rank, None, processes.count)

        def join(values: Tensor) -> Tensor:
            table = torch.zeros(count, *values.shape[1:], dtype=values.dtype)
            table[own] = values
            return processes.sum_tensor(table)

        return Features(join(self.features), join(self.labels), None if self.logits is None else join(self.logits))


def reference_features(config: Config, data: ImageDataset | StreamedDataset, features: str, num_images: int) -> Features:
    """Return the features of the first training images of a data set, from the data directory if it has them.

    Args:
        config: the run, whose data set it is.
        data: the data set.
        features: a network of `feature_networks`.
        num_images: number of images; 0 for all.
    """
    network = make_feature_network(config, features)
    key = [config.data, config.image_size, config.source_hash, features, num_images, _hash_weights(network)]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    with cached_file(f"features-{digest}.pt") as path:
        if path.exists():
            return Features(*torch.load(path, weights_only=True))
        batches = data.train_batches(BATCH_SIZE, num_images or ALL)
        result = extract_features(network, track(batches, "computing features of training images"))
        with atomic_write(path) as part:
            torch.save(tuple(result), part)
    return result


@torch.no_grad()
def extract_features(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Features:
    """Return the features of batches of uint8 images and labels, on the CPU.

    Raises:
        DataError: if the network does not return features (n, d), or features and logits.
    """
    device = next((value.device for value in network.state_dict().values()), torch.device("cpu"))
    tables: list[tuple[Tensor, ...]] = []
    for images, labels in batches:
        output = network(images.to(device))
        values = output if isinstance(output, tuple) else (output,)
        if not all(isinstance(value, Tensor) and value.dim() == 2 and len(value) == len(images) for value in values):
            raise DataError(f"the feature network {type(network).__name__} must return features (n, d), or (features, logits).")
        tables.append((labels, *(value.float().cpu() for value in values)))
    labels, features, *logits = (torch.cat(column) for column in zip(*tables, strict=True))
    return Features(features, labels, logits[0] if logits else None)


def _hash_weights(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for value in network.state_dict().values():
        digest.update(value.cpu().double().numpy().tobytes())
    return digest.hexdigest()
