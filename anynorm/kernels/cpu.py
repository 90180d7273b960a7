"""Every norm of the algebra in four passes over x, for eager CPU tensors of float32 and bfloat16.

Forward: moments, tables, scale. Backward: sums (with the moments again, so that nothing is saved but x), tables, spread. A
second derivative is taken through the reference.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anynorm.core.mix import Hard
from anynorm.core.moments import Moments, pool_samples
from anynorm.core.parts import Fitted
from anynorm.core.population import Kept
from anynorm.core.task import Batch, Owned, Task
from anynorm.kernels import passes, reference, tables
from anynorm.kernels.geometry import Layout, Places, layout_of, places, places_by_domain
from anynorm.kernels.threads import Announced, run


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


def normalise(task: Task, x: Tensor, owned: Owned) -> tuple[Tensor, Batch]:
    """Do a pass: y, and what was taken from x for the population."""
    taken: list[Any] = []
    y: Tensor = _Pass.apply(task, taken, x, *owned)  # type: ignore[no-untyped-call]
    return y, taken[0]


def _tells_samples_apart(task: Task) -> bool:
    return task.labels is not None or task.parts.takes_style or any(c.samples != 1 for c in task.fitted.cuts)


def _work(task: Task, x: Tensor, owned: Owned) -> Work:
    layout = layout_of(x, task.strips(x), apart=_tells_samples_apart(task))
    assert layout is not None  # the choice of kernels has looked
    looks = tuple([kept is None for kept in task.kept])
    if task.domains and task.labels is not None:
        where = places_by_domain(task.fitted.cuts, _pooled(task.fitted, looks), layout, task.labels.numpy(), task.domains)
        plan = _plan(task.fitted, looks, layout, where)
    else:
        where, plan = _cached_plan(task.fitted, looks, layout)
    if owned.mean_weight is not None:
        plan = plan._replace(wm=_weights(task, task.fitted.mean, owned.mean_weight, where))
    if owned.var_weight is not None:
        plan = plan._replace(wv=_weights(task, task.fitted.var, owned.var_weight, where))
    return Work(layout, where, plan, _affine(task, layout, owned, where))


def _pooled(fitted: Fitted, looks: tuple[bool, ...]) -> tuple[bool, ...]:
    """Tell for each cut whether all samples (of a domain) share its statistics, as they do those of a population."""
    return tuple([cut.samples == 1 or not look for cut, look in zip(fitted.cuts, looks, strict=True)])


def _plan(fitted: Fitted, looks: tuple[bool, ...], layout: Layout, where: Places) -> Plan:
    """Lay out the tables of a pass, with all weight on a side's first cut."""
    on_mean, on_var = (np.array([k in side for k in range(len(fitted.cuts))]) for side in (fitted.mean, fitted.var))
    wm, wv = (np.array([[float(k == side[0])] for k in range(len(fitted.cuts))]) for side in (fitted.mean, fitted.var))
    return Plan(*where[:5], np.array(looks), on_mean, on_var, wm, wv, float(layout.length))


@lru_cache(maxsize=256)
def _cached_plan(fitted: Fitted, looks: tuple[bool, ...], layout: Layout) -> tuple[Places, Plan]:
    where = places(fitted.cuts, _pooled(fitted, looks), layout)
    return where, _plan(fitted, looks, layout, where)


def _weights(task: Task, side: tuple[int, ...], logits: Tensor, where: Places) -> Any:
    """Lay the weights of one side over (cuts, 1 or columns)."""
    weights = np.zeros((len(task.fitted.cuts), 1 if task.parts.weighing.groups == 1 else len(where.channel)))
    by_group = task.parts.weighing.weights(logits.detach().double()).numpy().reshape(-1, len(side))
    group = where.channel * len(by_group) // task.channels if len(by_group) > 1 else 0
    weights[list(side)] = by_group[group].reshape(-1, len(side)).T
    return weights


@lru_cache(maxsize=256)
def _neutral(columns: int, samples: int) -> tuple[Any, Any, Any]:
    """Make the affine that leaves everything as it is: ones, zeros, and no labels."""
    return np.ones(columns, np.float32), np.zeros(columns, np.float32), np.zeros(samples, np.int64)


def _affine(task: Task, layout: Layout, owned: Owned, where: Places) -> Affine:
    """Lay the affine over columns."""
    gamma, beta, labels = _neutral(layout.columns, layout.samples)
    own_gamma, own_beta = gamma[None], beta[None]
    if owned.weight is not None:
        gamma, beta = _laid(owned.weight, where), _laid(owned.bias, where)
    if owned.class_weight is not None and task.labels is not None:
        own_gamma, own_beta, labels = _laid(owned.class_weight, where), _laid(owned.class_bias, where), task.labels.numpy()
    elif owned.style_std is not None:
        own_gamma, own_beta = _laid(owned.style_std, where), _laid(owned.style_mean, where)
        labels = np.arange(layout.samples) if len(own_gamma) > 1 else labels
    return Affine(gamma, beta, own_gamma, own_beta, labels, task.eps)


def _laid(tensor: Any, where: Places) -> Any:
    """Lay a tensor (…, c) over columns, in float32."""
    array = tensor.detach().float().numpy()
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
    def forward(ctx: Any, task: Task, taken: list[Any], x: Tensor, *owned: Any) -> Tensor:
        work = _work(task, x, Owned(*owned))
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
        tables.pool(plan, mean, var, M, V)
    k, a, b = np.empty((3, layout.samples, layout.columns), np.float32)
    tables.coefficients(plan, affine, M, V, k, a, b)
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
    def values(self) -> Tensor | float | None:
        """Positions behind the statistics, of each domain; None where no cut that pools over samples looked."""
        if not any(self.looks):
            return None
        if self.task.domains and self.task.labels is not None:
            return (torch.bincount(self.task.labels, minlength=self.task.domains) * self.positions).double().reshape(-1, 1, 1)
        return torch.full((1, 1, 1), float(self.work.layout.samples * self.positions), dtype=torch.float64)

    @property
    def columns(self) -> Moments | None:
        """Moments of each channel and strip over all samples, which only GBGN asks for."""
        layout = self.work.layout
        shape = (layout.samples, *((layout.strips, layout.channels) if layout.last else (layout.channels, layout.strips)))
        mean, var = (torch.from_numpy(table.reshape(shape)) for table in self.rows)
        mean, var = (mean.transpose(1, 2), var.transpose(1, 2)) if layout.last else (mean, var)
        return pool_samples(Moments(mean, var, torch.full((1, 1, 1), float(layout.length), dtype=torch.float64)), None, 0)


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
    grads = Grads(*(np.zeros(table.shape) for table in affine[:4]))
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
