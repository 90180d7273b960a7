"""Comparison of the outputs, gradients and buffers of a model on an example before and after a change.

Both runs are in the current mode of the model, from the same state: running statistics, other buffers, gradients, attributes and
random number generators are restored after each.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from anynorm.surgery.batches import Forward
from anynorm.surgery.blocks import restored_attributes
from anynorm.surgery.dataflow import tensors_of
from anynorm.surgery.output_change import DEFAULT_TOLERANCE, TOLERANCE

SMALL_SHARE = 0.01
"""Gradients and buffers whose largest value is below this share of the largest of all are compared with that share, since a
tensor that is zero in exact arithmetic, such as the gradient of a bias before a BatchNorm, is a rounding error."""


@dataclass
class RunResult:
    """Outputs of a model, the gradients of its parameters and inputs and its buffers by name; `error` if backward raised."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    error: str = ""


@dataclass
class Change:
    """Largest changes, relative to the largest values; infinite if shapes or finiteness changed."""

    outputs: float
    gradients: float
    buffers: float
    tolerance: float

    @property
    def is_rounding(self) -> bool:
        """Whether all changes are within the tolerance of rounding errors."""
        return max(self.outputs, self.gradients, self.buffers) <= self.tolerance


@contextmanager
def restored_state(model: nn.Module) -> Iterator[None]:
    """Restore tensors, gradients, attributes and random number generators at the end of a `with` block."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    python_state = random.getstate()
    try:
        with torch.random.fork_rng(), restored_attributes(model):
            yield
    finally:
        random.setstate(python_state)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def run_with_gradients(model: nn.Module, forward: Forward, example: Any) -> RunResult:
    """Run a model on an example forward and backward; its buffers are those after the run, then its state is restored.

    The gradient of every output is a fixed sequence of numbers, so that no gradient vanishes by symmetry.
    """
    leaves: list[Tensor] = []

    def to_leaf(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaves.append(tensor.detach().clone().requires_grad_())
        return leaves[-1] * 1  # an operation in place on a leaf would raise

    with restored_state(model), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        for parameter in model.parameters():
            parameter.grad = None
        outputs = tensors_of(forward(model, tree_map_only(Tensor, to_leaf, example)))
        result = RunResult([y.detach().clone() for y in outputs], {}, {})
        differentiable = [y for y in outputs if y.requires_grad]
        try:
            if differentiable:
                torch.autograd.backward(differentiable, [_weights_like(y) for y in differentiable])
        except RuntimeError as error:  # backward of the model itself may not be possible
            result.error = str(error).splitlines()[0]
        kept = model.state_dict(keep_vars=True)  # without counters that are not saved, such as num_batches_skipped
        result.buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers() if name in kept}
        if result.error:
            return result
        named = [*model.named_parameters(), *((f"input {index}", leaf) for index, leaf in enumerate(leaves))]
        result.gradients = {name: tensor.grad for name, tensor in named if tensor.grad is not None}
    return result


class Comparison:
    """Comparison of a model with its own outputs, gradients and buffers at the time of construction.

    Args:
        model: the model.
        forward: a function that calls the model with the example.
        example: the example.
        float64: whether to compare copies of the model in float64.
    """

    def __init__(self, model: nn.Module, forward: Forward, example: Any, *, float64: bool = False) -> None:
        self.model, self.forward, self.float64 = model, forward, float64
        self.example = tree_map_only(Tensor, _to_float64, example) if float64 else example
        self.original = self._run()

    def _run(self) -> RunResult:
        model = copy.deepcopy(self.model).double() if self.float64 else self.model
        return run_with_gradients(model, self.forward, self.example)

    def change(self) -> Change:
        """Return the changes since construction."""
        return compare_runs(self.original, self._run())


def _to_float64(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _weights_like(y: Tensor) -> Tensor:
    weights = torch.arange(y.numel(), device=y.device, dtype=torch.float64).cos()
    return weights.reshape(y.shape).to(y.dtype)


def compare_runs(old: RunResult, new: RunResult) -> Change:
    """Return the changes between two runs; gradients are not compared if the old run has none."""
    tolerances = [TOLERANCE.get(tensor.dtype, DEFAULT_TOLERANCE) for tensor in old.outputs]
    tolerance = max(tolerances, default=DEFAULT_TOLERANCE)
    infinite = float("inf")
    if [y.shape for y in old.outputs] != [y.shape for y in new.outputs]:
        return Change(infinite, infinite, infinite, tolerance)
    outputs = max([_relative(a, b, 0.0) for a, b in zip(old.outputs, new.outputs, strict=True)], default=0.0)
    buffers = _largest_change(old.buffers, new.buffers)
    if old.error:
        return Change(outputs, 0.0, buffers, tolerance)
    return Change(outputs, infinite if new.error else _largest_change(old.gradients, new.gradients), buffers, tolerance)


def _largest_change(old: dict[str, Tensor], new: dict[str, Tensor]) -> float:
    """Return the largest change of named tensors; infinite if names, integers or the finiteness changed."""
    if old.keys() != new.keys():
        return float("inf")
    floats = {name: tensor for name, tensor in old.items() if tensor.is_floating_point()}
    if any(not torch.equal(tensor, new[name]) for name, tensor in old.items() if name not in floats):
        return float("inf")
    largest = max([float(tensor.abs().max()) for tensor in floats.values() if tensor.numel()], default=0.0)
    floor = SMALL_SHARE * largest if largest < float("inf") else 0.0
    return max([_relative(tensor, new[name], floor) for name, tensor in floats.items()], default=0.0)


def _relative(old: Tensor, new: Tensor, floor: float) -> float:
    """Return the largest absolute change, relative to the largest value of the old tensor or to `floor` if that is larger."""
    if not old.is_floating_point() or not old.numel():
        return 0.0
    finite = old.isfinite()
    if not torch.equal(finite, new.isfinite()):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    size = max(float(old[finite].abs().max()), floor, 1e-12)
    return float((new[finite] - old[finite]).abs().max()) / size
