"""Supported batches of a data loader, and the call of a model for each.

    x                            model(x)
    (x, …)                       model(x), for a tuple or a list, as returned by default_collate
    ([image, …], targets)        model([image, …])                  detectors of torchvision
    [image, …]                   model([image, …])                  detectors of torchvision, without targets
    [{"image": image, …}, …]     model([{"image": image, …}, …])    detectron2
    {"inputs": …,                model.test_step(batch), which preprocesses the images
     "data_samples": …}                                             mmdetection 3 and other models of mmengine
    {…}                          model({…})

An image is a tensor (c, h, w), and images may differ in size. Both [x, labels] and [image, …] are lists of tensors, so a list is
treated as a list of images only if all entries have three dimensions, the same dtype, and 1 or 3 channels. Pass images with
another number of channels as ([image, …],). A tuple is always (x, …), even if x has three dimensions, such as signals (n, c, l).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from anynorm.errors import SurgeryError

Forward = Callable[[nn.Module, Any], Any]


def call(model: nn.Module, batch: Any) -> Any:
    """Call a model with one batch; see the table of supported batches in `anynorm.surgery.batches`.

    >>> images = [torch.ones(3, 4, 5), torch.ones(3, 6, 4)]
    >>> model = nn.Identity()
    >>> [len(call(model, batch)) for batch in (images, (images, ["target", "target"]), [torch.ones(8, 3, 4, 4), torch.ones(8)])]
    [2, 2, 8]
    """
    if isinstance(batch, tuple | list) and not is_one_input(batch):
        x = batch[0]
        return model(list(x) if _is_images(x) else x)
    has_data_samples = isinstance(batch, Mapping) and "inputs" in batch and "data_samples" in batch
    step: Any = getattr(model, "test_step", model) if has_data_samples else model
    return step(batch)


def is_one_input(batch: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a batch is a single input of a model: a list of images, or of dictionaries with an image."""
    if not isinstance(batch, list):
        return False
    return _is_dicts_with_image(batch) or (_is_images(batch) and len(batch[0]) in (1, 3))


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 3


def _is_images(value: Any) -> bool:
    """Whether a value is a sequence of images with one dtype and number of channels."""
    if not isinstance(value, tuple | list) or not value or not all(map(_is_image, value)):
        return False
    return len({(image.dtype, len(image)) for image in value}) == 1


def _is_dicts_with_image(value: Any) -> bool:
    is_sequence = isinstance(value, tuple | list) and bool(value)
    return is_sequence and all(isinstance(entry, Mapping) and _is_image(entry.get("image")) for entry in value)


def image_list(batch: Any) -> Sequence[Any] | None:
    """Return the list of images, or of dictionaries with an image, in a batch; None if the batch has no such list."""
    if isinstance(batch, Mapping):
        images = batch.get("inputs")
    elif isinstance(batch, tuple | list) and batch:
        images = batch if is_one_input(batch) else batch[0]
    else:
        return None
    return images if _is_images(images) or _is_dicts_with_image(images) else None


class Calibration(NamedTuple):
    """Calibration batches, and the function that calls the model with one."""

    data: Any
    forward: Forward


def calibration(data: Any, forward: Forward | None) -> Calibration | None:
    """Return calibration batches with their forward function (by default `call`); None if `data` is None."""
    return None if data is None else Calibration(data, forward or call)


def gather(data: Any) -> Any:
    """Concatenate calibration batches into one; a tensor or a dictionary counts as one batch.

    Raises:
        SurgeryError: if there is no batch.

    >>> gather([torch.zeros(2, 3), torch.zeros(4, 3)]).shape
    torch.Size([6, 3])
    """
    batches = [data] if isinstance(data, Tensor | Mapping) else list(data)
    if not batches:
        raise SurgeryError("fit= must hold at least one calibration batch; got none.")
    return batches[0] if len(batches) == 1 else _concatenate(batches)


def duplicate(batch: Any) -> Any:
    """Return a batch with every sample twice: the batch concatenated with itself."""
    return _concatenate([batch, batch])


def _concatenate(batches: list[Any]) -> Any:
    """Concatenate batches along their samples."""
    batches = [_plain(batch) for batch in batches]
    first = batches[0]
    if image_list(first) is None:
        return tree_map(lambda *leaves: _concatenate_entry(leaves), *batches)
    if isinstance(first, dict):
        return {key: _concatenate_entry([batch[key] for batch in batches]) for key in first}
    if is_one_input(first):
        return _concatenate_entry(batches)
    return tuple(_concatenate_entry(entries) for entries in zip(*batches, strict=True))


def _concatenate_entry(entries: Sequence[Any]) -> Any:
    """Concatenate tensors, or lists with one entry per sample; for other types, return the first entry."""
    first = entries[0]
    if isinstance(first, Tensor) and first.dim():
        return torch.cat(list(entries))
    return [sample for entry in entries for sample in entry] if isinstance(first, tuple | list) else first


def _plain(batch: Any) -> Any:
    """Convert a mapping of any class to a dict, because pytree treats an unregistered class as a leaf."""
    return dict(batch) if isinstance(batch, Mapping) else batch


def size_of(batch: Any) -> int:
    """Return the number of samples in a batch; 1 if it has no tensor.

    >>> size_of(([torch.ones(3, 4, 5), torch.ones(3, 6, 4)], ["target", "target"]))
    2
    """
    images = image_list(batch)
    if images is not None:
        return len(images)
    tensor = next((leaf for leaf in tree_leaves(_plain(batch)) if isinstance(leaf, Tensor)), None)
    return len(tensor) if tensor is not None and tensor.dim() else 1
