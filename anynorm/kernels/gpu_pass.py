"""A forward pass and its backward pass as launches of Triton kernels, one after the other; nothing waits for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anynorm.core.compat import can_read_values
from anynorm.core.moments import Moments
from anynorm.kernels.gpu_plan import COLUMNS, SAMPLES, Plan, num_blocks, power_of_2, triton_kernels
from anynorm.kernels.interface import Buffers, ForwardSpec

BLOCK = 256
"""Number of rows per program in the kernel `coefficients`."""


def _launch(kernel: Any, grid: int, *args: Any, **constants: Any) -> None:
    if grid:
        kernel[(grid,)](*args, **constants, enable_fp_fusion=True)


class Pass:
    """A forward pass and its backward pass, with the tensors besides x and the parameters that backward needs."""

    def __init__(self, spec: ForwardSpec, plan: Plan, buffers: Buffers) -> None:
        self.spec, self.plan, self.buffers = spec, plan, buffers
        self.stats = self.counts = torch.empty(0)

    def forward(self, x: Tensor, params: Any, residual: Tensor | None) -> Tensor:
        """Return y, and update the running statistics; `stats` and `counts` are kept for backward."""
        k, plan, buffers, sync, domains = triton_kernels(), self.plan, self.buffers, self.spec.sync_group, self.plan.num_domains
        norm, shape, cuts = plan.norm, plan.shape, list(enumerate(plan.norm.cuts))
        self.stats, self.counts = _table(x, 2, shape.num_stats), _table(x, domains)
        rows = _table(x, 3, shape.num_splits * shape.num_rows, dtype=torch.float32)
        columns = _table(x, 2, domains, shape.c if norm.pools_columns else 0, norm.strips)
        if any(self.spec.uses_batch):
            _launch(k.row_sums, plan.grid, x, None, rows, None, shape, LAYOUT=plan.layout, ACTIVATION=k.NONE)
            grid = domains * num_blocks(plan.num_columns, COLUMNS) if norm.pools_columns else 0
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
            grid = sum(domains * num_blocks(plan.size(i)[1], cut.parts) for i, cut in cuts if cut.samples_per_part != 1)
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
        grid = num_blocks(self.plan.shape.num_rows, BLOCK)
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
        quantities = power_of_2(4 + norm.num_means + norm.num_vars, 1024)
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
        samples = SAMPLES if shape.num_splits == 1 else power_of_2(shape.n, SAMPLES)
        sizes = {"QUANTITIES": quantities, "SAMPLES": samples, "SPLITS": power_of_2(shape.num_splits, SAMPLES // samples)}
        _launch(k.gradients, num_blocks(plan.num_columns, COLUMNS), *args, NORM=norm, KEEP=keep, **sizes)
        grid = 2 * sum(plan.programs(i) for i, cut in cuts if cut.uses_batch) + 2 * (1 + num_second) * num_blocks(
            shape.c, COLUMNS
        )
        grid += (norm.num_means + norm.num_vars) * num_blocks(norm.groups, norm.logits.parts)
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
