"""Context managers for the modes of modules, train or eval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def preserve_modes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restore the mode of each module at the end of a `with` block."""
    modes = {module: module.training for module in modules}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Run a model in eval mode inside a `with` block, without gradients and without compiled code, which would skip hooks.

    >>> model = nn.Dropout()
    >>> with eval_mode(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    with preserve_modes(model.modules()), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        model.eval()
        yield
