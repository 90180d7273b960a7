"""A pass laid out for the kernels: where every statistic lives, the weights, and the affine over columns."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from anynorm.core.parts import Fitted
from anynorm.core.task import Owned, Task
from anynorm.kernels.geometry import Layout, Places, layout_of, places, places_by_domain


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


def _tells_samples_apart(task: Task) -> bool:
    return task.labels is not None or task.parts.takes_style or any(c.samples != 1 for c in task.fitted.cuts)


def lay_out(task: Task, x: Tensor, owned: Owned) -> Work:
    """Lay a pass out."""
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
