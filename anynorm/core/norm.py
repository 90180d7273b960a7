"""The layer: x ─▶ moments ─▶ pooled by each cut ─▶ population ─▶ mixed ─▶ affine ─▶ y = a (x − mean) + b.

Only the kernels at the two ends touch x; everything between works on tables (n or 1, c, strips).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.admit import check_input, check_shared, read_condition
from anynorm.core.affine import chain
from anynorm.core.moments import table_dtype
from anynorm.core.parts import Fitted
from anynorm.core.state import State
from anynorm.core.sync import Alone
from anynorm.core.task import Owned, Task
from anynorm.errors import SpecError


class Norm(State):
    """Normalises (n, c, …) of any rank from 2 by the parts it is given.

    Args:
        momentum: weight of the newest batch in the running statistics; None averages all batches alike.
        population: a policy of `anynorm.core.population`, instead of `momentum`.

    >>> import anynorm
    >>> norm = anynorm.make("hn:4", 16)
    >>> norm
    HeteroNorm('hn:4', 16, eps=1e-05, momentum=0.1)
    >>> norm(torch.randn(2, 16, 8, 8)).shape
    torch.Size([2, 16, 8, 8])
    """

    def forward(self, x: Tensor, condition: Any = None) -> Tensor:
        """Normalise x.

        Args:
            condition: see `anynorm.core.condition`; ignored by norms that take none, so any spec fits any model.
        """
        check_input(self, x)
        given = read_condition(self, x, self.told if condition is None else condition)
        y, batch = kernels.normalise(self._task(x, given), x, self._owned(given))
        check_shared(self, batch)
        self.keep(batch)
        return y

    def _task(self, x: Tensor, given: Any) -> Task:
        """Say what this pass does, apart from the tensors that gradients belong to."""
        looks = [self.uses_batch or not cut.pools_samples for cut in self.cuts]
        kept = [None if look else self.read_kept(index, table_dtype(x)) for index, look in enumerate(looks)]
        labels = given if self.parts.classes else None
        reach = self.reach if self.training else Alone()
        fitted = Fitted(self.cuts, self.mean_cuts, self.var_cuts)
        return Task(self.parts, fitted, self.num_features, eps=self.eps, kept=kept, labels=labels, reach=reach)

    def _owned(self, given: Any) -> Owned:
        """Collect the tensors that gradients belong to."""
        parameters = {name: getattr(self, name) for stage in self.parts.ending.affine for name in stage.names}
        style_mean, style_std = given if self.parts.takes_style else (None, None)
        logits = {"mean_weight": self.mean_weight, "var_weight": self.var_weight}
        return Owned(**parameters, **logits, style_mean=style_mean, style_std=style_std)

    def weights(self, side: str) -> Tensor | None:
        """Give the weights of the cuts of the `mean` or the `var`: (1, k), or (c, k) with groups; None for a single cut."""
        logits = getattr(self, f"{side}_weight")
        return None if logits is None else self.parts.weighing.spread(logits, self.num_features)

    def merge(self) -> Norm:
        """Turn a sandwich into one affine a class, with the same output: γ'ᵢ = γᵢ γ_sa, β'ᵢ = γᵢ β_sa + βᵢ (sabn).

        >>> import anynorm
        >>> anynorm.make("sabn@10", 64).merge().spec
        'bn.cc@10'
        """
        shared, own = ("weight", "bias"), ("class_weight", "class_bias")
        if [stage.names for stage in self.parts.ending.affine] != [shared, own]:
            raise SpecError(f"{self.spec} is no sandwich of a shared and a class affine: there is nothing to merge.")
        inner, outer = ((getattr(self, gamma), getattr(self, beta)) for gamma, beta in (shared, own))
        merged = Norm(
            self.parts.merged(),
            self.num_features,
            eps=self.eps,
            population=self.population,
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
        merged.reach = self.reach
        return merged.train(self.training)
