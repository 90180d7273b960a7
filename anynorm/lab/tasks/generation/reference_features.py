"""Features of the training images, computed once per data set and network and kept in the data directory."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write
from anynorm.io.checkpoints import import_object
from anynorm.lab.tasks.generation.feature_networks import cached_file, make_feature_network
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.images import load_images
from anynorm.progress import track

BATCH_SIZE = 100
VERSION = 2
"""Version of the cached files; increase it if the choice or the processing of images changes."""


def own_part(processes: Processes, count: int) -> slice:
    """Return the part of `count` images that a process computes; it is contiguous, so that it has images of all classes."""
    size = -(-count // processes.count)
    return slice(processes.rank * size, (processes.rank + 1) * size)


class Features(NamedTuple):
    """Features (n, d), labels (n,) and logits (n, classes) of images; logits are None if the network has none."""

    features: Tensor
    labels: Tensor
    logits: Tensor | None

    def gather(self, processes: Processes, count: int) -> Features:
        """Return the features of all processes.

        Args:
            processes: the processes, each with the features of its `own_part`.
            count: number of images of all of them.
        """
        if processes.count == 1:
            return self
        own = own_part(processes, count)

        def join(values: Tensor) -> Tensor:
            table = torch.zeros(count, *values.shape[1:], dtype=values.dtype)
            table[own] = values
            return processes.sum_tensor(table)

        return Features(join(self.features), join(self.labels), None if self.logits is None else join(self.logits))


def reference_features(config: Config, features: str, num_images: int, device: torch.device) -> Features:
    """Return the features of training images of the data set of a run, from the data directory if it has them.

    Args:
        config: the run.
        features: a network of `anynorm.lab.tasks.generation.feature_networks`.
        num_images: number of images, chosen at random but the same in every run; 0 for all.
        device: where the features are computed.
    """
    network = make_feature_network(config, features).to(device)
    key = [VERSION, config.data, config.image_size, config.source_hash, features, num_images, _hash_network(network, features)]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    with cached_file(f"features-{digest}.pt") as path:
        if path.exists():
            return Features(*torch.load(path, weights_only=True))
        batches = load_images(config).train_batches(BATCH_SIZE, num_images or None)
        result = extract_features(network, track(batches, "computing features of training images"))
        with atomic_write(path) as temporary:
            torch.save(tuple(result), temporary)
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


def _hash_network(network: nn.Module, features: str) -> str:
    """Return a hash of the weights of a network and, for a network of a factory, of its source file."""
    source = inspect.getsourcefile(import_object(features)) if ":" in features else None
    digest = hashlib.sha256(b"" if source is None else Path(source).read_bytes())
    for value in network.state_dict().values():
        digest.update(value.cpu().double().numpy().tobytes())
    return digest.hexdigest()
