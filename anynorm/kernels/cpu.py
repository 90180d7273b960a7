"""Every norm of the algebra in four passes over x, for eager CPU tensors of float32 and bfloat16.

Forward: moments, tables, scale. Backward: sums (with the moments again, so that nothing is saved but x), tables, spread. A
second derivative is taken through the reference.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anynorm.core.cut import ALL, Cut
from anynorm.core.mix import Hard
from anynorm.core.moments import Moments, pool_samples
from anynorm.core.parts import Fitted, Parts
from anynorm.core.population import Kept
from anynorm.core.sync import Alone
from anynorm.core.task import Batch, Owned, Task
from anynorm.kernels import passes, reference, tables
from anynorm.kernels.geometry import Layout, Places
from anynorm.kernels.threads import Announced, run
from anynorm.kernels.work import Grads, Plan, Work, lay_out


def normalise(task: Task, x: Tensor, owned: Owned) -> tuple[Tensor, Batch]:
    """Do a pass: y, and what was taken from x for the population."""
    taken: list[Any] = []
    y: Tensor = _Pass.apply(task, taken, x, *owned)  # type: ignore[no-untyped-call]
    return y, taken[0]


def _folded(array: Any, layout: Layout) -> Any:
    """Add the strips of each channel up again."""
    if layout.strips == 1:
        return array
    shape = (layout.strips, layout.channels) if layout.last else (layout.channels, layout.strips)
    return array.reshape(*array.shape[:-1], *shape).sum(-2 if layout.last else -1)


def probe() -> None:
    """Do a small pass forwards and backwards: whatever is wrong with numba or its cache shows here.

    Autograd has no part in it: the first use of all may be inside inference_mode, or a checkpoint that counts what is saved.
    """
    cut = Cut(1, ALL, 1)
    task = Task(Parts((cut,), (cut,)), Fitted((cut,), (0,), (0,)), 2, eps=1e-5, kept=[None], labels=None, reach=Alone())
    with torch.no_grad():
        x = torch.ones(2, 2, 2, dtype=torch.float32, device="cpu")
        work = lay_out(task, x, Owned())
        with Announced("probe"):
            _forward(task, work, x, [])
            _closed_form(SimpleNamespace(task=task, work=work, needs_input_grad=(False, False, True)), x, Owned(), x)


class _Pass(torch.autograd.Function):
    """One pass forwards and backwards; x is all that is saved."""

    @staticmethod
    def forward(ctx: Any, task: Task, taken: list[Any], x: Tensor, *owned: Any) -> Tensor:
        work = lay_out(task, x, Owned(*owned))
        ctx.task, ctx.work = task, work
        ctx.save_for_backward(x, *owned)
        with Announced(("forward", x.dtype, work.layout.last)):
            return _forward(task, work, x, taken)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, *owned = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, *_by_reference(ctx, x, Owned(*owned), dy)
        with Announced(("backward", x.dtype, ctx.work.layout.last)):
            return None, None, *_closed_form(ctx, x, Owned(*owned), dy)


def _forward(task: Task, work: Work, x: Tensor, taken: list[Any]) -> Tensor:
    layout, _, plan, affine = work
    xs = layout.array(x)
    M, V = _kept(task, plan)
    mean = var = None
    if None in task.kept:
        mean, var = np.empty((2, layout.samples, layout.columns))
        _over(passes.flat_moments, passes.last_moments, layout, (xs, *layout.tables(mean, var)))
        tables.pool(tuple(plan), mean, var, M, V)
    k, a, b = np.empty((3, layout.samples, layout.columns), np.float32)
    tables.coefficients(tuple(plan), tuple(affine), M, V, k, a, b)
    y = torch.empty_like(x)
    _over(passes.flat_scale, passes.last_scale, layout, (xs, layout.array(y), *layout.tables(k, a, b)))
    taken.append(Taken(task, work, (M, V), (mean, var)))
    return y


def _over(flat: Any, last: Any, layout: Layout, arguments: tuple[Any, ...]) -> None:
    """Run a pass, flat or last, on as many threads as it is worth."""
    rows = arguments[0].shape[0]
    run(last if layout.last else flat, arguments[0].size, rows, arguments)


def _kept(task: Task, plan: Plan) -> tuple[Any, Any]:
    """Make tables for all statistics, and fill in those of the population."""
    M, V = np.empty((2, plan.offset[-1]))
    for k, kept in enumerate(task.kept):
        if kept is not None:
            for table, value in zip((M, V), kept, strict=True):
                table[plan.offset[k] : plan.offset[k + 1]] = value.numpy().ravel()
    return M, V


class Taken:
    """A `Batch` whose tables are laid out as the reference's when they are asked for."""

    def __init__(self, task: Task, work: Work, statistics: tuple[Any, Any], rows: tuple[Any, Any]) -> None:
        self.task, self.work, self.statistics, self.rows = task, work, statistics, rows
        looks = [kept is None and cut.pools_samples for cut, kept in zip(task.fitted.cuts, task.kept, strict=True)]
        self.looks, self.positions = looks, work.layout.length * work.layout.strips

    def average(self, index: int) -> Kept:
        """Give what is to be kept of a cut: means and unbiased variances, (sample parts, c parts, t parts)."""
        plan, (means, variances) = self.work.plan, self.statistics
        here = slice(plan.offset[index], plan.offset[index + 1])
        count = plan.members[here] * plan.length
        unbiased = variances[here] * (count / np.maximum(count - 1, 1))
        return Kept(*(torch.from_numpy(table.reshape(self._shape(index))) for table in (means[here], unbiased)))

    def _shape(self, index: int) -> tuple[int, int, int]:
        cut, layout = self.task.fitted.cuts[index], self.work.layout
        return -1, cut.channels or layout.channels, cut.space or layout.strips

    @property
    def by_cut(self) -> list[Moments | None]:
        """Moments of each cut that pools over samples and looked."""
        plan = self.work.plan
        tables = (*self.statistics, plan.members * plan.length)
        found: list[Moments | None] = []
        for k, looks in enumerate(self.looks):
            here = slice(plan.offset[k], plan.offset[k + 1])
            found.append(Moments(*(torch.from_numpy(t[here].reshape(self._shape(k))) for t in tables)) if looks else None)
        return found

    @property
    def values(self) -> Tensor | None:
        """Positions behind the statistics, of each domain; None where no cut that pools over samples looked."""
        if not any(self.looks):
            return None
        if self.task.domains and self.task.labels is not None:
            return (torch.bincount(self.task.labels, minlength=self.task.domains) * self.positions).double().reshape(-1, 1, 1)
        return torch.full((1, 1, 1), float(self.work.layout.samples * self.positions), dtype=torch.float64, device="cpu")

    @property
    def columns(self) -> Moments | None:
        """Moments of each channel and strip over all samples, which only GBGN asks for."""
        layout = self.work.layout
        shape = (layout.samples, *((layout.strips, layout.channels) if layout.last else (layout.channels, layout.strips)))
        mean, var = (torch.from_numpy(table.reshape(shape)) for table in self.rows)
        mean, var = (mean.transpose(1, 2), var.transpose(1, 2)) if layout.last else (mean, var)
        count = torch.full((1, 1, 1), float(layout.length), dtype=torch.float64, device="cpu")
        return pool_samples(Moments(mean, var, count), None, 0)


