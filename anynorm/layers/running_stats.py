"""Where population statistics live: the buffers of a layer, their names, and how a batch moves them.

running_mean, running_var     what is kept; further cuts of a side    (parts,) or (domains, parts)
running_mean_2, …             that pool over samples are numbered
num_batches_tracked           batches seen                            () or (domains,)
num_values_tracked            positions seen, for `Pooled` alone      () or (domains,)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anynorm.core.cuts import Cut
from anynorm.core.moments import MIN_SHARE, Moments
from anynorm.core.spec import NormSpec
from anynorm.core.update_rules import Cumulative, Observed, Running, Stats, UpdateRule, as_tables
from anynorm.errors import SpecError
from anynorm.kernels.interface import BatchStats
from anynorm.layers.distributed import SyncGroup

STAT_PREFIXES = ("running_", "num_batches_", "num_values_")
"""How the names of what is kept begin; other buffers are a subclass's own."""


class RunningStats(nn.Module):
    """Keeps statistics for inference, as its policy says."""

    norm_spec: NormSpec
    num_features: int
    cuts: tuple[Cut, ...]
    mean_cuts: tuple[int, ...]
    var_cuts: tuple[int, ...]
    track_running_stats: bool
    sync_group: SyncGroup
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    num_values_tracked: Tensor | None

    @property
    def update_rule(self) -> UpdateRule:
        """How statistics are kept; another policy can be set at any time."""
        return self._population

    @update_rule.setter
    def update_rule(self, policy: UpdateRule) -> None:
        like = next((buffer for buffer in self.buffers() if buffer.is_floating_point()), torch.empty(()))
        self._register_kept(policy, like)

    @property
    def momentum(self) -> float | None:
        """Weight of the newest batch in the running statistics, as torch means it; None where all weigh alike."""
        return self._population.rate if isinstance(self._population, Running) else None

    @momentum.setter
    def momentum(self, momentum: float | None) -> None:
        self.update_rule = from_momentum(momentum)

    @property
    def has_running_stats(self) -> bool:
        """Whether there is something kept; buffers set to None, as some adaptation methods do, are not."""
        return bool(self._kept) and not any(
            [self._buffers[name] is None for pair in self._kept.values() for name in pair if name]
        )

    @property
    def updates_running_stats(self) -> bool:
        """Whether a forward pass moves what is kept."""
        return self.training and self.track_running_stats and self.update_rule.learns and self.has_running_stats

    @property
    def uses_batch(self) -> bool:
        """Whether cuts that pool over samples look at the batch, or at what is kept."""
        return not self.has_running_stats or (self.training and self.update_rule.learns)

    def _register_kept(self, policy: UpdateRule, like: Tensor) -> None:
        """Register the buffers a policy wants and drop those it does not, leaving the values of the rest."""
        if not isinstance(policy, UpdateRule):
            raise SpecError(f"{policy!r} is no policy of anynorm.core.update_rules: Running(0.1) Cumulative() Pooled() Frozen().")
        self._population = policy
        self._kept = self._kept_names() if self.track_running_stats else {}
        domains = (self.norm_spec.num_stat_sets,) if self.norm_spec.num_stat_sets else ()
        tally = torch.zeros(domains, dtype=torch.long, device=like.device) if self._kept else None
        wanted: dict[str, Tensor | None] = {"running_mean": None, "running_var": None, "num_batches_tracked": tally}
        for index, names in self._kept.items():
            shape = (*domains, math.prod(self._kept_parts(index)))
            wanted |= {name: like.new_full(shape, start) for name, start in zip(names, (0, 1), strict=True) if name}
        if policy.pools and tally is not None:
            wanted["num_values_tracked"] = tally.double() if self.norm_spec.soft_assignment else tally.clone()
        for name in [*wanted, *(name for name in self._buffers if name.startswith(STAT_PREFIXES))]:
            if self._buffers.get(name) is None or wanted.get(name) is None:
                self.register_buffer(name, wanted.get(name))

    def _kept_names(self) -> dict[int, tuple[str | None, str | None]]:
        """Name the mean and variance kept for each cut; `Pooled` wants both of every cut, so its extra ones come last."""
        pooling = [index for index, cut in enumerate(self.cuts) if cut.pools_samples]
        names: list[dict[int, str]] = []
        for side, used in (("mean", self.mean_cuts), ("var", self.var_cuts)):
            order = [index for index in used if index in pooling]
            order += [index for index in pooling if index not in used and self._population.pools]
            names.append({index: f"running_{side}" + (f"_{k + 1}" if k else "") for k, index in enumerate(order)})
        return {index: (names[0].get(index), names[1].get(index)) for index in pooling}

    def _kept_parts(self, index: int) -> tuple[int, int]:
        _, channels, strips = self.cuts[index].parts((1, self.num_features, 1))
        return channels, strips

    def running_stats(self, index: int) -> tuple[Tensor | None, Tensor | None]:
        """Give the buffers of a cut's mean and variance; None where a side is not kept."""
        mean, var = self._kept[index]
        return self._buffers[mean] if mean else None, self._buffers[var] if var else None

    def update_running_stats(self, batch: BatchStats) -> None:
        """Move what is kept by one batch, all of it or nothing; a domain without samples stays where it is."""
        if batch.looked and self.updates_running_stats and not is_recomputing():
            policy, present = self._population, batch.present
            plain = isinstance(policy, Running) or (isinstance(policy, Cumulative) and not self.norm_spec.num_stat_sets)
            if present is not None and plain:
                self._move_plainly(batch, present)
            elif batch.values is not None:
                self._move(batch, batch.values)

    def _move_plainly(self, batch: BatchStats, present: Tensor | int) -> None:
        """Move averages in place: what `_move` does, in a few small operations of the CPU."""
        policy, tally = self._population, self._buffers["num_batches_tracked"]
        assert isinstance(policy, Running | Cumulative)  # one rate for all that is kept
        if tally is not None:
            tally.add_(present)
        rate = policy.rate if isinstance(policy, Running) else float(policy.newest(tally))
        for index in self._kept:
            buffers = self.running_stats(index)
            if not self.cuts[index].is_ghost and batch.blend(index, buffers, rate):
                continue
            with torch.no_grad():
                for buffer, new in zip(buffers, self._average(index, batch), strict=True):
                    if buffer is not None:
                        weight = rate if isinstance(present, int) else rate * present[:, None].to(buffer.dtype)
                        buffer.mul_(1 - weight).add_(weight * new.reshape(buffer.shape).to(buffer.dtype))

    @torch.no_grad()
    def _move(self, batch: BatchStats, new_values: Tensor) -> None:
        """Move everything without looking at a value, so that nothing stalls and everything traces."""
        present = new_values > MIN_SHARE
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            present = present & ~recomputing(new_values)
        moved: dict[str, Tensor] = {}
        batches = values = new_values
        if self.num_batches_tracked is not None:
            batches = moved["num_batches_tracked"] = self.num_batches_tracked.reshape(-1, 1, 1) + present
        if self._population.pools and self.num_values_tracked is not None:
            values = moved["num_values_tracked"] = self.num_values_tracked.reshape(-1, 1, 1) + new_values
        for index, names in self._kept.items():
            seen = Observed(
                average=self._average(index, batch),
                whole=self._whole(index, batch),
                batches=batches,
                values=values,
                new_values=new_values,
            )
            shape = (self.norm_spec.num_stat_sets or 1, *self._kept_parts(index))
            kept = as_tables(self.running_stats(index), shape, new_values.dtype)
            for name, old, new in zip(names, kept, self._population.step(kept, seen), strict=True):
                if name:
                    moved[name] = torch.where(present, new, old)
        for name, new in moved.items():
            buffer = getattr(self, name)
            buffer.copy_(new.reshape(buffer.shape))

    def _whole(self, index: int, batch: BatchStats) -> Moments:
        """Give the moments of all values of a cut's channel parts, of each domain."""
        moments = batch.by_cut[index]
        if self.cuts[index].is_ghost and batch.columns is not None:
            return self.cuts[index].pool_columns(batch.columns)
        assert moments is not None  # every cut of a layer that learns its population looks at the batch
        return moments

    def _average(self, index: int, batch: BatchStats) -> Stats:
        """Average what a cut's sample parts show, over processes too; but for GBGN there is one part."""
        average = batch.average(index)
        if not self.cuts[index].is_ghost:
            return average
        parts = average.mean.shape[0]
        local = [table.sum(0, keepdim=True) / max(parts, 1) for table in average]
        return Stats(*self.sync_group.average(local, local[0].new_full((1, 1, 1), parts)))

    def reset_running_stats(self) -> None:
        """Start over: mean 0, variance 1, nothing seen."""
        for name, buffer in self._buffers.items():
            if buffer is not None and name.startswith(STAT_PREFIXES):
                buffer.fill_(1 if name.startswith("running_var") else 0)


def from_momentum(momentum: float | None) -> UpdateRule:
    """Give the policy that torch's `momentum` stands for."""
    if momentum is not None and not (isinstance(momentum, int | float) and 0 <= momentum <= 1):
        raise SpecError(f"momentum={momentum!r} is no weight of the newest batch; it is a number from 0 to 1, or None.")
    return Cumulative() if momentum is None else Running(momentum)


def is_recomputing() -> bool:
    """Whether activation checkpointing runs a forward pass again, inside backward; compiled code asks when it runs."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


@torch.library.custom_op("anynorm::recomputing", mutates_args=())
def recomputing(like: Tensor) -> Tensor:
    """Answer `is_recomputing` when compiled code runs: a trace cannot know."""
    return torch.full((), torch._C._current_graph_task_id() != -1, device=like.device)


@recomputing.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.bool, device=like.device)
