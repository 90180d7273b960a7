"""What a layer owns: parameters, kept statistics and their names, under torch's keys where torch has the norm.

    weight, bias                  the shared affine                       (c,)
    class_weight, class_bias      one row a class                         (classes, c)
    mean_weight, var_weight       λ of mixed cuts                         (k,) or (groups, k)
    running_mean, running_var     what is kept; further cuts of a side    (parts,) or (domains, parts)
    running_mean_2, …             that pool over samples are numbered
    num_batches_tracked           batches seen                            () or (domains,)
    num_values_tracked            positions seen, for `Pooled` alone      () or (domains,)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.mix import logits_shape
from anynorm.core.parts import Parts
from anynorm.core.population import Cumulative, Kept, Population, Running
from anynorm.core.sync import Alone, Reach, Together
from anynorm.errors import ShapeError, SpecError, StateError

_TALLIES = ("num_batches_tracked", "num_values_tracked")


class State(nn.Module):
    """Owns the tensors of a norm; `Norm` says what is done with them."""

    _version = 2
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        parts: Parts,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        track_running_stats: bool = True,
        population: Population | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(num_features, int) or num_features < 1:
            raise SpecError(f"{parts} needs a channel count of at least 1; num_features={num_features!r} came.")
        if not 0 <= eps < 1:
            raise SpecError(f"eps={eps!r} is no small number to add to a variance; 1e-5 is usual. Groups are num_groups=….")
        self.parts, self.num_features, self.eps = parts, num_features, eps
        self.cuts, self.mean_cuts, self.var_cuts = parts.fit(num_features)
        self.track_running_stats = track_running_stats and self.pools_samples
        self.reach: Reach = Alone()
        self.told: Any = None
        self._register_parameters(device, dtype)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, None)
        self._population = population or _policy(momentum)
        self._register_kept(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def spec(self) -> str:
        """The norm's short name; parsing it gives equal parts."""
        return str(self.parts)

    @property
    def pools_samples(self) -> bool:
        """Whether a statistic mixes samples, so that there is a population to keep and something to synchronise."""
        return any(cut.pools_samples for cut in self.cuts)

    @property
    def uses_batch(self) -> bool:
        """Whether cuts that pool over samples look at the batch, or at what is kept."""
        return not self.track_running_stats or self.learns_population

    @property
    def learns_population(self) -> bool:
        """Whether a forward pass moves what is kept."""
        return self.training and self.track_running_stats and self.population.learns

    @property
    def shares_samples(self) -> bool:
        """Whether domains or processes share samples out, so that counts are not known from the shape of x."""
        return bool(self.parts.ending.domains) or isinstance(self.reach, Together)

    @property
    def takes_condition(self) -> bool:
        """Whether `forward` wants a class, domain or style."""
        return bool(self.parts.classes) or self.parts.takes_style

    @property
    def affine(self) -> bool:
        """Whether there is a learned affine."""
        return any(stage.names for stage in self.parts.ending.affine)

    @property
    def population(self) -> Population:
        """How statistics are kept; another policy can be set at any time."""
        return self._population

    @population.setter
    def population(self, policy: Population) -> None:
        self._population = policy
        self._register_kept(next((b for b in self.buffers() if b.is_floating_point()), torch.empty(())))

    @property
    def momentum(self) -> float | None:
        """Weight of the newest batch in the running statistics, as torch means it; None where all weigh alike."""
        return self._population.rate if isinstance(self._population, Running) else None

    @momentum.setter
    def momentum(self, momentum: float | None) -> None:
        self.population = _policy(momentum)

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        for stage in self.parts.ending.affine:
            for name in stage.names:
                empty = torch.empty(stage.shape(self.num_features), device=device, dtype=dtype)
                self.register_parameter(name, nn.Parameter(empty))
        weighing = self.parts.weighing
        for name, cuts in (("mean_weight", self.mean_cuts), ("var_weight", self.var_cuts)):
            logits = torch.empty(logits_shape(weighing, len(cuts)), device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(logits, weighing.learns) if len(cuts) > 1 else None)

    def _register_kept(self, like: Tensor) -> None:
        """Register the buffers the policy wants and drop those it does not, leaving the values of the rest."""
        self._kept: dict[int, tuple[str | None, str | None]] = {}
        wanted = dict[str, Tensor]()
        domains = (self.parts.ending.domains,) if self.parts.ending.domains else ()
        if self.track_running_stats:
            self._kept = self._kept_names()
            for index, names in self._kept.items():
                size = math.prod(self.cuts[index].parts((1, self.num_features, 1))[1:])
                wanted |= {name: like.new_empty((*domains, size)) for name in names if name}
            for name in _TALLIES[: 1 + self._population.pools]:
                wanted[name] = torch.empty(domains, dtype=torch.long, device=like.device)
        for name in [*self._buffers]:
            if name not in wanted and self._buffers[name] is not None:
                self.register_buffer(name, None)
        for name, empty in wanted.items():
            if self._buffers.get(name) is None:
                self.register_buffer(name, empty)
                self._reset_kept(name)

    def _kept_names(self) -> dict[int, tuple[str | None, str | None]]:
        """Name the mean and variance kept for each cut; `Pooled` wants both of every cut, so its extra ones come last."""
        pooling = [index for index, cut in enumerate(self.cuts) if cut.pools_samples]
        names: dict[str, dict[int, str]] = {}
        for side, used in (("mean", self.mean_cuts), ("var", self.var_cuts)):
            order = [index for index in used if index in pooling]
            order += [index for index in pooling if index not in used and self._population.pools]
            names[side] = {index: f"running_{side}" + (f"_{k + 1}" if k else "") for k, index in enumerate(order)}
        return {index: (names["mean"].get(index), names["var"].get(index)) for index in pooling}

    def _read_kept(self, index: int, dtype: torch.dtype) -> Kept:
        """Copy what is kept for a cut into tables (domains or 1, c parts, t parts); a side not kept reads 0 or 1."""
        _, channels, strips = self.cuts[index].parts((1, self.num_features, 1))
        shape = (self.parts.ending.domains or 1, channels, strips)
        tables = []
        for name, default in zip(self._kept[index], (0.0, 1.0), strict=True):
            kept = self._buffers.get(name) if name else None
            if kept is None:
                tables.append(torch.full(shape, default, dtype=dtype, device=self._tally().device))
            else:
                tables.append(kept.to(dtype, copy=True).reshape(shape))
        return Kept(*tables)

    def _tally(self, name: str = "num_batches_tracked") -> Tensor:
        tally = self._buffers[name]
        assert tally is not None  # only read where statistics are tracked
        return tally

    def _reset_kept(self, name: str) -> None:
        buffer = self._buffers[name]
        if buffer is not None:
            buffer.fill_(1 if name.startswith("running_var") else 0)

    def reset_running_stats(self) -> None:
        """Start over: mean 0, variance 1, nothing seen."""
        for name in self._buffers:
            self._reset_kept(name)

    def reset_parameters(self) -> None:
        """Start over: statistics, affine and λ."""
        self.reset_running_stats()
        for stage in self.parts.ending.affine:
            if stage.names:
                stage.reset(*(getattr(self, name) for name in stage.names))
        for logits in (self.mean_weight, self.var_weight):
            if logits is not None:
                nn.init.ones_(logits)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        own = {**self._parameters, **self._buffers}
        if own["num_batches_tracked"] is not None and (local_metadata.get("version") or 0) < 2:
            state_dict.setdefault(prefix + "num_batches_tracked", torch.zeros_like(self._tally()))
        for name, tensor in own.items():
            loaded = state_dict.get(prefix + name)
            if tensor is None or not isinstance(loaded, Tensor):
                continue
            if loaded.shape != tensor.shape:
                raise ShapeError(
                    f"state_dict holds '{prefix}{name}' of shape {tuple(loaded.shape)}; {self.spec} of {self.num_features} "
                    f"channels keeps {tuple(tensor.shape)}. Make the layer with the checkpoint's spec and channel count."
                )
            if loaded.is_floating_point() and not loaded.is_meta and bool(loaded.isnan().any()):
                raise StateError(
                    f"state_dict holds {int(loaded.isnan().sum())} NaN of {loaded.numel()} values in '{prefix}{name}' ({self.spec}): "
                    f"the run that wrote it had diverged. Load an earlier one, or replace them by torch.nan_to_num."
                )
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "told": None}

    def extra_repr(self) -> str:
        kept = f", population={self.population}" if not isinstance(self.population, Running | Cumulative) else ""
        tracked = f", momentum={self.momentum}{kept}" if self.track_running_stats else ""
        untracked = ", track_running_stats=False" if self.pools_samples and not self.track_running_stats else ""
        return f"{self.spec!r}, {self.num_features}, eps={self.eps}{tracked}{untracked}"


def _policy(momentum: float | None) -> Population:
    return Cumulative() if momentum is None else Running(momentum)


def is_recomputing() -> bool:
    """Whether activation checkpointing runs a forward pass again, inside backward."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
