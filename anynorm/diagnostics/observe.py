"""Looking at a model while it runs: the only place where hooks are registered. Whatever happens, none remains.

watching     every input of some modules is shown to a function
inferring    eval mode, no gradients, no compiled code; every module's mode is put back
keeping      buffers and random numbers are put back
changing     some tensors hold other values
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.admit import read_condition
from anynorm.core.keeper import is_recomputing
from anynorm.core.norm import Norm
from anynorm.errors import DiagnosticError
from anynorm.surgery.reading import Reading
from anynorm.surgery.walk import Site, Where, choose, find_sites

See = Callable[[Site, Tensor, Tensor | None], None]


def norms_of(model: Any, where: Where = None) -> list[Site]:
    """List the norms of a model that can be read, or say that there are none."""
    if not isinstance(model, nn.Module):
        raise DiagnosticError(f"Diagnostics look at an nn.Module, not at a {type(model).__name__}.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise DiagnosticError("TorchScript modules cannot be watched. Diagnose the model before scripting it.")
    sites = find_sites(model)
    if not sites:
        raise DiagnosticError(
            f"This {type(model).__name__} has no norm among its modules; those called as functions "
            "(torch.nn.functional.batch_norm) cannot be seen. Classes of your own: anynorm.surgery.reading.register."
        )
    chosen = choose(sites, where)
    known = [site for site in chosen if isinstance(site.reading, Reading)]
    if not known:
        raise DiagnosticError(f"None of the {len(chosen)} norms can be read; '{chosen[0].path}': {chosen[0].reading}.")
    return known


def names_of(sites: Iterable[Site]) -> str:
    """Say which norms there are, each once."""
    return ", ".join(dict.fromkeys(site.called for site in sites))


@contextmanager
def watching(sites: Iterable[Site], see: See) -> Iterator[None]:
    """Show x, and the domains of its samples where a norm tells them apart, each time a norm runs.

    Nothing is shown when activation checkpointing runs a part of the model again.
    """

    def look(site: Site) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not is_recomputing():
                given = [*args, *kwargs.values()]
                see(site, given[0].detach(), _domains(module, given))

        return torch.compiler.disable(hook)  # type: ignore[no-untyped-call]

    with _hooked({site.module: look(site) for site in sites}):
        yield


@contextmanager
def in_order(modules: Iterable[nn.Module], see: Callable[[nn.Module], None]) -> Iterator[None]:
    """Tell each time a module runs."""

    def hook(module: nn.Module, *_: Any) -> None:
        if not is_recomputing():
            see(module)

    with _hooked(dict.fromkeys(modules, hook)):
        yield


@contextmanager
def _hooked(hooks: Mapping[nn.Module, Any]) -> Iterator[None]:
    handles = []
    try:
        for module, hook in hooks.items():
            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _domains(module: nn.Module, given: list[Any]) -> Tensor | None:
    if not isinstance(module, Norm) or not module.parts.ending.domains:
        return None
    condition = next((value for value in given[1:] if value is not None), module.told)
    labels: Tensor = read_condition(module, given[0], condition)
    return labels


@contextmanager
def inferring(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode, without gradients or compiled code, which would not see the hooks."""
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def keeping(model: nn.Module) -> Iterator[None]:
    """Put back what running a model in train mode would move: its buffers, and torch's random numbers."""
    with torch.random.fork_rng(), changing({buffer: buffer for buffer in model.buffers()}):
        yield


@contextmanager
def changing(values: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Write values into tensors, and put the old ones back."""
    old = {tensor: tensor.detach().clone() for tensor in values}
    try:
        with torch.no_grad():
            for tensor, value in values.items():
                tensor.copy_(value)
        yield
    finally:
        with torch.no_grad():
            for tensor, value in old.items():
                tensor.copy_(value)


class Guard:
    """Knows the first norm that a number which is none has reached."""

    def __init__(self) -> None:
        self.batch: Any = None
        self.index = -1
        self.last = ""

    def begin(self, batch: Any) -> Any:
        """Take the next batch, and give it on."""
        self.batch, self.index, self.last = batch, self.index + 1, ""
        return batch

    def check(self, path: str, x: Tensor) -> None:
        """Refuse an input with NaN or infinite values: the first is where they come from."""
        wrong = int((~torch.isfinite(x)).sum())
        if wrong:
            before = f"The input of '{self.last}' before it was finite." if self.last else "It is the first norm that runs."
            own = " The batch itself holds such values." if not _finite(self.batch) else ""
            raise DiagnosticError(
                f"{wrong} of {x.numel()} values that reach '{path}' in batch {self.index} are NaN or infinite. {before}{own}"
            )
        self.last = path


def _finite(batch: Any) -> bool:
    if isinstance(batch, Tensor):
        return bool(torch.isfinite(batch).all()) if batch.is_floating_point() else True
    entries = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple | list) else []
    return all(_finite(entry) for entry in entries)
