"""Instance-level meta normalization (Jia et al. 2019; in sabn sec. 5.2): the affine is predicted from the statistics.

Channels are cut into key groups of some 16; the moments of each are the keys of a sample. An encoder of few numbers, shared by
both, and two decoders turn them into one scale and one shift a key group:

    γ_n = γ + sigmoid(D_γ relu(E var_n))        β_n = β + tanh(D_β relu(E mean_n))        y_n = γ_n x̂_n + β_n

x̂ is IN's or GN's. Any channel count will do: key groups may differ by a channel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.moments import Moments, pool_samples
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.registered import RegisteredNorm
from anynorm.layers.state import CustomNorm

KEY_SIZE = 16
"""Channels of a key group, about; and key groups for each number of the code."""


class MetaNorm(CustomNorm, RegisteredNorm):
    """Predicts a scale and a shift of each sample from its statistics."""

    encoder: nn.Parameter
    scale_decoder: nn.Parameter
    shift_decoder: nn.Parameter
    formula = (
        "γ[n] = γ + sigmoid(D relu(E var[n, keys]))",
        "β[n] = β + tanh(D′ relu(E mean[n, keys]))",
        "y = γ[n] (x − mean)/√(var + ε) + β[n]",
    )

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        keys, like = max(1, self.num_features // KEY_SIZE), {"device": device, "dtype": dtype}
        code = max(2, keys // KEY_SIZE)
        self.encoder = nn.Parameter(torch.empty(code, keys, **like))
        self.scale_decoder = nn.Parameter(torch.empty(keys, code, **like))
        self.shift_decoder = nn.Parameter(torch.empty(keys, code, **like))

    def reset_parameters(self) -> None:
        """Start over, encoder and decoders as torch starts linear layers."""
        super().reset_parameters()
        for weight in (self.encoder, self.scale_decoder, self.shift_decoder):
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

    def _pass(self, task: ForwardSpec, x: Tensor, owned: Params, given: Buffers) -> tuple[Tensor, BatchStats]:
        gamma, beta = self.predict(kernels.moments(x, 1))
        one, zero = gamma.new_ones(()), gamma.new_zeros(())
        gamma = gamma + (one if owned.weight is None else owned.weight.to(gamma.dtype))
        beta = beta + (zero if owned.bias is None else owned.bias.to(beta.dtype))
        styled = self._varied(task, norm_spec=task.norm_spec.with_affine("style"))
        return kernels.normalize(styled, x, Params(style_mean=beta, style_std=gamma), given)

    def keys(self, device: torch.device) -> Tensor:
        """Give the key group of each channel."""
        return torch.arange(self.num_features, device=device) * self.encoder.shape[1] // self.num_features

    def predict(self, rows: Moments) -> tuple[Tensor, Tensor]:
        """Give a scale and a shift of each sample and channel, (n, c), from its moments (n, c, 1)."""
        key_of = self.keys(rows.mean.device)
        by_channel = Moments(*(table.expand_as(rows.mean).transpose(0, 1) for table in rows))
        keys = pool_samples(by_channel, key_of, self.encoder.shape[1])
        dtype = keys.mean.dtype
        encode, scale, shift = (weight.to(dtype).T for weight in (self.encoder, self.scale_decoder, self.shift_decoder))
        gamma = ((keys.var[..., 0].T @ encode).relu() @ scale).sigmoid()
        beta = ((keys.mean[..., 0].T @ encode).relu() @ shift).tanh()
        return gamma.index_select(1, key_of), beta.index_select(1, key_of)


class MetaInstanceNorm(MetaNorm):
    """IN with an affine predicted from each sample's statistics (ILM+IN)."""

    name, alias_of, paper = "ilmin", "in", "Jia et al. 2019, in sabn sec. 5.2"


class MetaGroupNorm(MetaNorm):
    """GN with an affine predicted from each sample's statistics (ILM+GN)."""

    name, alias_of, paper = "ilmgn", "gn:{num_groups}", "Jia et al. 2019, in sabn sec. 5.2"
    arguments = {"num_groups": 32}
    example = "ilmgn:32"
