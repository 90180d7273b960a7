"""Changes of a model that can be reverted: every change is recorded in an `UndoLog`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from anynorm.errors import SurgeryError
from anynorm.surgery.find import NormSite


@dataclass
class UndoLog:
    """Record of the changes made to a model, with the functions that revert them."""

    undo_steps: list[Callable[[], Any]] = field(default_factory=list)
    replacements: list[tuple[nn.Module, str, nn.Module]] = field(default_factory=list)

    def replace(self, site: NormSite, module: nn.Module) -> None:
        """Replace a norm by a module, under all its paths."""
        shared = _shared_tensors(site.module, module)
        for parent, name in site.parents:
            self.replacements.append((parent, name, module))
            self.undo_steps.append(lambda parent=parent, name=name: _restore(parent, name, site.module, shared))  # type: ignore[misc]
            parent._modules[name] = module
            if isinstance(parent, nn.TransformerEncoderLayer) and parent.activation_relu_or_gelu:
                # its fast path for inference computes LayerNorm from weight, bias and eps of its norms, without calling them
                self.set_attribute(parent, "activation_relu_or_gelu", 0)

    def set_attribute(self, target: Any, name: str, value: Any) -> None:
        """Set an attribute of an object; `undo` restores the old value."""
        old = getattr(target, name)
        self.undo_steps.append(lambda: setattr(target, name, old))
        setattr(target, name, value)

    def set_tensor(self, module: nn.Module, name: str, tensor: Any) -> None:
        """Set a parameter or buffer of a module."""
        tensors: Any = module._parameters if name in module._parameters else module._buffers
        old = tensors[name]
        self.undo_steps.append(lambda: tensors.update({name: old}))
        tensors[name] = tensor

    def set_forward(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        """Set the forward of a module that has only that of its class; `undo` removes it."""
        self.undo_steps.append(lambda: vars(module).pop("forward", None))
        vars(module)["forward"] = forward

    def set_class(self, module: nn.Module, subclass: type[nn.Module]) -> None:
        """Set the class of a module to a subclass; `undo` restores the old one."""
        old = type(module)
        self.undo_steps.append(lambda: setattr(module, "__class__", old))
        module.__class__ = subclass

    def undo(self) -> None:
        """Revert all changes; each restored module gets the mode, device and dtype of the module that had replaced it.

        Parameters and buffers that both had in common are the current ones of the module that had replaced it, also after
        `model.double()` or `load_state_dict(…, assign=True)` have made new tensors.

        Raises:
            SurgeryError: if a module has been replaced again by a later operation.
        """
        for parent, name, module in self.replacements:
            if self.undo_steps and parent._modules.get(name) is not module:
                raise SurgeryError(f"'{name}' has been replaced again since: undo the later operation first.")
        self.replacements.clear()
        while self.undo_steps:
            self.undo_steps.pop()()


def _shared_tensors(old: nn.Module, new: nn.Module) -> list[tuple[str, str]]:
    """Return the parameters and buffers that two modules have in common: the name of the dictionary, and that of the tensor."""
    return [
        (kind, name)
        for kind in ("_parameters", "_buffers")
        for name, tensor in vars(old)[kind].items()
        if tensor is not None and vars(new)[kind].get(name) is tensor
    ]


def _restore(parent: nn.Module, name: str, old: nn.Module, shared: list[tuple[str, str]]) -> None:
    new = parent._modules[name]
    if new is not None and new is not old:
        old.train(new.training)
        like = next((tensor for tensor in [*new.parameters(), *new.buffers()] if tensor.is_floating_point()), None)
        if like is not None and not any(tensor.is_meta for tensor in [*old.parameters(), *old.buffers(), like]):
            old.to(like.device, like.dtype)
        for kind, tensor_name in shared:
            vars(old)[kind][tensor_name] = vars(new)[kind][tensor_name]
    parent._modules[name] = old


@contextmanager
def all_or_nothing() -> Iterator[UndoLog]:
    """Yield an undo log whose changes are reverted if the `with` block raises."""
    undo_log = UndoLog()
    try:
        yield undo_log
    except BaseException:
        undo_log.undo()
        raise


@contextmanager
def temporary_changes() -> Iterator[UndoLog]:
    """Yield an undo log whose changes are reverted at the end of the `with` block."""
    undo_log = UndoLog()
    try:
        yield undo_log
    finally:
        undo_log.undo()
