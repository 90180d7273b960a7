"""Batch Kalman normalization (Wang et al. 2018, arXiv 1802.03133; in sn sec. 4.1): statistics estimated along a chain of layers.

The estimate of layer k combines a prediction from the estimate of layer k−1 with the batch statistics m, S (mean and covariance
matrix over samples and positions), with a gain q in (0, 1] and p = 1 − q:

    μ⁻ = A μ[k−1]        Σ⁻ = A Σ[k−1] Aᵀ                                prediction; A: learned transition matrix, (c[k], c[k−1])
    μ  = p μ⁻ + q m      Σ  = p Σ⁻ + q S + p q (m − μ⁻)(m − μ⁻)ᵀ         estimate: moments of a mixture with the weights p and q
    y  = γ (x − μ)/√(diag Σ + ε) + β

The first layer of a chain has no prediction and is BN; so is a layer that is not in a chain. Inference uses running averages of μ
and diag Σ. Gradients flow through the predictions to earlier layers.

Sources. From the authors' code (github.com/wanggrun): the equations of the estimate, BN in the first layer, and the use of batch
statistics only, if the predicted variances are on average at least 100 times those of the batch. It has q = 0.95 for batches of
128 samples and q = 0.1 for batches of 2. From sn Table 1: a learned C × C matrix A, and covariance matrices. The equations of the
prediction are those of a Kalman filter; we could not compare them with the text of the paper. The authors' code has no A: it
draws normal random numbers with the moments μ, diag Σ and passes them through the ReLU and the convolution between two norms,
which depend on the network. Not specified in these sources: the initial value of A (here, channel i is predicted from channel i
of the previous layer, or from the nearest one if the numbers of channels differ), the covariance of the prediction noise (here
0), and the order of layers in networks with branches (here, the order of the modules).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.affine import inverse_std
from anynorm.core.moments import Moments, pool_samples
from anynorm.errors import SpecError
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.norm import CustomNorm, Norm
from anynorm.layers.registered import RegisteredNorm, RegisteredOptions
from anynorm.norms import BN, same_cut

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_RATIO = 100.0
"""Average ratio of predicted to batch variances; from this ratio on, the prediction is not used."""


class Estimate(NamedTuple):
    """An estimate of the mean (c,) and the covariance matrix (c, c) of the input of a layer."""

    mean: Tensor
    cov: Tensor


class BatchKalmanNorm(CustomNorm, RegisteredNorm):
    """Batch Kalman Normalization: BN whose statistics are combined with a prediction from those of the previous norm.

        μ⁻, Σ⁻ = A μ[previous], A Σ[previous] Aᵀ
        μ = p μ⁻ + q μ[bn]
        Σ = p Σ⁻ + q Σ[bn] + p q (μ[bn] − μ⁻)(μ[bn] − μ⁻)ᵀ
        y = γ (x − μ)/√(diag Σ + ε) + β

    `anynorm.convert` connects the layers that it inserts, in the order of the modules; use `connect` for any other order. A layer
    that is not connected is BN. Every layer of a chain must run exactly once per forward pass, after the previous layer. For all
    other arguments, see `RegisteredNorm`.

    Args:
        gain: weight q of the batch statistics, in (0, 1].

    Attributes:
        transition: transition matrix A; None for a layer without a previous layer.
    """

    name, paper = "bkn", "Wang et al. 2018, in sn sec. 4.1"
    use = "A baseline for small batches. The docstring of its module lists the parts that the sources do not specify."
    define = staticmethod(lambda: same_cut(BN))
    hyperparameters = {"gain": 0.95}
    transition: nn.Parameter | None

    def __init__(self, num_features: int, *, gain: float = 0.95, **options: Unpack[RegisteredOptions]) -> None:
        if isinstance(gain, bool) or not isinstance(gain, int | float) or not 0 < gain <= 1:
            raise SpecError(f"gain of bkn must be in (0, 1]; got {gain!r}. It is the weight of the batch statistics.")
        super().__init__(num_features, **options)
        self.gain = float(gain)
        self._previous: tuple[BatchKalmanNorm, ...] = ()  # in a tuple, so that it is not registered as a child module
        self._has_next = False
        self._estimate: Estimate | None = None

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        self.register_parameter("transition", None)

    def reset_parameters(self) -> None:
        """Reset all parameters; A initially predicts each channel from the channel at the same place in the previous layer."""
        super().reset_parameters()
        self._reset_transition()

    @torch.no_grad()
    def _reset_transition(self) -> None:
        if self.transition is not None:
            rows, columns = self.transition.shape
            places = torch.arange(rows, device=self.transition.device)
            self.transition.zero_()[places, places * columns // rows] = 1

    @classmethod
    def connect(cls, norms: Sequence[Norm]) -> None:
        """Connect layers to a chain; each layer except the first gets a transition matrix.

        Args:
            norms: the layers, in the order in which they run in a forward pass.

        Raises:
            SpecError: if a layer is of another class or occurs twice.

        >>> import anynorm
        >>> layers = [anynorm.make("bkn", 8), anynorm.make("bkn", 16)]
        >>> BatchKalmanNorm.connect(layers)
        >>> layers[1].transition.shape
        torch.Size([16, 8])
        """
        layers = [norm for norm in norms if isinstance(norm, cls)]
        if len(layers) < len(norms) or len({id(layer) for layer in layers}) < len(layers):
            raise SpecError(f"a chain must be made of different layers of bkn; got {' '.join(norm.spec for norm in norms)}.")
        for k, layer in enumerate(layers):
            layer._set_previous(layers[k - 1] if k else None)
            layer._has_next = k < len(layers) - 1

    @property
    def is_connected(self) -> bool:  # type: ignore[override]
        """Whether the layer is part of a chain of several layers."""
        return bool(self._previous) or self._has_next

    def _set_previous(self, previous: BatchKalmanNorm | None) -> None:
        self._previous, self.transition = (), None
        if previous is not None:
            like = next((tensor for tensor in (self.weight, self.running_mean) if tensor is not None), torch.empty(()))
            self._previous, self.transition = (previous,), nn.Parameter(like.new_empty(self.num_features, previous.num_features))
            self._reset_transition()

    def _compute_output(self, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
        if not spec.uses_batch[0] or not self.is_connected:
            return super()._compute_output(spec, x, params, buffers)
        if spec.sync_group.is_synchronized:
            raise SpecError("connected layers of bkn cannot be synchronized: their covariance matrices are those of one process.")
        values = kernels.at_least_float32(x)
        batch = pool_samples(kernels.moments(values, 1))
        with torch.autocast(x.device.type if torch.amp.is_autocast_available(x.device.type) else "cpu", enabled=False):
            estimate = measure(values, batch)
            if self._previous:
                estimate = combine(self._predict(values.dtype), estimate, self.gain)
        self._estimate = estimate if self._has_next else None
        if not self._previous:
            return super()._compute_output(spec, x, params, buffers)
        mean, var = estimate.mean, estimate.cov.diagonal()
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        y = (values - mean.reshape(shape)) * inverse_std(var, spec.eps).reshape(shape)
        if params.weight is not None and params.bias is not None:
            y = y * params.weight.to(y.dtype).reshape(shape) + params.bias.to(y.dtype).reshape(shape)
        mean, var = (table.to(batch.mean.dtype).reshape(1, -1, 1) for table in (mean, var))
        moments = Moments(mean, var, batch.count)
        return y.to(x.dtype), BatchStats([moments], moments, batch.count[:, :1].detach())

    def _predict(self, dtype: torch.dtype) -> Estimate:
        """Return the prediction from the estimate of the previous layer; the estimate is then deleted."""
        (previous,) = self._previous
        assert self.transition is not None  # every layer with a previous layer has a transition matrix
        if previous.uses_batch:
            estimate, previous._estimate = previous._estimate, None
        else:  # a frozen layer
            mean, var = previous.running_stats(0)
            estimate = None if mean is None or var is None else Estimate(mean, var.diag())
        if estimate is None:
            raise SpecError(
                "bkn must run once per forward pass, after the previous layer of its chain; that layer has no statistics of this "
                "pass. Layers that run twice, parts of a network and activation checkpointing are not supported. "
                "BatchKalmanNorm.connect(layers) makes another chain; a chain of one layer is BN."
            )
        mean, cov, transition = estimate.mean.to(dtype), estimate.cov.to(dtype), self.transition.to(dtype)
        return Estimate(transition @ mean, transition @ cov @ transition.T)

    def extra_repr(self) -> str:
        """Return the spec, the number of channels, the options and the gain."""
        return f"{super().extra_repr()}, gain={self.gain:g}"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the estimate of the current forward pass."""
        return {**super().__getstate__(), "_estimate": None}


def measure(x: Tensor, moments: Moments) -> Estimate:
    """Return the mean and the covariance matrix of the channels of x (n, c, …) over samples and positions."""
    mean = moments.mean.flatten().to(x.dtype)
    centered = x.transpose(0, 1).flatten(1) - mean[:, None]
    return Estimate(mean, centered @ centered.T / centered.shape[1])


def combine(predicted: Estimate, measured: Estimate, gain: float) -> Estimate:
    """Return the moments of the mixture of a prediction and a measurement, with the weights 1 − gain and gain.

    If the predicted variances are on average at least `MAX_RATIO` times the measured ones, return the measurement.
    """
    difference = measured.mean - predicted.mean
    weight = 1 - gain
    mean = weight * predicted.mean + gain * measured.mean
    cov = weight * predicted.cov + gain * measured.cov + weight * gain * torch.outer(difference, difference)
    ratio = (predicted.cov.diagonal() / measured.cov.diagonal().clamp(min=torch.finfo(mean.dtype).tiny)).mean()
    is_usable = ratio.detach() < MAX_RATIO
    return Estimate(torch.where(is_usable, mean, measured.mean), torch.where(is_usable, cov, measured.cov))
