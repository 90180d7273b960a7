"""Inputs and outputs of a stage: the inputs from the converted network, the outputs from the original.

Both networks run only as far as the stage, or, if its input is the output of the stage before, only this stage on the kept
values. The values of all samples are kept, for one stage at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from anynorm.errors import SurgeryError
from anynorm.surgery.distill_data import select, tensors_of

Call = Callable[[nn.Module], Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Calls = tuple[Arguments, Arguments]


class _Stop(BaseException):
    """Ends a forward pass; not an Exception, so that no model catches it."""


def inputs_of(model: nn.Module, module: nn.Module, run: Call) -> Arguments:
    """Return the arguments with which a model calls one of its modules.

    Args:
        model: the model.
        module: the module.
        run: a function that calls a model.

    Raises:
        SurgeryError: if the model does not call the module.
    """
    found: list[Arguments] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # a copy, because the modules before may write into their output in place
        found.append(tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), (args, kwargs)))
        raise _Stop

    _run_until(model, run, module.register_forward_pre_hook(before, with_kwargs=True))
    return found[0] if found else _not_reached(model, module)


def output_of(model: nn.Module, module: nn.Module, run: Call) -> Any:
    """Return what one of the modules of a model returns in its first call.

    Raises:
        SurgeryError: if the model does not call the module.
    """
    found: list[Any] = []

    def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        found.append(tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), output))
        raise _Stop

    _run_until(model, run, module.register_forward_hook(after))
    return found[0] if found else _not_reached(model, module)


def _run_until(model: nn.Module, run: Call, hook: Any) -> None:
    try:
        with torch.no_grad():
            run(model)
    except _Stop:
        pass
    finally:
        hook.remove()


def _not_reached(model: nn.Module, module: nn.Module) -> Any:
    path = next(path for path, each in model.named_modules() if each is module)
    raise SurgeryError(f"the samples do not reach block '{path}': leave it out by stages=[…].")


def check_single_calls(model: nn.Module, modules: dict[str, nn.Module], run: Call) -> None:
    """Check that a model calls each module exactly once.

    Raises:
        SurgeryError: if a module is called several times, or not at all.
    """
    calls = dict.fromkeys(modules, 0)

    def count(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            calls[path] += 1

        return hook

    hooks = [module.register_forward_pre_hook(count(path)) for path, module in modules.items()]
    try:
        with torch.no_grad():
            run(model)
    finally:
        for hook in hooks:
            hook.remove()
    for path, number in calls.items():
        if number != 1:
            raise SurgeryError(
                f"block '{path}' runs {number} times per forward pass; a stage must run once. Pass other stages=[…], or "
                "stages=[] to train end to end only. The model is unchanged."
            )


@dataclass(frozen=True)
class Activations:
    """The inputs of a stage and the outputs that it should have, for all samples, in parts.

    Attributes:
        inputs: positional and keyword arguments, per part.
        targets: the outputs of the original, per part.
        sizes: the number of samples of each part.
    """

    inputs: list[Arguments]
    targets: list[Any]
    sizes: list[int]

    @torch.no_grad()
    def next(self, here: tuple[nn.Module, nn.Module], next_original: nn.Module, calls: Calls) -> Activations | None:
        """Return the activations of the following stage; None if its input is not the output of this stage.

        Args:
            here: the module of this stage in the converted network, trained, and in the original.
            next_original: the module of the following stage in the original.
            calls: how the two networks call the following stage, for the samples of the first part.
        """
        arguments = (here[0](*self.inputs[0][0], **self.inputs[0][1]), self.targets[0])
        if not all(map(_is_only_argument, arguments, calls)):
            return None
        following = Activations([], [], list(self.sizes))
        for inputs, target in zip(self.inputs, self.targets, strict=True):
            following.inputs.append(((here[0](*inputs[0], **inputs[1]),), calls[0][1]))
            following.targets.append(next_original(target, **calls[1][1]))
        return following

    def minibatch(self, batch_size: int, generator: torch.Generator) -> tuple[Any, Any]:
        """Return the arguments and the targets of a random choice of samples."""
        order = torch.randperm(sum(self.sizes), generator=generator)[:batch_size].sort().values
        chosen, start = [], 0
        for inputs, targets, size in zip(self.inputs, self.targets, self.sizes, strict=True):
            inside = order[(order >= start) & (order < start + size)] - start
            if len(inside):
                chosen.append((select_tree((inputs, targets), inside, size), len(inside)))
            start += size
        sizes = [size for _, size in chosen]
        inputs, targets = join([value for value, _ in chosen], sizes)
        return inputs, targets


def _is_only_argument(output: Any, called: Arguments) -> bool:
    """Whether a module is called with this output as its only tensor."""
    args, kwargs = called
    if len(args) != 1 or not isinstance(args[0], Tensor) or any(isinstance(leaf, Tensor) for leaf in tree_leaves(kwargs)):
        return False
    return isinstance(output, Tensor) and output.shape == args[0].shape and torch.equal(output, args[0])


def select_tree(value: Any, indices: Tensor, size: int) -> Any:
    """Return some samples of all tensors in a nested value."""
    return tree_map_only(Tensor, lambda tensor: select(tensor, indices, size), value)


def join(values: list[Any], sizes: list[int]) -> Any:
    """Concatenate nested values along their samples; a tensor without one entry per sample is that of the first value."""

    def concatenate(*leaves: Any) -> Any:
        has_samples = all(
            isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == n for leaf, n in zip(leaves, sizes, strict=True)
        )
        return torch.cat(leaves) if has_samples else leaves[0]

    return tree_map(concatenate, *values)


def check_finite(value: Any, name: str) -> None:
    """Check that the outputs of the original have no NaN and no infinity.

    Raises:
        SurgeryError: otherwise.
    """
    bad = sum(int((~torch.isfinite(tensor)).sum()) for tensor in tensors_of(value))
    if bad:
        total = sum(tensor.numel() for tensor in tensors_of(value))
        raise SurgeryError(
            f"the original returns NaN or infinity in {bad} of {total} values of {name}: check the samples, and the original on "
            "them. The model is unchanged."
        )
