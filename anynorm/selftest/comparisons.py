"""Comparison of a pass on a device with the same pass of the reference in float64 on the CPU.

    expected   z = norm(x) + residual, y = φ(z), in separate operations of torch on float64
    actual     y = norm(x, residual=residual, activation=φ), with the kernels of the device

Both have the same parameters, running statistics, x, residual and dy, which are rounded to the dtype of the pass before. The
error of a tensor is max |actual − expected| / max(1, max |expected|). Elements with z near 0 have dy = 0: there, rounding decides
on which side of the kink of ReLU they are.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.activation import read_activation
from anynorm.errors import AnynormError
from anynorm.layers.norm import CustomNorm, Norm
from anynorm.selftest.cases import LAYOUTS, Case, make_layer, random_condition, random_input
from anynorm.selftest.devices import use_threads
from anynorm.table import json_safe

TOLERANCES = {"float32": 5e-5, "bfloat16": 0.016, "float16": 0.002}
"""Largest error by dtype. Half precision: twice the spacing of numbers near 1, because y, y + residual and φ may each be rounded.
float32: sums over thousands of values, in any order."""


@dataclass(frozen=True)
class Difference:
    """The error of a tensor of a pass, such as y, the gradient dx or the buffer running_mean."""

    name: str
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """The error in units of its tolerance; infinity for NaN."""
        return math.inf if math.isnan(self.error) else self.error / self.tolerance

    @property
    def is_small(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.ratio <= 1


@dataclass(frozen=True)
class Comparison:
    """A pass on a device, compared with the reference.

    Args:
        case: the pass.
        layout: the memory format of x.
        kernels: the kernels that ran: cpu, gpu or reference; custom for a norm with a class of its own, which uses them in part.
        differences: the errors of all tensors.
        problem: why the tensors cannot be compared, such as an exception; "" without one.
    """

    case: Case
    layout: str
    kernels: str
    differences: list[Difference] = field(default_factory=list)
    problem: str = ""

    @property
    def agrees(self) -> bool:
        """Whether all tensors agree with the reference."""
        return not self.problem and all(difference.is_small for difference in self.differences)

    @property
    def worst(self) -> float:
        """The largest error in units of its tolerance; infinity if the tensors cannot be compared."""
        return max([difference.ratio for difference in self.differences], default=math.inf)

    def to_dict(self) -> dict[str, Any]:
        """Return the pass, its largest error with its tolerance, and the errors of all tensors, as values of JSON."""
        most = max(self.differences, key=lambda each: each.ratio, default=None)
        data: dict[str, Any] = json_safe(
            {
                **json_safe(self.case),
                "layout": self.layout,
                "kernels": self.kernels,
                "agrees": self.agrees,
                "problem": self.problem,
                "worst": None if most is None else most.name,
                "error": None if most is None else most.error,
                "tolerance": None if most is None else most.tolerance,
                "errors": {each.name: float(f"{each.error:.3g}") for each in self.differences},
            }
        )
        return data

    def __str__(self) -> str:
        case = self.case
        words = [case.spec, case.dtype, self.layout, "x".join(map(str, case.shape)), "training" if case.training else "inference"]
        words += [f"+ {name}" for name in ("residual" * case.residual, case.activation) if name]
        wrong = [f"{each.name} by {each.error:.2g}" for each in self.differences if not each.is_small]
        return f"{' '.join(words)} ({self.problem or ', '.join(wrong)})"


@dataclass
class Pass:
    """The inputs and the layer of a pass; `run` computes its results."""

    layer: Norm
    x: Tensor
    residual: Tensor | None
    condition: Any

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> Pass:
        """Return a copy on a device with x and the residual in a dtype; layer and style are float64 if x is, or else float32."""
        wide = torch.float64 if dtype is torch.float64 else torch.float32

        def copied(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype, memory_format=memory_format, copy=True).requires_grad_()

        condition = self.condition
        if isinstance(condition, tuple):
            condition = tuple(each.to(device, wide, copy=True).requires_grad_() for each in condition)
        elif condition is not None:
            condition = condition.to(device)
        residual = None if self.residual is None else copied(self.residual)
        return Pass(copy.deepcopy(self.layer).to(device, wide), copied(self.x), residual, condition)

    def results(self, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
        """Run backward, and return y, all gradients and the buffers after the pass."""
        inputs = {"x": self.x, **{name: each for name, each in self.layer.named_parameters() if each.requires_grad}}
        if self.residual is not None:
            inputs["residual"] = self.residual
        if isinstance(self.condition, tuple):
            inputs |= dict(zip(("style_mean", "style_std"), self.condition, strict=True))
        grads = torch.autograd.grad(y, list(inputs.values()), dy, allow_unused=True, materialize_grads=True)
        return {
            "y": y.detach(),
            **{f"d{name}": grad for name, grad in zip(inputs, grads, strict=True)},
            **{name: buffer.clone() for name, buffer in self.layer.named_buffers()},
        }


def compare(case: Case, device: torch.device) -> list[Comparison]:
    """Compare a pass on a device with the reference, once per memory format.

    Only the pass on the device runs in all threads: on a busy machine, small operations in several threads wait for each other.
    """
    threads = torch.get_num_threads()
    with use_threads(1):
        return _compare(case, device, threads)


def _compare(case: Case, device: torch.device, threads: int) -> list[Comparison]:
    """Compare a pass with the reference; the pass on the device runs in a number of threads."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    layer = make_layer(case.spec, case.shape).train(case.training)
    x, residual = (random_input(case.shape, seed).to(dtype) for seed in (5, 6))
    source = Pass(layer, x, residual if case.residual else None, random_condition(layer, x))
    dy, expected = _expect(case, source)
    return [_compare_layout(case, source, layout, device, threads, dy, expected) for layout in case.layouts]


