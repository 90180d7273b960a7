"""Normalization by batch statistics at test time, "prediction-time batch normalization" (Nado et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.kernels.sync import NoSync
from anynorm.layers.norm import Norm
from anynorm.surgery.find import NormSite, find_norms
from anynorm.surgery.modes import preserve_modes


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Normalize by batch statistics inside a `with` block; running statistics and modes are restored on exit.

    Only norms are switched to train mode, so dropout stays off in a model in eval mode. Frozen norms still use their running
    statistics. Statistics are not synchronized between processes, because processes may have different numbers of batches. The
    prediction for a sample depends on the other samples of its batch, so batches should be large and contain all classes.

    >>> import torch
    >>> model = nn.BatchNorm1d(2).eval()
    >>> with batch_statistics(model):
    ...     y = model(5 + torch.randn(64, 2))
    >>> bool(y.mean().abs() < 1e-5), model.training, model.running_mean
    (True, False, tensor([0., 0.]))
    """
    sites = find_norms(model)
    modules = [module for site in sites for module in _own_modules(site)]
    norms = [site.module for site in sites if isinstance(site.module, Norm)]
    settings = {norm: (norm.sync_group, norm.schedule_enabled) for norm in norms}
    try:
        with preserve_modes(modules), preserve_buffers(model):
            for module in modules:
                module.training = True
            for norm in norms:
                norm.sync_group, norm.schedule_enabled = NoSync(), False
            yield
    finally:
        for norm, (group, enabled) in settings.items():
            norm.sync_group, norm.schedule_enabled = group, enabled


def _own_modules(site: NormSite) -> list[nn.Module]:
    """Return a norm and its submodules, except the modules that it applies to its output, such as dropout."""
    after = {child for module in ({} if site.unsupported else site.info.post_modules).values() for child in module.modules()}
    return [module for module in site.module.modules() if module not in after]
