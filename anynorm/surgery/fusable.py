"""Search for norm -> activation, norm -> addition and norm -> addition -> activation in the graph of a block.

    y = norm(x); z = φ(y)           norm(x, activation=φ)
    y = norm(x); z = φ(y + r)       norm(x, residual=r, activation=φ)

The norm must be called once, and its output, and the sum if an activation follows, must have no other user. Modules that return
their input (nn.Identity, dropout with probability 0) are skipped. The fused call is at the place of the addition, after the
residual.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from anynorm.core.activation import Activation, read_activation
from anynorm.errors import SpecError
from anynorm.surgery.block_forward import has_hooks

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_WRITING_ADDITIONS = {operator.iadd, "add_"}
ACTIVATION_FUNCTIONS: dict[Any, str] = {
    **dict.fromkeys([functional.relu, torch.relu, torch.relu_, "relu", "relu_"], "relu"),
    **dict.fromkeys([functional.leaky_relu, functional.leaky_relu_], "leaky_relu"),
    functional.relu6: "relu6",
    functional.silu: "silu",
    functional.gelu: "gelu",
    functional.hardswish: "hardswish",
}
"""Functions, and methods of tensors by name."""
WRITES = "the addition writes into a tensor that other operations may read"
_TIMM_ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "HardSwish": "hardswish", "Swish": "silu"}
_DROP_PROBABILITY = {
    **{f"torch.nn.modules.dropout.{name}": "p" for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")},
    "torchvision.ops.stochastic_depth.StochasticDepth": "p",
    "timm.layers.drop.DropPath": "drop_prob",
}
"""The attribute with the probability, by the full name of the class."""


class NotFusableError(Exception):
    """Raised for a norm that cannot be fused with what follows; the message is the reason."""


@dataclass(eq=False)
class Pattern:
    """A norm, an addition or None, and an activation or None, in the graph of a block.

    Attributes:
        nodes: all nodes from the call of the norm to the last one that is fused.
        addition: the addition.
        activation: the activation.
        reason: why it is not fused; empty if it is.
    """

    nodes: list[fx.Node]
    addition: fx.Node | None = None
    activation: Activation | None = None
    reason: str = ""

    @property
    def norm(self) -> fx.Node:
        """The call of the norm."""
        return self.nodes[0]

    @property
    def residual(self) -> fx.Node | None:
        """The tensor that is added to the output of the norm."""
        if self.addition is None:
            return None
        first, second = operands(self.addition)
        residual: fx.Node = second if first in self.nodes else first
        return residual

    @property
    def writes_residual(self) -> bool:
        """Whether the addition writes its result into the residual."""
        return self.addition is not None and self.addition.target in _WRITING_ADDITIONS and self.addition.args[0] is self.residual

    @property
    def unused(self) -> list[str]:
        """Paths of the modules that are not called any more."""
        return [str(node.target) for node in self.nodes[1:] if node.op == "call_module"]

    @property
    def operations(self) -> list[str]:
        """What is fused into the norm: "add", the name of the activation, or both."""
        return ["add"] * (self.addition is not None) + ([self.activation.name] if self.activation else [])


@dataclass
class Patterns:
    """The patterns of a graph, and the reason for each other norm of the graph, by the path of the norm."""

    fusable: list[Pattern] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


def find_patterns(graph: fx.Graph, block: nn.Module, norms: dict[int, Any]) -> Patterns:
    """Return the patterns of a graph whose norms are in `norms`, by the id of the module."""
    result = Patterns()
    modules = dict(block.named_modules(remove_duplicate=False))
    calls = Counter(id(modules[path]) for path in called_paths(graph))
    for node in reversed(list(graph.nodes)):  # of two norms that are added, the later one is fused
        if node.op == "call_module" and id(modules[str(node.target)]) in norms:
            try:
                # a fused call is at another place, so the running statistics would move in another order
                if calls[id(modules[str(node.target)])] > 1:
                    raise NotFusableError("the block calls it more than once")
                result.fusable.append(_find_pattern(node, modules, result.fusable))
            except NotFusableError as error:
                result.reasons[str(node.target)] = str(error)
    result.fusable.reverse()
    return result


def called_paths(graph: fx.Graph) -> list[str]:
    """Return the paths of the modules that a graph calls."""
    return [str(node.target) for node in graph.nodes if node.op == "call_module"]


def _find_pattern(norm: fx.Node, modules: dict[str, nn.Module], others: list[Pattern]) -> Pattern:
    if not norm.args or {"residual", "activation"} & set(norm.kwargs):
        raise NotFusableError("its call has keywords of its own")
    pattern, path = Pattern([norm]), [norm]
    added = {other.addition for other in others}
    try:
        while len(path[-1].users) == 1:
            node, user = path[-1], next(iter(path[-1].users))
            path.append(user)
            pattern.activation = activation_of(user, node, modules)
            if pattern.activation is None and user.target in ADDITIONS and pattern.addition is None:
                _check_addition(user, node, user in added)
                pattern.addition = user
            elif pattern.activation is not None or not _is_identity(user, modules):
                break
    except NotFusableError:
        if pattern.addition is None:
            raise
    last = pattern.addition if pattern.activation is None else path[-1]
    if last is None:
        raise NotFusableError(
            "other operations use its output too" if len(norm.users) > 1 else "no addition or activation follows it"
        )
    pattern.nodes = path[: path.index(last) + 1]
    return pattern


def operands(addition: fx.Node) -> list[Any]:
    """Return the two operands of an addition."""
    return [*addition.args, addition.kwargs.get("other")][:2]


def _check_addition(addition: fx.Node, node: fx.Node, is_fused: bool) -> None:
    """Raise NotFusableError if an addition of a node and another tensor cannot be fused."""
    if is_fused:
        raise NotFusableError("its output is added to that of another norm, which is fused")
    terms = operands(addition)
    is_sum = all(isinstance(term, fx.Node) for term in terms) and terms[0] is not terms[1]
    if not is_sum or addition.kwargs.get("alpha", 1) != 1 or "out" in addition.kwargs:
        raise NotFusableError("the addition is not the sum of two tensors")
    residual = terms[0]
    is_written = addition.target in _WRITING_ADDITIONS and residual is not node
    if is_written and (residual.op not in ("call_module", "call_function", "call_method") or len(residual.users) > 1):
        raise NotFusableError(WRITES)


def activation_of(node: fx.Node, source: fx.Node, modules: dict[str, nn.Module]) -> Activation | None:
    """Return the activation that a node applies to another; None if it does anything else.

    Raises:
        NotFusableError: if the node calls an activation module with hooks.
    """
    if not node.args or node.args[0] is not source:
        return None
    if node.op == "call_module":
        module = modules[str(node.target)]
        activation = activation_of_module(module)
        if activation is not None and has_hooks(module):
            raise NotFusableError(f"the activation '{node.target}' has hooks")
        return activation if len(node.args) == 1 and not node.kwargs else None
    name = ACTIVATION_FUNCTIONS.get(node.target)
    if name == "leaky_relu":
        slope = [*node.args[1:2], node.kwargs.get("negative_slope", 0.01)][0]
        return Activation(name, slope) if isinstance(slope, int | float) and slope >= 0 else None
    if name == "gelu":
        return {"none": Activation("gelu"), "tanh": Activation("gelu_tanh")}.get(str(node.kwargs.get("approximate", "none")))
    return None if name is None else Activation(name)


def activation_of_module(module: nn.Module) -> Activation | None:
    """Return the activation of a module of torch or timm; None for any other module."""
    kind = type(module)
    if kind.__module__.startswith("timm.layers.activations"):
        return Activation(_TIMM_ACTIVATIONS[kind.__name__]) if kind.__name__ in _TIMM_ACTIVATIONS else None
    try:
        return read_activation(module)
    except SpecError:
        return None


def is_identity_module(module: nn.Module) -> bool:
    """Whether a module returns its input in train and eval mode."""
    kind = type(module)
    probability = _DROP_PROBABILITY.get(f"{kind.__module__}.{kind.__qualname__}")
    return kind is nn.Identity or (probability is not None and getattr(module, probability) == 0)


def _is_identity(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op != "call_module" or len(node.all_input_nodes) != 1:
        return False
    module = modules[str(node.target)]
    return is_identity_module(module) and not has_hooks(module)


def rewrite(graph: fx.Graph, patterns: list[Pattern], call_with_residual: Any) -> dict[str, Any]:
    """Replace each pattern by one call of its norm, and return the constants in the source code of the new graph.

    Args:
        graph: the graph, which is changed.
        patterns: patterns of the graph.
        call_with_residual: function with the arguments norm, input, residual, … and `activation`.
    """
    constants: dict[str, Any] = {}
    for pattern in patterns:
        norm, residual = pattern.norm, pattern.residual
        name = _Name(f"activation_{len(constants)}" if pattern.activation else "None")
        constants |= {str(name): pattern.activation} if pattern.activation else {}
        kwargs = norm.kwargs | {"activation": name}
        with graph.inserting_before(pattern.addition or norm):
            if residual is None:
                fused = graph.call_module(str(norm.target), norm.args, kwargs)
            else:
                module = graph.get_attr(str(norm.target))
                fused = graph.call_function(call_with_residual, (module, norm.args[0], residual, *norm.args[1:]), kwargs)
        pattern.nodes[-1].replace_all_uses_with(fused)
        for node in reversed(pattern.nodes):
            graph.erase_node(node)
    return constants


class _Name(str):
    """A name in the source code of a graph."""

    def __repr__(self) -> str:
        return str(self)
