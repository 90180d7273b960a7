"""Every norm of the algebra in four passes over x, for eager CPU tensors of float32 and bfloat16.

Forward: moments, tables, scale. Backward: sums (with the moments again, so that nothing is saved but x), tables, spread. A
second derivative is taken through the reference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anynorm.core.mix import Hard
from anynorm.core.moments import Moments, pool_samples
from anynorm.core.task import Batch, Owned, Task
from anynorm.kernels import passes, reference, tables
from anynorm.kernels.geometry import Layout, Places, layout_of, places, places_by_domain
from anynorm.kernels.threads import compiling, run


class Plan(NamedTuple):
    """Where each statistic lives: cut k has its parts at offset[k], `width[k]` of columns for each of samples."""

    samples: Any  # (cuts, n): the sample part of each sample
    columns: Any  # (cuts, 1 + columns): the size of contiguous column parts or 0, then the column part of each column
    offset: Any  # (cuts + 1,)
    width: Any  # (cuts,)
    members: Any  # rows behind each statistic
    looks: Any  # (cuts,): whether a cut looks at the batch
    on_mean: Any  # (cuts,)
    on_var: Any  # (cuts,)
    wm: Any  # (cuts, 1 or columns): weights of the mean
    wv: Any  # (cuts, 1 or columns): weights of the variance
    length: float  # values a row


class Affine(NamedTuple):
    """The affine laid over columns: shared, then the own one of each sample's label; ε with it."""

    gamma: Any
    beta: Any
    own_gamma: Any
    own_beta: Any
    labels: Any
    eps: float


class Grads(NamedTuple):
    """Gradients of the affine, laid over columns."""

    gamma: Any
    beta: Any
    own_gamma: Any
    own_beta: Any


class Work(NamedTuple):
    """A pass laid out for the kernels."""

    layout: Layout
    places: Places
    plan: Plan
    affine: Affine


def fits(task: Task, x: Tensor) -> bool:
    """Whether x lies in memory as the passes want it."""
    return layout_of(x, task.strips(x), apart=_tells_samples_apart(task)) is not None


def normalise(task: Task, x: Tensor, owned: Owned) -> tuple[Tensor, Batch]:
    """Do a pass: y, and what was taken from x for the population."""
    taken: list[Batch] = []
    y: Tensor = _Pass.apply(task, taken, x, *owned)  # type: ignore[no-untyped-call]
    return y, taken[0]


def _tells_samples_apart(task: Task) -> bool:
    return task.labels is not None or task.parts.takes_style or any(c.samples != 1 for c in task.fitted.cuts)


def _work(task: Task, x: Tensor, owned: Owned) -> Work:
    layout = layout_of(x, task.strips(x), apart=_tells_samples_apart(task))
    assert layout is not None  # `fits` was asked
    cuts = task.fitted.cuts
    labels = None if task.labels is None else task.labels.numpy()
    pooled = tuple(kept is not None or cut.samples == 1 for cut, kept in zip(cuts, task.kept, strict=True))
    by_domain = labels is not None and task.domains
    where = places_by_domain(cuts, pooled, layout, labels, task.domains) if by_domain else places(cuts, pooled, layout)
    on_mean, on_var = ([k in side for k in range(len(cuts))] for side in (task.fitted.mean, task.fitted.var))
    plan = Plan(
        *where[:5],
        looks=np.array([kept is None for kept in task.kept]),
        on_mean=np.array(on_mean),
        on_var=np.array(on_var),
        wm=_weights(task, task.fitted.mean, owned.mean_weight, where),
        wv=_weights(task, task.fitted.var, owned.var_weight, where),
        length=float(layout.length),
    )
    return Work(layout, where, plan, _affine(task, layout, owned, where))


def _weights(task: Task, side: tuple[int, ...], logits: Tensor | None, where: Places) -> Any:
    """Lay the weights of one side over (cuts, 1 or columns)."""
    weights = np.zeros((len(task.fitted.cuts), 1 if task.parts.weighing.groups == 1 else len(where.channel)))
    if logits is None:
        weights[side[0]] = 1.0
        return weights
    by_group = task.parts.weighing.weights(logits.detach().double()).numpy().reshape(-1, len(side))
    group = where.channel * len(by_group) // task.channels if len(by_group) > 1 else 0
    weights[list(side)] = by_group[group].reshape(-1, len(side)).T
    return weights


def _affine(task: Task, layout: Layout, owned: Owned, where: Places) -> Affine:
    """Lay the affine over columns."""
    gamma, beta = (_laid(owned.weight, where), _laid(owned.bias, where)) if owned.weight is not None else (None, None)
    ones, zeros = np.ones(layout.columns), np.zeros(layout.columns)
    labels = np.zeros(layout.samples, np.int64)
    own_gamma, own_beta = ones[None], zeros[None]
    if owned.class_weight is not None and task.labels is not None:
        own_gamma, own_beta, labels = _laid(owned.class_weight, where), _laid(owned.class_bias, where), task.labels.numpy()
    elif owned.style_std is not None:
        own_gamma, own_beta = _laid(owned.style_std, where), _laid(owned.style_mean, where)
        labels = np.arange(layout.samples) if len(own_gamma) > 1 else labels
    return Affine(ones if gamma is None else gamma, zeros if beta is None else beta, own_gamma, own_beta, labels, task.eps)


