"""The running statistics of a layer: buffers, their names, and their update after each batch.

running_mean, running_var     mean and unbiased variance of each part of a cut                  (parts,) or (domains, parts)
running_mean_2, …             the same for further cuts that pool over samples
                              if the mean of the norm is 0: only running_var, the second moment E[x²]
num_batches_tracked           number of batches tracked                                         () or (domains,)
num_values_tracked            number of values per channel tracked; only for `Pooled`           () or (domains,)
num_batches_skipped           number of batches skipped; not in the state_dict                  () or (domains,)

A batch is skipped if a new statistic is not finite (infinite or NaN) in the dtype of its buffer, as after an overflow in
float16: then no statistic and no other counter of its domain changes, in any cut. The output is not finite, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.compat import is_exporting, is_in_function_transform, is_recomputing, is_transformed, recomputing
from anynorm.core.moments import MIN_PRESENT_COUNT, Moments, pool_samples, table_dtype
from anynorm.core.spec import NormSpec
from anynorm.core.update_rules import Interpolation, Observation, Running, Stats, UpdateRule, as_tables, from_momentum
from anynorm.errors import AnynormError, SpecError
from anynorm.kernels.interface import BatchStats, BufferPair
from anynorm.kernels.sync import NoSync, SyncGroup
from anynorm.layers.accumulation import Accumulator
from anynorm.layers.batch_norm_code import caller_for_batch_norm, list_modules, refuse

_TRANSFORM_MESSAGE = (
    "The running statistics cannot be updated in this transform of torch.func, because they are not among the arguments of the "
    "transformed function. Pass them: torch.func.functional_call(model, (params, buffers), x), with vmap one set per model "
    "as from torch.func.stack_module_state. Or call model.eval(), construct the norm with track_running_stats=False, or use "
    "a norm that does not pool over samples (gn, ln, in). Layer {spec} with {num_features} channels."
)
STAT_PREFIXES = ("running_", "num_batches_", "num_values_")
"""Prefixes of the names of the buffers of running statistics; other buffers belong to subclasses."""


class RunningStats(nn.Module):
    """A module with running statistics for the cuts of a norm that pool over samples.

    Args:
        norm_spec: the definition of the norm.
        num_features: number of channels.
        track_running_stats: whether to track running statistics.
        update_rule: update rule of the running statistics.
        device: device of the buffers.
        dtype: dtype of the buffers.

    Attributes:
        cuts: the distinct cuts of the norm.
        mean_cut_indices: indices of the cuts of the mean in `cuts`.
        var_cut_indices: indices of the cuts of the variance in `cuts`.
        pools_samples: whether a cut of the norm pools over samples.
        sync_group: the processes over which statistics are synchronized in training.
        accumulator: the statistics of the micro-batches of the current optimizer step; None to update after every batch.
        micro_batch_size: number of samples of each micro-batch, see `anynorm.layers.micro_batches`; None for whole batches.
    """

    _update_rule: UpdateRule
    _stat_names: dict[int, tuple[str | None, str | None]]
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    num_values_tracked: Tensor | None
    num_batches_skipped: Tensor | None
    accumulator: Accumulator | None = None
    micro_batch_size: int | None = None

    def __init__(
        self,
        norm_spec: NormSpec,
        num_features: int,
        *,
        track_running_stats: bool,
        update_rule: UpdateRule,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        self.norm_spec, self.num_features = norm_spec, num_features
        self.cuts, self.mean_cut_indices, self.var_cut_indices = norm_spec.resolve(num_features)
        self.pools_samples = any([cut.pools_samples for cut in self.cuts])
        self.sync_group: SyncGroup = NoSync()
        self.track_running_stats = track_running_stats and self.pools_samples
        self._register_stats(update_rule, torch.empty((), device=device, dtype=dtype))

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Return this module and its children; see `anynorm.layers.batch_norm_code` for functions that look for BatchNorm."""
        modules, caller = super().named_modules(memo, prefix, remove_duplicate), caller_for_batch_norm()
        return modules if caller is None else list_modules(self, modules, caller)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Return the children; see `anynorm.layers.batch_norm_code` for functions that look for BatchNorm."""
        caller = caller_for_batch_norm() if self.pools_samples else None
        if caller is not None and not self.sync_group.is_synchronized:
            refuse(self, caller)
        return super().named_children()

    @property
    def update_rule(self) -> UpdateRule:
        """The update rule of the running statistics; can be set at any time."""
        return self._update_rule

    @update_rule.setter
    def update_rule(self, update_rule: UpdateRule) -> None:
        if self._stat_names and not self.has_running_stats:  # keep buffers that were set to None
            self._check_rule(update_rule)
            self._update_rule = update_rule
            return
        tensors = [*self.buffers(), *self.parameters()]
        like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(()))
        self._register_stats(update_rule, like)

    @property
    def momentum(self) -> float | None:
        """Weight of the newest batch in the running statistics, as in torch; None for all update rules except `Running`.

        Setting a number sets the update rule to `Running`; setting None sets it to `Cumulative`.
        """
        return self._update_rule.rate if isinstance(self._update_rule, Running) else None

    @momentum.setter
    def momentum(self, momentum: float | None) -> None:
        self.update_rule = from_momentum(momentum)

    @property
    def tracked_cuts(self) -> list[int]:
        """Indices of the cuts that have running statistics."""
        return list(self._stat_names) if self.has_running_stats else []

    @property
    def has_running_stats(self) -> bool:
        """Whether running statistics exist; some adaptation methods set the buffers to None."""
        if not self._stat_names:
            return False
        buffers = self._buffers
        for mean, var in self._stat_names.values():
            if (mean and buffers[mean] is None) or (var and buffers[var] is None):
                return False
        return True

    @property
    def updates_running_stats(self) -> bool:
        """Whether a forward pass updates the running statistics."""
        return self.training and self.track_running_stats and self._update_rule.updates and self.has_running_stats

    @property
    def uses_batch(self) -> bool:
        """Whether cuts that pool over samples use batch statistics instead of running statistics."""
        return not self.has_running_stats or (self.training and self._update_rule.updates)

    def running_stats(self, index: int) -> BufferPair:
        """Return the buffers of the running mean and variance of the cut `index`; None for a statistic without a buffer."""
        names = self._stat_names.get(index)
        if names is None:
            return None, None
        mean, var = names
        return self._buffers[mean] if mean else None, self._buffers[var] if var else None

    def reset_running_stats(self) -> None:
        """Reset the running means to 0, the running variances to 1 and the counters to 0."""
        for name, buffer in self._buffers.items():
            if buffer is not None and name.startswith(STAT_PREFIXES):
                buffer.fill_(1 if name.startswith("running_var") else 0)

    @staticmethod
    def _check_rule(update_rule: Any) -> None:
        if not isinstance(update_rule, UpdateRule):
            raise SpecError(
                f"update_rule must be Running(0.1), Cumulative(), Pooled() or Frozen() of anynorm; got {update_rule!r}."
            )

    def _register_stats(self, update_rule: UpdateRule, like: Tensor) -> None:
        """Register the buffers that an update rule needs and remove the others; existing buffers keep their values."""
        self._check_rule(update_rule)
        self._update_rule = update_rule
        self._stat_names = self._name_stats() if self.track_running_stats else {}
        sets = (self.norm_spec.num_stat_sets,) if self.norm_spec.num_stat_sets else ()
        tally = torch.zeros(sets, dtype=torch.long, device=like.device) if self._stat_names else None
        needed: dict[str, Tensor | None] = {"running_mean": None, "running_var": None, "num_batches_tracked": tally}
        needed["num_batches_skipped"] = None if tally is None else tally.clone()
        for index, names in self._stat_names.items():
            shape = (*sets, math.prod(self._stat_parts(index)))
            for name, value in zip(names, (0, 1), strict=True):
                if name:
                    needed[name] = like.new_full(shape, value)
        if update_rule.is_exact and tally is not None:
            needed["num_values_tracked"] = tally.double() if self.norm_spec.soft_assignment else tally.clone()
        for name in [*needed, *self._buffers]:
            if name.startswith(STAT_PREFIXES) and (self._buffers.get(name) is None or needed.get(name) is None):
                self.register_buffer(name, needed.get(name), persistent=name != "num_batches_skipped")

    def _name_stats(self) -> dict[int, tuple[str | None, str | None]]:
        """Return the buffer names of the mean and variance of each cut.

        `Pooled` needs both statistics of every cut; those that the norm does not use come last in the numbering. A norm whose
        mean is 0 has no running mean.
        """
        names: tuple[dict[int, str], dict[int, str]] = ({}, {})
        all_cuts = tuple(range(len(self.cuts))) if self._update_rule.is_exact else ()
        for side, used, named in zip(("mean", "var"), (self.mean_cut_indices, self.var_cut_indices), names, strict=True):
            for index in (*used, *all_cuts) if used else ():
                if self.cuts[index].pools_samples and index not in named:
                    named[index] = f"running_{side}" + (f"_{len(named) + 1}" if named else "")
        mean, var = names
        return {index: (mean.get(index), var.get(index)) for index in sorted({*mean, *var})}

    def _stat_parts(self, index: int) -> tuple[int, int]:
        _, channels, strips = self.cuts[index].parts((1, self.num_features, 1))
        return channels, strips

    def update_running_stats(self, batch: BatchStats) -> None:
        """Update the running statistics by one batch, all or none; those of a domain without samples are not changed."""
        if batch.is_updated or not batch.pooled_samples or not self.updates_running_stats or is_recomputing():
            return
        if torch.compiler.is_compiling() or not is_in_function_transform():
            self._update(batch)
            return
        try:
            self._update(batch)
        except RuntimeError as error:
            raise AnynormError(_TRANSFORM_MESSAGE.format(spec=self.norm_spec, num_features=self.num_features)) from error

    @torch.no_grad()
    def _update(self, batch: BatchStats) -> None:
        """Apply the update rule without reading tensor values, so that it can be traced and does not synchronize devices."""
        new_values = batch.num_values
        assert new_values is not None  # `pooled_samples` was checked
        if self.num_batches_tracked is None and not isinstance(self._update_rule, Running):
            return  # as in torch: without a counter, a cumulative average is not updated
        present = ~(new_values <= MIN_PRESENT_COUNT)  # also if it is NaN, as in ModeNorm
        is_first = new_values.new_ones((), dtype=torch.bool)
        if torch.compiler.is_compiling() and not is_exporting():
            is_first = ~recomputing(new_values)
        observations = {index: self._observe(index, batch) for index in self._stat_names}
        present, finite = present & is_first, self._has_finite(observations)
        in_sequence = self.micro_batch_size is not None
        if self.num_batches_skipped is not None and self._can_count_skipped(self.num_batches_skipped):
            skipped = present & ~finite
            self.num_batches_skipped.add_(skipped.sum() if in_sequence else skipped.reshape(self.num_batches_skipped.shape))
        present = present & finite
        if in_sequence:
            self._apply_in_sequence(observations, present)
        elif self.accumulator is None:
            self._apply_rule(observations, new_values, present)
        else:
            self.accumulator.add(observations, new_values, present, is_first)
            self._update_by_accumulated(self.accumulator, self.accumulator.is_complete())

    @staticmethod
    def _can_count_skipped(counter: Tensor) -> bool:
        """Whether `num_batches_skipped` can change: not if a transform has only the buffers of a state_dict as arguments."""
        return torch.compiler.is_compiling() or is_transformed(counter) or not is_in_function_transform()

    def _update_by_accumulated(self, accumulator: Accumulator, condition: Tensor) -> None:
        """If a condition is true, apply the update rule to the accumulated micro-batches, and start a new group of them."""
        num_values = accumulator.num_values
        observations = accumulator.observations(self._correction_of)
        self._apply_rule(observations, num_values, (num_values > MIN_PRESENT_COUNT) & condition)
        accumulator.restart(condition)

    def start_accumulation(self, steps: int) -> None:
        """Update the running statistics once per `steps` batches, by their pooled statistics."""
        shapes = {
            index: (self.norm_spec.num_stat_sets or 1, *self._stat_parts(index))
            for index, cut in enumerate(self.cuts)
            if cut.pools_samples
        }
        ghosts = {index for index in shapes if self.cuts[index].is_ghost}
        like = next(buffer for index in shapes for buffer in self.running_stats(index) if buffer is not None)
        counts = torch.zeros(self.norm_spec.num_stat_sets or 1, 1, 1, dtype=table_dtype(like), device=like.device)
        self.accumulator = Accumulator(steps, counts, shapes, ghosts)

    @torch.no_grad()
    def finish_group(self) -> None:
        """Update the running statistics by the batches since the last update, if there are any, and start a new group."""
        updates = self.track_running_stats and self._update_rule.updates and self.has_running_stats
        has_counter = self.num_batches_tracked is not None or isinstance(self._update_rule, Running)
        if self.accumulator is not None and updates and has_counter:
            self._update_by_accumulated(self.accumulator, self.accumulator.num_passes > 0)

    def _observe(self, index: int, batch: BatchStats) -> Observation:
        """Return the statistics of a batch for one cut; `_apply_rule` sets the numbers of batches and values."""
        counts = batch.num_values
        assert counts is not None  # `pooled_samples` was checked
        average, moments = self._average(index, batch), self._batch_moments(index, batch)
        return Observation(average, moments, counts, counts, counts, self._num_parts(index, batch), self._correction_of(index))

    def _correction_of(self, index: int) -> int:
        """Return Bessel's correction of the running variance of a cut; see `NormSpec.correction`."""
        return 0 if self.cuts[index].about_zero else self.norm_spec.correction

    def _has_finite(self, observations: dict[int, Observation]) -> Tensor:
        """Whether all new statistics of a domain are finite in the dtype of their buffers, (domains or 1, 1, 1)."""
        finite = []
        for index, names in self._stat_names.items():
            for name, new in zip(names, observations[index].average, strict=True):
                if name:
                    is_finite = new.abs() <= torch.finfo(self.get_buffer(name).dtype).max
                    finite.append(is_finite.flatten(1).all(1))
        return torch.stack(finite).all(0).reshape(-1, 1, 1)

    def _apply_rule(self, observations: dict[int, Observation], new_values: Tensor, present: Tensor) -> None:
        """Apply the update rule to the domains that are present; the others are not changed."""
        updated: dict[str, Tensor] = {}
        num_batches = num_values = new_values
        if self.num_batches_tracked is not None:
            num_batches = updated["num_batches_tracked"] = self.num_batches_tracked.reshape(-1, 1, 1) + present
        if self._update_rule.is_exact and self.num_values_tracked is not None:
            tracked = self.num_values_tracked.reshape(-1, 1, 1)
            num_values = updated["num_values_tracked"] = tracked + torch.where(present, new_values, torch.zeros_like(new_values))
        for index, names in self._stat_names.items():
            observation = observations[index]._replace(num_batches=num_batches, num_values=num_values, new_values=new_values)
            shape = (self.norm_spec.num_stat_sets or 1, *self._stat_parts(index))
            stats = as_tables(self.running_stats(index), shape, new_values.dtype)
            for name, old, new in zip(names, stats, self._update_rule.update(stats, observation), strict=True):
                if name:
                    updated[name] = torch.where(present, new, old)
        for name, new in updated.items():
            buffer = getattr(self, name)
            buffer.copy_(new.reshape(buffer.shape))

    def _apply_in_sequence(self, observations: dict[int, Observation], present: Tensor) -> None:
        """Apply the update rule to one micro-batch after the other; those that are not present change nothing.

        Args:
            observations: the statistics of each cut, one row per micro-batch.
            present: whether each micro-batch counts, (micro-batches, 1, 1).
        """
        rule, num_batches = self._update_rule, present.cumsum(0)
        assert isinstance(rule, Interpolation)  # `micro_batches` was checked
        if self.num_batches_tracked is not None:
            num_batches = num_batches + self.num_batches_tracked
            self.num_batches_tracked.copy_(num_batches[-1, 0, 0])
        for index, names in self._stat_names.items():
            observation = observations[index]._replace(num_batches=num_batches)
            stats = as_tables(self.running_stats(index), (1, *self._stat_parts(index)), observation.average.mean.dtype)
            for name, new in zip(names, rule.update_in_sequence(stats, observation, present), strict=True):
                if name:
                    buffer = self.get_buffer(name)
                    buffer.copy_(new.reshape(buffer.shape))

    def _batch_moments(self, index: int, batch: BatchStats) -> Moments:
        """Return the moments of a cut over all samples of each domain, including the samples of all ghost batches."""
        moments = batch.by_cut[index]
        assert moments is not None  # a cut uses the batch whenever its running statistics are updated
        if not self.cuts[index].is_ghost:
            return moments
        if batch.channel_moments is not None:
            return self.cuts[index].pool_channels(batch.channel_moments)
        return pool_samples(moments)

    def _num_parts(self, index: int, batch: BatchStats) -> int:
        """Return the number of sample parts of a cut in this process (one, except for GBGN)."""
        moments = batch.by_cut[index]
        if not self.cuts[index].is_ghost or moments is None:
            return 1
        return max(1, moments.mean.shape[0])

    def _average(self, index: int, batch: BatchStats) -> Stats:
        """Return the statistics of a cut, averaged over its sample parts and over all processes (one part, except for GBGN)."""
        average = batch.stats(index, self._correction_of(index))
        if not self.cuts[index].is_ghost:
            return average
        num_parts = average.mean.shape[0]
        local = [table.sum(0, keepdim=True) / max(num_parts, 1) for table in average]
        return Stats(*self.sync_group.average(local, local[0].new_full((1, 1, 1), num_parts)))
