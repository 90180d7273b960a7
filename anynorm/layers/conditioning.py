"""What a norm is told beside x: the class or domain of each sample, or a style.

    norm(x, 3)                  every sample is of class 3
    norm(x, labels)             an integer tensor (n,): classes or domains mixed in one batch
    norm(x, features)           a style: features (n or 1, c, …) whose moments are taken
    norm(x, (mean, std))        a style: its moments, each (n or 1, c)

Inside models that pass x alone, `with condition(model, value):` tells every layer that wants to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.affine import standardize
from anynorm.core.moments import Moments, table_dtype
from anynorm.errors import ConditionError


def read_labels(condition: Any, x: Tensor, classes: int) -> Tensor:
    """Turn a class or domain condition into labels (n,), refusing what is no label of one of `classes`."""
    n = x.shape[0]
    wrong = _wrong_label(condition, n, classes)
    if wrong:
        raise ConditionError(f"{wrong} Give an int from 0 to {classes - 1}, or an integer tensor of {n} of them.")
    if isinstance(condition, Tensor):
        return condition.to(x.device, torch.long).expand(n)
    return torch.full((n,), int(condition), dtype=torch.long, device=x.device)


def _wrong_label(condition: Any, n: int, classes: int) -> str:
    if isinstance(condition, Tensor):
        if condition.is_floating_point() or condition.is_complex() or condition.dtype == torch.bool:
            return f"The condition is a tensor of {condition.dtype}, not of class or domain numbers."
        if condition.dim() > 1 or (condition.dim() == 1 and condition.shape[0] != n):
            return f"The condition has shape {tuple(condition.shape)}, the batch {n} samples."
        values = [int(condition.long().min()), int(condition.long().max())] if n and is_readable(condition) else []
    elif isinstance(condition, bool) or not isinstance(condition, Integral):
        return f"The condition is a {type(condition).__name__}, not a class or domain."
    else:
        values = [int(condition)]
    outside = [value for value in values if not 0 <= value < classes]
    return f"The condition holds {outside[0]}; there are {classes} classes or domains." if outside else ""


def is_readable(tensor: Tensor) -> bool:
    """Whether looking at values neither breaks a trace nor stalls a device, whose own indexing refuses wrong labels anyway."""
    traced = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and not traced


def read_style(condition: Any, x: Tensor, *, moments: Callable[[Tensor, int], Moments], eps: float) -> tuple[Tensor, Tensor]:
    """Turn style features or moments into (mean, std), each (n or 1, c); std = sqrt(var + ε), as x's own."""
    pair = isinstance(condition, tuple | list)
    tensors = list(condition) if pair else [condition]
    wrong = _wrong_style(tensors, x, 2 if pair else 1)
    if wrong:
        n, c = x.shape[:2]
        raise ConditionError(f"{wrong} Give features ({n} or 1, {c}, …), or a pair (mean, std) of shape ({n} or 1, {c}) each.")
    if pair:
        mean, std = (tensor.to(x.device, table_dtype(x)) for tensor in tensors)
        return mean, std
    found = moments(tensors[0].to(x.device), 1)
    inverse, _ = standardize(found.var[..., 0], eps)
    return found.mean[..., 0], inverse.reciprocal()


def _wrong_style(tensors: list[Any], x: Tensor, expected: int) -> str:
    n, c = x.shape[:2]
    if len(tensors) != expected:
        return f"The condition holds {len(tensors)} things, not a mean and a std."
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            return f"The condition is no style but {kind}."
        fits = tensor.dim() == 2 if expected == 2 else tensor.dim() > 2
        if not fits or tensor.shape[0] not in (1, n) or tensor.shape[1] != c or 0 in tensor.shape[2:]:
            return f"The style has shape {tuple(tensor.shape)}."
    return ""


@contextmanager
def condition(model: nn.Module, value: Any) -> Iterator[None]:
    """Tell every layer of a model its condition, for the forward passes (and recomputations) inside the block.

    A condition given to a layer directly goes first. With activation checkpointing, call `backward` inside the block
    too: the recomputation asks for the condition again.

    >>> import anynorm
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make("sabn@10", 8), nn.ReLU())
    >>> with anynorm.condition(model, torch.tensor([4, 7])):
    ...     model(torch.randn(2, 3, 6, 6)).shape
    torch.Size([2, 8, 4, 4])
    """
    layers: list[Any] = [module for module in model.modules() if getattr(module, "takes_condition", False)]
    if not layers:
        raise ConditionError(
            f"no layer of this {type(model).__name__} takes a condition. Norms that do: ccbn@K, sabn@K, auxbn@K, adain, …"
        )
    if isinstance(value, int) and not isinstance(value, bool):
        value = torch.tensor(value)  # compiled code would be compiled again for each number
    before = [layer._condition for layer in layers]
    try:
        for layer in layers:
            layer.set_condition(value)
        yield
    finally:
        for layer, old in zip(layers, before, strict=True):
            layer.set_condition(old)
