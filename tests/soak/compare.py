"""One random pass by the kernels, compared with its definition in float64.

The definition is the naive one of tests/references.py for small inputs of norms made of cuts, and the reference kernels in
float64 for all others. All tensors that a pass gets are rounded before, so that both get the same numbers. Its error is
max |actual − expected| / max(1, max |expected|). It must be within the tolerance of `anynorm selftest`; where that is too small,
because the exact function amplifies rounding, within `AMPLIFIED` times the change of the exact result when all inputs are changed
by a relative 2⁻²⁴, the rounding of float32. Gradients are multiplied by 1/sqrt(var + ε) after terms cancel in them: there, the
change is at least 2⁻²⁴ max |dy| times the largest of these factors.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import anynorm
from anynorm import kernels
from anynorm.core.activation import read_activation
from anynorm.core.affine import inverse_std
from anynorm.errors import AnynormError
from anynorm.kernels import reference
from anynorm.layers.baselines.group_whitening import Whitening
from anynorm.layers.norm import CustomNorm
from anynorm.selftest.comparisons import TOLERANCES, Pass
from tests import references
from tests.soak.generate import Case, named_cuts

AMPLIFIED = 64
"""Errors of the kernels in units of the change by one rounding of the inputs: a sum has many roundings."""
KINKS = {"relu": (0.0,), "leaky_relu": (0.0,), "relu6": (0.0, 6.0), "hardswish": (-3.0, 3.0)}
"""Where derivatives of activations jump."""
ROUNDING = 2.0**-24
MAX_NAIVE = 240
"""Largest number of values for which the naive definition runs."""
MAX_TRITON = 400
MAX_HALF = 1e4
"""Passes in float16 with larger values are not compared: they may overflow."""
INVERSE_STD = inverse_std
DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass
class Inputs:
    """The tensors of a pass, in its dtypes; x has channels in the axis of the case."""

    layer: Any
    x: Tensor
    residual: Tensor | None
    condition: Any
    keywords: dict[str, Any]
    dy: Tensor
    generator: torch.Generator


@dataclass
class Outcome:
    """What a pass on some kernels came to.

    Args:
        backend: the kernels.
        definition: what it was compared with: naive, float64, or error if both raise the same.
        problems: what is wrong.
    """

    backend: str
    definition: str
    problems: list[str] = field(default_factory=list)


def make_inputs(case: Case) -> Inputs:
    """Return the layer and the tensors of a case."""
    generator = torch.Generator().manual_seed(hash((case.seed, case.number)) % 2**31)
    wide = torch.float32 if not case.is_half else case.dtype

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    torch.default_generator.manual_seed(case.number)  # some norms outside the algebra have random initial parameters
    layer = anynorm.make(case.spec, case.shape[1], activation=case.activation, **case.options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * normal(*parameter.shape).float())
        for name, buffer in layer.named_buffers():
            if name.startswith("running_var"):
                buffer.copy_(0.2 + normal(*buffer.shape).abs())
            elif name.startswith("running_mean"):
                buffer.copy_(normal(*buffer.shape))
            elif name.startswith("num_"):
                buffer.fill_(3 if name == "num_batches_tracked" else 30 * (name == "num_values_tracked"))
    layer.set_total_steps(4)
    layer = layer.to(wide).train(case.training)
    x = _values(case, normal)
    residual = normal(*case.shape) if case.residual else None
    n = max(2, case.shape[0] // 2) if case.ragged == "points" else case.shape[0]
    condition = _condition(case, layer, n, normal, generator)
    keywords = _ragged(case, n, generator)
    if "mask" in keywords and case.number % 2 and case.values != "infinite":  # hidden values must not matter
        hidden = keywords["mask"]
        hidden = hidden if hidden.dtype is torch.bool else torch.arange(x.shape[2]) < hidden[:, None]
        x = torch.where(hidden[:, None], x, torch.nan)
    dy = normal(*case.shape)
    axis = case.options.get("channel_axis", 1)
    x, residual, dy = (None if t is None else t.to(case.dtype).movedim(1, axis) for t in (x, residual, dy))
    return Inputs(layer, _lay_out(x, case.layout), residual, condition, keywords, dy, generator)


def _values(case: Case, normal: Callable[..., Tensor]) -> Tensor:
    size = torch.linspace(0.5, 2, case.shape[1], dtype=torch.float64).reshape(1, -1, *(1 for _ in case.shape[2:]))
    x = 0.7 + size * normal(*case.shape)
    if case.values == "offset":
        x = 100 + x
    elif case.values == "constant":
        x[:, ::2] = 3.0
        x[:1] = 0.0
    elif case.values == "tiny":
        x = 1e-3 * x
    elif case.values == "large" and case.dtype is not torch.float16:
        x = 1e4 * x
    elif case.values == "infinite":
        x.flatten()[case.number % x.numel()] = math.inf
    return x


def _condition(case: Case, layer: Any, n: int, normal: Callable[..., Tensor], generator: torch.Generator) -> Any:
    c = case.shape[1]
    if layer.norm_spec.num_classes:
        labels = torch.randint(layer.norm_spec.num_classes, (n,), generator=generator)
        return labels if case.style != "row" else int(labels[0])
    if not layer.norm_spec.takes_style:
        return None
    dtype = case.dtype if case.is_half else torch.float32
    if case.style == "features":
        features = (2 * normal(n, c, 3, 5) + 1).to(dtype)
        return features.movedim(1, case.options.get("channel_axis", 1))
    rows = {"pair": (n, n), "row": (1, 1), "mean row": (1, n), "std row": (n, 1)}[case.style]
    return normal(rows[0], c).to(dtype), (0.1 + normal(rows[1], c).abs()).to(dtype)


def _ragged(case: Case, n: int, generator: torch.Generator) -> dict[str, Any]:
    space = case.shape[2:]
    if case.ragged == "mask":
        valid = torch.rand((n, *space), generator=generator) < (0.7 if case.number % 3 else 0.9)
        if space and case.number % 5:  # otherwise samples without valid positions
            valid.reshape(n, -1)[:, 0] = True
        return {"mask": valid}
    if case.ragged == "lengths":
        return {"mask": torch.randint(1 if case.number % 5 else 0, space[0] + 1, (n,), generator=generator)}
    if case.ragged == "points":
        return {"batch_index": torch.randint(n, (case.shape[0],), generator=generator), "num_graphs": n}
    return {}


def _lay_out(x: Tensor, layout: str) -> Tensor:
    """Return x in a memory layout that its number of dimensions allows."""
    if layout == "channels_last" and x.dim() in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    x = x.contiguous()
    if layout == "strided":
        return x.repeat_interleave(2, dim=0)[::2]
    if layout == "transposed" and x.dim() > 2:
        return x.transpose(1, -1).contiguous().transpose(1, -1)
    if layout == "expanded":
        return torch.stack([x, x], -1)[..., 1]
    return x


def run(case: Case, *, with_triton: bool = False) -> list[Outcome]:
    """Run a case on the kernels for the CPU, on the reference, and on Triton's if they support it; compare all."""
    given = make_inputs(case)
    definition, expected, dy = _define(case, given)
    if definition == "overflow":
        return []
    outcomes = [_compare(case, given, "auto", definition, expected, dy)]
    if case.dtype is not torch.float16:  # on the CPU, the reference runs in any case
        outcomes.append(_compare(case, given, "reference", definition, expected, dy))
        other = "contiguous" if given.x.dim() < 4 or case.layout == "channels_last" else "channels_last"
        if other != case.layout:
            moved = replace(given, x=_lay_out(given.x, other))
            outcomes.append(_compare(case, moved, "auto", definition, expected, dy))
    if with_triton and given.x.numel() <= MAX_TRITON and not isinstance(given.layer, CustomNorm):
        with suppress(UnsupportedPassError):
            outcomes.append(_compare(case, given, "gpu", definition, expected, dy))
    return outcomes


