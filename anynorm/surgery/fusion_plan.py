"""The plan of a fusion: which norms of a model are fused with what, and why the others are not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from anynorm.core.activation import Activation
from anynorm.layers.norm import Norm
from anynorm.surgery.block_forward import BlockForward, has_hooks
from anynorm.surgery.block_trace import BlockTrace, UntraceableError, trace_block
from anynorm.surgery.find import NormSite, find_norms
from anynorm.surgery.fusable import Pattern, activation_of_module, called_paths, find_patterns, is_identity_module
from anynorm.surgery.new_norm import make_equivalent, share_tensors


@dataclass(eq=False)
class FusedBlock:
    """A block with fusable norms.

    Attributes:
        path: its path in the model.
        module: the block.
        trace: its graph.
        patterns: the fusable norms with what follows them.
        sites: the site of each of these norms.
        types: types of the arguments in the calls of the example.
        calls: number of calls in the example.
        no_call_reason: why there are none.
        reason: why the block is left alone; empty if it is fused.
        forward: its new forward.
    """

    path: str
    module: nn.Module
    trace: BlockTrace
    patterns: list[Pattern]
    sites: list[NormSite]
    types: tuple[type, ...] = ()
    calls: int = 0
    no_call_reason: str = "it does not run on the example"
    reason: str = ""
    forward: BlockForward | None = None


@dataclass
class Plan:
    """What is fused.

    Attributes:
        blocks: blocks with fusable norms.
        activations: activations that norms have as a child, as those of timm, and that the norm can apply itself.
        calls: number of calls of these norms in the example.
        norms: equivalent anynorm layers of norms of other packages.
        reasons: why other norms are not fused.
    """

    blocks: list[FusedBlock] = field(default_factory=list)
    activations: dict[NormSite, Activation] = field(default_factory=dict)
    calls: Counter[NormSite] = field(default_factory=Counter)
    norms: dict[NormSite, Norm] = field(default_factory=dict)
    reasons: dict[NormSite, str] = field(default_factory=dict)

    def call_counts(self) -> tuple[list[int], Counter[NormSite]]:
        """Return the number of calls of each block, and of the norms that have an activation as a child."""
        return [block.calls for block in self.blocks], self.calls.copy()

    def set_call_counts(self, of_blocks: list[int], of_norms: Counter[NormSite]) -> None:
        """Set the counts to earlier values of `call_counts`."""
        self.calls = of_norms
        for block, calls in zip(self.blocks, of_blocks, strict=True):
            block.calls = calls


def make_plan(model: nn.Module, sites: list[NormSite]) -> Plan:
    """Find what can be fused in the graphs of the blocks of a model; whether it suits the tensors is not known yet."""
    plan = Plan()
    plan.reasons = {site: reason for site in sites if (reason := _not_fusable_reason(site, plan))}
    candidates = {id(site.module): site for site in sites if site not in plan.reasons and site not in plan.activations}
    inside_norms = {id(module) for site in find_norms(model) for module in site.module.modules()}
    untraceable: dict[str, str] = {}
    calling_blocks: Counter[int] = Counter()
    for path, block in model.named_modules():
        has_forward = type(block).forward is not nn.Module.forward
        if not has_forward or id(block) in inside_norms or not any(id(module) in candidates for module in block.modules()):
            continue
        try:
            trace = trace_block(block)
        except UntraceableError as error:
            untraceable[path] = f"block {block_label(path)}: {error}"
            continue
        calling_blocks.update({id(block.get_submodule(name)) for name in called_paths(trace.graph)})
        patterns = find_patterns(trace.graph, block, candidates)
        for name, reason in patterns.reasons.items():
            plan.reasons[candidates[id(block.get_submodule(name))]] = reason
        if patterns.fusable:
            found = [candidates[id(block.get_submodule(str(pattern.norm.target)))] for pattern in patterns.fusable]
            plan.blocks.append(FusedBlock(path, block, trace, patterns.fusable, found))
    _refuse_shared_norms(plan, calling_blocks)
    for site in candidates.values():
        parents = [path for path in untraceable if not path or site.path.startswith(path + ".")]
        plan.reasons.setdefault(site, untraceable[parents[-1]] if parents else "no block calls it directly")
    return plan


def _refuse_shared_norms(plan: Plan, calling_blocks: Counter[int]) -> None:
    """Add a reason to the patterns of norms that several blocks call: statistics would move in another order."""
    for block in plan.blocks:
        for site, pattern in zip(block.sites, block.patterns, strict=True):
            if calling_blocks[id(site.module)] > 1 or len({id(parent) for parent, _ in site.parents}) > 1:
                pattern.reason = "several blocks share it"


def block_label(path: str) -> str:
    """Return the name of a block in a report."""
    return f"'{path}'" if path else "the model itself"


def _not_fusable_reason(site: NormSite, plan: Plan) -> str:
    """Return why a norm cannot be fused; empty if it can. Its own activation and its anynorm layer are added to the plan."""
    if site.unsupported or not site.parents:
        return site.unsupported or "it is the model itself"
    if has_hooks(site.module) or hasattr(site.module, "parametrizations"):
        return "it has hooks or parametrizations"
    if site.info.activation is not None:
        return f"it applies {site.info.activation.name} already"
    children = [child for child in site.info.post_modules.values() if not is_identity_module(child)]
    activations = [activation_of_module(child) for child in children]
    if len(children) > 1 or None in activations or any(map(has_hooks, site.info.post_modules.values())):
        return f"it applies {' and '.join(type(child).__name__ for child in children)}, which cannot be fused"
    if not isinstance(site.module, Norm):
        norm = make_equivalent(site)
        if _state(norm) != _state(site.module):
            return f"its anynorm layer {norm.spec} has parameters or buffers of other names or shapes"
        share_tensors(site.module, norm)
        plan.norms[site] = norm
    if activations and activations[0] is not None:
        plan.activations[site] = activations[0]
    return ""


def _state(module: nn.Module) -> list[Any]:
    """Return names, shapes and kinds of the tensors in the state_dict of a norm."""
    parameters = dict(module.named_parameters())
    return sorted((name, tuple(tensor.shape), name in parameters) for name, tensor in module.state_dict().items())
