"""Looking at a model while it runs: the only place where hooks are registered. Whatever happens, none remains.

watching     every input of some norms is shown to a function
feeding      which of some layers feeds each norm
inferring    eval mode, no gradients, no compiled code; every module's mode is put back
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import DiagnosticError
from anynorm.layers.norm import Norm
from anynorm.layers.running_stats import is_recomputing
from anynorm.layers.validation import read_condition
from anynorm.surgery.adapters import NormInfo
from anynorm.surgery.find import NormSite, Where, choose, find_norms

See = Callable[[NormSite, Tensor, Tensor | None], None]


def norms_of(model: Any, where: Where = None) -> list[NormSite]:
    """List the norms of a model that can be read, or say that there are none."""
    if not isinstance(model, nn.Module):
        raise DiagnosticError(f"Diagnostics look at an nn.Module, not at a {type(model).__name__}.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise DiagnosticError("TorchScript modules cannot be watched. Diagnose the model before scripting it.")
    empty = next((name for name, tensor in model.state_dict().items() if tensor.is_meta), None)
    if empty is not None:
        raise DiagnosticError(f"'{empty}' is on the meta device and has no values: load the model first.")
    sites = find_norms(model)
    if not sites:
        raise DiagnosticError(
            f"This {type(model).__name__} has no norm among its modules; those called as functions "
            "(torch.nn.functional.batch_norm) cannot be seen. Classes of your own: anynorm.surgery.adapters.register."
        )
    chosen = choose(sites, where)
    known = [site for site in chosen if isinstance(site.reading, NormInfo)]
    if not known:
        raise DiagnosticError(f"None of the {len(chosen)} norms can be read; '{chosen[0].path}': {chosen[0].reading}.")
    return known


def unread_rows(model: nn.Module, where: Where = None) -> list[dict[str, Any]]:
    """Tell of the norms that cannot be read, with the reason."""
    chosen = choose(find_norms(model), where)
    return [{"path": site.path, "norm": site.label, "note": site.reading} for site in chosen if isinstance(site.reading, str)]


def names_of(sites: Iterable[NormSite]) -> str:
    """Say which norms there are, each once."""
    return ", ".join(dict.fromkeys(site.label for site in sites))


@contextmanager
def watching(sites: Iterable[NormSite], see: See) -> Iterator[None]:
    """Show x, and the domains of its samples where a norm tells them apart, each time a norm runs.

    Nothing is shown when activation checkpointing runs a part of the model again.
    """

    def look(site: NormSite) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not is_recomputing():
                x, condition = _given(args, kwargs)
                see(site, x.detach(), _domains(module, x, condition))

        return torch.compiler.disable(hook)  # type: ignore[no-untyped-call]

    with _handles() as handles:
        for site in sites:
            handles.append(site.module.register_forward_pre_hook(look(site), with_kwargs=True))
        yield


def feeding(layers: Iterable[nn.Module], norms: Iterable[nn.Module], run: Callable[[], Any]) -> list[nn.Module]:
    """Run a model with gradients; list the layers that feed a norm, in the order they ran.

    A norm is fed by the layer whose output its input was made of, over the fewest steps; where gradients do not tell, as inside
    a checkpoint, by the layer that ran last.
    """
    made: dict[Any, nn.Module] = {}
    ran: list[nn.Module] = []
    fed: list[nn.Module] = []

    def after(module: nn.Module, _: Any, output: Any) -> None:
        ran.append(module)
        if isinstance(output, Tensor) and output.grad_fn is not None:
            made[output.grad_fn] = module

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, _condition = _given(args, kwargs)
        source = _nearest(x.grad_fn, made) or (ran[-1] if ran else None)
        if source is not None:
            fed.append(source)

    with _handles() as handles, torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        handles += [layer.register_forward_hook(after) for layer in layers]
        handles += [norm.register_forward_pre_hook(before, with_kwargs=True) for norm in norms]
        run()
    return list(dict.fromkeys(sorted(fed, key=ran.index)))


def _nearest(node: Any, made: dict[Any, nn.Module]) -> nn.Module | None:
    """Walk a graph back, nearest nodes first, to the first that a layer made."""
    waiting, seen = deque([node]), {node}
    while waiting:
        node = waiting.popleft()
        if node in made:
            return made[node]
        for earlier, _ in getattr(node, "next_functions", ()):
            if earlier is not None and earlier not in seen:
                seen.add(earlier)
                waiting.append(earlier)
    return None


@contextmanager
def _handles() -> Iterator[list[Any]]:
    handles: list[Any] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Any]:
    """Give x and the condition of a call, however they were passed."""
    named = [kwargs[name] for name in ("x", "input") if name in kwargs]
    x = args[0] if args else named[0] if named else next(value for value in kwargs.values() if isinstance(value, Tensor))
    return x, args[1] if len(args) > 1 else kwargs.get("condition")


def _domains(module: nn.Module, x: Tensor, condition: Any) -> Tensor | None:
    if not isinstance(module, Norm) or not module.norm_spec.affine.num_domains:
        return None
    labels: Tensor = read_condition(module, x, module._condition if condition is None else condition)
    return labels


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode, without gradients or compiled code, which would not see the hooks."""
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


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
