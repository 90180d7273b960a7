"""The Triton kernels for eager CUDA and ROCm tensors: launches them, and checks them at first use on a device.

No GPU has run them yet: they are tested in Triton's interpreter (TRITON_INTERPRET=1, on CPU tensors) and compiled for three
architectures. Besides x, y, the residual and their gradients, they need memory for a few numbers per row (sample, channel,
strip), and for a copy of dy or of the residual if its strides or dtype differ from those of x. Backward needs x, and y if there
are a residual and an activation. No pass synchronizes with the device.
"""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from functools import lru_cache
from importlib import util
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anynorm.core.activation import Activation
from anynorm.core.affine import PerClass
from anynorm.core.compat import can_read_values, is_transformed
from anynorm.core.cuts import ALL
from anynorm.core.mixing import Argmax
from anynorm.core.moments import Moments
from anynorm.kernels import reference
from anynorm.kernels.gpu_sizes import check_sizes
from anynorm.kernels.interface import (
    BatchStats,
    Buffers,
    ForwardSpec,
    Params,
    UnsupportedError,
    is_channels_last,
    read_batch_stats,
)

TILE = 4096
"""Size of a tile of x in bytes: one load of 16 bytes for each of 256 threads (4 warps of 64 on AMD), or two for each of 128."""
TILES = 8
"""Maximum number of tiles that one program reads; longer rows are split."""
PROGRAMS = 2 * 132
"""Number of programs below which they read fewer tiles: two for each of the 132 multiprocessors of an H100, so that one computes
while the other waits for memory."""
COLUMNS, SAMPLES, TABLE = 16, 32, 512
"""Shape of the tiles of tables that are summed over samples, and maximum number of entries of all other tiles of tables."""
BLOCK = 256
"""Number of rows per program in the kernel `coefficients`."""
MAX_ROWS = 2**28
MIN_TRITON = (3, 7)
"""Minimum version of Triton that compiles the kernels."""

problems: dict[torch.device, str] = {}
"""The reason why the kernels are not used, for each device that was checked; empty if they are used."""


def triton_kernels() -> ModuleType:
    """Import and return the module of the kernels, so that `import anynorm` does not import Triton."""
    from anynorm.kernels import gpu_kernels

    return gpu_kernels


def describe() -> str:
    """Return a description of when the kernels are used, or why they are not."""
    if util.find_spec("triton") is None:
        return "not available: triton is not installed"
    failed = "; ".join(f"not used on {device}: {problem}" for device, problem in problems.items() if problem)
    text = f"Triton {_triton_version()}, used for eager CUDA and ROCm tensors; tested in Triton's interpreter and compiled for "
    return failed or text + "sm_80, sm_90 and gfx942; no GPU has run them yet"


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


def is_supported_device(x: Tensor) -> bool:
    """Whether the kernels can run on the device of x."""
    return x.is_cuda or (x.is_cpu and util.find_spec("triton") is not None and triton_kernels().INTERPRETED)


def check_supported(spec: ForwardSpec, x: Tensor) -> None:
    """Raise UnsupportedError if the kernels do not support a forward pass with the input x."""
    if not is_supported_device(x):
        raise UnsupportedError("they run on CUDA and ROCm tensors")
    if x.shape[0] * x.shape[1] * spec.num_strips(x) > MAX_ROWS or math.prod(x.shape[1:]) >= 2**31:
        raise UnsupportedError("the input is too large for offsets of 32 bits")
    if x.device not in problems:
        _check_device(x.device)
    if problems[x.device]:
        raise UnsupportedError(f"they are not used on {x.device} ({problems[x.device]})")


