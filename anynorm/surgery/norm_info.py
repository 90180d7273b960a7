"""The spec, tensors and settings of a norm layer of any library."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from anynorm.core.activation import Activation
from anynorm.core.cuts import Cut
from anynorm.core.spec import NormSpec
from anynorm.core.update_rules import UpdateRule
from anynorm.errors import SurgeryError
from anynorm.kernels.sync import NoSync, SyncGroup


class UnsupportedNormError(SurgeryError):
    """Raised for a norm that cannot be described by a spec; the message is the reason."""


@dataclass(frozen=True)
class NormInfo:
    """Spec, tensors and settings of one norm layer.

    Attributes:
        norm_spec: the parsed spec.
        channels: number of channels.
        eps: value added to the variance.
        momentum: as in torch; None for a cumulative average.
        update_rule: update rule of the running statistics; None for the rule given by `momentum`.
        track_running_stats: as in torch.
        sync_group: the processes whose statistics are synchronized.
        tensors: parameters and counters by their names in anynorm layers: weight and bias (c,), class_weight and class_bias
            (K, c), num_batches_tracked.
        running_stats: running mean and variance of each cut.
        activation: activation that the layer applies to its normalized output, before its post modules; None without one.
        single_value: what to do with a training batch with a single value per statistic; see `anynorm.make`.
        channel_axis: axis of the channels in the input.
        post_modules: child modules that the layer applies to its output, by name.
        input_dims: numbers of dimensions of the inputs that the layer takes; empty if it takes any.
        unbatched_dims: number of dimensions of an input without the axis of the samples; 0 if the layer takes none.
    """

    norm_spec: NormSpec
    channels: int
    eps: float
    momentum: float | None = 0.1
    update_rule: UpdateRule | None = None
    track_running_stats: bool = False
    sync_group: SyncGroup = field(default_factory=NoSync)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    running_stats: dict[Cut, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    activation: Activation | None = None
    single_value: str = "error"
    channel_axis: int = 1
    post_modules: dict[str, nn.Module] = field(default_factory=dict)
    input_dims: tuple[int, ...] = ()
    unbatched_dims: int = 0

    @property
    def spec(self) -> str:
        """The spec as a string."""
        return str(self.norm_spec)

    def with_class_affine(self, weight: Tensor, bias: Tensor) -> NormInfo:
        """Return a copy with an affine per class added; for readers of class-conditional layers.

        Args:
            weight: γ of each class, (K, c).
            bias: β of each class, (K, c).

        Raises:
            UnsupportedNormError: if weight and bias do not have one row per class and one column per channel.
        """
        for table in (weight, bias):
            if table.shape != weight.shape or table.dim() != 2 or table.shape[1] != self.channels:
                raise UnsupportedNormError(
                    f"weight and bias must have shape (number of classes, {self.channels}); got {tuple(table.shape)}"
                )
        shared = "weight" in self.tensors
        return replace(
            self,
            norm_spec=self.norm_spec.with_affine("sa" if shared else "cc", len(weight)),
            tensors=self.tensors | {"class_weight": weight, "class_bias": bias},
        )

    @property
    def pools_samples(self) -> bool:
        """Whether any statistic of the norm is computed over several samples."""
        return any(cut.pools_samples for cut in self.norm_spec.resolve(self.channels).distinct)
