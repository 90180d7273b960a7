"""The condition of a norm: the class or domain of each sample, or a style.

    norm(x, 3)                  class or domain 3 for all samples
    norm(x, labels)             the class or domain of each sample: an integer tensor (n,)
    norm(x, features)           a style, by its features (n or 1, c, …), from which mean and standard deviation are computed
    norm(x, (mean, std))        a style, by its mean and standard deviation, each (n or 1, c)

For models that call their norms with x only, `with condition(model, value):` sets the condition of all conditional norms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.affine import inverse_std
from anynorm.core.compat import can_read_values, is_recomputing
from anynorm.core.moments import table_dtype
from anynorm.errors import ConditionError
from anynorm.layers.channel_axis import sizes, to_channels_second

if TYPE_CHECKING:
    from anynorm.layers.norm import Norm


L = TypeVar("L")


class Conditional(Protocol):
    """A layer whose condition `condition` sets; a norm, or a layer that passes the condition on to norms."""

    _condition: Any

    @property
    def takes_condition(self) -> bool:
        """Whether the layer needs a condition."""

    def set_condition(self, condition: Any) -> None:
        """Set the condition of subsequent forward passes."""


def is_conditional(module: nn.Module) -> TypeGuard[Conditional]:
    """Whether a module takes a condition; see `Conditional`."""
    return bool(getattr(module, "takes_condition", False))


def conditional_layers(model: nn.Module) -> list[Conditional]:
    """Return the layers of a model that take a condition."""
    return [module for module in model.modules() if is_conditional(module)]


@contextmanager
def set_inside(layers: Sequence[L], read: Callable[[L], Any], write: Callable[[L, Any], None], value: Any) -> Iterator[None]:
    """Write a value to layers inside a `with` block; write the previous values on exit."""
    previous = [read(layer) for layer in layers]
    try:
        for layer in layers:
            write(layer, value)
        yield
    finally:
        for layer, old in zip(layers, previous, strict=True):
            write(layer, old)


@contextmanager
def condition(model: nn.Module, value: Any, *, strict: bool = True) -> Iterator[None]:
    """Set the condition of all conditional norms of a model inside a `with` block; restore the previous one on exit.

    A condition passed to a layer directly takes precedence. With activation checkpointing, call `backward` inside the block too,
    because the recomputation uses the condition again.

    Args:
        model: the model.
        value: a class or domain, an integer tensor (n,) of them, style features, or the (mean, std) of a style.
        strict: whether to raise an error if the model has no conditional norm.

    Raises:
        ConditionError: if `strict` and the model has no conditional norm.

    >>> import anynorm
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make("sabn@10", 8), nn.ReLU())
    >>> with anynorm.condition(model, torch.tensor([4, 7])):
    ...     model(torch.randn(2, 3, 6, 6)).shape
    torch.Size([2, 8, 4, 4])
    """
    layers = conditional_layers(model)
    if not layers and strict:
        raise ConditionError(
            f"No layer of this {type(model).__name__} takes a condition. Norms that take one: ccbn@K, sabn@K, auxbn@K, adain, …"
        )
    if isinstance(value, int) and not isinstance(value, bool):
        value = torch.tensor(value)  # torch.compile would specialize on the number and recompile for each class
    with set_inside(layers, lambda layer: layer._condition, lambda layer, new: layer.set_condition(new), value):
        yield


def read_condition(norm: Norm, x: Tensor, condition: Any, num_samples: int | None = None) -> Any:
    """Check and convert the condition of a forward pass.

    Args:
        norm: a conditional norm.
        x: its input.
        condition: the condition; features of a style have channels in the same axis as x.
        num_samples: number of samples n, if it is not the length of the first axis of x (points with a batch index).

    Returns:
        Labels (n,), or a style (mean, std).

    Raises:
        ConditionError: if the condition is missing or invalid.
    """
    try:
        if condition is None:
            raise ConditionError(_missing_condition_message(norm))
        if norm.norm_spec.takes_style:
            return read_style(condition, x, norm._eps, norm.channel_axis, num_samples)
        return read_labels(condition, x, norm.norm_spec.num_classes, num_samples)
    except ConditionError as error:
        raise ConditionError(f"{error} Layer {norm.spec!r}, input {tuple(x.shape)}.") from None


def _missing_condition_message(norm: Norm) -> str:
    num_classes = norm.norm_spec.num_classes
    needed = "a style" if norm.norm_spec.takes_style else f"the class or domain (0 to {num_classes - 1}) of each sample"
    text = (
        f"{norm.spec} needs {needed}: call norm(x, condition), or the model inside `with anynorm.condition(model, condition):`."
    )
    if is_recomputing():
        text += " Activation checkpointing recomputes this layer after the block has ended: call backward inside the block."
    return text


def read_labels(condition: Any, x: Tensor, num_classes: int, num_samples: int | None = None) -> Tensor:
    """Convert a class or domain, or a tensor of them, to labels (n,).

    Raises:
        ConditionError: if the condition is neither a label in [0, num_classes) nor a tensor of one label per sample.
    """
    n = x.shape[0] if num_samples is None else num_samples
    usable = f"Pass an int from 0 to {num_classes - 1}, or an integer tensor of {n} of them."
    if isinstance(condition, Tensor):
        _check_label_tensor(condition, n, usable)
        if n and can_read_values(condition):
            for value in torch.aminmax(condition):
                _check_label(int(value), num_classes, usable)
        return condition.to(x.device, torch.long).expand(n)
    if isinstance(condition, bool) or not isinstance(condition, Integral):
        raise ConditionError(f"The condition must be a class or domain; got a {type(condition).__name__}. {usable}")
    _check_label(int(condition), num_classes, usable)
    return torch.full((n,), int(condition), dtype=torch.long, device=x.device)


def _check_label_tensor(condition: Tensor, n: int, usable: str) -> None:
    if condition.is_floating_point() or condition.is_complex() or condition.dtype == torch.bool:
        raise ConditionError(f"The condition must hold integers; got a tensor of {condition.dtype}. {usable}")
    if condition.dim() > 1 or (condition.dim() == 1 and condition.shape[0] != n):
        raise ConditionError(f"The condition must have one entry per sample ({n}); got shape {tuple(condition.shape)}. {usable}")


def _check_label(value: int, num_classes: int, usable: str) -> None:
    if not 0 <= value < num_classes:
        raise ConditionError(f"A class or domain must be in [0, {num_classes}); got {value}. {usable}")


def read_style(
    condition: Any, x: Tensor, eps: float, channel_axis: int = 1, num_samples: int | None = None
) -> tuple[Tensor, Tensor]:
    """Convert style features, or the (mean, std) of a style, to (mean, std), each (n or 1, c), with std = sqrt(var + ε).

    Args:
        condition: the features or the pair.
        x: the input of the norm.
        eps: ε.
        channel_axis: axis of the channels in the features and in x.

    Raises:
        ConditionError: if the condition is not a style, or its shape does not match x.
    """
    is_pair = isinstance(condition, tuple | list)
    tensors = list(condition) if is_pair else [condition]
    n, c, _ = sizes(x, channel_axis)
    _check_style(tensors, (n if num_samples is None else num_samples, c), is_pair, channel_axis)
    if is_pair:
        mean, std = (tensor.to(x.device, table_dtype(x)) for tensor in tensors)
        return mean, std
    moments = kernels.moments(to_channels_second(tensors[0].to(x.device), channel_axis), 1)
    return moments.mean[..., 0], inverse_std(moments.var[..., 0], eps).reciprocal()


def _check_style(tensors: list[Any], shape: tuple[int, int], is_pair: bool, channel_axis: int) -> None:
    n, c = shape
    features = {1: f"{c}, …", -1: f"…, {c}"}.get(channel_axis, f"…, {c} in axis {channel_axis}, …")
    usable = f"Pass features ({n} or 1, {features}), or a pair (mean, std) of shape ({n} or 1, {c}) each."
    if is_pair and len(tensors) != 2:
        raise ConditionError(f"A style must be features or (mean, std); got {len(tensors)} items. {usable}")
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ConditionError(f"A style must be a floating-point tensor; got {kind}. {usable}")
        axis = 1 if is_pair else channel_axis
        fits = tensor.dim() == 2 if is_pair else tensor.dim() > max(2, axis, -axis)
        if not fits or tensor.shape[0] not in (1, n) or tensor.shape[axis] != c or 0 in tensor.shape[1:]:
            raise ConditionError(f"The style does not fit the input; got shape {tuple(tensor.shape)}. {usable}")