class Plan(NamedTuple):
    """The description of a forward pass for one input shape, and the grid (number of programs) of the kernels that read x."""

    shape: Any
    norm: Any
    layout: Any
    activation: Any
    grid: int

    def size(self, k: int) -> tuple[int, int]:
        """Return the number of rows and columns of the table of statistics of cut k."""
        cut = self.norm.cuts[k]
        return self.shape.n // cut.samples_per_part if cut.samples_per_part else self.num_domains, (
            cut.channels or self.shape.c
        ) * cut.strips

    def slice(self, k: int) -> slice:
        """Return the slice of the statistics of cut k in the table of the statistics of all cuts."""
        begin = sum(math.prod(self.size(i)) for i in range(k))
        return slice(begin, begin + math.prod(self.size(k)))

    def programs(self, k: int) -> int:
        """Return the number of programs that compute the statistics of cut k."""
        rows, width = self.size(k)
        return rows * _blocks(width, int(self.norm.cuts[k].parts))

    @property
    def num_columns(self) -> int:
        """Number of columns (channel, strip)."""
        return int(self.shape.c * self.norm.strips)

    @property
    def num_domains(self) -> int:
        """Number of sets of statistics of a cut that pools samples: the number of domains, or 1."""
        return int(max(self.norm.domains, 1))


def _power_of_2(number: int, limit: int) -> int:
    return int(min(limit, 1 << max(number - 1, 0).bit_length()))


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


class Tiling(NamedTuple):
    """The tiles (rows, positions) of x, of which a program reads those of `chunk` positions, and the number of programs."""

    rows: int
    positions: int
    chunk: int
    num_splits: int
    grid: int


