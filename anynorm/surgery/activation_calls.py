"""The calls of activations in a run of a model: the norms that their inputs come from, and why they are not fused with them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from anynorm.surgery.dataflow import tensors_of
from anynorm.surgery.fusable import ACTIVATION_FUNCTIONS

if TYPE_CHECKING:
    from anynorm.surgery.fusion_plan import Plan

_COUNTED = {name if isinstance(name, str) else name.__name__ for name in ACTIVATION_FUNCTIONS}
_KEEP_SOURCE = {"add", "add_", "iadd", "__add__", "__iadd__", "__radd__", "dropout"}
"""Functions whose result still comes from the norms that their arguments come from."""


@dataclass(frozen=True)
class Source:
    """What a tensor comes from: the norms, directly or through an addition, and the name of the last function."""

    function: str
    norms: tuple[nn.Module, ...] = ()


class ActivationCalls(TorchFunctionMode):
    """A function mode that records the sources of the inputs of activations that can be fused.

    Args:
        norms: the norms of the model.
    """

    def __init__(self, norms: list[nn.Module]) -> None:
        super().__init__()
        self.norms = norms
        self.sources: list[Source] = []
        self._source_of: Any = WeakIdKeyDictionary()
        self._inside: list[nn.Module] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the calls in a `with` block."""
        handles = [
            handle
            for norm in self.norms
            for handle in (norm.register_forward_pre_hook(self._enter), norm.register_forward_hook(self._leave, always_call=True))
        ]
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._source_of.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = getattr(func, "__name__", ""), kwargs or {}
        is_relu6 = name == "hardtanh" and (options.get("min_val"), options.get("max_val")) == (0, 6)  # as nn.ReLU6 calls it
        sources = [self._source_of.get(value, Source("the input")) for value in args[:2] if isinstance(value, Tensor)]
        if name in _COUNTED or is_relu6:
            inside = [Source(name, (norm,)) for norm in self._inside[-1:]]
            self.sources.append([*inside, *sources, Source("unknown")][0])
        result = func(*args, **options)
        if isinstance(result, Tensor):
            kept = sources if name in _KEEP_SOURCE else []
            self._source_of[result] = Source(name.strip("_"), tuple([norm for source in kept for norm in source.norms]))
        return result

    def _enter(self, norm: nn.Module, *_: Any) -> None:
        self._inside.append(norm)

    def _leave(self, norm: nn.Module, _: Any, output: Any) -> None:
        self._inside.pop()
        for tensor in tensors_of(output):
            self._source_of[tensor] = Source(type(norm).__name__, (norm,))

    def reasons(self, plan: Plan) -> Counter[str]:
        """Return why activations are not fused, with the number of calls."""
        fused = Counter({id(site.module): plan.calls[site] for site in plan.activations})
        fused_sums = set()
        for block in plan.blocks:
            for site, pattern in zip(block.sites, block.patterns, strict=True):
                fused[id(site.module)] += block.calls if pattern.activation else 0
                fused_sums |= set() if pattern.activation else {id(site.module)}
        notes = {id(site.module): reason for site, reason in plan.reasons.items() if reason}
        counts: Counter[str] = Counter()
        for source in self.sources:
            norms = [id(norm) for norm in source.norms]
            in_plan = [norm for norm in norms if fused[norm] > 0]
            if in_plan:
                fused[in_plan[0]] -= 1
            elif not norms:
                counts[f"no norm before it: {source.function}"] += 1
            elif set(norms) & fused_sums:
                counts["other operations use the sum too"] += 1
            else:
                reason = next(
                    (notes[norm] for norm in norms if norm in notes), "its norm is not chosen, or its block has other arguments"
                )
                counts[re.sub(r"\bblock ('[^']*'|the model itself)", "its block", reason)] += 1
        return counts
