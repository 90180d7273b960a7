"""Comparison of the output of a model on an example before and after a change that must not change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from anynorm.surgery.batches import call, is_one_input
from anynorm.surgery.dataflow import tensors_of, trace_example

Run = Callable[[nn.Module], Any]
# Maximum change of the output, relative to its largest absolute value; a larger change is not a rounding error.
TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 0.02}
DEFAULT_TOLERANCE = 1e-3


def call_with_inputs(model: nn.Module, example: Any) -> Any:
    """Call a model with one input, or with a tuple of inputs, which has no labels, unlike a batch of a data loader."""
    several = isinstance(example, tuple | list) and not is_one_input(example)
    return model(*example) if several else call(model, example)


def output_change(model: nn.Module, run: Run, output: Any) -> float:
    """Return the maximum absolute change of the output, relative to its largest absolute value.

    The change is infinite if the shape of the output has changed (possible for a detector), or which of its values are finite.
    """
    new_output = tensors_of(trace_example(model, run, [])[1])
    changes = [0.0]
    if [tensor.shape for tensor in new_output] != [tensor.shape for tensor in tensors_of(output)]:
        return float("inf")
    for old, new in zip(tensors_of(output), new_output, strict=True):
        if old.is_floating_point() and old.numel():
            finite = old.isfinite()
            size = old[finite].abs().max().clamp(min=1e-12) if bool(finite.any()) else 1.0
            change = (new[finite] - old[finite]).abs().max() / size if bool(finite.any()) else 0.0
            changes.append(float(change) if torch.equal(finite, new.isfinite()) else float("inf"))
    return max(changes)


def is_rounding(model: nn.Module, change: float, output: Any) -> bool:
    """Whether a change of the output is a rounding error of its dtype, or of that of a parameter of the model."""
    tolerances = [TOLERANCE.get(tensor.dtype, DEFAULT_TOLERANCE) for tensor in (*tensors_of(output), *model.parameters())]
    return change <= max(tolerances, default=DEFAULT_TOLERANCE)


def describe(change: float, output: Any) -> str:
    """Return the sentence of a report on the change of the output."""
    compared = any(tensor.is_floating_point() and tensor.numel() for tensor in tensors_of(output))
    return f"the output changed by {change:.1g} of its largest value" if compared else "the example has no output to compare"
