"""Finding modules in a model and putting others in their places: shared ones stay shared, and everything can be put back.

A site is one module with every place that holds it. What is changed goes through a `Ledger`, which knows the way back.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from anynorm.errors import SurgeryError
from anynorm.layers.norm import Norm
from anynorm.surgery.adapters import NormInfo, read

Where = str | type | Callable[[str, nn.Module], bool] | Iterable[Any] | None
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(frozen=True, eq=False)
class NormSite:
    """A norm in a model: its paths, the places that hold it, and what it is (or why that cannot be told)."""

    paths: list[str]
    module: nn.Module
    holders: list[tuple[nn.Module, str]]
    reading: NormInfo | str

    @property
    def path(self) -> str:
        """The first of its paths."""
        return self.paths[0]

    @property
    def info(self) -> NormInfo:
        """What it is, of a site that was chosen for being read."""
        assert isinstance(self.reading, NormInfo)
        return self.reading

    @property
    def label(self) -> str:
        """What it is called in reports: its spec where it is ours, else its class."""
        return self.module.spec if isinstance(self.module, Norm) else type(self.module).__name__


@dataclass
class UndoLog:
    """Everything done to a model, with the way back."""

    backs: list[Callable[[], None]] = field(default_factory=list)

    places: list[tuple[nn.Module, str, nn.Module]] = field(default_factory=list)

    def put(self, site: NormSite, module: nn.Module) -> None:
        """Put a module in all places of a site."""
        for holder, name in site.holders:
            self.places.append((holder, name, module))
            self.backs.append(lambda holder=holder, name=name: _put_back(holder, name, site.module))  # type: ignore[misc]
            holder._modules[name] = module

    def undo(self) -> None:
        """Go all the way back; modules that were put back take the mode, device and dtype of those that go."""
        for holder, name, module in self.places:
            if self.backs and holder._modules.get(name) is not module:
                raise SurgeryError(f"'{name}' has been replaced again since: undo the later operation first.")
        self.places.clear()
        while self.backs:
            self.backs.pop()()


def _put_back(holder: nn.Module, name: str, old: nn.Module) -> None:
    new = holder._modules[name]
    if new is not None and new is not old:
        old.train(new.training)
        like = next((tensor for tensor in [*new.parameters(), *new.buffers()] if tensor.is_floating_point()), None)
        if like is not None and not any(tensor.is_meta for tensor in [*old.parameters(), *old.buffers(), like]):
            old.to(like.device, like.dtype)
    holder._modules[name] = old


@contextmanager
def all_or_nothing() -> Iterator[UndoLog]:
    """Keep a ledger, and go back if anything is raised."""
    ledger = UndoLog()
    try:
        yield ledger
    except BaseException:
        ledger.undo()
        raise


def check_model(model: Any) -> None:
    """Refuse what cannot be operated on."""
    if not isinstance(model, nn.Module):
        raise SurgeryError(f"Surgery takes an nn.Module, not a {type(model).__name__}.")
    for path, module in model.named_modules():
        names = [kind.__name__ for kind in type(module).__mro__]
        wrapper = next((name for name in names if name in _WRAPPERS), None)
        if wrapper is not None:
            at = f"'{path}'" if path else "the model"
            raise SurgeryError(
                f"{at} is wrapped in {wrapper}, which holds on to the parameters it was given: new ones would not be "
                "synchronised. Change the model first and wrap it afterwards."
            )
        if "ScriptModule" in names:
            raise SurgeryError(
                f"'{path}' is TorchScript, whose modules cannot be replaced. Change the model before scripting it."
            )


def find_norms(model: nn.Module) -> list[NormSite]:
    """List every norm of a model once, in the order of its modules."""
    paths: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(path)
    holders: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            holders.setdefault(id(child), []).append((parent, name))
    sites = []
    inside: set[int] = set()
    for module in model.modules():
        reading = None if id(module) in inside else read(module)
        if reading is not None:
            sites.append(NormSite(paths[id(module)], module, holders.get(id(module), []), reading))
            inside |= {id(child) for child in module.modules()}
    return sites


def choose(sites: list[NormSite], where: Where) -> list[NormSite]:
    """Take the sites that `where` names: None takes all; a type, a pattern of paths such as `layer3.*`, a predicate of path and
    module, or a list of such things and of paths.
    """  # noqa: D205
    if where is None:
        return sites
    where = list(where) if isinstance(where, Iterable) and not isinstance(where, str) else where
    if where == []:
        raise SurgeryError("where=[] names no norm; leave it out to take all.")
    chosen = [site for site in sites if any(_fits(site, path, where) for path in site.paths)]
    wanted = list(where) if isinstance(where, list | tuple | set | frozenset) else [where]
    for one in wanted:
        if not any(_fits(site, path, one) for site in sites for path in site.paths):
            raise SurgeryError(_nothing_there(one, sites))
    return chosen


def _fits(site: NormSite, path: str, where: Any) -> bool:
    if isinstance(where, str):
        return fnmatchcase(path, where)
    if isinstance(where, type):
        return isinstance(site.module, where)
    if isinstance(where, nn.Module):
        return site.module is where
    if callable(where):
        return bool(where(path, site.module))
    return any(_fits(site, path, one) for one in where)


def _nothing_there(where: Any, sites: list[NormSite]) -> str:
    paths = [path for site in sites for path in site.paths]
    if not paths:
        return f"where={where!r} finds nothing: the model has no norm that is known."
    near = difflib.get_close_matches(str(where), paths, n=3, cutoff=0.3) or paths[:3]
    return f"where={where!r} finds no norm. The model has {len(sites)}, such as {' '.join(near)}."
