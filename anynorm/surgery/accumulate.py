"""Gradient accumulation: one update of running statistics per optimizer step, from the pooled statistics of its micro-batches.

Without it, k micro-batches of n samples update running statistics k times, by statistics of n samples: with momentum 0.1 and
k = 8, the last optimizer step has a weight of 1 − 0.9⁸ = 57 % instead of 10 %.

Each micro-batch is still normalized by its own statistics; only the running statistics become those of the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from anynorm.errors import SurgeryError
from anynorm.layers.norm import Norm
from anynorm.surgery.find import NormSite, check_model, find_norms
from anynorm.surgery.new_norm import make_equivalent, share_tensors
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.undo import UndoLog, all_or_nothing
from anynorm.table import pluralize


@dataclass
class Accumulation(SurgeryReport):
    """Report of `accumulate`, and a context manager that ends the accumulation at the end of its `with` block."""

    norms: list[Norm] = field(repr=False, default_factory=list)

    def finish_group(self) -> None:
        """Update the running statistics by the micro-batches since the last update, if there are any, as by a smaller batch.

        Call it if an optimizer step has fewer micro-batches, such as the last one of an epoch.
        """
        for norm in self.norms:
            norm.finish_group()

    def undo(self) -> nn.Module:
        """Finish the last group, end the accumulation, and return the model with its original norms."""
        self.finish_group()
        return super().undo()

    def __enter__(self) -> Accumulation:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.finish_group()
        super().undo()


def accumulate(model: nn.Module, steps: int) -> Accumulation:
    """Update running statistics once per `steps` forward passes in train mode, by the pooled statistics of these passes.

    After `steps` micro-batches, the running statistics are those after one batch of all their samples, and
    `num_batches_tracked` is increased by 1: it counts optimizer steps. A micro-batch whose statistics are not finite is left out
    of its group. Norms of torch are replaced by anynorm layers with the same parameters and buffers until the accumulation ends.

    Each layer counts its own forward passes: if it runs m times per micro-batch, `steps` is m times the number of micro-batches.
    Statistics of an incomplete group are not in the state_dict. They are used as a smaller batch by `finish_group`, by `undo` and
    at the end of the `with` block, and dropped if the block raises.

    Args:
        model: the model.
        steps: number of forward passes per optimizer step.

    Returns:
        A report with one row per norm with running statistics. Use it as a context manager, or call `undo`.

    Raises:
        SurgeryError: if `steps` is not an integer of at least 1, or a norm accumulates already. The model is unchanged.

    >>> import anynorm, torch
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make("bn", 8))
    >>> with accumulate(model, 4):
    ...     for x in torch.randn(32, 3, 8, 8).split(4):
    ...         _ = model(x)
    >>> model[1].num_batches_tracked
    tensor(2)
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise SurgeryError(f"steps must be an integer of at least 1, the number of micro-batches per step; got {steps!r}.")
    if not isinstance(model, nn.Module) or any(isinstance(module, _BatchNorm) for module in model.modules()):
        check_model(model)  # norms of torch are replaced, which a wrapper would not notice
    sites = [site for site in find_norms(model) if not site.unsupported and site.info.running_stats]
    rows: list[dict[str, Any]] = []
    norms: list[Norm] = []
    changed = model
    with all_or_nothing() as undo_log:
        for site in sites:
            norm = _accumulating_norm(site, undo_log)
            if norm is None:
                continue
            undo_log.set_attribute(norm, "accumulator", None)
            norm.start_accumulation(steps)
            norms.append(norm)
            changed = changed if site.parents else norm
            rows.append({"path": site.path, "norm": site.label})
    verb = "updates its" if len(norms) == 1 else "update their"
    group = pluralize(steps, "forward pass", "forward passes")
    finding = f"{pluralize(len(norms), 'norm')} {verb} running statistics once per {group}."
    return Accumulation(rows, finding, changed, undo_log.undo, model, norms)


def _accumulating_norm(site: NormSite, undo_log: UndoLog) -> Norm | None:
    """Return the norm of a site, or the layer that replaces a norm of torch; None for frozen norms of other packages."""
    if isinstance(site.module, _BatchNorm):
        norm = make_equivalent(site)
        share_tensors(site.module, norm)
        undo_log.replace(site, norm)
        return norm
    if not isinstance(site.module, Norm):
        return None
    if site.module.accumulator is not None:
        raise SurgeryError(
            f"'{site.path}' ({site.label}) accumulates already, over {site.module.accumulator.steps} forward passes. End that "
            "accumulation first: leave its `with` block, or call undo."
        )
    return site.module
