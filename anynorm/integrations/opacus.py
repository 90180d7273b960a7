"""Differentially private training with Opacus, which clips the gradient of each sample.

A norm that pools over samples makes the output of one sample depend on others, and running statistics are computed from samples
without noise: both break the privacy guarantee. Norms whose statistics come from each sample alone (gn, ln, in, pn, and mixtures
of them) are allowed, unless they take a condition. Opacus computes their gradients per sample with `torch.func.vmap`; no grad
sampler is needed.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from anynorm.integrations.optional_imports import import_optional
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY
from anynorm.surgery.convert import convert

__all__ = ["register"]


def register() -> None:
    """Add validators and fixers of anynorm's layers to Opacus; calling it again has no effect.

    `ModuleValidator.validate` then reports every trainable norm that pools over samples, and `ModuleValidator.fix` replaces it by
    `gn` with γ and β of the old norm and the number of groups nearest to `num_groups=` (default: 32) that divides the channels.
    Opacus checks only modules with trainable parameters, so a norm without affine is not checked.

    Raises:
        MissingPackageError: if Opacus is not installed.
    """
    utils = import_optional("opacus.validators.utils", "opacus")
    classes = [Norm, *REGISTRY.values()]
    utils.register_module_validator(classes)(_validate)
    utils.register_module_fixer(classes)(_fix)


def _validate(norm: Norm) -> list[Exception]:
    """Return the errors of a layer, as Opacus's validators do."""
    errors = import_optional("opacus.validators.errors", "opacus")
    if not norm.pools_samples and norm.takes_condition:
        return [
            errors.ShouldReplaceModuleError(
                f"{norm.spec} takes a condition, and Opacus computes the gradient of a sample from its input alone. Use a norm "
                'without one: anynorm.convert(model, "gn:32", groups="nearest"), or ln or in.'
            )
        ]
    if not norm.pools_samples:
        return []
    return [
        errors.ShouldReplaceModuleError(
            f"{norm.spec} pools over samples: its statistics make the output of one sample depend on the others of the batch, so "
            "the gradient of a sample cannot be computed or clipped alone. Use a norm whose statistics come from each sample: "
            'anynorm.convert(model, "gn:32", groups="nearest"), or ln or in.'
        )
    ]


def _fix(norm: Norm, *, num_groups: int = 32, **_: Any) -> nn.Module:
    """Return a layer that Opacus accepts."""
    if not norm.pools_samples and not norm.takes_condition:
        return norm
    model = nn.Sequential(norm)
    convert(model, f"gn:{num_groups}", "all", groups="nearest")
    return model[0]
