"""Extra passes over a data loader without side effects on the training loop that uses it."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from anynorm.errors import DataError


@contextmanager
def isolated_loader(loader: Any) -> Iterator[Any]:
    """Context manager that returns a loader with the batches of another, without changing its position or its random numbers.

    The random states of torch's CPU generator, Python and numpy, and of the loader's own generators, are restored on exit.

    Raises:
        DataError: if `loader` is a collection of loaders, or None.
    """
    if loader is None or isinstance(loader, Mapping | list | tuple):
        raise DataError(f"Expected one data loader; got {type(loader).__name__}. Pass the loader to use as loader=….")
    loader = getattr(loader, "base_dataloader", loader)  # that of accelerate counts epochs and marks the last batch
    generators = _generators(loader)
    states = [generator.get_state() for generator in generators]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield _without_iterator(loader)
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _generators(loader: Any) -> list[torch.Generator]:
    """Return the generators of a loader and its samplers, each once."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = [loader, batch_sampler, getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)]
    generators = [getattr(owner, "generator", None) for owner in owners]
    return list({id(generator): generator for generator in generators if isinstance(generator, torch.Generator)}.values())


def _without_iterator(loader: Any) -> Any:
    """Return a copy of a DataLoader with its own iterator: with persistent workers, `iter` would restart the existing one."""
    if not isinstance(loader, DataLoader) or not loader.persistent_workers:
        return loader
    loader = copy.copy(loader)
    loader._iterator = None
    return loader


def to_device(batch: Any, device: torch.device | str) -> Any:
    """Move all tensors of a batch to a device.

    >>> to_device({"x": torch.zeros(2), "name": "a"}, "meta")["x"].device
    device(type='meta')
    """
    batch = dict(batch) if isinstance(batch, Mapping) else batch  # pytree takes an unknown class for a leaf
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch)
