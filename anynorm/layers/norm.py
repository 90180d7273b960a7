"""The layer: x ─▶ moments ─▶ pooled by each cut ─▶ population ─▶ mixed ─▶ affine ─▶ y = a (x − mean) + b.

Only the kernels at the two ends touch x; everything between works on tables (n or 1, c, strips).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.affine import chain
from anynorm.core.cuts import Cut
from anynorm.core.spec import ResolvedCuts
from anynorm.errors import SpecError
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.distributed import NoSync, SyncGroup
from anynorm.layers.state import State
from anynorm.layers.validation import check_input, check_shared, read_condition

NO_SYNC = NoSync()


class Norm(State):
    """Normalises (n, c, …) of any rank from 2 by the parts it is given.

    Args:
        momentum: weight of the newest batch in the running statistics; None averages all batches alike.
        population: a policy of `anynorm.core.update_rules`, instead of `momentum`.

    >>> import anynorm
    >>> norm = anynorm.make("hn:4", 16)
    >>> norm
    HeteroNorm('hn:4', 16, eps=1e-05, momentum=0.1)
    >>> norm(torch.randn(2, 16, 8, 8)).shape
    torch.Size([2, 16, 8, 8])
    """

    post_modules: tuple[str, ...] = ()
    """Children that run on the output, as part of the layer: a dropout or activation of the module it stands for."""

    def forward(self, x: Tensor, condition: Any = None) -> Tensor:
        """Normalise x.

        Args:
            condition: see `anynorm.layers.conditioning`; ignored by norms that take none, so any spec fits any model.
        """
        y = self.normalize(x, condition)
        for name in self.post_modules:
            y = getattr(self, name)(y)
        return y

    def normalize(self, x: Tensor, condition: Any = None) -> Tensor:
        """Normalise x, and nothing more."""
        task = self._task()
        check_input(self, task, x)
        told = read_condition(self, x, self._condition if condition is None else condition)
        kept = tuple([None if look else self.running_stats(index) for index, look in enumerate(task.uses_batch)])
        given = Buffers(kept, told if self.norm_spec.num_classes else None)
        y, batch = self._pass(task, x, self._owned(told), given)
        check_shared(self, batch)
        self.update_running_stats(batch)
        return y

    def _pass(self, task: ForwardSpec, x: Tensor, owned: Params, given: Buffers) -> tuple[Tensor, BatchStats]:
        """Compute y, and what x has for the population: where norms beyond the algebra do more."""
        return kernels.normalize(task, x, owned, given)

    def _task(self) -> ForwardSpec:
        """Say what a pass does, apart from its tensors; it is the same until the mode of the layer changes."""
        reach, uses_batch = self.sync_group if self.training else NO_SYNC, self.uses_batch
        mode = (self.training, uses_batch, reach, self.eps)
        task = None if torch.compiler.is_compiling() else self.tasks.get(mode)
        if task is None:
            looks = tuple([uses_batch or not cut.pools_samples for cut in self.cuts])
            task = self._make_task(looks, reach)
            if not torch.compiler.is_compiling():
                self.tasks[mode] = task
        return task

    def _make_task(self, looks: tuple[bool, ...], reach: SyncGroup) -> ForwardSpec:
        fitted = ResolvedCuts(self.cuts, self.mean_cuts, self.var_cuts)
        return ForwardSpec(self.norm_spec, fitted, self.num_features, eps=self.eps, uses_batch=looks, sync_group=reach)

    def _varied(self, task: ForwardSpec, **changes: Any) -> ForwardSpec:
        """Give a task with the changes that this class makes: the same one every time, for plans are kept with it."""
        varied = None if torch.compiler.is_compiling() else self.tasks.get(task)
        if varied is None:
            varied = replace(task, admitted=set(), plans={}, **changes)
            if not torch.compiler.is_compiling():
                self.tasks[task] = varied
        return varied

    def _owned(self, told: Any) -> Params:
        """Collect the tensors that gradients belong to."""
        own = self._parameters  # a parametrized tensor is not there, but an attribute
        owned = [own[name] if name in own else getattr(self, name) for name in Params._fields[:6]]
        return Params(*owned, *(told if self.norm_spec.takes_style else ()))

    def weights(self, side: str) -> Tensor | None:
        """Give the weights of the cuts of the `mean` or the `var`: (1, k), or (c, k) with groups; None for a single cut."""
        logits = getattr(self, f"{side}_weight")
        return None if logits is None else self.norm_spec.mixing.spread(logits, self.num_features)

    def not_foldable_reason(self) -> str:
        """Say why inference is no fixed y = A x + B for each channel; empty where it is, for any one condition."""
        live = [str(cut) for cut in self.used_cuts() if not cut.pools_samples]
        if live or not self.has_running_stats:
            return f"the statistics of {live[0] if live else self.spec} come from each input, so no fixed (a, b) exists"
        if any(cut.space != 1 for cut in self.used_cuts()):
            return "its statistics differ from position to position"
        return "its affine is a style, which comes with each input" if self.norm_spec.takes_style else ""

    def set_total_steps(self, passes: int) -> None:
        """Hear how many forward passes training will have; norms with a schedule set it."""

    def used_cuts(self) -> list[Cut]:
        """List the cuts that have a share in the mean or the variance; a weight of 0 has none."""
        used: set[int] = set()
        for side, cuts in (("mean", self.mean_cuts), ("var", self.var_cuts)):
            weights = self.weights(side)
            used |= {cut for k, cut in enumerate(cuts) if weights is None or bool((weights[:, k] > 0).any())}
        return [self.cuts[index] for index in sorted(used)]

    @torch.no_grad()
    def fixed_affine(self, condition: Any = None) -> tuple[Tensor, Tensor]:
        """Give A and B of y = A x + B for each channel, in double, where every statistic that has a share is kept.

        >>> import anynorm
        >>> scale, shift = anynorm.make("hn:4", 8, eps=0.0).fixed_affine()
        >>> scale.tolist() == [1.0] * 8, shift.tolist() == [0.0] * 8
        (True, True)
        """
        like = next(iter([*self.buffers(), *self.parameters()]))
        x = torch.zeros(1, self.num_features, 1, dtype=torch.float64, device=like.device)
        told = read_condition(self, x, condition)
        looks = tuple([not cut.pools_samples for cut in self.cuts])
        task = self._make_task(looks, NO_SYNC)
        kept = tuple([None if look else self.running_stats(index) for index, look in enumerate(looks)])
        given = Buffers(kept, told if self.norm_spec.num_classes else None)
        mean, (a, b), _ = kernels.coefficients(task, x, self._owned(told), given)
        scale = a.expand(1, self.num_features, 1).flatten()
        return scale, (b - a * mean).expand(1, self.num_features, 1).flatten()

    def merge(self) -> Norm:
        """Turn a sandwich into one affine a class, with the same output: γ'ᵢ = γᵢ γ_sa, β'ᵢ = γᵢ β_sa + βᵢ (sabn).

        >>> import anynorm
        >>> anynorm.make("sabn@10", 64).merge().spec
        'bn.cc@10'
        """
        shared, own = ("weight", "bias"), ("class_weight", "class_bias")
        if [stage.names for stage in self.norm_spec.affine.stages] != [shared, own]:
            raise SpecError(f"{self.spec} is no sandwich of a shared and a class affine: there is nothing to merge.")
        inner, outer = ((getattr(self, gamma), getattr(self, beta)) for gamma, beta in (shared, own))
        merged = Norm(
            self.norm_spec.merged(),
            self.num_features,
            eps=self.eps,
            update_rule=self.update_rule,
            track_running_stats=self.track_running_stats,
            device=outer[0].device,
            dtype=outer[0].dtype,
        )
        with torch.no_grad():
            for name in [*merged._buffers, "mean_weight", "var_weight"]:
                if getattr(merged, name) is not None:
                    getattr(merged, name).copy_(getattr(self, name))
            for name, value in zip(own, chain(inner, outer), strict=True):
                getattr(merged, name).copy_(value)
        merged.sync_group = self.sync_group
        return merged.train(self.training)
