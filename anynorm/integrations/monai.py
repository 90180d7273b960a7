"""Norms for MONAI networks, which create them by name: `norm=("anynorm", {"spec": "gn:8"})`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anynorm.integrations.optional_imports import import_optional
from anynorm.layers.norm import Norm
from anynorm.registry import layer

__all__ = ["register"]

NAME = "anynorm"


def register() -> None:
    """Add the name "anynorm" to MONAI's normalization layers; calling it again has no effect.

    The arguments of `norm=("anynorm", {…})` are `spec`, `groups` as in `anynorm.layer`, and the options of `anynorm.make`. The
    layers take inputs of any number of spatial dimensions.

    Raises:
        MissingPackageError: if MONAI is not installed.
    """
    factories = import_optional("monai.networks.layers.factories", "monai")
    if NAME.upper() not in factories.Norm.names:
        factories.Norm.add_factory_callable(NAME, _norm_type, "Norm of anynorm, by its spec.")


def _norm_type(_spatial_dims: int | None = None) -> Callable[..., Norm]:
    """Return the layer factory, which is the same for all numbers of spatial dimensions."""
    return _make_norm


def _make_norm(num_features: int, spec: str, groups: str = "exact", **options: Any) -> Norm:
    return layer(spec, groups=groups, **options)(num_features)
