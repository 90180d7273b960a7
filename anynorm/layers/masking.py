"""Masks and batch indices: which positions of x are valid, and to which sample they belong.

    norm(x, mask=valid)             bool (n, positions…), True where a position is valid; without an axis of channels
    norm(x, mask=lengths)           integers (n,): the first lengths[i] positions of sequence i are valid
    norm(x, batch_index=index)      x (points, c): the sample of each point, integers (points,), in any order

Masked positions count in no statistic; their outputs and gradients are 0, even if x is NaN there. For models that call their
norms with x only, `with mask(model, valid):` sets the mask of all norms. Norms with other numbers of positions, after strides or
pooling, use the mask resized to their positions: position i of k has the entry floor(i · K / k) of the K of the mask ("nearest").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anynorm.core.compat import can_read_values, is_recomputing
from anynorm.errors import ShapeError, SpecError
from anynorm.kernels.ragged import Mask, Points, Ragged
from anynorm.layers.channel_axis import resolve_axis
from anynorm.layers.conditioning import set_inside

if TYPE_CHECKING:
    from anynorm.layers.norm import Norm

Follow = Callable[[Tensor, Tensor], Tensor]
"""A function (mask, x) → mask that returns the mask, bool (n, positions…), of a norm with input x."""


class ModelMask:
    """The mask of all norms of a model, from which each takes the mask of its positions.

    Args:
        valid: the mask, bool (n, positions…).
        follow: the function that returns the mask for an input; None to resize it.
    """

    def __init__(self, valid: Tensor, follow: Follow | None) -> None:
        self.valid, self.follow = valid, follow
        self._resized: dict[tuple[int, ...], Tensor] = {}

    def at(self, x: Tensor) -> Tensor:
        """Return the mask of the positions of x."""
        if self.follow is not None:
            return self.follow(self.valid, x)
        positions = tuple(x.shape[2:])
        if torch.compiler.is_compiling():
            return resize_mask(self.valid, positions)
        if positions not in self._resized:
            self._resized[positions] = resize_mask(self.valid, positions)
        return self._resized[positions]


@contextmanager
def mask(
    model: nn.Module, valid: Tensor, *, max_length: int | None = None, follow: Follow | None = None, strict: bool = True
) -> Iterator[None]:
    """Set the mask of all norms of a model inside a `with` block; restore the previous one on exit.

    Norms with other numbers of positions than the mask use it resized (nearest neighbor), and norms of vectors (n, c) the samples
    with any valid position. A mask passed to a layer directly takes precedence. Layers of torch ignore the mask: convert them
    first. With activation checkpointing, call `backward` inside the block too.

    Args:
        model: the model.
        valid: bool (n, positions…), True where a position of the model's input is valid; or lengths of sequences, integers (n,).
        max_length: number of positions of the padded sequences, such as x.shape[-1]; required with lengths.
        follow: a function (mask, x) → mask that returns the mask, bool (n, positions…), of a norm with input x, for models whose
            positions are not those of the input resized; None to resize.
        strict: whether to raise an error if the model has no norm of anynorm.

    Raises:
        ShapeError: if `valid` is not a mask, or its lengths are not in [0, max_length].
        SpecError: if a norm does not support masks, or, if `strict`, the model has no norm of anynorm.

    >>> import anynorm
    >>> model = nn.Sequential(nn.Conv1d(8, 16, 3, stride=2, padding=1), anynorm.make("in", 16))
    >>> x = torch.randn(2, 8, 10)
    >>> with anynorm.mask(model, torch.tensor([10, 6]), max_length=10):
    ...     model(x)[1, 0].count_nonzero()
    tensor(3)
    """
    norms: list[Any] = [module for module in model.modules() if hasattr(module, "takes_mask")]
    if not norms and strict:
        raise SpecError(f"No layer of this {type(model).__name__} is a norm of anynorm. Call anynorm.convert on it first.")
    for norm in norms:
        check_takes_mask(norm)
    source = ModelMask(_read_model_mask(valid, max_length), follow)
    with set_inside(norms, lambda norm: norm._mask, lambda norm, value: norm.set_mask(value), source):
        yield


def check_takes_mask(norm: Norm) -> None:
    """Check that a norm supports masks and batch indices.

    Raises:
        SpecError: if it does not.
    """
    if not norm.takes_mask:
        raise SpecError(
            f"{norm.spec} does not support mask and batch_index: only norms defined by cuts do. Use bn, in, ln, gn, sn, hn, …"
        )


def resize_mask(valid: Tensor, positions: tuple[int, ...]) -> Tensor:
    """Resize a mask (n, positions…) to other numbers of positions, by the nearest neighbor of each.

    Without positions, the result is whether a sample has any valid position, (n,).

    Raises:
        ShapeError: if the numbers of axes differ.

    >>> resize_mask(torch.tensor([[True, True, True, False, False]]), (3,))
    tensor([[ True,  True, False]])
    """
    if not positions:
        return valid.flatten(1).any(1) if valid.dim() > 1 else valid
    if valid.dim() != 1 + len(positions):
        raise ShapeError(
            f"The mask has {valid.dim() - 1} axes of positions, and the input {len(positions)}: {tuple(valid.shape[1:])} cannot "
            f"be resized to {positions}. Pass follow=, a function (mask, x) → mask."
        )
    for axis, (size, length) in enumerate(zip(positions, valid.shape[1:], strict=True), start=1):
        if size != length:
            valid = valid.index_select(axis, torch.arange(size, device=valid.device) * length // size)
    return valid


def read_ragged(norm: Norm, x: Tensor, mask: Any, batch_index: Any, num_graphs: Any) -> Ragged | None:
    """Check and convert the mask or batch index of a forward pass; without them, return the mask of the enclosing block.

    Args:
        norm: the norm.
        x: its input, with channels in the axis of the norm.
        mask: the mask, lengths, or None.
        batch_index: the sample of each point, or None.
        num_graphs: number of samples of points; None for the largest index + 1, which is read from the device.

    Returns:
        The valid positions of each sample; None if all are valid.

    Raises:
        ShapeError: if they do not fit the input.
        SpecError: if the norm does not support them.
    """
    if not isinstance(x, Tensor) or x.dim() < 2:
        return None  # `check_input` raises the error
    source: ModelMask | None = None
    if mask is None and batch_index is None and num_graphs is None:
        source = norm._mask
        if source is None:
            _check_not_ended(norm)
        if not torch.compiler.is_compiling():
            norm._had_mask = source is not None
        if source is None:
            return None
    check_takes_mask(norm)
    shape = tuple(x.shape)
    try:
        x = x.movedim(resolve_axis(norm.channel_axis, x.dim()), 1)
        if batch_index is None and num_graphs is not None:
            raise ShapeError("num_graphs is the number of samples of a batch_index; got no batch_index.")
        if batch_index is None:
            return _read_mask(mask if source is None else source.at(x), x)
        if mask is not None:
            raise ShapeError("Pass either mask or batch_index; got both. To leave out points, remove them from x.")
        return _read_points(norm, batch_index, num_graphs, x)
    except ShapeError as error:
        raise ShapeError(f"{error} Layer {norm.spec!r} with {norm.num_features} channels, input {shape}.") from None


def _check_not_ended(norm: Norm) -> None:
    """Check that activation checkpointing does not recompute, without a mask, a forward pass that had one.

    Raises:
        ShapeError: if it does.
    """
    if is_recomputing():
        raise ShapeError(
            f"Activation checkpointing recomputes {norm.spec!r} after the block of anynorm.mask has ended: call backward inside "
            "the block."
        )


def _read_mask(mask: Any, x: Tensor) -> Mask:
    """Return the mask (n, positions) of x from a mask (n, positions…) or lengths (n,)."""
    if not isinstance(mask, Tensor):
        raise ShapeError(f"The mask must be a tensor; got a {type(mask).__name__}.")
    if mask.device != x.device:
        raise ShapeError(f"The mask must be on the device of the input, {x.device}; got {mask.device}. Call .to(…) on it.")
    n, _, *positions = x.shape
    if _is_integer(mask) and mask.dim() == 1 and len(positions) == 1:
        return Mask(_prefix_mask(mask, n, positions[0]))
    if mask.dtype is not torch.bool:
        raise ShapeError(
            f"The mask must be bool, True at valid positions, or lengths, integers (n,); got {mask.dtype} {tuple(mask.shape)}. "
            "Convert a mask of 0 and 1 by .bool()."
        )
    if tuple(mask.shape) != (n, *positions):
        without = " A mask has no axis of channels." if mask.dim() == x.dim() else ""
        raise ShapeError(
            f"The mask must have one entry per sample and position, {(n, *positions)}; got {tuple(mask.shape)}.{without}"
        )
    return Mask(mask.reshape(n, math.prod(positions)))


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def _prefix_mask(lengths: Tensor, n: int, max_length: int) -> Tensor:
    """Return the mask (n, max_length) whose first lengths[i] entries of sample i are True."""
    if lengths.shape[0] != n:
        raise ShapeError(f"There must be one length per sample, {n}; got {lengths.shape[0]}.")
    if n and can_read_values(lengths):
        lowest, highest = (int(value) for value in torch.aminmax(lengths))
        if lowest < 0 or highest > max_length:
            wrong = lowest if lowest < 0 else highest
            raise ShapeError(f"Lengths must be in [0, {max_length}], the number of positions; got {wrong}.")
    return torch.arange(max_length, device=lengths.device) < lengths[:, None]


def _read_model_mask(valid: Any, max_length: int | None) -> Tensor:
    """Return the mask (n, positions…) of a model from a mask or lengths."""
    if not isinstance(valid, Tensor) or not valid.dim():
        got = f"shape {tuple(valid.shape)}" if isinstance(valid, Tensor) else f"a {type(valid).__name__}"
        raise ShapeError(f"The mask must be a tensor (n, positions…), or lengths (n,); got {got}.")
    if _is_integer(valid) and valid.dim() == 1:
        if max_length is None:
            raise ShapeError(
                "Lengths need max_length, the number of positions of the padded sequences: pass max_length=x.shape[…]. Norms "
                "after strides use the mask resized to their positions."
            )
        return _prefix_mask(valid, valid.shape[0], max_length)
    if valid.dtype is not torch.bool:
        raise ShapeError(
            f"The mask must be bool, True at valid positions, or lengths, integers (n,); got {valid.dtype} {tuple(valid.shape)}. "
            "Convert a mask of 0 and 1 by .bool()."
        )
    if max_length is not None:
        raise ShapeError(f"max_length is for lengths (n,); got a mask of shape {tuple(valid.shape)}.")
    return valid


def _read_points(norm: Norm, batch_index: Any, num_graphs: Any, x: Tensor) -> Points:
    """Return the samples of the points x (points, c) from their batch index."""
    if not isinstance(batch_index, Tensor) or not _is_integer(batch_index):
        got = batch_index.dtype if isinstance(batch_index, Tensor) else f"a {type(batch_index).__name__}"
        raise ShapeError(f"batch_index must be a tensor of integers; got {got}.")
    if x.dim() != 2:
        raise ShapeError("batch_index needs an input (points, c). Use mask for padded samples (n, c, positions).")
    if batch_index.shape != x.shape[:1]:
        raise ShapeError(f"batch_index must have one entry per point, ({x.shape[0]},); got {tuple(batch_index.shape)}.")
    if batch_index.device != x.device:
        raise ShapeError(f"batch_index must be on the device of the input, {x.device}; got {batch_index.device}.")
    if isinstance(num_graphs, bool) or not (num_graphs is None or (isinstance(num_graphs, int) and num_graphs >= 0)):
        raise ShapeError(f"num_graphs must be an integer of at least 0; got {num_graphs!r}.")
    spec = norm._forward_spec()
    if any([cut.space != 1 for cut in norm.cuts]) and spec.vector_spec() is None:
        raise SpecError(
            f"{norm.spec} has statistics of parts of the positions, which points do not have. Pad the points and pass mask=."
        )
    if batch_index.shape[0] and (num_graphs is None or can_read_values(batch_index)):
        lowest, highest = (int(value) for value in torch.aminmax(batch_index))
        if lowest < 0 or (num_graphs is not None and highest >= num_graphs):
            usable = "at least 0" if num_graphs is None else f"in [0, {num_graphs}), as num_graphs={num_graphs}"
            raise ShapeError(f"batch_index must be {usable}; got {lowest if lowest < 0 else highest}.")
        num_graphs = highest + 1 if num_graphs is None else num_graphs
    return Points(batch_index.to(torch.long), num_graphs or 0)