class UnsupportedPassError(Exception):
    """The Triton kernels do not support a pass."""


def _double(tensor: Any) -> Any:
    if isinstance(tensor, tuple):
        return tuple(_double(each) for each in tensor)
    return tensor.detach().double() if isinstance(tensor, Tensor) and tensor.is_floating_point() else tensor


def _pass(given: Inputs, x: Tensor, layer: Any, residual: Tensor | None, condition: Any) -> Pass:
    for tensor in (x, residual, *(condition if isinstance(condition, tuple) else ())):
        if tensor is not None:
            tensor.requires_grad_()
    return Pass(layer, x, residual, condition)


def _exact(given: Inputs, noise: float = 0.0, seed: int = 0, noise_of_z: float = 0.0) -> tuple[Pass, Tensor]:
    """Return the pass in float64, with inputs that are changed by a relative `noise`, and z, the output before the activation."""
    generator = torch.Generator().manual_seed(seed)

    def changed(tensor: Any) -> Any:
        if isinstance(tensor, tuple):
            return tuple(changed(each) for each in tensor)
        exact = _double(tensor)
        if not noise or not isinstance(exact, Tensor) or not exact.is_floating_point():
            return exact
        return exact * (1 + noise * (2 * torch.randint(2, exact.shape, generator=generator) - 1))

    layer = _copy(given.layer).double()
    with torch.no_grad():
        for tensor in [*layer.parameters(), *layer.buffers()]:
            tensor.copy_(changed(tensor))
    exact = _pass(
        given, changed(given.x), layer, None if given.residual is None else changed(given.residual), changed(given.condition)
    )
    layer.activation = None
    with kernels.use("reference"):
        z = layer(exact.x, exact.condition, residual=exact.residual, **given.keywords)
    return exact, z * (1 + noise_of_z * (2 * torch.randint(2, z.shape, generator=generator) - 1))


