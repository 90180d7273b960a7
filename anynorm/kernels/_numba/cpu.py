"""Every norm of the algebra in four passes over x, for eager CPU tensors of float32 and bfloat16.

Forward: moments, tables, scale. Backward: sums, tables, spread. x is all that is saved, with the statistics where they are few;
where they are many they are taken again. A second derivative is taken through the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from anynorm.core.cuts import ALL, Cut
from anynorm.core.spec import NormSpec, ResolvedCuts
from anynorm.core.update_rules import Stats
from anynorm.kernels import reference
from anynorm.kernels._numba import whole
from anynorm.kernels._numba.plan import Plan, check_supported, make_plan
from anynorm.kernels._numba.taken import Taken
from anynorm.kernels._numba.team import Announced, scratch_of, team
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, NoSync, Params


def plan_for(task: ForwardSpec, x: Tensor) -> Plan:
    """Return the memory layout of a pass, or raise UnsupportedError."""
    key = (x.shape, x.stride(), x.dtype, torch.get_num_threads())
    plan: Plan | None = task.plans.get(key)
    if plan is None:
        if len(task.plans) > 63:
            task.plans.clear()
        check_supported(task, x)
        plan = task.plans[key] = make_plan(task, x)
    return plan


PLACES = {
    "weight": whole.WEIGHT,
    "bias": whole.BIAS,
    "class_weight": whole.OWN_WEIGHT,
    "class_bias": whole.OWN_BIAS,
    "style_std": whole.OWN_WEIGHT,
    "style_mean": whole.OWN_BIAS,
    "mean_weight": whole.MEAN_LOGITS,
    "var_weight": whole.VAR_LOGITS,
}


def normalize(task: ForwardSpec, plan: Plan, x: Tensor, owned: Params, given: Buffers) -> tuple[Tensor, BatchStats]:
    """Do a pass: y, and what was taken from x for the population."""
    there = {name: tensor for name, tensor in zip(Params._fields, owned, strict=True) if tensor is not None}
    call = Call(task, plan, list(there), given)
    if torch.is_grad_enabled() and (x.requires_grad or any([tensor.requires_grad for tensor in there.values()])):
        y: Tensor = _Pass.apply(call, x, *there.values())  # type: ignore[no-untyped-call]
    else:
        y = call.forward(x, *there.values())
    return y, call.give_batch()  # type: ignore[return-value]


def probe() -> None:
    """Do a small pass forwards and backwards: whatever is wrong with numba or its cache shows here.

    Autograd has no part in it: the first use of all may be inside inference_mode, or a checkpoint that counts what is saved.
    """
    cut = Cut(1, ALL, 1)
    task = ForwardSpec(
        NormSpec((cut,), (cut,)), ResolvedCuts((cut,), (0,), (0,)), 2, eps=1e-5, uses_batch=(True,), sync_group=NoSync()
    )
    with torch.no_grad(), Announced():
        x = torch.ones(2, 2, 2, dtype=torch.float32, device="cpu")
        call = Call(task, make_plan(task, x), [], Buffers((None,), None))
        call.forward(x)
        call.backward(x, [], x, [True])


class _Pass(torch.autograd.Function):
    """One pass forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, call: Call, x: Tensor, *owned: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(x, *owned)
        return call.forward(x, *owned)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, *owned = ctx.saved_tensors
        call: Call = ctx.call
        gradients = call.backward_by_reference if torch.is_grad_enabled() else call.backward
        return None, *gradients(x, owned, dy, ctx.needs_input_grad[1:])