def _laid(tensor: Any, where: Places) -> Any:
    """Lay a tensor (…, c) over columns, in double."""
    array = tensor.detach().double().numpy()
    return array if array.shape[-1] == len(where.channel) else np.ascontiguousarray(array[..., where.channel])


def _folded(array: Any, layout: Layout) -> Any:
    """Add the strips of each channel up again."""
    if layout.strips == 1:
        return array
    shape = (layout.strips, layout.channels) if layout.last else (layout.channels, layout.strips)
    return array.reshape(*array.shape[:-1], *shape).sum(-2 if layout.last else -1)


class _Pass(torch.autograd.Function):
    """One pass forwards and backwards; x is all that is saved."""

    @staticmethod
    def forward(ctx: Any, task: Task, taken: list[Batch], x: Tensor, *owned: Any) -> Tensor:
        work = _work(task, x, Owned(*owned))
        ctx.task, ctx.work = task, work
        ctx.save_for_backward(x, *owned)
        with compiling(("forward", x.dtype, work.layout.last)):
            return _forward(task, work, x, taken)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, *owned = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, *_by_reference(ctx, x, Owned(*owned), dy)
        with compiling(("backward", x.dtype, ctx.work.layout.last)):
            return None, None, *_closed_form(ctx, x, Owned(*owned), dy)


def _forward(task: Task, work: Work, x: Tensor, taken: list[Batch]) -> Tensor:
    layout, _, plan, affine = work
    xs = layout.array(x)
    M, V = _kept(task, plan)
    mean = var = None
    if None in task.kept:
        mean, var = np.empty((2, layout.samples, layout.columns))
        _over(passes.flat_moments, passes.last_moments, layout, (xs, *layout.tables(mean, var)))
        tables.pool(plan, mean, var, M, V)
    k, a, b = np.empty((3, layout.samples, layout.columns), np.float32)
    tables.coefficients(plan, affine, M, V, k, a, b)
    y = torch.empty_like(x)
    _over(passes.flat_scale, passes.last_scale, layout, (xs, layout.array(y), *layout.tables(k, a, b)))
    taken.append(_batch(task, work, (M, V), (mean, var)))
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


def _batch(task: Task, work: Work, statistics: tuple[Any, Any], rows: tuple[Any, Any]) -> Batch:
    """Hand over what was taken from x, in the tables of the reference."""
    layout, _, plan, _ = work
    by_cut: list[Moments | None] = []
    for k, (cut, kept) in enumerate(zip(task.fitted.cuts, task.kept, strict=True)):
        if kept is not None or not cut.pools_samples:
            by_cut.append(None)
            continue
        here = slice(plan.offset[k], plan.offset[k + 1])
        shape = (-1, cut.channels or layout.channels, cut.space or layout.strips)
        count = plan.members[here] * plan.length
        by_cut.append(
            Moments(*(torch.from_numpy(table.copy()).reshape(shape) for table in (*(t[here] for t in statistics), count)))
        )
    if not any(by_cut):
        return Batch(by_cut)
    return Batch(by_cut, *_columns(task, layout, rows))


def _columns(task: Task, layout: Layout, rows: tuple[Any, Any]) -> tuple[Moments | None, Tensor]:
    """Give the moments over all samples where GBGN needs them, and the positions behind each domain."""
    positions = layout.length * layout.strips
    if task.domains and task.labels is not None:
        return None, (torch.bincount(task.labels, minlength=task.domains) * positions).double().reshape(-1, 1, 1)
    values = torch.full((1, 1, 1), float(layout.samples * positions), dtype=torch.float64)
    if not any(cut.is_ghost for cut in task.fitted.cuts):
        return None, values
    shape = (layout.samples, layout.strips, layout.channels) if layout.last else (layout.samples, layout.channels, layout.strips)
    mean, var = (torch.from_numpy(table).reshape(shape) for table in rows)
    mean, var = (mean.transpose(1, 2), var.transpose(1, 2)) if layout.last else (mean, var)
    count = torch.full((1, 1, 1), float(layout.length), dtype=torch.float64)
    return pool_samples(Moments(mean, var, count), None, 0), values


def _closed_form(ctx: Any, x: Tensor, owned: Owned, dy: Tensor) -> list[Tensor | None]:
    task: Task = ctx.task
    layout, where, plan, affine = ctx.work
    dy = dy.to(x.dtype).contiguous(memory_format=layout.format)
    xs, dys = layout.array(x), layout.array(dy)
    M, V = _kept(task, plan)
    mean, var, g1, g2 = np.empty((4, layout.samples, layout.columns))
    _over(passes.flat_sums, passes.last_sums, layout, (xs, dys, *layout.tables(mean, var, g1, g2)))
    tables.pool(plan, mean, var, M, V)
    k, a, p, q = np.empty((4, layout.samples, layout.columns), np.float32)
    dwm, dwv = np.zeros_like(plan.wm), np.zeros_like(plan.wv)
    grads = Grads(*(np.zeros_like(table) for table in affine[:4]))
    tables.gradients(plan, affine, M, V, mean, g1, g2, k, a, p, q, dwm, dwv, grads)
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