def _finish(case: Case, exact: Pass, z: Tensor, dy: Tensor) -> dict[str, Tensor]:
    activation = read_activation(case.activation)
    return exact.results(z if activation is None else activation(z), dy.double())


def _define(case: Case, given: Inputs) -> tuple[str, Any, Tensor]:
    """Return the name of the definition, the results or the error that it gives, and dy without entries near kinks."""
    try:
        exact, z = _exact(given)
    except AnynormError as error:
        return "error", error, given.dy
    limit = (
        8
        * TOLERANCES[DTYPE_NAMES[case.dtype]]
        * max(1.0, float(z.detach().nan_to_num(0, 0, 0).abs().max()) if z.numel() else 1.0)
    )
    is_far = torch.ones_like(z, dtype=torch.bool)
    for kink in KINKS.get(case.activation or "", ()):
        is_far &= (z.detach() - kink).abs() > limit
    dy = given.dy * is_far
    expected = _finish(case, exact, z, dy)
    naive = _naive(case, given, dy)
    if case.dtype is torch.float16 and any(
        float(t.abs().max()) > MAX_HALF for t in (z.detach(), *expected.values()) if t.numel()
    ):
        return "overflow", expected, dy
    return ("float64" if naive is None else "naive"), expected | (naive or {}), dy


