"""The C++ kernels in compiled code: operators that torch.compile does not look into, with their shapes and gradients.

    y, stats = forward(x, …)         stats: the means and variances of all cuts, and the counts
    gradients = backward(dy, x, …)
    update_running(stats, …)         changes the running statistics, unless checkpointing recomputes a forward pass

Eager code calls one function, `normalize`, which does all of it with less overhead (csrc/autograd.cpp).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anynorm.kernels.interface import Buffers, ForwardSpec, Params, is_channels_last

NUM_INPUTS = 1 + len(Params._fields)
RESIDUAL = Params._fields.index("residual")


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, Tensor]:
    """Return y and the statistics; update the running statistics in place. For the arguments, see `kernels.normalize`."""
    operators: Any = torch.ops.anynorm_native
    running = [buffer for pair in buffers.running_stats for buffer in pair or (None, None)]
    slots = [slot for slot, buffer in enumerate(running) if buffer is not None]
    present = [running[slot] for slot in slots]
    group, settings = spec.sync_group.name, spec.encode()
    y, stats = operators.forward(x, *params, present, slots, buffers.labels, settings, spec.eps, spec.slope, group)
    if buffers.momentum is not None:
        operators.update_running(
            x.detach(), stats, present, slots, buffers.num_batches, settings, spec.eps, group, buffers.momentum
        )
    return y, stats


def register() -> None:
    """Register the shapes and gradients of the operators, after the library was loaded."""
    torch.library.register_fake("anynorm_native::forward", _fake_forward)
    torch.library.register_fake("anynorm_native::backward", _fake_backward)
    torch.library.register_fake("anynorm_native::update_running", lambda *_: None)
    torch.library.register_autograd("anynorm_native::forward", _backward, setup_context=_save)


def _num_stats(numbers: list[int], x: Tensor) -> Any:
    """Return the number of statistics and counts; csrc/make_problem.h has the same rules."""
    n, c, positions = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    num_cuts, domains = numbers[0], max(numbers[-5], 1)
    has_mean = numbers[1 + 4 * num_cuts] > 0
    total, has_rows = 0, False
    for k in range(num_cuts):
        channels, strips, samples_per_part, uses_batch = numbers[1 + 4 * k : 5 + 4 * k]
        is_local, channels = bool(uses_batch and samples_per_part), channels or c
        is_row = has_mean and not has_rows and is_local and samples_per_part == 1 and channels == c and positions == 1
        has_rows = has_rows or is_row
        total += 0 if is_row else (n // samples_per_part if is_local else domains) * channels * strips
    return 2 * total + domains


def _fake_forward(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, spec, _, _, group = rest
    return _empty_output(x, spec, group), x.new_empty(_num_stats(spec, x), dtype=torch.float64)


def _empty_output(x: Tensor, spec: list[int], group: str) -> Tensor:
    is_dense = x.is_contiguous() or (is_channels_last(x) and not (group and spec[-1] > 1))
    return torch.empty_like(x) if is_dense else torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_backward(_dy: Tensor, x: Tensor, params: list[Tensor | None], *rest: Any) -> list[Tensor]:
    *_, spec, _, _, group, needed = rest
    dense = _empty_output(x, spec, group)
    grads = []
    for index, need in enumerate(needed):
        like = dense if index in (0, NUM_INPUTS - 1) else params[index - 1]
        if need:
            assert like is not None
            grads.append(
                torch.empty_like(like, memory_format=torch.preserve_format if like is dense else torch.contiguous_format)
            )
    return grads


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, *params = inputs[:NUM_INPUTS]
    buffers, _, labels, *ctx.settings = inputs[NUM_INPUTS:]
    y, stats = output
    ctx.num_buffers, ctx.has_residual = len(buffers), params[RESIDUAL] is not None
    ctx.needs = [tensor is not None and tensor.requires_grad for tensor in (x, *params)]
    activation = ctx.settings[0][-2]
    ctx.save_for_backward(x, y if ctx.has_residual and activation else None, stats, labels, *params[:RESIDUAL])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    slots: list[None] | None = None if ctx.num_buffers else []  # torch requires a list for an empty list
    unused = ([None] * ctx.num_buffers, slots, *[None] * 5)  # of labels, spec, eps, slope and group
    if dy is None:
        return (*[None] * NUM_INPUTS, *unused)
    x, y, stats, labels, *params = ctx.saved_tensors
    residual = x if ctx.has_residual else None  # only whether there is one
    operators: Any = torch.ops.anynorm_native
    computed = iter(operators.backward(dy, x, [*params, residual], y, stats, labels, *ctx.settings, ctx.needs))
    return (*[next(computed) if need else None for need in ctx.needs], *unused)
