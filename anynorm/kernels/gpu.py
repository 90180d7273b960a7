"""The Triton kernels for eager CUDA and ROCm tensors: a pass through them, and a check of them at first use on a device.

No GPU has run them yet: they are tested in Triton's interpreter (TRITON_INTERPRET=1, on CPU tensors) and compiled for three
architectures. Of the size of x, only y and dx are allocated and only x is saved for backward; no pass waits for the device.
"""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from functools import lru_cache
from importlib import metadata, util
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anynorm.core.affine import PerChannel, PerClass, Style
from anynorm.core.cuts import ALL
from anynorm.core.cuts import Cut as CoreCut
from anynorm.core.mixing import Argmax, Softmax
from anynorm.core.moments import Moments
from anynorm.core.spec import AffineSpec, NormSpec
from anynorm.kernels import reference
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params, UnsupportedError
from anynorm.kernels.sync import NoSync

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TILE = 4096
"""The number of bytes of a tile of x: 16 for each of 256 threads."""
TILES = 8
"""The number of tiles that one program reads: longer rows are split."""
COLUMNS, SAMPLES = 16, 32
"""A tile of a table whose samples are pooled."""
BLOCK = 256
"""The number of rows of which one program computes the coefficients."""
MAX_ROWS = 2**28
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

problems: dict[torch.device, str] = {}
"""Why the kernels are not used on a device; empty if they are."""


def triton_kernels() -> ModuleType:
    """Import and return the kernels; `import anynorm` does not import Triton."""
    from anynorm.kernels import gpu_kernels

    return gpu_kernels


def describe() -> str:
    """Return for which tensors the kernels are used, or why they are not."""
    if util.find_spec("triton") is None:
        return "not available: triton is not installed"
    failed = "; ".join(f"not used on {device}: {problem}" for device, problem in problems.items() if problem)
    text = f"Triton {metadata.version('triton')}, used for eager CUDA and ROCm tensors; tested in Triton's interpreter and compiled "
    return failed or text + "for sm_80, sm_90 and gfx942; no GPU has run them yet"


def is_supported_device(x: Tensor) -> bool:
    """Whether the kernels can run on the device of x."""
    return x.is_cuda or (x.is_cpu and util.find_spec("triton") is not None and triton_kernels().INTERPRETED)


def _is_last(x: Tensor) -> bool:
    return not x.is_contiguous() and x.dim() in _FORMATS and x.is_contiguous(memory_format=_FORMATS[x.dim()])


def check_supported(spec: ForwardSpec, x: Tensor) -> None:
    """Raise UnsupportedError if the kernels do not support a pass over x."""
    if not is_supported_device(x):
        raise UnsupportedError("they run on CUDA and ROCm tensors")
    if spec.has_positional_cut:
        raise UnsupportedError("a cut keeps every position separate")
    if spec.sync_group.is_synchronized:
        if spec.has_ghost_cut:
            raise UnsupportedError("ghost batches are synchronized")
    elif not x.numel() or not (x.is_contiguous() or _is_last(x)):
        raise UnsupportedError("the input is empty or its rows are not dense")
    if x.shape[0] * x.shape[1] * spec.num_strips(x) > MAX_ROWS or math.prod(x.shape[1:]) >= 2**31:
        raise UnsupportedError("the input is too large for offsets of 32 bits")
    if x.device not in problems:
        _check_device(x.device)
    if problems[x.device]:
        raise UnsupportedError(f"they are not used on {x.device} ({problems[x.device]})")


class Plan(NamedTuple):
    """A pass over inputs of one shape: its description for the kernels and the sizes of tables and grids."""

    norm: Any
    layout: Any
    n: int
    c: int
    length: int
    num_rows: int
    num_splits: int
    num_stats: int
    grid: int
    offsets: tuple[int, ...]

    @property
    def num_columns(self) -> int:
        """The number of channels × strips."""
        return self.c * self.norm.strips

    @property
    def num_domains(self) -> int:
        """The number of sets of column moments."""
        return max(self.norm.domains, 1)

    def table_size(self, k: int) -> tuple[int, int]:
        """Return the numbers of rows and columns of the statistics of a cut."""
        cut = self.norm.cuts[k]
        return self.n // cut.samples if cut.samples else self.num_domains, (cut.channels or self.c) * cut.strips


