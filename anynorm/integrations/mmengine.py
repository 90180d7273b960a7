"""Norms for the configurations of mmengine and mmcv: `norm_cfg=dict(type="SN")` or `dict(type="AnyNorm", spec="gn:8")`."""

from __future__ import annotations

from typing import Any

from anynorm.integrations.optional_imports import import_optional
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY
from anynorm.registry import layer

__all__ = ["register"]

MMCV_NAMES = {"BN", "GN", "IN", "LN"}
"""Names of mmcv's own layers; importing mmcv fails if they are already registered."""


class AnyNorm:
    """The layer of a spec: calling this class returns a `Norm`. It is a class because mmcv registers only classes.

    >>> AnyNorm(8, spec="gn:4")
    GroupNorm('gn:4', 8, eps=1e-05)
    """

    def __new__(cls, num_features: int, spec: str, groups: str = "exact", **options: Any) -> Norm:  # type: ignore[misc]
        """Return the layer; arguments as in `anynorm.layer`."""
        return layer(spec, groups=groups, **options)(num_features)


def register() -> list[str]:
    """Add anynorm's layers to mmengine's registry MODELS; calling it again has no effect.

    "AnyNorm" takes `spec`, `groups` as in `anynorm.layer`, and the options of `anynorm.make`. Each named norm has its name in
    capitals, such as "SN", "HN" and "BGN", and takes the arguments of its class. "BN", "GN", "IN" and "LN" remain mmcv's; use
    `dict(type="AnyNorm", spec="bn")` instead.

    Returns:
        The names of anynorm's layers in the registry.

    Raises:
        MissingPackageError: if mmengine is not installed.
        KeyError: of mmengine, if another package has registered one of the names.
    """
    models = import_optional("mmengine.registry", "mmengine").MODELS
    layers = {"AnyNorm": AnyNorm} | {name.upper(): norm for name, norm in REGISTRY.items() if name.upper() not in MMCV_NAMES}
    for name, norm in layers.items():
        if models.module_dict.get(name) is not norm:
            models.register_module(name=name, module=norm)
    return sorted(layers)
