"""What a layer is made of and owns: its parts, parameters and statistics, under torch's keys where torch has the norm.

    weight, bias                  the shared affine         (c,)
    class_weight, class_bias      one row a class           (classes, c)
    mean_weight, var_weight       λ of mixed cuts           (k,) or (groups, k)

and the buffers of `Keeper`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.mixing import logits_shape
from anynorm.core.spec import NormSpec, check_num_features
from anynorm.core.update_rules import Cumulative, Running, UpdateRule
from anynorm.errors import ShapeError, SpecError, StateError
from anynorm.layers.distributed import AllReduce, NoSync
from anynorm.layers.running_stats import RunningStats, from_momentum


class CustomNorm:
    """Marks the classes of norms that do more than their parts say."""


class State(RunningStats):
    """Owns the tensors of a norm; `Norm` says what is done with them."""

    _version = 2
    schedule_enabled = True
    """Whether a schedule goes on in training, of norms that have one."""
    one_cut_per_channel = False
    """Whether each cut has channels for which it is the only one."""
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    class_weight: nn.Parameter | None
    class_bias: nn.Parameter | None
    mean_weight: nn.Parameter | None
    var_weight: nn.Parameter | None

    def __init__(
        self,
        parts: NormSpec,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        track_running_stats: bool = True,
        update_rule: UpdateRule | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(parts, NormSpec):
            raise SpecError(
                f"Norm is made from parts, not from {parts!r}; anynorm.make(spec, num_features) makes one from a spec."
            )
        if not isinstance(eps, int | float) or not 0 <= eps < 1:
            raise SpecError(f"eps={eps!r} is no small number to add to a variance; 1e-5 is usual. Groups are num_groups=….")
        if parts.custom and not isinstance(self, CustomNorm):
            raise SpecError(f"{parts} is more than its parts: anynorm.make({str(parts)!r}, {num_features}) makes it.")
        self.norm_spec, self.num_features, self.eps = parts, check_num_features(num_features, parts), eps
        self.cuts, self.mean_cuts, self.var_cuts = parts.fit(self.num_features)
        self.track_running_stats = track_running_stats and self.pools_samples
        self.sync_group = NoSync()
        self._condition: Any = None
        self.tasks: dict[Any, Any] = {}
        self._register_parameters(device, dtype)
        policy = from_momentum(momentum) if update_rule is None else update_rule
        self._register_kept(policy, torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def spec(self) -> str:
        """The norm's short name; parsing it gives equal parts."""
        return str(self.norm_spec)

    @property
    def pools_samples(self) -> bool:
        """Whether a statistic mixes samples, so that there is a population to keep and something to synchronise."""
        return any([cut.pools_samples for cut in self.cuts])

    @property
    def splits_batch(self) -> bool:
        """Whether domains or processes share samples out, so that counts are not known from the shape of x."""
        return bool(self.norm_spec.affine.num_domains) or isinstance(self.sync_group, AllReduce)

    @property
    def takes_condition(self) -> bool:
        """Whether `forward` wants a class, domain or style."""
        return bool(self.norm_spec.num_classes) or self.norm_spec.takes_style

    @property
    def affine(self) -> bool:
        """Whether there is a learned affine."""
        return any(stage.names for stage in self.norm_spec.affine.stages)

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        for name in ("weight", "bias", "class_weight", "class_bias"):
            self.register_parameter(name, None)
        for stage in self.norm_spec.affine.stages:
            for name in stage.names:
                empty = torch.empty(stage.shape(self.num_features), device=device, dtype=dtype)
                self.register_parameter(name, nn.Parameter(empty))
        mixing = self.norm_spec.mixing
        for name, cuts in (("mean_weight", self.mean_cuts), ("var_weight", self.var_cuts)):
            logits = torch.empty(logits_shape(mixing, len(cuts)), device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(logits, mixing.learns) if len(cuts) > 1 else None)

    def reset_parameters(self) -> None:
        """Start over: statistics, affine and λ."""
        self.reset_running_stats()
        for stage in self.norm_spec.affine.stages:
            stage.reset(*(getattr(self, name) for name in stage.names))
        for logits in (self.mean_weight, self.var_weight):
            if logits is not None:
                nn.init.ones_(logits)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        tally = self.num_batches_tracked
        if tally is not None and (local_metadata.get("version") or 0) < 2:
            device = "cpu" if tally.is_meta else tally.device
            state_dict.setdefault(prefix + "num_batches_tracked", torch.zeros_like(tally, device=device))
        for name, tensor in {**self._parameters, **self._buffers}.items():
            loaded = state_dict.get(prefix + name)
            if tensor is not None and isinstance(loaded, Tensor):
                self._check_loaded(prefix + name, loaded, tensor)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _check_loaded(self, key: str, loaded: Tensor, tensor: Tensor) -> None:
        if loaded.shape != tensor.shape and not (tensor.dim() == 0 and loaded.shape == (1,)):  # as torch's old tallies were
            raise ShapeError(
                f"state_dict holds '{key}' of shape {tuple(loaded.shape)}; {self.spec} of {self.num_features} channels keeps "
                f"{tuple(tensor.shape)}. Make the layer with the checkpoint's spec and channel count."
            )
        if loaded.is_floating_point() and not loaded.is_meta and bool(loaded.isnan().any()):
            raise StateError(
                f"state_dict holds {int(loaded.isnan().sum())} NaN of {loaded.numel()} values in '{key}' ({self.spec}): the "
                f"run that wrote it had diverged. Load an earlier one, or replace them by torch.nan_to_num."
            )

    def set_condition(self, condition: Any) -> None:
        """Set the condition of coming passes; a parameter given as style does not become the layer's own."""
        object.__setattr__(self, "_condition", condition)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a `with condition(…)` block told (a copy made inside one is outside it) and what can be made again."""
        return {**self.__dict__, "_condition": None, "tasks": {}}

    def extra_repr(self) -> str:
        """Show spec, channels and options."""
        plain = isinstance(self.update_rule, Running | Cumulative)
        kept = f"momentum={self.momentum}" if plain else f"population={self.update_rule}"
        tracked = kept if self.track_running_stats else "track_running_stats=False"
        track = [repr(self.spec), str(self.num_features), f"eps={self.eps}", *([tracked] if self.pools_samples else [])]
        return ", ".join(track)
