"""The base class of all norms.

    x ─▶ moments ─▶ pooled by each cut ─▶ running statistics ─▶ mixed ─▶ affine ─▶ y = a (x − mean) + b

Parameters, named as in torch if torch has them (for buffers, see `RunningStats`):

    weight, bias                  the shared affine; bias=False: no bias   (c,)
    class_weight, class_bias      the affine of each class                 (classes, c)
    mean_weight, var_weight       λ, the logits of the mixing weights      (k,) or (groups, k)

Only the first and the last step read x; all other steps use tensors that broadcast to (n, c, strips).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from anynorm import kernels
from anynorm.core.activation import Activation, read_activation
from anynorm.core.affine import chain
from anynorm.core.compat import is_recomputing
from anynorm.core.cuts import Cut
from anynorm.core.mixing import logits_shape
from anynorm.core.spec import NormSpec, ResolvedCuts, check_positive_int
from anynorm.core.update_rules import Cumulative, Running, UpdateRule, from_momentum
from anynorm.errors import FoldError, SpecError
from anynorm.kernels.interface import NUM_LAYER_PARAMS, BatchStats, Buffers, ForwardSpec, Params
from anynorm.kernels.ragged import Ragged, expand_table
from anynorm.kernels.sync import NoSync, SyncGroup
from anynorm.layers.batch_norm_code import GuardedEps, infers_as_batch_norm
from anynorm.layers.channel_axis import check_channel_axis, from_channels_second, to_channels_second
from anynorm.layers.conditioning import read_condition
from anynorm.layers.fx import add_call
from anynorm.layers.masking import ModelMask, read_ragged
from anynorm.layers.running_stats import RunningStats
from anynorm.layers.state_dict import prepare_state_dict
from anynorm.layers.validation import (
    check_batch,
    check_counts,
    check_input,
    check_not_expanded,
    check_residual,
    has_single_value,
    may_have_single_value,
)

NO_SYNC = NoSync()
PARAMETER_FIELDS = Params._fields[:NUM_LAYER_PARAMS]
"""Names of the parameters of a layer, in the order of the inputs of the kernels."""


class NormOptions(TypedDict, total=False):
    """The options of every norm: those of torch's BatchNorm, `update_rule`, `activation`, `bias` and `channel_axis`.

    Args:
        eps: value added to the variance for numerical stability.
        momentum: weight of the newest batch in the running statistics; None for a cumulative average over all batches.
        affine: whether to add learnable affine parameters.
        track_running_stats: whether to track running statistics for inference.
        device: device of parameters and buffers.
        dtype: dtype of parameters and buffers.
        update_rule: update rule of the running statistics (see `anynorm.core.update_rules`); replaces `momentum`.
        activation: activation that is applied to the output in the same pass, such as "relu"; None without one.
        bias: whether the affine per channel has a shift β; False for a scale γ alone, as in torch.
        single_value: for a training batch with a single value per statistic of a cut that pools samples: "error" to raise an
            error; "running" to normalize by running statistics, as in inference, and to update nothing.
        channel_axis: axis of the channels in the input: 1 for (n, c, …), -1 for (n, …, c), such as tokens (n, t, c).
    """

    eps: float
    momentum: float | None
    affine: bool
    track_running_stats: bool
    device: Any
    dtype: Any
    update_rule: UpdateRule | None
    activation: str | Activation | None
    bias: bool
    single_value: str
    channel_axis: int


class CustomNorm:
    """Mixin of norms outside the algebra, which override `_compute_output` or its inputs; their `NormSpec` is incomplete.

    Their residual and activation are separate operations. They support neither masks nor batch indices.
    """

    takes_mask = False

    def normalize(
        self,
        x: Tensor,
        condition: Any = None,
        residual: Tensor | None = None,
        activation: Activation | None = None,
        *,
        mask: Tensor | None = None,
        batch_index: Tensor | None = None,
        num_graphs: int | None = None,
    ) -> Tensor:
        """Normalize x, add the residual and apply the activation, without applying `post_modules`."""
        if residual is not None:
            check_residual(self, x, residual)  # type: ignore[arg-type]
        y: Tensor = super().normalize(  # type: ignore[misc]
            x, condition, mask=mask, batch_index=batch_index, num_graphs=num_graphs
        )
        return kernels.finish(y, residual, activation)


class Norm(RunningStats):
    """A normalization layer for inputs (n, c, …), or (n, …, c), with at least 2 dimensions, defined by a `NormSpec`.

    Use `anynorm.make` to construct a layer from a spec string.

    Args:
        norm_spec: the definition of the norm.
        num_features: number of channels.
        eps: value added to the variance for numerical stability.
        momentum: weight of the newest batch in the running statistics; None for a cumulative average over all batches.
        affine: whether to add the learnable affine parameters of the definition.
        track_running_stats: whether to track running statistics for inference.
        device: device of parameters and buffers.
        dtype: dtype of parameters and buffers.
        update_rule: update rule of the running statistics (see `anynorm.core.update_rules`); replaces `momentum`.
        activation: activation that is applied to the output in the same pass, such as "relu"; None without one.
        bias: whether the affine per channel has a shift β; False for a scale γ alone, as in torch.
        single_value: for a training batch with a single value per statistic of a cut that pools samples: "error" to raise an
            error; "running" to normalize by running statistics, as in inference, and to update nothing.
        channel_axis: axis of the channels in the input: 1 for (n, c, …), -1 for (n, …, c), such as tokens (n, t, c).

    Raises:
        SpecError: if an argument is invalid, or the definition does not support the number of channels.

    >>> import anynorm
    >>> norm = anynorm.make("hn:4", 16)
    >>> norm
    HeteroNorm('hn:4', 16, eps=1e-05, momentum=0.1)
    >>> norm(torch.randn(2, 16, 8, 8)).shape
    torch.Size([2, 16, 8, 8])
    """

    _version = 2
    hyperparameters: ClassVar[Mapping[str, float]] = {}
    """Names and defaults of numbers that are not part of a spec."""
    schedule_enabled = True
    """Whether training advances the schedule of a norm that has one."""
    channel_axis: int = 1
    """The axis of the channels in the input."""
    is_connected = False
    """Whether the statistics of this layer depend on another layer (BKN)."""
    one_cut_per_channel = False
    """Whether each channel uses only one of the mixed cuts (IBN)."""
    single_value = "error"
    """What to do with a training batch that has a single value per statistic: "error" or "running"."""
    input_dims: tuple[int, ...] = ()
    """Numbers of dimensions of the inputs that the layer of torch took which this norm replaces; empty: any from 2 on."""
    unbatched_dims: int = 0
    """Number of dimensions of an input without the axis of the samples, as InstanceNorm of torch takes it; 0: none."""
    is_batch_norm_in_inference: ClassVar[bool] = False
    """For norms outside the algebra: whether inference is that of bn."""
    takes_mask: ClassVar[bool] = True
    """Whether the norm supports masks and batch indices."""
    _mask: ModelMask | None = None
    _had_mask = False  # whether the last forward pass used `_mask`
    post_modules: tuple[str, ...] = ()
    """Names of child modules that are applied to the output, such as the fused activation of a replaced module."""
    _activation: Activation | None = None

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    class_weight: nn.Parameter | None
    class_bias: nn.Parameter | None
    mean_weight: nn.Parameter | None
    var_weight: nn.Parameter | None

    def __init__(
        self,
        norm_spec: NormSpec,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        update_rule: UpdateRule | None = None,
        activation: str | Activation | None = None,
        bias: bool = True,
        single_value: str = "error",
        channel_axis: int = 1,
    ) -> None:
        if not isinstance(norm_spec, NormSpec):
            raise SpecError(f"Norm takes a NormSpec; got {norm_spec!r}. Use anynorm.make(spec, num_features) for a text.")
        if not isinstance(eps, int | float) or not 0 <= eps < math.inf:
            raise SpecError(f"eps must be at least 0; got {eps!r}. Usual: 1e-5.")
        if single_value not in ("error", "running"):
            raise SpecError(f"single_value must be 'error' or 'running'; got {single_value!r}.")
        if norm_spec.custom and not isinstance(self, CustomNorm):
            raise SpecError(
                f"{norm_spec} has a class of its own; got Norm. Use anynorm.make({str(norm_spec)!r}, {num_features}) instead."
            )
        norm_spec = norm_spec if affine else norm_spec.without_affine()
        super().__init__(
            norm_spec if bias else norm_spec.without_bias(),
            check_positive_int(num_features, "num_features", norm_spec),
            track_running_stats=track_running_stats,
            update_rule=from_momentum(momentum) if update_rule is None else update_rule,
            device=device,
            dtype=dtype,
        )
        self._eps = float(eps)
        self._activation = None if activation is None else read_activation(activation)
        self.single_value = single_value
        self.channel_axis = 1 if type(channel_axis) is int and channel_axis == 1 else check_channel_axis(channel_axis)
        self._condition: Any = None
        self._forward_specs: dict[Any, ForwardSpec] = {}
        self._register_parameters(device, dtype)
        self.reset_parameters()

    @classmethod
    def from_spec(cls, norm_spec: NormSpec, num_features: int, **options: Any) -> Norm:
        """Make the layer of a definition; `options` are those of the constructor."""
        return cls(norm_spec, num_features, **options)

    @property
    def eps(self) -> float:
        """The value added to the variance; no operation of torch takes that of a norm that code for BatchNorm would misread."""
        return GuardedEps(self._eps, self.spec) if self.has_running_stats and not infers_as_batch_norm(self) else self._eps

    @eps.setter
    def eps(self, eps: float) -> None:
        self._eps = float(eps)

    @property
    def activation(self) -> Activation | None:
        """The activation that is applied to the output; its name can be assigned too."""
        return self._activation

    @activation.setter
    def activation(self, activation: Any) -> None:
        self._activation = read_activation(activation)

    def forward(
        self,
        input: Tensor,  # noqa: A002  # torch's name
        condition: Any = None,
        *,
        residual: Tensor | None = None,
        activation: Any = None,
        mask: Tensor | None = None,
        batch_index: Tensor | None = None,
        num_graphs: int | None = None,
    ) -> Tensor:
        """Normalize x, the input, add the residual and apply the activation: y = φ(a (x − mean) + b + residual).

        Args:
            input: x, (n, c), (n, c, length), (n, c, h, w) or (n, c, t, h, w); channels may be on another axis (`channel_axis`).
            condition: class, domain or style (see `anynorm.layers.conditioning`); ignored by norms without a condition.
            residual: a tensor with the shape, dtype and device of x.
            activation: the activation of this call, as in `make`; None for the activation of the layer.
            mask: bool (n, positions…), True at valid positions, or lengths of sequences, integers (n,). Other positions count in
                no statistic, and their outputs and gradients are 0.
            batch_index: the sample of each point of x (points, c), integers (points,), in any order.
            num_graphs: number of samples of `batch_index`; None for its largest index + 1.

        Raises:
            SpecError: if the activation is unknown, or the norm does not support a mask or batch index.
            ShapeError: if the norm does not support the shape or dtype of x, or another tensor does not fit x.
            ConditionError: if the condition is missing or invalid.
        """
        if not isinstance(input, Tensor) and isinstance(input, Proxy):  # type: ignore[unreachable]
            options = {"residual": residual, "activation": activation, "mask": mask}  # type: ignore[unreachable]
            return add_call(self, input, condition, options | {"batch_index": batch_index, "num_graphs": num_graphs})
        if self.unbatched_dims and input.dim() == self.unbatched_dims:
            added = None if residual is None else residual.unsqueeze(0)
            return self.forward(input.unsqueeze(0), condition, residual=added, activation=activation, mask=mask).squeeze(0)
        if "activation" in self._modules:  # nn.Module registers a module that is assigned, before the property is set
            raise SpecError(f"The activation of {self.spec} must be assigned by its name, such as 'relu'; got a module.")
        activation = self._activation if activation is None else read_activation(activation)
        if mask is None and batch_index is None and num_graphs is None:
            y = self.normalize(input, condition, residual, activation)
        else:
            y = self.normalize(input, condition, residual, activation, mask=mask, batch_index=batch_index, num_graphs=num_graphs)
        for name in self.post_modules:
            y = getattr(self, name)(y)
        return y

    def normalize(
        self,
        x: Tensor,
        condition: Any = None,
        residual: Tensor | None = None,
        activation: Activation | None = None,
        *,
        mask: Tensor | None = None,
        batch_index: Tensor | None = None,
        num_graphs: int | None = None,
    ) -> Tensor:
        """Normalize x, add the residual and apply the activation, without applying `post_modules`."""
        spec = self._forward_spec(activation)
        replaces_single = self.single_value == "running"
        if replaces_single and has_single_value(self, spec, x):
            spec = self._forward_spec(activation, infer=True)
        ragged: Ragged | None = None
        if mask is not None or self._mask is not None or self._had_mask or batch_index is not None or num_graphs is not None:
            ragged = read_ragged(self, x, mask, batch_index, num_graphs)
        if ragged is not None and self.micro_batch_size is not None:
            raise SpecError(
                f"{self.spec} in micro-batches must get neither a mask nor a batch index; call it once per micro-batch."
            )
        check_input(self, spec, x, ragged)
        if residual is not None:
            check_residual(self, x, residual)
        if spec.takes_condition:
            condition = self._condition if condition is None else condition
            condition = read_condition(self, x, condition, None if ragged is None else ragged.num_samples)
        view, axis = x, self.channel_axis
        if axis != 1:
            view, residual = to_channels_second(x, axis), None if residual is None else to_channels_second(residual, axis)
        params, buffers = self._params(condition, residual), self._read_buffers(spec, condition)
        if ragged is not None:
            check_counts(self, spec, ragged)
            buffers = buffers._replace(ragged=ragged)
        if replaces_single and may_have_single_value(self, spec, view, buffers):
            y, batch = self._replace_single(spec, view, params, buffers._replace(momentum=None))
        else:
            y, batch = self._compute_output(spec, view, params, buffers)
            if ragged is not None or (spec.has_variable_counts and self.training):
                check_batch(self, batch, buffers)
        self.update_running_stats(batch)
        return y if axis == 1 else from_channels_second(y, axis, x.dim())

    def _replace_single(self, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
        """Return y, normalized by running statistics in domains with a single value, and batch statistics without these domains.

        A mask can leave a domain without any value; then running statistics are used, too. No tensor value is read.
        """
        y, batch = self._compute_output(spec, x, params, buffers)
        assert batch.num_values is not None  # a cut pools samples of the batch
        single = torch.zeros_like(batch.num_values, dtype=torch.bool)
        for cut, moments in zip(self.cuts, batch.by_cut, strict=True):
            if moments is not None and cut.pools_samples and not cut.is_ghost:
                is_few = (moments.count == 1) | (moments.count == 0)
                single = single | is_few.flatten(1).any(1)[:, None, None]
        inferred, _ = self._compute_output(self._forward_spec(spec.activation, infer=True), x, params, buffers)
        by_sample = single.index_select(0, buffers.labels) if spec.num_domains and buffers.labels is not None else single
        shown = expand_table(by_sample, x) if buffers.ragged is None else buffers.ragged.expand(by_sample, x)
        y = torch.where(shown, inferred, y)
        return y, batch._replace(num_values=torch.where(single, torch.zeros_like(batch.num_values), batch.num_values))

    def _compute_output(self, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
        """Return y and the batch statistics; x and y have channels in axis 1. Subclasses of `CustomNorm` may override it."""
        return kernels.normalize(spec, x, params, buffers)

    def _forward_spec(self, activation: Activation | None = None, *, infer: bool = False) -> ForwardSpec:
        """Return the forward spec for the current mode of the layer, or with running statistics as in inference (`infer`)."""
        sync_group, uses_batch = self.sync_group if self.training and not infer else NO_SYNC, self.uses_batch and not infer
        size = self.micro_batch_size if self.training and not infer else None
        mode = (self.training, uses_batch, sync_group, self._eps, activation, size)
        spec = None if torch.compiler.is_compiling() else self._forward_specs.get(mode)
        if spec is None:
            spec = self._make_forward_spec(tuple([uses_batch or not cut.pools_samples for cut in self.cuts]), sync_group)
            spec = spec if activation is None else replace(spec, activation=activation)
            spec = spec if size is None else spec.in_micro_batches(size)
            if not torch.compiler.is_compiling():
                self._forward_specs[mode] = spec
        return spec

    def _make_forward_spec(self, uses_batch: tuple[bool, ...], sync_group: SyncGroup) -> ForwardSpec:
        cuts = ResolvedCuts(self.cuts, self.mean_cut_indices, self.var_cut_indices)
        return ForwardSpec(self.norm_spec, cuts, self.num_features, self._eps, uses_batch, sync_group)

    def _derived_spec(self, spec: ForwardSpec, **changes: Any) -> ForwardSpec:
        """Return a forward spec with changed fields. The object is cached, since it caches the shapes that were validated."""
        key = (spec, *changes)  # a class uses at most one set of values for the same fields
        derived = None if torch.compiler.is_compiling() else self._forward_specs.get(key)
        if derived is None:
            derived = replace(spec, **changes)
            if not torch.compiler.is_compiling():
                self._forward_specs[key] = derived
        return derived

    def _params(self, condition: Any, residual: Tensor | None = None) -> Params:
        """Return the parameters, the style and the residual as inputs of the kernels."""
        params = self._parameters
        try:
            tensors = (
                params["weight"],
                params["bias"],
                params["class_weight"],
                params["class_bias"],
                params["mean_weight"],
                params["var_weight"],
            )
        except KeyError:  # parametrized tensors are not in `_parameters` (torch.nn.utils.parametrize)
            tensors = tuple([getattr(self, name) for name in PARAMETER_FIELDS])
        first = tensors[2] if tensors[0] is None else tensors[0]
        if first is not None and type(first) is not nn.Parameter:
            check_not_expanded(self, first)
        if self.norm_spec.takes_style:
            return Params(*tensors, *condition, residual)  # type: ignore[call-arg]
        return Params(*tensors, None, None, residual)

    def _read_buffers(self, spec: ForwardSpec, condition: Any) -> Buffers:
        """Return the running statistics and labels as inputs of the kernels."""
        stats = tuple([self.running_stats(index) for index in range(len(spec.uses_batch))])
        labels = condition if spec.takes_condition and not spec.takes_style else None
        rule = self._update_rule
        if not self.training or not isinstance(rule, Running) or not spec.pools_batch or self.accumulator is not None:
            return Buffers(stats, labels)
        if not self.track_running_stats or not self.has_running_stats or is_recomputing():
            return Buffers(stats, labels)
        counter, skipped = self._buffers["num_batches_tracked"], self._buffers.get("num_batches_skipped")
        if self.micro_batch_size == 1 or rule.rate < 0 or (counter is not None and counter.dtype != torch.long):
            return Buffers(stats, labels)  # the kernels do not support a statistic per row of x and these values
        return Buffers(stats, labels, counter, rule.rate, skipped)

    @property
    def spec(self) -> str:
        """The spec string."""
        return str(self.norm_spec)

    @property
    def has_variable_counts(self) -> bool:
        """Whether the number of values per statistic depends on domains or on other processes, and not only on the shape of x."""
        return bool(self.norm_spec.affine.num_domains) or self.sync_group.is_synchronized

    @property
    def takes_condition(self) -> bool:
        """Whether `forward` requires a class, domain or style."""
        return bool(self.norm_spec.num_classes) or self.norm_spec.takes_style

    @property
    def affine(self) -> bool:
        """Whether the layer has learnable affine parameters."""
        return any(stage.names for stage in self.norm_spec.affine.stages)

    def set_condition(self, condition: Any) -> None:
        """Set the condition of subsequent forward passes; a style that is a parameter is not registered as one of this layer."""
        object.__setattr__(self, "_condition", condition)

    @property
    def is_masked(self) -> bool:
        """Whether the layer is inside a `with anynorm.mask` block."""
        return self._mask is not None

    def set_mask(self, mask: ModelMask | None) -> None:
        """Set the mask of subsequent forward passes."""
        self._mask = mask

    @classmethod
    def connect(cls, norms: Sequence[Norm]) -> None:
        """Connect the layers of this class in a network, in the order of its modules; for norms that depend on other layers."""

    def set_total_steps(self, total_steps: int) -> None:
        """Set the total number of forward passes in training; only norms with a schedule use it, to scale the schedule."""

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        for name in ("weight", "bias", "class_weight", "class_bias"):
            self.register_parameter(name, None)
        for stage in self.norm_spec.affine.stages:
            shape = stage.shape(self.num_features)
            for name in stage.names:
                self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        mixing = self.norm_spec.mixing
        for name, cuts in (("mean_weight", self.mean_cut_indices), ("var_weight", self.var_cut_indices)):
            logits = torch.empty(logits_shape(mixing, len(cuts)), device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(logits, mixing.is_trainable) if len(cuts) > 1 else None)

    def reset_parameters(self) -> None:
        """Reset the running statistics, the affine and λ to their initial values."""
        self.reset_running_stats()
        for stage in self.norm_spec.affine.stages:
            stage.reset(*map(getattr, repeat(self), stage.names))
        for logits in (self.mean_weight, self.var_weight):
            if logits is not None:
                nn.init.ones_(logits)

    def mixing_weights(self, side: str) -> Tensor | None:
        """Return the mixing weights of the cuts of the mean or the variance.

        Args:
            side: "mean" or "var".

        Returns:
            Weights (1, k), or (c, k) with channel groups; None if there is only one cut.

        Raises:
            SpecError: if `side` is neither "mean" nor "var".
        """
        if side not in ("mean", "var"):
            raise SpecError(f"side must be 'mean' or 'var'; got {side!r}.")
        logits = getattr(self, f"{side}_weight")
        return None if logits is None else self.norm_spec.mixing.weights_by_channel(logits, self.num_features)

    def used_cuts(self) -> list[Cut]:
        """Return the cuts with a positive mixing weight for the mean or the variance."""
        used: set[int] = set()
        for side, cuts in (("mean", self.mean_cut_indices), ("var", self.var_cut_indices)):
            weights = self.mixing_weights(side)
            used |= {cut for k, cut in enumerate(cuts) if weights is None or bool((weights[:, k] > 0).any())}
        return [self.cuts[index] for index in sorted(used)]

    def not_foldable_reason(self) -> str | None:
        """Return why the layer cannot be folded; None if inference is a fixed y = A x + B per channel and condition."""
        per_input = [str(cut) for cut in self.used_cuts() if not cut.pools_samples]
        if per_input or not self.has_running_stats:
            return f"the statistics of {per_input[0] if per_input else self.spec} come from each input, so no fixed (a, b) exists"
        if any(cut.space != 1 for cut in self.used_cuts()):
            return "its statistics differ between positions"
        return "its affine is a style, which comes with each input" if self.norm_spec.takes_style else None

    @torch.no_grad()
    def fixed_affine(self, condition: Any = None) -> tuple[Tensor, Tensor]:
        """Return A and B of inference, y = A x + B per channel, each (c,) in float64.

        Args:
            condition: the class or domain of a conditional norm.

        Raises:
            FoldError: if inference does not have this form (see `not_foldable_reason`).

        >>> import anynorm
        >>> scale, shift = anynorm.make("hn:4", 8, eps=0.0).fixed_affine()
        >>> scale.tolist() == [1.0] * 8, shift.tolist() == [0.0] * 8
        (True, True)
        """
        reason = self.not_foldable_reason()
        if reason:
            raise FoldError(f"{self.spec} has no fixed affine: {reason}.")
        like = next(iter([*self.buffers(), *self.parameters()]))
        strips = math.lcm(*(cut.space or 1 for cut in self.cuts))  # includes cuts whose mixing weight is 0
        x = torch.zeros(1, self.num_features, strips, dtype=torch.float64, device=like.device)
        condition = read_condition(self, x, condition) if self.takes_condition else None
        spec = self._make_forward_spec(tuple([not cut.pools_samples for cut in self.cuts]), NO_SYNC)
        buffers = self._read_buffers(spec, condition)
        mean, (a, b) = kernels.coefficients(spec, x, self._params(condition), buffers)
        scale, shift = a[..., :1], (b - a * mean)[..., :1]
        return scale.expand(1, self.num_features, 1).flatten(), shift.expand(1, self.num_features, 1).flatten()

    def merge(self) -> Norm:
        """Return an equivalent layer with the shared affine merged into the affine per class (sabn); `post_modules` are dropped.

            γ'ᵢ = γᵢ γ_sa        β'ᵢ = γᵢ β_sa + βᵢ

        Raises:
            SpecError: if the affine is not a sandwich (a shared stage followed by one per class).

        >>> import anynorm
        >>> anynorm.make("sabn@10", 64).merge().spec
        'bn.cc@10'
        """
        shared, per_class = ("weight", "bias"), ("class_weight", "class_bias")
        if [stage.names for stage in self.norm_spec.affine.stages] != [shared, per_class]:
            raise SpecError(f"merge needs a shared affine followed by one per class (sabn@K, .sa@K); got {self.spec}.")
        inner, outer = ((getattr(self, gamma), getattr(self, beta)) for gamma, beta in (shared, per_class))
        merged = Norm(
            self.norm_spec.merged(),
            self.num_features,
            eps=self._eps,
            update_rule=self.update_rule,
            track_running_stats=self.track_running_stats,
            device=outer[0].device,
            dtype=outer[0].dtype,
            activation=self.activation,
            single_value=self.single_value,
            channel_axis=self.channel_axis,
        )
        with torch.no_grad():
            for name in [*merged._buffers, "mean_weight", "var_weight"]:
                source = getattr(self, name)
                if source is None:
                    setattr(merged, name, None)
                else:
                    getattr(merged, name).copy_(source)
            for name, value in zip(per_class, chain(inner, outer), strict=True):
                getattr(merged, name).copy_(value)
        merged.sync_group = self.sync_group
        merged.input_dims, merged.unbatched_dims = self.input_dims, self.unbatched_dims
        return merged.train(self.training)

    def __prepare_scriptable__(self) -> Any:
        """Raise an error: torch.jit.script calls this method of every module."""
        raise SpecError(
            f"TorchScript cannot compile {self.spec}: torch.jit.script does not support the arguments and the Python code of its "
            "forward. Use torch.export.export, torch.compile or torch.jit.trace with an example input, or anynorm.fold(model, "
            "example) first."
        )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        prepare_state_dict(self, state_dict, prefix, local_metadata)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        skipped, tracked = self._buffers.get("num_batches_skipped"), self._buffers.get("num_batches_tracked")
        if skipped is not None and tracked is not None and skipped.is_meta:  # made on the meta device, loaded with assign=True
            self._buffers["num_batches_skipped"] = torch.zeros_like(tracked)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the condition or mask of an enclosing `with` block and without cached forward specs."""
        return {**self.__dict__, "_condition": None, "_mask": None, "_had_mask": False, "_forward_specs": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the state; that of a layer of an earlier version has `eps` itself."""
        super().__setstate__({"_eps": state.get("eps"), **state})  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        """Return the spec, the number of channels and the options."""
        has_momentum = isinstance(self.update_rule, Running | Cumulative)
        rule = f"momentum={self.momentum}" if has_momentum else f"update_rule={self.update_rule}"
        tracked = rule if self.track_running_stats else "track_running_stats=False"
        shown = [repr(self.spec), str(self.num_features), f"eps={self._eps}", *([tracked] if self.pools_samples else [])]
        shown += [] if self.activation is None else [f"activation={self.activation.name!r}"]
        shown += [] if self.single_value == "error" else [f"single_value={self.single_value!r}"]
        shown += [] if self.channel_axis == 1 else [f"channel_axis={self.channel_axis}"]
        return ", ".join(shown)
