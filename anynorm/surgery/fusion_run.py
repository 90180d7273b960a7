"""A run of the graphs of all blocks on an example, before they are rewritten: counts calls and compares residuals with inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from anynorm.surgery.activation_calls import ActivationCalls
from anynorm.surgery.batches import Forward
from anynorm.surgery.dataflow import tensors_of
from anynorm.surgery.equivalence import restored_state
from anynorm.surgery.find import find_norms
from anynorm.surgery.fusable import WRITES
from anynorm.surgery.fusion_plan import FusedBlock, Plan, block_label
from anynorm.surgery.undo import temporary_changes


def observe(model: nn.Module, run: Forward, example: Any, plan: Plan) -> ActivationCalls:
    """Run the graphs of all blocks on the example, leave out those that cannot be fused, and return the calls of activations."""
    handles = [
        site.module.register_forward_pre_hook(lambda *_, site=site: plan.calls.update([site])) for site in plan.activations
    ]
    calls = ActivationCalls([site.module for site in find_norms(model)])
    try:
        with restored_state(model), temporary_changes() as undo_log, torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for block in plan.blocks:
                undo_log.set_forward(block.module, _ObservedForward(block, plan, calls))
            with calls.recorded():
                run(model, example)
    finally:
        for handle in handles:
            handle.remove()
    for block in plan.blocks:
        block.reason = block.reason or ("" if block.calls else block.no_call_reason)
        for site, pattern in zip(block.sites, block.patterns, strict=True):
            reason = pattern.reason or (f"block {block_label(block.path)}: {block.reason}" if block.reason else "")
            plan.reasons[site] = reason
        kept = [(pattern, site) for pattern, site in zip(block.patterns, block.sites, strict=True) if not pattern.reason]
        block.patterns, block.sites = [pattern for pattern, _ in kept], [site for _, site in kept]
    plan.blocks = [block for block in plan.blocks if block.patterns and not block.reason]
    return calls


class _ObservedForward(fx.Interpreter):
    """The forward of a block while it is observed: runs its graph and compares residuals with inputs of norms."""

    def __init__(self, block: FusedBlock, plan: Plan, activation_calls: ActivationCalls) -> None:
        super().__init__(block.module, garbage_collect_values=False, graph=block.trace.graph)
        self.block, self.plan, self.activation_calls = block, plan, activation_calls
        self.versions: dict[fx.Node, int | None] = {}
        self.patterns = {pattern.addition: pattern for pattern in block.patterns if pattern.addition is not None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph; with other arguments, or if the graph raises, run the block's own forward."""
        block = self.block
        names = block.trace.arguments
        if len(args) + len(kwargs) == len(names) and not block.reason:
            values = [*args, *(kwargs.get(name) for name in names[len(args) :])]
            types = tuple(map(type, values))
            block.reason = "its calls have arguments of different types" if block.types not in ((), types) else ""
            block.types = types
            block.calls += 1
            start, counts = len(self.activation_calls.sources), self.plan.call_counts()
            try:
                return self.run(*values)
            except Exception as error:  # a graph that is not valid for these arguments may raise anything
                block.reason = f"its graph raises {type(error).__name__}"
                del self.activation_calls.sources[start:]
                self.plan.set_call_counts(*counts)  # the forward below calls the blocks inside of this one again
        else:
            block.no_call_reason = "its calls have optional arguments"
        return type(block.module).forward(block.module, *args, **kwargs)

    def run_node(self, n: fx.Node) -> Any:
        """Run a node; compare the operands of an addition that is to be fused."""
        values: dict[Any, Any] = self.env
        if n in self.patterns:
            pattern = self.patterns[n]
            x, residual = values.get(pattern.norm.args[0]), values.get(pattern.residual)
            if not (isinstance(x, Tensor) and isinstance(residual, Tensor) and _layout(x) == _layout(residual)):
                pattern.reason = "the tensor that is added has another shape, dtype or device than the input of the norm"
            elif _version(x) != self.versions[pattern.norm]:
                pattern.reason = "its input is changed before the addition"
            elif pattern.writes_residual and any(_shares_memory(residual, values[node]) for node in self._read_after(n)):
                pattern.reason = WRITES
        elif n.op == "call_module" and n.args:
            self.versions[n] = _version(values.get(n.args[0]))
        return super().run_node(n)

    def _read_after(self, addition: fx.Node) -> list[fx.Node]:
        """Return the values that are read after an addition, by the block or by its caller."""
        later = set(list(self.graph.nodes)[list(self.graph.nodes).index(addition) + 1 :])
        return [node for node in self.env if node.op in ("placeholder", "get_attr") or later & set(node.users)]


def _version(value: Any) -> int | None:
    """Return how often a tensor has been changed; None if it does not count changes."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else None


def _shares_memory(tensor: Tensor, value: Any) -> bool:
    return any(other.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for other in tensors_of(value))


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device