def _expect(case: Case, source: Pass) -> tuple[Tensor, dict[str, Tensor]]:
    """Return dy in the dtype of the pass, and the results of the reference in float64."""
    run = source.to(torch.device("cpu"), torch.float64, torch.contiguous_format)
    activation = read_activation(case.activation)
    with kernels.use("reference"):
        z = run.layer(run.x, run.condition)
        z = z if run.residual is None else z + run.residual
        kink = TOLERANCES[case.dtype] * max(1.0, float(z.detach().abs().max()))
        dy = random_input(case.shape, seed=7).to(source.x.dtype) * (z.detach().abs() > kink)
        return dy, run.results(z if activation is None else activation(z), dy.double())


def _compare_layout(
    case: Case, source: Pass, layout: str, device: torch.device, threads: int, dy: Tensor, expected: dict[str, Tensor]
) -> Comparison:
    """Compare a pass in one memory format."""
    memory_format, backend = LAYOUTS[layout], kernels.backend_of(device)
    try:
        run = source.to(device, source.x.dtype, memory_format)
        with use_threads(threads):
            y, backend = _forward(run, case, backend)
            if y.dtype is not run.x.dtype or y.stride() != run.x.stride():
                problem = f"y has dtype {y.dtype} and strides {y.stride()}, and x {run.x.dtype} and {run.x.stride()}"
                return Comparison(case, layout, backend, problem=problem)
            actual = run.results(y, dy.to(device, memory_format=memory_format))
        backend = "custom" if isinstance(run.layer, CustomNorm) else backend
        differences = [_difference(name, actual[name], expected[name], case.dtype) for name in expected]
    except Exception as error:  # a kernel may raise anything; the other passes are still compared
        return Comparison(case, layout, backend, problem=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    return Comparison(case, layout, backend, differences)


def _forward(run: Pass, case: Case, backend: str) -> tuple[Tensor, str]:
    """Return y, and the kernels that ran: the reference if those of the device do not support the pass, as for users."""
    activation = read_activation(case.activation)
    try:
        with kernels.use(backend):
            return run.layer(run.x, run.condition, residual=run.residual, activation=activation), backend
    except AnynormError:
        return run.layer(run.x, run.condition, residual=run.residual, activation=activation), "reference"


def _difference(name: str, actual: Tensor, expected: Tensor, dtype: str) -> Difference:
    """Return the error of a tensor; running statistics are float32 in every dtype."""
    is_result = name == "y" or name.startswith("d")
    error = (actual.cpu().double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1)
    return Difference(name, float(error), TOLERANCES[dtype if is_result else "float32"])