def _closed_form(ctx: Any, x: Tensor, owned: Owned, dy: Tensor) -> list[Tensor | None]:
    task: Task = ctx.task
    layout, where, plan, affine = ctx.work
    dy = dy.to(x.dtype).contiguous(memory_format=layout.format)
    xs, dys = layout.array(x), layout.array(dy)
    M, V = _kept(task, plan)
    mean, var, g1, g2 = np.empty((4, layout.samples, layout.columns))
    _over(passes.flat_sums, passes.last_sums, layout, (xs, dys, *layout.tables(mean, var, g1, g2)))
    tables.pool(tuple(plan), mean, var, M, V)
    k, a, p, q = np.empty((4, layout.samples, layout.columns), np.float32)
    dwm, dwv = np.zeros_like(plan.wm), np.zeros_like(plan.wv)
    grads = Grads(*(np.zeros(table.shape) for table in affine[:4]))
    tables.gradients(tuple(plan), tuple(affine), M, V, mean, g1, g2, k, a, p, q, dwm, dwv, tuple(grads))
    dx = None
    if ctx.needs_input_grad[2]:
        dx = torch.empty_like(x)
        _over(passes.flat_spread, passes.last_spread, layout, (xs, dys, layout.array(dx), *layout.tables(k, a, p, q)))
    own = owned.class_weight is not None
    found = Owned(
        weight=grads.gamma,
        bias=grads.beta,
        class_weight=grads.own_gamma if own else None,
        class_bias=grads.own_beta if own else None,
        mean_weight=_back_to_logits(task, task.fitted.mean, (owned.mean_weight, plan.wm, dwm), where),
        var_weight=_back_to_logits(task, task.fitted.var, (owned.var_weight, plan.wv, dwv), where),
        style_mean=None if own else grads.own_beta,
        style_std=None if own else grads.own_gamma,
    )
    return [dx, *(_given_back(t, array, layout) for t, array in zip(owned, found, strict=True))]


def _given_back(tensor: Tensor | None, grad: Any, layout: Layout) -> Tensor | None:
    if tensor is None or grad is None:
        return None
    folded = grad if grad.shape == tuple(tensor.shape) else _folded(grad, layout)
    return torch.from_numpy(np.ascontiguousarray(folded)).reshape(tensor.shape).to(tensor.dtype)


def _back_to_logits(task: Task, side: tuple[int, ...], weighed: tuple[Tensor | None, Any, Any], where: Places) -> Any:
    """Turn gradients of weights (cuts, 1 or columns) into those of λ: dλ = w (dw − Σ w dw)."""
    logits, weights, grads = weighed
    if logits is None or isinstance(task.parts.weighing, Hard):
        return None
    groups = task.parts.weighing.groups
    group = where.channel * groups // task.channels if groups > 1 else np.zeros(1, np.int64)
    w, dw = weights[list(side)].T, grads[list(side)].T
    by_group = w * (dw - (w * dw).sum(1, keepdims=True))
    total = np.zeros((groups, len(side)))
    np.add.at(total, group, by_group)
    return total


def _by_reference(ctx: Any, x: Tensor, owned: Owned, dy: Tensor) -> list[Tensor | None]:
    """Take gradients that have gradients themselves."""
    inputs: list[Any] = [x, *owned]
    wanted = [k for k, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
    with torch.enable_grad():
        y, _ = reference.normalise(ctx.task, x, owned)
        found = torch.autograd.grad(y, [inputs[k] for k in wanted], dy, create_graph=True, allow_unused=True)
    grads: list[Tensor | None] = [None for _ in inputs]
    for k, grad in zip(wanted, found, strict=True):
        grads[k] = grad
    return grads
