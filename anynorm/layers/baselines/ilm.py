"""Instance-level meta normalization (Jia et al. 2019; in sabn sec. 5.2): predicts the affine of each sample from its statistics.

Channels are divided into key groups of about 16 channels. An encoder E, applied to the means and to the variances of the key
groups, and two decoders D predict one scale and one shift per sample and key group:

    γ_n = γ + sigmoid(D_γ relu(E var_n))        β_n = β + tanh(D_β relu(E mean_n))        y_n = γ_n x̂_n + β_n

x̂ is the output of IN or GN. With a style s (a baseline of sabn sec. 5.2), the predictions are added to the moments of the style.
Neither paper specifies how ILM+IN uses the style; this form is ours. The decoders are initialized to 0, so it is AdaIN at first:

    γ_n = σ(s) + sigmoid(D_γ relu(E var_n)) − 1/2        β_n = μ(s) + tanh(D_β relu(E mean_n))

The number of channels is arbitrary: key groups may differ in size by one channel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.moments import Moments, pool_samples
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.norm import CustomNorm
from anynorm.layers.registered import GroupedNorm, RegisteredNorm
from anynorm.norms import IN, GroupNorm, same_cut

CHANNELS_PER_KEY_GROUP = 16
KEY_GROUPS_PER_HIDDEN_UNIT = 16


class MetaNorm(CustomNorm, RegisteredNorm):
    """Base class of norms with a scale and shift that are predicted from the statistics of each sample."""

    encoder: nn.Parameter
    scale_decoder: nn.Parameter
    shift_decoder: nn.Parameter

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        num_keys, options = max(1, self.num_features // CHANNELS_PER_KEY_GROUP), {"device": device, "dtype": dtype}
        hidden_size = max(2, num_keys // KEY_GROUPS_PER_HIDDEN_UNIT)
        self.encoder = nn.Parameter(torch.empty(hidden_size, num_keys, **options))
        self.scale_decoder = nn.Parameter(torch.empty(num_keys, hidden_size, **options))
        self.shift_decoder = nn.Parameter(torch.empty(num_keys, hidden_size, **options))

    def reset_parameters(self) -> None:
        """Reset all parameters; the encoder and the decoders are initialized as nn.Linear."""
        super().reset_parameters()
        for weight in (self.encoder, self.scale_decoder, self.shift_decoder):
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

    def _compute_output(self, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
        gamma, beta = self.predict(kernels.moments(x, 1))
        gamma = gamma + (1.0 if params.weight is None else params.weight.to(gamma.dtype))
        beta = beta + (0.0 if params.bias is None else params.bias.to(beta.dtype))
        with_style = self._derived_spec(spec, norm_spec=spec.norm_spec.with_affine("style"))
        return kernels.normalize(with_style, x, Params(style_mean=beta, style_std=gamma), buffers)

    def key_groups(self, device: torch.device) -> Tensor:
        """Return the index of the key group of each channel, (c,)."""
        return torch.arange(self.num_features, device=device) * self.encoder.shape[1] // self.num_features

    def predict(self, rows: Moments) -> tuple[Tensor, Tensor]:
        """Predict scale and shift, each (n, c), from the moments (n, c, 1) of the samples."""
        groups = self.key_groups(rows.mean.device)
        by_channel = Moments(*(table.expand_as(rows.mean).transpose(0, 1) for table in rows))
        keys = pool_samples(by_channel, groups, self.encoder.shape[1])
        dtype = keys.mean.dtype
        encoder, scale, shift = (weight.to(dtype).T for weight in (self.encoder, self.scale_decoder, self.shift_decoder))
        gamma = ((keys.var[..., 0].T @ encoder).relu() @ scale).sigmoid()
        beta = ((keys.mean[..., 0].T @ encoder).relu() @ shift).tanh()
        return gamma.index_select(1, groups), beta.index_select(1, groups)


class MetaInstanceNorm(MetaNorm):
    """Instance-Level Meta Normalization of IN: an affine predicted from the statistics of each sample.

        γ[n] = γ + sigmoid(D relu(E var[n, keys]))
        β[n] = β + tanh(D′ relu(E mean[n, keys]))
        y = γ[n] (x − mean)/√(var + ε) + β[n]

    For its arguments, see `RegisteredNorm`.
    """

    name, paper = "ilmin", "Jia et al. 2019, in sabn sec. 5.2"
    use = "A baseline of style transfer."
    define = staticmethod(lambda: same_cut(IN))


class MetaGroupNorm(MetaNorm, GroupedNorm):
    """Instance-Level Meta Normalization of GN: an affine predicted from the statistics of each sample.

        γ[n] = γ + sigmoid(D relu(E var[n, keys]))
        β[n] = β + tanh(D′ relu(E mean[n, keys]))
        y = γ[n] (x − mean)/√(var + ε) + β[n]

    For its arguments, see `GroupedNorm`.
    """

    name, paper, example = "ilmgn", "Jia et al. 2019, in sabn sec. 5.2", "ilmgn:32"
    use = "As gn, if the affine should depend on the sample."
    arguments = {"num_groups": 32}
    define = staticmethod(lambda num_groups: GroupNorm.named_spec({"num_groups": num_groups}))


class MetaAdaIN(MetaNorm):
    """Instance-Level Meta Normalization of AdaIN: predictions are added to the moments of the style.

        γ[n] = σ(s) + sigmoid(D relu(E var[n, keys])) − 1/2
        β[n] = μ(s) + tanh(D′ relu(E mean[n, keys]))
        y = γ[n] (x − mean)/√(var + ε) + β[n]

    For its arguments, see `RegisteredNorm`.
    """

    name, paper = "ilmadain", "for the ILM+IN of sabn sec. 5.2, which does not specify it"
    use = "A baseline of style transfer with any style."
    define = staticmethod(lambda: same_cut(IN).with_affine("style"))

    def reset_parameters(self) -> None:
        """Reset all parameters; the decoders are initialized to 0, so that the layer is AdaIN at first."""
        super().reset_parameters()
        nn.init.zeros_(self.scale_decoder)
        nn.init.zeros_(self.shift_decoder)

    def _compute_output(self, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
        scale, shift = self.predict(kernels.moments(x, 1))
        style: Any = params  # the moments of the style are not None: the condition was checked
        changed = params._replace(style_mean=style.style_mean + shift, style_std=style.style_std + (scale - 0.5))
        return kernels.normalize(spec, x, changed, buffers)