class Call:
    """One pass, forwards and, with what is left of it then, backwards."""

    __slots__ = ("batch", "kept", "labels", "names", "places", "plan", "statistics", "task")

    def __init__(self, task: ForwardSpec, plan: Plan, names: list[str], given: Buffers) -> None:
        self.task, self.plan, self.names = task, plan, names
        self.labels = None if given.labels is None else given.labels.clone(memory_format=torch.contiguous_format)
        self.batch: Taken | None = None
        self.places: Any = plan.places
        if self.labels is not None and plan.where_by_label:
            where = plan.places[0].copy()
            where[plan.where_by_label] = self.labels.numpy()
            self.places = (where, *plan.places[1:])
        self.kept = plan.none_kept
        if plan.kept:
            self.kept = np.empty((2, plan.kept))
            alive = [
                None if buffer is None else _plain(buffer) for kept in given.running_stats for buffer in kept or (None, None)
            ]
            whole.read(self.places, np.array([0 if buffer is None else buffer.data_ptr() for buffer in alive]), self.kept)

    def forward(self, x: Tensor, *owned: Tensor) -> Tensor:
        """Normalise x."""
        plan = self.plan
        y = torch.empty_like(x)
        rows, statistics, scratch = plan.take(scratch_of(plan.scratch), backward=False)
        plain = [_plain(tensor) for tensor in self._laid(owned)]
        whole.forward(
            self.places, plan.shape, plan.channel_of, team(plan.layout.last, plan.width), self._addresses(plain, True),
            x.data_ptr(), y.data_ptr(), self.kept, statistics, rows, scratch, self.task.eps,
        )  # fmt: skip
        self.statistics = None if plan.anew else statistics
        self.batch = Taken(self.task, plan, self.labels, statistics, rows)
        return y

    def give_batch(self) -> Taken:
        """Hand over what was taken from x: only what backward needs stays."""
        batch, self.batch = self.batch, None
        assert batch is not None  # forward has left it
        return batch

    def backward(self, x: Tensor, owned: list[Tensor], dy: Tensor, needs: list[bool]) -> list[Tensor | None]:
        """Return the gradients of x and of what is owned."""
        plan = self.plan
        if dy.stride() != x.stride() or dy.dtype != x.dtype:
            dy = torch.empty_like(x).copy_(dy)
        dx = torch.empty_like(x) if needs[0] else None
        plain = [_plain(tensor) for tensor in self._laid(owned)]
        found = [torch.empty_like(tensor) if need else None for tensor, need in zip(plain, needs[1:], strict=True)]
        _, statistics, scratch = plan.take(scratch_of(plan.scratch), backward=True)
        statistics = statistics if self.statistics is None else self.statistics
        whole.backward(
            self.places, plan.shape, plan.channel_of, team(plan.layout.last, plan.width), self._addresses(plain, True),
            self._addresses(found, False), x.data_ptr(), dy.data_ptr(), 0 if dx is None else dx.data_ptr(), self.kept,
            statistics, scratch, self.task.eps,
        )  # fmt: skip
        return [dx, *(None if grad is None else _fitted(grad, tensor) for grad, tensor in zip(found, owned, strict=True))]

    def backward_by_reference(self, x: Tensor, owned: list[Tensor], dy: Tensor, needs: list[bool]) -> list[Tensor | None]:
        """Return gradients that have gradients themselves."""
        inputs = [x, *owned]
        wanted = [k for k, needed in enumerate(needs) if needed]
        with torch.enable_grad():
            named = Params(**dict(zip(self.names, owned, strict=True)))
            y, _ = reference.normalize(self.task, x, named, Buffers(self._recalled(), self.labels))
            found = torch.autograd.grad(y, [inputs[k] for k in wanted], dy, create_graph=True, allow_unused=True)
        grads: list[Tensor | None] = [None for _ in inputs]
        for k, grad in zip(wanted, found, strict=True):
            grads[k] = grad
        return grads

    def _recalled(self) -> tuple[Stats | None, ...]:
        """Return what was kept when forward ran."""
        found: list[Stats | None] = []
        at = 0
        for look, (lo, hi) in zip(self.task.uses_batch, self.plan.ends, strict=True):
            found.append(None if look else Stats(*torch.from_numpy(self.kept[:, at : at + hi - lo])))
            at += 0 if look else hi - lo
        return tuple(found)

    def _laid(self, owned: Any) -> Any:
        """Return a style to each sample, where one serves all."""
        if not self.task.norm_spec.takes_style:
            return owned
        n = self.plan.layout.samples
        return [t.expand(n, -1) if name.startswith("style") else t for name, t in zip(self.names, owned, strict=True)]

    def _addresses(self, tensors: list[Any], reading: bool) -> Any:
        """Write addresses in the places that `whole` names; kinds and labels are among what is read."""
        found = [0, 0, 0, 0, 0, 0, 0, 0]
        for name, tensor in zip(self.names, tensors, strict=True):
            found[PLACES[name]] = 0 if tensor is None else tensor.data_ptr()
        if reading:
            labels = 0 if self.labels is None else self.labels.data_ptr()
            found[whole.KIND] = self.plan.kind_at or labels
            found[whole.LABEL] = self.plan.label_at or labels
        return np.array(found)


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor as contiguous float32, itself where it is so."""
    return tensor if tensor.dtype is torch.float32 and tensor.is_contiguous() else tensor.detach().float().contiguous()


def _fitted(grad: Tensor, tensor: Tensor) -> Tensor:
    if grad.shape != tensor.shape:
        grad = grad.sum(0, keepdim=True)
    return grad if grad.dtype == tensor.dtype else grad.to(tensor.dtype)
