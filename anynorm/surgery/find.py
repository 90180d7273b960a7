"""Search for the norms of a model, and selection among them.

A `NormSite` is one norm with all paths under which it is registered in the model, so a shared norm is replaced under all of them
and stays shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from anynorm.errors import SurgeryError, similar_names
from anynorm.layers.norm import Norm
from anynorm.surgery.adapters import read_norm
from anynorm.surgery.norm_info import NormInfo, UnsupportedNormError

Where = str | type | Callable[[str, nn.Module], bool] | Iterable[Any] | None
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(frozen=True, eq=False)
class NormSite:
    """A norm in a model.

    Attributes:
        paths: all paths of the norm in the model.
        module: the norm.
        parents: the modules of which the norm is a child, each with the name of the child; empty if the norm is the model itself.
        unsupported: the reason why the norm cannot be read; empty if it can.
    """

    paths: list[str]
    module: nn.Module
    parents: list[tuple[nn.Module, str]]
    _info: NormInfo | None
    unsupported: str = ""

    @property
    def path(self) -> str:
        """The first path of the norm."""
        return self.paths[0]

    @property
    def info(self) -> NormInfo:
        """The description of the norm.

        Raises:
            SurgeryError: if `unsupported` is not empty.
        """
        if self._info is None:
            raise SurgeryError(f"'{self.path}' ({self.label}) cannot be read: {self.unsupported}.")
        return self._info

    @property
    def label(self) -> str:
        """The name of the norm in reports: the spec of an anynorm layer, or the class name of any other layer."""
        return self.module.spec if isinstance(self.module, Norm) else type(self.module).__name__


def check_model(model: Any) -> None:
    """Check that the modules of a model can be replaced.

    Raises:
        SurgeryError: if the model is not an nn.Module, contains TorchScript, or is wrapped for distributed training.
    """
    if not isinstance(model, nn.Module):
        raise SurgeryError(f"model must be an nn.Module; got a {type(model).__name__}.")
    for path, module in model.named_modules():
        names = [cls.__name__ for cls in type(module).__mro__]
        wrapper = next((name for name in names if name in _WRAPPERS), None)
        if wrapper is not None:
            wrapped = f"'{path}'" if path else "The model"
            raise SurgeryError(
                f"{wrapped} is wrapped in {wrapper}, which keeps references to the old parameters: new parameters would not be "
                "synchronized. Change the model first and wrap it afterwards. For an operation that adds no parameters, such as "
                "recalibrate, pass the inner model: model.module, or accelerator.unwrap_model(model)."
            )
        if "ScriptModule" in names:
            raise SurgeryError(f"'{path}' is TorchScript; its modules cannot be replaced. Change the model before scripting it.")


def find_norms(model: nn.Module) -> list[NormSite]:
    """Return the norms of a model without duplicates, in the order of its modules.

    >>> [site.path for site in find_norms(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))]
    ['1']
    """
    paths: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(path)
    parents: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            parents.setdefault(id(child), []).append((parent, name))
    sites: list[NormSite] = []
    inside_norms: set[int] = set()
    for module in model.modules():
        if id(module) in inside_norms:
            continue
        info, unsupported = None, ""
        try:
            info = read_norm(module)
        except UnsupportedNormError as error:
            unsupported = str(error)
        if info is not None or unsupported:
            sites.append(NormSite(paths[id(module)], module, parents.get(id(module), []), info, unsupported))
            inside_norms |= {id(child) for child in module.modules()}
    return sites


def choose(sites: list[NormSite], where: Where) -> list[NormSite]:
    """Return the sites that `where` selects.

    Args:
        sites: the norms of a model.
        where: None or "all" for all norms; a module class; a pattern of paths such as "layer3.*"; a predicate of path and module;
            or a list of these.

    Raises:
        SurgeryError: if `where`, or one entry of the list, selects no norm.
    """
    if where is None:
        return sites
    where = list(where) if isinstance(where, Iterable) and not isinstance(where, str) else where
    if where == []:
        raise SurgeryError("where must select at least one norm; got []. Omit where= to use the default.")
    for selector in where if isinstance(where, list) else [where]:
        if not any(_matches(site, path, selector) for site in sites for path in site.paths):
            raise SurgeryError(_no_match(selector, sites))
    return [site for site in sites if any(_matches(site, path, where) for path in site.paths)]


def _matches(site: NormSite, path: str, where: Any) -> bool:
    if isinstance(where, str):
        return where == "all" or fnmatchcase(path, where)
    if isinstance(where, type):
        return isinstance(site.module, where)
    if isinstance(where, nn.Module):
        return site.module is where
    if callable(where):
        return bool(where(path, site.module))
    return any(_matches(site, path, selector) for selector in where)


def _no_match(where: Any, sites: list[NormSite]) -> str:
    paths = [path for site in sites for path in site.paths]
    if not paths:
        return f"where={where!r} matches nothing: the model has no norm that anynorm recognizes."
    close = similar_names(str(where), paths, count=3) or paths[:3]
    return f"where={where!r} matches no norm. The model has {len(sites)}, such as {' '.join(close)}."