def _make_tiling(num_strips: int, c: int, length: int, tile: int, max_tiles: int, last: bool) -> Tiling:
    """Return the tiling with tiles of up to `tile` values, of which a program reads up to `max_tiles`.

    Args:
        num_strips: number of strips of all samples.
        c: number of channels.
        length: number of positions per strip.
        tile: maximum number of values per tile.
        max_tiles: maximum number of tiles per program.
        last: whether x is channels_last instead of contiguous.
    """
    if last:
        rows = _power_of_2(c, min(tile, 128))
        positions, blocks = _power_of_2(length, tile // rows), num_strips * _blocks(c, rows)
    else:
        positions = _power_of_2(length, tile)
        rows = _power_of_2(num_strips * c, tile // positions)
        blocks = _blocks(num_strips * c, rows)
    chunk = positions * max_tiles
    num_splits = max(1, _blocks(length, chunk))
    return Tiling(rows, positions, chunk, num_splits, num_splits * blocks)


def _choose_tiling(num_strips: int, c: int, length: int, itemsize: int, last: bool) -> Tiling:
    """Return the tiling with the most tiles per program that has at least PROGRAMS programs; otherwise the one with the most.

    The numbers of programs of gn:32 at batch 1 in float16 are below. All kernels but row_sums and apply read small tables: three
    float32 numbers per row and split, which pool_rows and gradients read, are 5 % of x at 8 tiles of a channels_last x, and
    19 % at the 2 tiles of (1, 320, 64, 64).

        x                    layout           row_sums, apply   pool_rows   coefficients   gradients   reduce
        (1, 320, 64, 64)     contiguous                   320           1              2          20       44
                             channels_last                384          32              2          20      106
        (1, 128, 512, 512)   contiguous                  2048           4              1           8       26
                             channels_last               2048          32              1           8       82
    """
    tilings = [_make_tiling(num_strips, c, length, TILE // itemsize, TILES >> k, last) for k in range(TILES.bit_length())]
    return next((tiling for tiling in tilings if tiling.grid >= PROGRAMS), tilings[-1])


@lru_cache(maxsize=1024)
def make_plan(spec: ForwardSpec, size: torch.Size, itemsize: int, last: bool, style_rows: int) -> Plan:
    """Return the plan of a forward pass.

    Args:
        spec: the description of the forward pass.
        size: the shape of x.
        itemsize: bytes per value of x.
        last: whether x is channels_last instead of contiguous.
        style_rows: number of rows of the style, n or 1; 0 without a style.
    """
    k = triton_kernels()
    n, c, strips = size[0], size[1], math.lcm(*(cut.space for cut in spec.cuts.distinct))
    length, norm = math.prod(size[2:]) // strips, spec.norm_spec

    tiling = _choose_tiling(n * strips, c, length, itemsize, last)

    def make_cut(samples: int, channels: int, space: int, uses_batch: bool = True, index: int = -1) -> Any:
        width = (channels or c) * space
        num_tables = samples * tiling.num_splits if samples and index >= 0 else 1  # of the sums that are pooled
        members = _power_of_2(num_tables * c * strips // width, TABLE)
        sides = (side.index(index) if index in side else -1 for side in (spec.cuts.mean, spec.cuts.var))
        return k.KernelCut(samples, channels, space, uses_batch, *sides, _power_of_2(width, TABLE // members), members)

    def of_samples(samples: int, space: int) -> Any:
        return make_cut(samples, ALL, space)._replace(parts=COLUMNS, members=SAMPLES)

    cuts = [
        make_cut(cut.samples_per_part if cut.samples == ALL and uses else 0, cut.channels, cut.space, uses, index)
        for index, (cut, uses) in enumerate(zip(spec.cuts.distinct, spec.uses_batch, strict=True))
    ]
    second = "class" if any(isinstance(stage, PerClass) for stage in norm.affine.stages) else "sample" if style_rows > 1 else ""
    cut_second = of_samples(int(second == "sample"), 1)
    description = k.KernelNorm(
        tuple(cuts), of_samples(0, strips), of_samples(0, 1), cut_second, make_cut(1, norm.mixing.groups, 1), strips,
        spec.num_domains, type(norm.mixing).__name__.lower(), norm.mixing.groups, len(spec.cuts.mean), len(spec.cuts.var), second,
        any(cut.uses_batch and not cut.samples_per_part for cut in cuts),
    )  # fmt: skip
    shape = k.KernelShape(n, c, length, tiling.chunk, tiling.num_splits, n * c * strips, 0)
    layout = k.KernelLayout(last, math.gcd(c if last else length, 16) or 1, strips, tiling.rows, tiling.positions)
    activation = k.NONE if spec.activation is None else k.KernelActivation(spec.activation.name, spec.activation.negative_slope)
    plan = Plan(shape, description, layout, activation, tiling.grid)
    return plan._replace(shape=shape._replace(num_stats=plan.slice(len(cuts) - 1).stop))


def _launch(kernel: Any, grid: int, *args: Any, **constants: Any) -> None:
    if grid:
        kernel[(grid,)](*args, **constants, enable_fp_fusion=True)


class _Pass:
    """A forward pass and its backward pass, with the tensors besides x and the parameters that backward needs."""

    def __init__(self, spec: ForwardSpec, plan: Plan, buffers: Buffers) -> None:
        self.spec, self.plan, self.buffers = spec, plan, buffers
        self.stats = self.counts = torch.empty(0)

    def forward(self, x: Tensor, params: Any, residual: Tensor | None) -> Tensor:
        k, plan, buffers, sync, domains = triton_kernels(), self.plan, self.buffers, self.spec.sync_group, self.plan.num_domains
        norm, shape, cuts = plan.norm, plan.shape, list(enumerate(plan.norm.cuts))
        self.stats, self.counts = _table(x, 2, shape.num_stats), _table(x, domains)
        rows = _table(x, 3, shape.num_splits * shape.num_rows, dtype=torch.float32)
        columns = _table(x, 2, domains, shape.c if norm.pools_columns else 0, norm.strips)
        if any(self.spec.uses_batch):
            _launch(k.row_sums, plan.grid, x, None, rows, None, shape, LAYOUT=plan.layout, ACTIVATION=k.NONE)
            grid = domains * _blocks(plan.num_columns, COLUMNS) if norm.pools_columns else 0
            grid += sum(plan.programs(i) for i, cut in cuts if cut.samples_per_part)
            _launch(k.pool_rows, grid, rows, columns, self.counts, self.stats, buffers.labels, shape, NORM=norm)
        if norm.pools_columns and sync.is_synchronized:
            merged = sync.pool_moments(Moments(columns[0], columns[1], self.counts.reshape(-1, 1, 1)))
            columns = torch.stack(merged[:2])
            self.counts = merged.count.expand_as(merged.mean)[:, 0, 0].contiguous()
        y = torch.empty_like(x)  # before the running statistics change, since it may raise an error
        running = tuple(buffer for pair in buffers.running_stats for buffer in pair or (None, None))
        updates, momentum = buffers.momentum is not None and not self._has_single_value(), buffers.momentum or 0.0
        if any(not cut.samples_per_part or (cut.samples_per_part > 1 and updates) for _, cut in cuts):
            grid = sum(domains * _blocks(plan.size(i)[1], cut.parts) for i, cut in cuts if cut.samples_per_part != 1)
            counters = (buffers.num_batches, buffers.num_skipped)
            args = (columns, self.counts, self.stats, running, *counters, momentum, _largest(running), shape)
            _launch(k.pool_columns, grid, *args, NORM=norm, UPDATE=updates)
        self._coefficients(None, params, rows)
        _launch(k.apply, plan.grid, x, residual, None, y, rows, shape, LAYOUT=plan.layout, ACTIVATION=plan.activation)
        return y

    def fixed_buffers(self) -> Buffers:
        """Return the running statistics that forward used, as they were then."""
        tables = [self.stats[:, self.plan.slice(k)].unbind() for k in range(len(self.spec.uses_batch))]
        running = tuple(None if uses else (mean, var) for uses, (mean, var) in zip(self.spec.uses_batch, tables, strict=True))
        return Buffers(running, self.buffers.labels)

    def _has_single_value(self) -> bool:
        """Whether a variance has a single value, for which the layer raises an error; False if the counts cannot be read."""
        if not self.spec.cuts.mean or not (self.spec.num_domains or self.spec.sync_group.is_synchronized):
            return False  # a second moment of one value can be computed; without domains, the layer has checked the shape of x
        cuts = [cut for cut in self.plan.norm.cuts if cut.uses_batch and not cut.samples_per_part]
        per_column = any((cut.channels or self.plan.shape.c) * cut.strips == self.plan.num_columns for cut in cuts)
        return per_column and can_read_values(self.counts) and bool((self.counts == 1).any())

    def _coefficients(self, grads: Tensor | None, params: Any, rows: Tensor) -> None:
        args = (self.stats, grads, self.counts, self.buffers.labels, params, rows, self.spec.eps, self.plan.shape)
        grid = _blocks(self.plan.shape.num_rows, BLOCK)
        _launch(triton_kernels().coefficients, grid, *args, NORM=self.plan.norm, BLOCK=BLOCK)

    def backward(
        self, x: Tensor, gradient: Any, params: Any, dparams: Any, dresidual: Tensor | None, needs_dx: bool
    ) -> Tensor | None:
        """Return dx, if needed. Compute `dparams`, and `dresidual` if it is not None.

        Args:
            x: the input.
            gradient: dy, and y if φ′ must be computed from y.
            params: the parameters.
            dparams: tensors for the gradients of the parameters.
            dresidual: a tensor for the gradient of the residual.
            needs_dx: whether dx is needed.
        """
        k, plan, labels, sync = triton_kernels(), self.plan, self.buffers.labels, self.spec.sync_group
        norm, shape, cuts = plan.norm, plan.shape, list(enumerate(plan.norm.cuts))
        keep = any(cut.samples_per_part for _, cut in cuts) or bool(norm.domains and norm.pools_columns)
        num_second = 0 if params.second_weight is None else params.second_weight.shape[0]
        quantities = _power_of_2(4 + norm.num_means + norm.num_vars, 1024)
        sums = _table(x, max(3 * shape.num_splits, 4), shape.num_rows, dtype=torch.float32)
        rows = _table(x, 4 if keep or num_second else 0, shape.num_rows, dtype=torch.float32)
        columns, grads = _table(x, quantities, plan.num_columns), _table(x, 2, shape.num_stats)
        activation = plan.activation
        if activation != k.NONE and gradient.y is None:
            gradient = gradient._replace(scale=_table(x, 3, shape.num_rows, dtype=torch.float32))
            self._coefficients(None, params, gradient.scale)
        _launch(k.row_sums, plan.grid, x, gradient, sums, dresidual, shape, LAYOUT=plan.layout, ACTIVATION=activation)
        if dresidual is not None:
            gradient, activation = k.KernelGradient(dresidual), k.NONE
        args = (sums, self.stats, labels, params, rows, columns, self.spec.eps, shape)
        samples = SAMPLES if shape.num_splits == 1 else _power_of_2(shape.n, SAMPLES)
        sizes = {"QUANTITIES": quantities, "SAMPLES": samples, "SPLITS": _power_of_2(shape.num_splits, SAMPLES // samples)}
        _launch(k.gradients, _blocks(plan.num_columns, COLUMNS), *args, NORM=norm, KEEP=keep, **sizes)
        grid = 2 * sum(plan.programs(i) for i, cut in cuts if cut.uses_batch) + 2 * (1 + num_second) * _blocks(shape.c, COLUMNS)
        grid += (norm.num_means + norm.num_vars) * _blocks(norm.groups, norm.logits.parts)
        _launch(k.reduce, grid, rows, columns, grads, labels, params, dparams, shape, num_second, NORM=norm)
        if norm.pools_columns and sync.is_synchronized:
            slices = [grads[:, plan.slice(i)] for i, cut in cuts if cut.uses_batch and not cut.samples_per_part]
            summed = sync.sum(torch.cat(slices, 1))
            for piece, total in zip(slices, torch.split(summed, [piece.shape[1] for piece in slices], 1), strict=True):
                piece.copy_(total)
        if not needs_dx:
            return None
        self._coefficients(grads, params, sums)
        dx = torch.empty_like(x)
        _launch(k.apply, plan.grid, x, None, gradient, dx, sums, shape, LAYOUT=plan.layout, ACTIVATION=activation)
        return dx


def _largest(running: tuple[Tensor | None, ...]) -> float:
    """Return the largest value that is finite in the dtypes of all running statistics and in float32, the dtype of arguments."""
    dtypes = [buffer.dtype for buffer in running if buffer is not None]
    return min(torch.finfo(dtype).max for dtype in (torch.float32, *dtypes))


def _table(x: Tensor, *size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(size, dtype=dtype, device=x.device)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Pass, x: Tensor, *params: Tensor | None) -> Tensor:
        *others, residual = params
        with _on_device(x):
            y = call.forward(x, _kernel_params(Params(*others)), None if residual is None else _like(x, residual))
        ctx.call = call
        needs_y = residual is not None and call.spec.activation is not None
        ctx.save_for_backward(x, y if needs_y else None, call.stats, call.counts, call.buffers.labels, *others)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        spec, (x, y, _, _, _, *params), needs_dresidual = ctx.call.spec, ctx.saved_tensors, ctx.needs_input_grad[-1]
        if torch.is_grad_enabled() or is_transformed(dy):  # to be differentiated again, or for a batch of dy
            if y is not None:
                dy, spec = _activation_gradient(spec.activation, y.detach(), dy), spec.without_activation
            fixed, needed = ctx.call.fixed_buffers(), ctx.needs_input_grad[1:]
            *others, _ = reference.gradients(spec, x, Params(*params), fixed, dy, needed)
            return (None, *others, dy if needs_dresidual else None)
        grads = {}
        for name, param, needed in zip(Params._fields, params, ctx.needs_input_grad[2:-1], strict=False):
            is_logits = name in ("mean_weight", "var_weight")
            if needed and not (is_logits and isinstance(spec.norm_spec.mixing, Argmax)):  # argmax has no gradient
                grads[name] = param.new_empty(param.shape[::-1] if is_logits else param.shape)
        dparams, gradient = Params(**grads), triton_kernels().KernelGradient(_like(x, dy), y)
        dresidual = torch.empty_like(x) if needs_dresidual and y is not None else None
        with _on_device(x):
            kernel_params = (_kernel_params(Params(*params)), _kernel_params(dparams))
            dx = ctx.call.backward(x, gradient, *kernel_params, dresidual, ctx.needs_input_grad[1])
        logits = (None if grad is None else grad.t() for grad in dparams[4:6])
        dresidual = dy if needs_dresidual and y is None else dresidual
        return (None, dx, *dparams[:4], *logits, *dparams[6:8], dresidual)


def _like(x: Tensor, values: Tensor) -> Tensor:
    """Return values with the dtype and strides of x; a copy only if they differ."""
    is_like = values.dtype == x.dtype and values.stride() == x.stride()
    return values if is_like else torch.empty_like(x).copy_(values)


def _activation_gradient(activation: Activation, y: Tensor, dy: Tensor) -> Tensor:
    """Return dy φ′(z), which can be differentiated again, for an activation that keeps the sign: φ′(z) = φ′(y)."""
    with torch.enable_grad():
        y = y.requires_grad_()
        return torch.autograd.grad(activation(y), y, dy, create_graph=True)[0]


def _on_device(x: Tensor) -> Any:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _kernel_params(params: Params) -> Any:
    """Convert parameters, or their gradients, to `KernelParams`; a style takes the place of the affine per class."""
    is_style = params.class_weight is None and params.class_bias is None
    second = (params.style_std, params.style_mean) if is_style else (params.class_weight, params.class_bias)
    tensors = (params.weight, params.bias, *second, params.mean_weight, params.var_weight)
    return triton_kernels().KernelParams(*(None if tensor is None else tensor.contiguous() for tensor in tensors))


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Return y and the batch statistics; update the running statistics in place. For the arguments, see `kernels.normalize`.

    Raises:
        ShapeError: if the size of a tensor does not fit the norm and x.
    """
    last = is_channels_last(x)
    x = x if last or x.is_contiguous() else x.contiguous()
    if params.style_mean is not None and params.style_std is not None:  # one may have a row for all samples
        params = params._replace(**_same_rows(params.style_mean, params.style_std))
    labels = None if buffers.labels is None else buffers.labels.contiguous()
    plan = make_plan(spec, x.shape, x.element_size(), last, 0 if params.style_std is None else params.style_std.shape[0])
    call = _Pass(spec, plan, buffers._replace(labels=labels))
    check_sizes(spec, x, params, call.buffers)
    y: Tensor = _Normalize.apply(call, x, *params)  # type: ignore[no-untyped-call]
    is_updated = buffers.momentum is not None
    if is_updated and (x.is_cuda or not (spec.num_domains or spec.sync_group.is_synchronized)):
        return y, BatchStats([None for _ in spec.uses_batch], is_updated=True)  # the layer does not need the statistics
    num_rows = [plan.size(index)[0] for index in range(len(spec.uses_batch))]
    return y, read_batch_stats(spec, x, call.stats, call.counts, num_rows)._replace(is_updated=is_updated)


def _same_rows(style_mean: Tensor, style_std: Tensor) -> dict[str, Tensor]:
    """Expand the mean and std of a style to the same number of rows."""
    num_rows = max(style_mean.shape[0], style_std.shape[0])
    return {"style_mean": style_mean.expand(num_rows, -1), "style_std": style_std.expand(num_rows, -1)}


def _check_device(device: torch.device) -> None:
    """Compare the kernels with the reference on small inputs; warn if they differ or Triton raises an error."""
    from anynorm.kernels.gpu_check import find_difference

    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(f"they were not checked on {device} before a CUDA graph was captured")
    try:
        version = _triton_version()
        is_new = tuple(int(number) for number in version.split(".")[:2]) >= MIN_TRITON
        too_old = f"they need Triton {MIN_TRITON[0]}.{MIN_TRITON[1]} or later; {version} is installed"
        problems[device] = find_difference(normalize, device) if is_new else too_old
    except Exception as error:  # Triton raises many types
        problems[device] = f"Triton failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if problems[device]:
        warnings.warn(f"anynorm runs without its Triton kernels on {device}: {problems[device]}.", stacklevel=2)
