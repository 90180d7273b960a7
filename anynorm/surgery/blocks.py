"""Finding the residual blocks of a network, whoever wrote it.

A block is the smallest module in which two ways from its input meet again, by an addition, or by joining to what met no norm, and
one of them goes through more norms; so are its siblings of the same class, such as the blocks of MobileNetV2 that have no
shortcut. The graph of a candidate is traced with torch.fx; where that fails, children are judged by their names.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from anynorm.surgery.find import NormSite

_ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_JOINS = {torch.cat, torch.concat, torch.concatenate, torch.stack}
_SHORTCUTS = ("downsample", "shortcut", "skip", "identity", "residual", "proj", "bypass")


@dataclass(frozen=True, eq=False)
class Block:
    """A residual block, with the norms of its main branch in the order they run."""

    path: str
    module: nn.Module
    norms: list[NormSite]


class _Tracer(fx.Tracer):
    """Traces into everything but torch's own layers and norms."""

    def __init__(self, norms: dict[int, NormSite]) -> None:
        super().__init__()
        self.norms = norms

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Stop at norms."""
        return id(m) in self.norms or super().is_leaf_module(m, module_qualified_name)


def find_blocks(model: nn.Module, sites: list[NormSite]) -> list[Block]:
    """List the residual blocks of a model, in the order of its modules."""
    norms = {id(site.module): site for site in sites}
    paths = {id(module): path for path, module in model.named_modules()}
    found: dict[int, list[NormSite]] = {}
    for module in reversed(list(model.modules())):  # children before their parents
        if any(id(child) in found for child in module.modules()):
            continue
        branch = _main_branch(module, norms)
        if branch is not None:
            found[id(module)] = branch
    kinds = {type(module) for module in model.modules() if id(module) in found}
    blocks = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or not (id(module) in found or type(module) in kinds):
            continue
        branch = found[id(module)] if id(module) in found else _by_names(module, norms)
        if branch:
            blocks.append(Block(paths[id(module)], module, branch))
            inside |= {id(child) for child in module.modules()}
    return blocks


def _main_branch(module: nn.Module, norms: dict[int, NormSite]) -> list[NormSite] | None:
    """Give the norms of a block's main branch; None where it is no block."""
    count = sum(id(child) in norms for child in module.modules())
    if count < 1 or isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return None
    try:
        graph = _Tracer(norms).trace(module)
    except Exception:  # control flow that a trace cannot follow
        looks_so = any(word in type(module).__name__ for word in ("Block", "Bottleneck", "Residual"))
        return _by_names(module, norms) if looks_so else None
    return _in_graph(graph, dict(module.named_modules(remove_duplicate=False)), norms)


def _in_graph(graph: fx.Graph, modules: dict[str, nn.Module], norms: dict[int, NormSite]) -> list[NormSite] | None:
    order = list(graph.nodes)
    inputs = [node for node in order if node.op == "placeholder"]
    before: dict[fx.Node, set[fx.Node]] = {}
    for node in order:
        before[node] = {node}.union(*(before[source] for source in node.all_input_nodes))
    normed = {
        node: norms[id(modules[node.target])]
        for node in order
        if node.op == "call_module" and id(modules[str(node.target)]) in norms
    }
    for join in reversed(order):
        ways = _ways(join)
        if len(ways) != 2 or not all(before[way] & set(inputs) for way in ways):
            continue
        counts = [[node for node in order if node in before[way] and node in normed] for way in ways]
        main, other = sorted(counts, key=len, reverse=True)
        if len(main) > len(other) and not (join.target in _JOINS and other):
            return [normed[node] for node in main]
    return None


def _ways(node: fx.Node) -> list[fx.Node]:
    """Give the tensors that an addition or a joining of two brings together."""
    target: Any = node.target
    if target in _ADDITIONS:
        return [argument for argument in node.args[:2] if isinstance(argument, fx.Node)]
    if target in _JOINS and isinstance(node.args[0], tuple | list):
        return [argument for argument in node.args[0] if isinstance(argument, fx.Node)]
    return []


def _by_names(module: nn.Module, norms: dict[int, NormSite]) -> list[NormSite]:
    """Give the norms of a module that are not in a child called a shortcut."""
    found = []
    for path, child in module.named_modules():
        if id(child) in norms and not any(word in path for word in _SHORTCUTS):
            found.append(norms[id(child)])
    return found