def _power_of_2(number: int, limit: int) -> int:
    return int(min(limit, 1 << max(number - 1, 0).bit_length()))


@lru_cache(maxsize=1024)
def make_plan(spec: ForwardSpec, shape: torch.Size, itemsize: int, last: bool, style_rows: int) -> Plan:
    """Return the plan of a pass over an input of a shape, channels_last or contiguous."""
    kernels = triton_kernels()
    n, c, strips = shape[0], shape[1], math.lcm(*(cut.space for cut in spec.cuts.distinct))
    length = math.prod(shape[2:]) // strips
    cuts = []
    for k, (cut, uses_batch) in enumerate(zip(spec.cuts.distinct, spec.uses_batch, strict=True)):
        samples = cut.samples_per_part if cut.samples == ALL and uses_batch else 0
        width = (cut.channels or c) * cut.space
        members = _power_of_2(max(samples, 1) * c * strips // width, 512)
        mean, var = (side.index(k) if k in side else -1 for side in (spec.cuts.mean, spec.cuts.var))
        cuts.append(kernels.Cut(samples, cut.channels, cut.space, uses_batch, mean, var, _power_of_2(width, 512 // members), members))
    second = "class" if any(isinstance(stage, PerClass) for stage in spec.norm_spec.affine.stages) else ""
    norm = kernels.Norm(
        tuple(cuts), strips, spec.num_domains, type(spec.norm_spec.mixing).__name__.lower(), spec.norm_spec.mixing.groups,
        len(spec.cuts.mean), len(spec.cuts.var), second or ("first" if style_rows == 1 else "sample" if style_rows else ""),
        any(cut.uses_batch and not cut.samples for cut in cuts),
    )  # fmt: skip
    inner = c if last else length
    tile = TILE // itemsize
    block = _power_of_2(inner, 128 if last else tile)
    rows, positions = (block, _power_of_2(length, tile // block)) if last else (_power_of_2(n * c * strips, tile // block), block)
    layout = kernels.Layout(last, math.gcd(inner, 16) or 1, strips, rows, positions)
    num_splits = max(1, math.ceil(length / (positions * TILES)))
    blocks = n * strips * math.ceil(c / rows) if last else math.ceil(n * c * strips / rows)
    plan = Plan(norm, layout, n, c, length, n * c * strips, num_splits, 0, blocks * num_splits, ())
    sizes = [math.prod(plan.table_size(k)) for k in range(len(cuts))]
    return plan._replace(num_stats=sum(sizes), offsets=tuple(sum(sizes[:k]) for k in range(len(cuts))))


def _launch(kernel: Any, grid: int, *args: Any, **constants: Any) -> None:
    if grid:
        kernel[(grid,)](*args, **constants, enable_fp_fusion=True)


class _Pass:
    """The tensors of a pass besides x and the parameters."""

    def __init__(self, spec: ForwardSpec, plan: Plan, buffers: Buffers) -> None:
        self.spec, self.plan, self.buffers = spec, plan, buffers
        self.stats = self.counts = torch.empty(0)

    def forward(self, x: Tensor, params: Any) -> Tensor:
        k, plan, spec, labels = triton_kernels(), self.plan, self.spec, self.buffers.labels
        (norm, n, c, length, stats_size), tiles = (plan.norm, plan.n, plan.c, plan.length, plan.num_stats), TILES
        float64 = {"dtype": torch.float64, "device": x.device}
        self.stats, self.counts = torch.empty(2, stats_size, **float64), torch.empty(plan.num_domains, **float64)
        table = torch.empty(3 * plan.num_splits * plan.num_rows, dtype=torch.float32, device=x.device)
        columns = torch.empty(2, plan.num_domains, plan.num_columns if norm.pools_columns else 0, **float64)
        block = {"NORM": norm, "PARTS": COLUMNS, "MEMBERS": SAMPLES}
        if any(spec.uses_batch):
            sizes = (plan.num_rows, c, length, tiles, plan.num_splits)
            _launch(k.row_sums, plan.grid, x, None, table, *sizes, LAYOUT=plan.layout)
            grid = plan.num_domains * _blocks(plan.num_columns, COLUMNS) if norm.pools_columns else 0
            grid += sum(_grid(plan, i, cut.parts) for i, cut in enumerate(norm.cuts) if cut.samples)
            sizes = (n, c, length, tiles * plan.layout.positions, plan.num_splits, stats_size)
            _launch(k.pool_rows, grid, table, columns, self.counts, self.stats, labels, *sizes, **block)
        if norm.pools_columns and spec.sync_group.is_synchronized:
            mean, var = columns.reshape(2, plan.num_domains, c, norm.strips)
            merged = spec.sync_group.all_reduce(Moments(mean, var, self.counts.reshape(-1, 1, 1)))
            mean.copy_(merged.mean), var.copy_(merged.var), self.counts.copy_(merged.count.expand_as(mean)[:, 0, 0])
        running = tuple(buffer for pair in self.buffers.running_stats for buffer in pair or (None, None))
        update, momentum = self.buffers.momentum is not None, self.buffers.momentum or 0.0
        jobs = [i for i, cut in enumerate(norm.cuts) if not cut.samples or (cut.samples > 1 and update)]
        grid = sum(plan.num_domains * _blocks(plan.table_size(i)[1], COLUMNS) for i, cut in enumerate(norm.cuts) if cut.samples != 1)
        if jobs:
            args = (columns, self.counts, self.stats, running, self.buffers.num_batches, n, c, length, stats_size, momentum)
            _launch(k.pool_columns, grid, *args, UPDATE=update, **block)
        args = (self.stats, None, self.counts, labels, params, table, n, c, length, stats_size, spec.eps)
        _launch(k.coefficients, _blocks(plan.num_rows, BLOCK), *args, NORM=norm, BLOCK=BLOCK)
        y = torch.empty_like(x)
        _launch(k.apply, plan.grid, x, None, y, table, plan.num_rows, c, length, tiles, LAYOUT=plan.layout)
        return y

    def backward(self, x: Tensor, dy: Tensor, params: Any, dparams: Any, needs_dx: bool) -> Tensor | None:
        k, plan, spec, labels = triton_kernels(), self.plan, self.spec, self.buffers.labels
        norm, n, c, length, stats_size, num_rows = plan.norm, plan.n, plan.c, plan.length, plan.num_stats, plan.num_rows
        float64 = {"dtype": torch.float64, "device": x.device}
        keep = any(cut.samples for cut in norm.cuts) or bool(norm.domains and norm.pools_columns)
        quantities = 1 << (3 + norm.num_means + norm.num_vars).bit_length()
        num_second = 0 if params.second_weight is None else params.second_weight.shape[0]
        table = torch.empty(max(3 * plan.num_splits, 4) * num_rows, dtype=torch.float32, device=x.device)
        rows = torch.empty(4 * num_rows if keep or num_second else 0, dtype=torch.float32, device=x.device)
        columns, grads = torch.empty(quantities * plan.num_columns, **float64), torch.empty(2, stats_size, **float64)
        block = {"NORM": norm, "PARTS": COLUMNS, "MEMBERS": SAMPLES}
        _launch(k.row_sums, plan.grid, x, dy, table, num_rows, c, length, TILES, plan.num_splits, LAYOUT=plan.layout)
        args = (table, self.stats, labels, params, rows, columns, n, c, plan.num_splits, stats_size, spec.eps)
        _launch(k.gradients, _blocks(plan.num_columns, COLUMNS), *args, KEEP=keep, QUANTITIES=quantities, **block)
        grid = sum(_grid(plan, i, cut.parts) for i, cut in enumerate(norm.cuts) if cut.uses_batch)
        grid += (1 + num_second) * _blocks(c, COLUMNS) + norm.groups
        args = (rows, columns, grads, labels, params, dparams, n, c, stats_size, num_second)
        _launch(k.reduce, grid, *args, **block)
        if norm.pools_columns and spec.sync_group.is_synchronized:
            pooled = [i for i, cut in enumerate(norm.cuts) if cut.uses_batch and not cut.samples]
            slices = [grads[:, plan.offsets[i] : plan.offsets[i] + math.prod(plan.table_size(i))] for i in pooled]
            total = spec.sync_group.sum(torch.cat(slices, 1))
            for mine, summed in zip(slices, total.split([piece.shape[1] for piece in slices], 1), strict=True):
                mine.copy_(summed)
        if not needs_dx:
            return None
        args = (self.stats, grads, self.counts, labels, params, table, n, c, length, stats_size, spec.eps)
        _launch(k.coefficients, _blocks(num_rows, BLOCK), *args, NORM=norm, BLOCK=BLOCK)
        dx = torch.empty_like(x)
        _launch(k.apply, plan.grid, x, dy, dx, table, num_rows, c, length, TILES, LAYOUT=plan.layout)
        return dx


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _grid(plan: Plan, k: int, parts: int) -> int:
    rows, width = plan.table_size(k)
    return rows * _blocks(width, parts)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Pass, x: Tensor, *params: Tensor | None) -> Tensor:
        with _on_device(x):
            y = call.forward(x, _kernel_params(Params(*params)))
        ctx.call = call
        ctx.save_for_backward(x, call.stats, call.counts, call.buffers.labels, *params)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, _, _, _, *params = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return (None, *_reference_backward(ctx.call, x, params, dy, ctx.needs_input_grad[1:]))
        if dy.dtype != x.dtype or dy.stride() != x.stride():
            dy = torch.empty_like(x).copy_(dy)
        is_argmax = isinstance(ctx.call.spec.norm_spec.mixing, Argmax)
        grads = [
            torch.empty_like(param, memory_format=torch.contiguous_format) if need and param is not None else None
            for param, need in zip(params, ctx.needs_input_grad[2:], strict=True)
        ]
        dparams = Params(*grads)
        if is_argmax:  # the selection of a cut has no gradient
            dparams = dparams._replace(mean_weight=None, var_weight=None)
        with _on_device(x):
            dx = ctx.call.backward(x, dy, _kernel_params(Params(*params)), _kernel_params(dparams), ctx.needs_input_grad[1])
        return (None, dx, *dparams)


def _on_device(x: Tensor) -> Any:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _kernel_params(params: Params) -> Any:
    """Return parameters, or their gradients, in the order of the kernels; a style is a second affine like that of classes."""
    second = (params.style_std, params.style_mean) if params.class_weight is None and params.class_bias is None else params[2:4]
    tensors = (params.weight, params.bias, *second, params.mean_weight, params.var_weight)
    return triton_kernels().Params(*(None if tensor is None else tensor.contiguous() for tensor in tensors))


def _reference_backward(call: _Pass, x: Tensor, params: list[Any], dy: Tensor, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """Return gradients that can be differentiated again."""
    pairs = []
    for k, cut in enumerate(call.plan.norm.cuts):
        begin = call.plan.offsets[k]
        mean, var = call.stats[:, begin : begin + math.prod(call.plan.table_size(k))]
        pairs.append(None if cut.uses_batch else (mean, var))
    with torch.enable_grad():
        y, _ = reference.normalize(call.spec, x, Params(*params), Buffers(tuple(pairs), call.buffers.labels))
        inputs = [tensor for tensor, need in zip([x, *params], needed, strict=True) if need]
        grads = iter(torch.autograd.grad(y, inputs, dy, create_graph=True, allow_unused=True))
    return [next(grads) if need else None for need in needed]


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Return y and the statistics of the batch; update the running statistics. Arguments: see `kernels.normalize`."""
    last = _is_last(x)
    x = x if last or x.is_contiguous() else x.contiguous()
    labels = None if buffers.labels is None else buffers.labels.contiguous()
    plan = make_plan(spec, x.shape, x.element_size(), last, 0 if params.style_std is None else params.style_std.shape[0])
    call = _Pass(spec, plan, buffers._replace(labels=labels))
    y: Tensor = _Normalize.apply(call, x, *params)  # type: ignore[no-untyped-call]
    is_updated = buffers.momentum is not None
    if is_updated and not spec.num_domains and not spec.sync_group.is_synchronized:
        return y, BatchStats([], is_updated=True)
    return y, _read_stats(call)._replace(is_updated=is_updated)


def _read_stats(call: _Pass) -> BatchStats:
    """Return the moments of the cuts that pooled samples of the batch."""
    plan, by_cut, num_values = call.plan, list[Moments | None](), None
    for k, (cut, core) in enumerate(zip(plan.norm.cuts, call.spec.cuts.distinct, strict=True)):
        if not (cut.uses_batch and core.pools_samples):
            by_cut.append(None)
            continue
        rows, width = plan.table_size(k)
        mean, var = call.stats[:, plan.offsets[k] : plan.offsets[k] + rows * width].reshape(2, rows, width // cut.strips, cut.strips)
        counts = torch.full_like(call.counts, plan.n * plan.length) if cut.samples else call.counts
        num_values = (counts * plan.norm.strips).reshape(-1, 1, 1)
        per_part = num_values * (plan.c / width / (rows if cut.samples else 1))
        by_cut.append(Moments(mean, var, per_part.expand_as(mean)))
    return BatchStats(by_cut, None, num_values)


def _check_device(device: torch.device) -> None:
    """Compare a small pass of each kind with the reference; warn if they differ or Triton fails."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(f"they were not checked on {device} before a CUDA graph was captured")
    problems[device] = ""  # the passes of the check run
    try:
        with torch.inference_mode(False), torch.enable_grad():
            problems[device] = next(filter(None, (_difference(*case, device) for case in _check_cases())), "")
    except Exception as error:  # whatever Triton raises
        problems[device] = f"Triton failed: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    if problems[device]:
        warnings.warn(f"anynorm runs without its Triton kernels on {device}: {problems[device]}.", stacklevel=2)


def _check_cases() -> list[tuple[NormSpec, bool]]:
    """Return norms that together use every part of the kernels, and whether their inputs are channels_last."""
    bn, instance, ln, gn, strips = (CoreCut(*parts) for parts in ((1, ALL, 1), (ALL, ALL, 1), (ALL, 1, 1), (ALL, 4, 1), (1, ALL, 4)))
    switch = NormSpec((instance, ln, bn), (instance, ln, bn), Softmax())
    sandwich = NormSpec((bn,), (bn,), affine=AffineSpec((PerChannel(), PerClass(3)), 3))
    style = NormSpec((gn,), (gn,), affine=AffineSpec((Style(),)))
    return [(switch, False), (switch, True), (sandwich, False), (NormSpec((strips,), (strips,)), True), (style, False)]


def _difference(norm: NormSpec, last: bool, device: torch.device) -> str:
    """Return how the kernels and the reference differ for a norm; empty if they do not."""
    n, c, size = 6, 8, (8, 6)

    def wave(*shape: int) -> Tensor:
        return torch.arange(1.0, math.prod(shape) + 1, device=device).mul_(1.7).sin_().reshape(shape).add_(0.5)

    cuts = norm.resolve(c)
    spec = ForwardSpec(norm, cuts, c, 1e-5, tuple(True for _ in cuts.distinct), NoSync())
    x = wave(n, c, *size)
    x = x.to(memory_format=torch.channels_last) if last else x
    shapes: dict[str, tuple[int, ...]] = {"mean_weight": (3,), "var_weight": (3,)} if len(cuts.mean) > 1 else {}
    shapes |= {name: stage.shape(c) for stage in norm.affine.stages for name in stage.names}
    shapes |= {"style_mean": (n, c), "style_std": (n, c)} if norm.takes_style else {}
    labels = torch.arange(n, device=device) % 3 if norm.num_classes else None
    results = []
    for backend in (reference.normalize, normalize):
        inputs = [x.detach().clone().requires_grad_(), *(wave(*shape).requires_grad_() for shape in shapes.values())]
        params = Params(**dict(zip(shapes, inputs[1:], strict=True)))
        y, _ = backend(spec, inputs[0], params, Buffers(tuple((None, None) for _ in cuts.distinct), labels))
        results.append([y, *torch.autograd.grad(y, inputs, wave(*y.shape))])
    for expected, actual in zip(*results, strict=True):
        if not torch.allclose(actual, expected, rtol=1e-3, atol=1e-3 * max(1.0, float(expected.detach().abs().max()))):
            error = float((actual - expected).detach().abs().max())
            return f"a pass of {norm} differs from the reference by {error:.2g}"
    return ""
