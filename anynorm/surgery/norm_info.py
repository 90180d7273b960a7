"""The description of a norm layer: its spec, its tensors and its settings, whatever library it is from."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from anynorm.core.cuts import Cut
from anynorm.core.spec import NormSpec
from anynorm.core.update_rules import UpdateRule
from anynorm.errors import SurgeryError
from anynorm.kernels.sync import NoSync, SyncGroup


class UnsupportedNormError(SurgeryError):
    """Raised for a norm that no spec describes; the message is the reason."""


@dataclass(frozen=True)
class NormInfo:
    """Description of one norm layer.

    Attributes:
        norm_spec: the parsed spec.
        channels: number of channels.
        eps: value added to the variance.
        momentum: as in torch; None for a cumulative average.
        update_rule: update rule of the running statistics, where `momentum` does not say it.
        track_running_stats: as in torch.
        sync_group: processes that share statistics.
        tensors: parameters and counters under the names that anynorm layers use.
        running_stats: running mean and variance of each cut.
        post_modules: children that the layer applies to its normalized output, by name.
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
    post_modules: dict[str, nn.Module] = field(default_factory=dict)

    @property
    def spec(self) -> str:
        """The spec as text."""
        return str(self.norm_spec)

    @property
    def pools_samples(self) -> bool:
        """Whether a statistic of the norm is taken over several samples."""
        return any(cut.pools_samples for cut in self.norm_spec.resolve(self.channels).distinct)