def _naive(case: Case, given: Inputs, dy: Tensor) -> dict[str, Tensor] | None:
    """Return y and the gradients of x and the parameters by the naive definition; None where it does not apply."""
    n, c, s = case.shape[0], case.shape[1], math.prod(case.shape[2:])
    names = named_cuts(n, c, s)
    text = case.spec.partition(".")[0]
    sides = text.split("/") if "/" in text else [text, text]
    cuts = [[name for name in side.split("+") if name != "0"] for side in sides]
    layer = given.layer
    is_plain = not given.keywords.get("batch_index") is not None and case.number % 2 == 0 and n * c * s <= MAX_NAIVE
    uses_batch = layer.uses_batch or not layer.pools_samples
    if not is_plain or not uses_batch or isinstance(layer, CustomNorm) or layer.norm_spec.takes_style:
        return None
    if case.values == "infinite" or not all(name in names for side in cuts for name in side) or not n:
        return None
    if case.options.get("single_value") == "running":
        return None
    axis = case.options.get("channel_axis", 1)
    x = given.x.detach().double().requires_grad_()
    valid = given.keywords.get("mask")
    if valid is not None:
        valid = valid if valid.dtype is torch.bool else torch.arange(case.shape[2]) < valid[:, None]
        valid = valid.reshape(n, s)
    rows = x.movedim(axis, 1).reshape(n, c, s)
    rows = rows if valid is None else torch.where(valid[:, None], rows, 0.0)
    labels = given.condition
    labels = torch.full((n,), labels) if isinstance(labels, int) else labels
    domain = labels.tolist() if layer.norm_spec.affine.num_domains else None
    params = {name: p.detach().double().requires_grad_(p.requires_grad) for name, p in layer.named_parameters()}
    mixed: list[Tensor] = []
    for k, side in enumerate(cuts):
        tables: list[Any] = [
            references.statistics(rows, names[name], domain, zero_mean=not cuts[0], valid=valid)[k] for name in side
        ]
        mixed.append(references.weighted(tables, _weights(params.get(("mean_weight", "var_weight")[k]), case.spec)))
    affine = []
    if "weight" in params:
        affine.append((params["weight"][:, None], params["bias"][:, None] if "bias" in params else torch.zeros(c, 1).double()))
    if "class_weight" in params:
        affine.append((params["class_weight"][labels][..., None], params["class_bias"][labels][..., None]))
    y = (
        references.normalize(rows, mixed[0], mixed[1], affine, float(layer.eps))
        .reshape(x.movedim(axis, 1).shape)
        .movedim(1, axis)
    )
    y = y if given.residual is None else y + given.residual.double()
    activation = read_activation(case.activation)
    y = y if activation is None else activation(y)
    if valid is not None:
        y = torch.where(valid.reshape(n, *case.shape[2:]).unsqueeze(axis if axis > 0 else axis + x.dim()), y, 0.0)
    wanted = {"x": x} | {name: p for name, p in params.items() if p.requires_grad}
    grads = torch.autograd.grad(y, list(wanted.values()), dy.double(), allow_unused=True, materialize_grads=True)
    return {"y": y.detach(), **{f"d{name}": grad for name, grad in zip(wanted, grads, strict=True)}}


def _weights(logits: Tensor | None, spec: str) -> Tensor | None:
    if logits is None:
        return None
    return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double() if ".hard" in spec else logits.softmax(-1)


def _copy(layer: Any) -> Any:
    """Return a copy of a layer; much faster than deepcopy."""
    if layer._modules or layer.accumulator is not None:
        return copy.deepcopy(layer)
    other = copy.copy(layer)
    other._parameters = {
        name: None if p is None else torch.nn.Parameter(p.detach().clone(), p.requires_grad)
        for name, p in layer._parameters.items()
    }
    other._buffers = {name: None if b is None else b.clone() for name, b in layer._buffers.items()}
    return other


