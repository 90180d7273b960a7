"""Hooks that observe a model while it runs; they are removed on exit, even after an error.

observe_inputs     calls a function with every input of the given norms
record_inputs      collects every input of one module
find_producers     returns the layers that produce the inputs of norms
eval_mode          eval mode, no gradients, no compiled code; restores the mode of every module
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.compat import is_recomputing
from anynorm.layers.channel_axis import to_channels_second
from anynorm.layers.conditioning import read_condition
from anynorm.layers.norm import Norm
from anynorm.surgery.find import NormSite

InputCallback = Callable[[NormSite, Tensor, Tensor | None], None]
"""A callback `f(site, x, domains)` for the input x of a norm, with channels in axis 1; `domains` is None without domains."""


@contextmanager
def observe_inputs(sites: Iterable[NormSite], callback: InputCallback) -> Iterator[None]:
    """Call `callback` each time one of the norms runs inside the `with` block.

    Forward passes repeated by activation checkpointing are skipped.
    """

    def make_hook(site: NormSite) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not is_recomputing():
                x, condition = _input_and_condition(args, kwargs)
                labels = _domain_labels(module, x, condition)
                callback(site, to_channels_second(x.detach(), site.info.channel_axis), labels)

        return torch.compiler.disable(hook)  # type: ignore[no-untyped-call]

    with _removed_handles() as handles:
        for site in sites:
            handles.append(site.module.register_forward_pre_hook(make_hook(site), with_kwargs=True))
        yield


@contextmanager
def record_inputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list to which the first argument of every call of a module is appended; tensors are not detached.

    >>> layer = nn.Linear(3, 2)
    >>> with record_inputs(layer) as inputs:
    ...     _ = nn.Sequential(nn.ReLU(), layer)(torch.zeros(4, 3))
    >>> [x.shape for x in inputs]
    [torch.Size([4, 3])]
    """
    inputs: list[Tensor] = []

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.append(_input_and_condition(args, kwargs)[0])

    with _removed_handles() as handles:
        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        yield inputs


def find_producers(layers: Iterable[nn.Module], norms: Iterable[nn.Module], run: Callable[[], Any]) -> list[nn.Module]:
    """Return the layers that produce the inputs of norms, in the order of execution.

    The producer is the nearest of `layers` on the way back from the norm's input in the autograd graph. If the graph has none, as
    inside activation checkpointing, it is the layer that ran last.

    Args:
        layers: candidates, such as all convolutions of the model.
        norms: the norms.
        run: a function that runs the model once; gradients are enabled.
    """
    producer_of: dict[Any, nn.Module] = {}
    ran: list[nn.Module] = []
    producers: list[nn.Module] = []

    def record_output(module: nn.Module, _: Any, output: Any) -> None:
        ran.append(module)
        if isinstance(output, Tensor) and output.grad_fn is not None:
            producer_of[output.grad_fn] = module

    def record_producer(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, _condition = _input_and_condition(args, kwargs)
        producer = _nearest(x.grad_fn, producer_of) or (ran[-1] if ran else None)
        if producer is not None:
            producers.append(producer)

    with _removed_handles() as handles, torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        handles += [layer.register_forward_hook(record_output) for layer in layers]
        handles += [norm.register_forward_pre_hook(record_producer, with_kwargs=True) for norm in norms]
        run()
    return list(dict.fromkeys(sorted(producers, key=ran.index)))


def _nearest(node: Any, producer_of: dict[Any, nn.Module]) -> nn.Module | None:
    """Return the layer whose output is nearest to a node of the autograd graph (breadth-first search); None without one."""
    queue, visited = deque([node]), {node}
    while queue:
        node = queue.popleft()
        if node in producer_of:
            return producer_of[node]
        for parent, _ in getattr(node, "next_functions", ()):
            if parent is not None and parent not in visited:
                visited.add(parent)
                queue.append(parent)
    return None


@contextmanager
def _removed_handles() -> Iterator[list[Any]]:
    """Yield a list for hook handles; remove these hooks on exit."""
    handles: list[Any] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()


def _input_and_condition(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Any]:
    """Return x and the condition of a call, passed by position or by keyword."""
    named = [kwargs[name] for name in ("x", "input") if name in kwargs]
    x = args[0] if args else named[0] if named else next(value for value in kwargs.values() if isinstance(value, Tensor))
    return x, args[1] if len(args) > 1 else kwargs.get("condition")


def _domain_labels(module: nn.Module, x: Tensor, condition: Any) -> Tensor | None:
    if not isinstance(module, Norm) or not module.norm_spec.affine.num_domains:
        return None
    labels: Tensor = read_condition(module, x, module._condition if condition is None else condition)
    return labels
