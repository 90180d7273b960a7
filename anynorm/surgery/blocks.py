"""Detection of the residual blocks of a network, independent of the names of its classes.

A residual block is the smallest module in which two branches from its input are merged and one branch has more norms than the
other. They are merged by an addition, or by a concatenation if one of them has no norm. Other modules of the same class are also
blocks, such as the blocks of MobileNetV2 without a shortcut. The graph of a module is traced with torch.fx; if tracing fails, the
shortcut is recognized by the names of the module's children.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from anynorm.surgery.block_forward import original_class
from anynorm.surgery.find import NormSite

_ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_CONCATENATIONS = {torch.cat, torch.concat, torch.concatenate, torch.stack}
_SHORTCUT_NAMES = ("downsample", "shortcut", "skip", "identity", "residual", "proj", "bypass")


@dataclass(frozen=True, eq=False)
class Block:
    """A residual block; `norms` are the norms of its main branch in the order of execution."""

    path: str
    module: nn.Module
    norms: list[NormSite]


class _Tracer(fx.Tracer):
    """A torch.fx tracer whose leaf modules are the norms and the layers of torch.nn."""

    def __init__(self, norms: dict[int, NormSite]) -> None:
        super().__init__()
        self.norms = norms

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is a leaf, whose forward is not traced."""
        return id(m) in self.norms or super().is_leaf_module(m, module_qualified_name)


def find_blocks(model: nn.Module, sites: list[NormSite]) -> list[Block]:
    """Return the residual blocks of a model, in the order of its modules.

    Args:
        model: the model.
        sites: the norms of the model, from `find_norms`.
    """
    norms = {id(site.module): site for site in sites}
    paths = {id(module): path for path, module in model.named_modules()}
    branches: dict[int, list[NormSite]] = {}
    for module in reversed(list(model.modules())):  # children before their parents
        if any(id(child) in branches for child in module.modules()):
            continue
        branch = _main_branch(module, norms)
        if branch is not None:
            branches[id(module)] = branch
    block_classes = {original_class(module) for module in model.modules() if id(module) in branches}
    blocks = []
    inside_blocks: set[int] = set()
    for module in model.modules():
        if id(module) in inside_blocks or not (id(module) in branches or original_class(module) in block_classes):
            continue
        branch = branches[id(module)] if id(module) in branches else _norms_by_name(module, norms)
        if branch:
            blocks.append(Block(paths[id(module)], module, branch))
            inside_blocks |= {id(child) for child in module.modules()}
    return blocks


def _main_branch(module: nn.Module, norms: dict[int, NormSite]) -> list[NormSite] | None:
    """Return the norms of a block's main branch; None if the module is not a block."""
    has_norm = any(id(child) in norms for child in module.modules())
    if not has_norm or isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return None
    try:
        with restored_attributes(module):
            graph = _Tracer(norms).trace(module)
    except Exception:  # torch.fx raises various errors on control flow that depends on data
        named_block = any(word in type(module).__name__ for word in ("Block", "Bottleneck", "Residual"))
        return _norms_by_name(module, norms) if named_block else None
    return _main_branch_of_graph(graph, dict(module.named_modules(remove_duplicate=False)), norms)


@contextmanager
def restored_attributes(module: nn.Module) -> Iterator[None]:
    """Restore the attributes of a module and its children on exit: traced code may cache values, as LeViT's attention does."""
    attributes = [(vars(child), dict(vars(child))) for child in module.modules()]
    containers = [value for _, old in attributes for value in old.values() if isinstance(value, dict | list)]
    contents = [copy.copy(container) for container in containers]
    try:
        yield
    finally:
        for current, old in attributes:
            for name in set(current) - set(old):
                del current[name]
            current.update(old)
        for container, content in zip(containers, contents, strict=True):
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)


def _main_branch_of_graph(graph: fx.Graph, modules: dict[str, nn.Module], norms: dict[int, NormSite]) -> list[NormSite] | None:
    nodes = list(graph.nodes)
    inputs = {node for node in nodes if node.op == "placeholder"}
    ancestors: dict[fx.Node, set[fx.Node]] = {}
    for node in nodes:
        ancestors[node] = {node}.union(*(ancestors[source] for source in node.all_input_nodes))
    sites = {
        node: norms[id(modules[node.target])]
        for node in nodes
        if node.op == "call_module" and id(modules[str(node.target)]) in norms
    }
    for join in reversed(nodes):
        branches = _branches(join)
        if len(branches) != 2 or not all(ancestors[branch] & inputs for branch in branches):
            continue
        norms_per_branch = [[node for node in nodes if node in ancestors[branch] and node in sites] for branch in branches]
        main, other = sorted(norms_per_branch, key=len, reverse=True)
        if len(main) > len(other) and not (join.target in _CONCATENATIONS and other):
            return [sites[node] for node in main]
    return None


def _branches(node: fx.Node) -> list[fx.Node]:
    """Return the operands of an addition or concatenation; empty for any other node."""
    target: Any = node.target
    if target in _ADDITIONS:
        return [argument for argument in node.args[:2] if isinstance(argument, fx.Node)]
    if target in _CONCATENATIONS and isinstance(node.args[0], tuple | list):
        return [argument for argument in node.args[0] if isinstance(argument, fx.Node)]
    return []


def _norms_by_name(module: nn.Module, norms: dict[int, NormSite]) -> list[NormSite]:
    """Return the norms of a module, except those inside a child whose name is that of a shortcut."""
    return [
        norms[id(child)]
        for path, child in module.named_modules()
        if id(child) in norms and not any(word in path for word in _SHORTCUT_NAMES)
    ]