def _compare(case: Case, given: Inputs, backend: str, definition: str, expected: Any, dy: Tensor) -> Outcome:
    """Run the pass on some kernels, and compare it with the definition."""
    layer = _copy(given.layer)
    copied = tuple(t.detach().clone() for t in given.condition) if isinstance(given.condition, tuple) else given.condition
    if isinstance(copied, Tensor):
        copied = copied.detach().clone()
    residual = None if given.residual is None else given.residual.detach().clone()
    x = given.x.detach()
    ran = _pass(given, x, layer, residual, copied)
    try:
        with kernels.use(backend):
            y = layer(ran.x, ran.condition, residual=ran.residual, **given.keywords)
    except AnynormError as error:
        if "kernels do not support this pass" in str(error):
            raise UnsupportedPassError from None
        return _compare_error(given, layer, backend, definition, expected, error)
    except Exception as error:
        return Outcome(backend, definition, [f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"])
    finally:
        x.requires_grad_(False)
    if definition == "error":
        return Outcome(backend, definition, [f"no error; the definition raises {type(expected).__name__}: {expected}"])
    x.requires_grad_()
    actual = ran.results(y, dy.to(y.dtype))
    x.requires_grad_(False)
    return Outcome(backend, definition, _layout_problems(x, y) + _value_problems(case, given, dy, actual, expected))


def _layout_problems(x: Tensor, y: Tensor) -> list[str]:
    problems = []
    if y.dtype is not x.dtype or y.shape != x.shape:
        problems.append(f"y has dtype {y.dtype} and shape {tuple(y.shape)}")
    if x.is_contiguous() and not y.is_contiguous():
        problems.append(f"y has strides {y.stride()}, and x {x.stride()}")
    return problems


def _value_problems(case: Case, given: Inputs, dy: Tensor, actual: Any, expected: Any) -> list[str]:
    """Return which results differ, and by how much."""
    problems, limits = [], None
    for name, exact in expected.items():
        if case.values == "infinite" and (name == "y" or name.startswith("d")):
            continue
        tolerance = TOLERANCES[DTYPE_NAMES[_dtype_of(case, name)]]
        found = _error(actual[name], exact)
        if found <= tolerance:
            continue
        limits = limits or _limits(case, given, dy)
        if found > limits[name]:
            problems.append(f"{name} by {found:.2g} (tolerance {tolerance:.2g}, roundings {limits[name]:.2g})")
    return problems


def _dtype_of(case: Case, name: str) -> torch.dtype:
    return case.dtype if case.is_half or name == "y" or name.startswith("d") else torch.float32


def _compare_error(given: Inputs, layer: Any, backend: str, definition: str, expected: Any, error: AnynormError) -> Outcome:
    """Check that the definition raises the same error, and that no state has changed."""
    problems = []
    if definition != "error":
        problems.append(f"{type(error).__name__}: {error}; the definition raises nothing")
    elif type(error) is not type(expected):
        problems.append(f"{type(error).__name__}: {error}; the definition raises {type(expected).__name__}: {expected}")
    for (name, before), after in zip(given.layer.state_dict().items(), layer.state_dict().values(), strict=True):
        if not torch.equal(before, after):
            problems.append(f"{name} has changed although the pass raised {type(error).__name__}")
    return Outcome(backend, "error", problems)


def _error(actual: Tensor, exact: Tensor) -> float:
    """Return the relative error; infinity if values that are not finite differ."""
    actual, exact = actual.double(), exact.double()
    if not exact.numel():
        return 0.0
    finite = exact.isfinite()
    if not torch.equal(actual.isfinite(), finite):
        return math.inf
    difference = torch.where(finite, actual - exact, 0.0).abs().max()
    return float(difference / torch.where(finite, exact, 0.0).abs().max().clamp(min=1))


def _limits(case: Case, given: Inputs, dy: Tensor) -> dict[str, float]:
    """Return the largest errors of all results that changes of the exact function by roundings explain."""
    results, factors = (
        [],
        [float(given.layer.eps) ** -0.5 if isinstance(given.layer, Whitening) else 1.0],
    )  # of a singular covariance

    def watched(var: Tensor, eps: float) -> Tensor:
        r = INVERSE_STD(var, eps)
        factors.append(float(r.detach().abs().max()))
        return r

    for seed in range(4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reference, "inverse_std", watched)
            results.append(_finish(case, *_exact(given, ROUNDING if seed else 0.0, seed), dy))
    limits = {name: AMPLIFIED * max(_error(other[name], exact) for other in results[1:]) for name, exact in results[0].items()}
    for name, exact in results[0].items():
        if name.startswith("d") and exact.numel():
            least = ROUNDING * max(factors) * float(dy.abs().max()) / max(1.0, float(exact.abs().max()))
            limits[name] = max(limits[name], AMPLIFIED * least)
    if case.dtype is not torch.float32 and case.activation and (case.residual or isinstance(given.layer, CustomNorm)):
        for seed in range(1, 4):  # z is rounded to half precision before the activation
            rounded = _finish(case, *_exact(given, seed=seed, noise_of_z=torch.finfo(case.dtype).eps / 2), dy)
            for name, exact in results[0].items():
                limits[name] += 2 * _error(rounded[name], exact)
    return limits
