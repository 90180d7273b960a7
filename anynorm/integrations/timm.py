"""Norms with an activation for networks of timm.

timm's EfficientNet, MobileNet, RegNet, ResNetV2 and other families construct one module per norm and activation:
`norm_act_layer(num_features, apply_act=…, act_layer=…, inplace=…, drop_layer=…)`. Families that construct norms alone, such as
ResNet, take `anynorm.layer(spec)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from anynorm.integrations.optional_imports import import_optional
from anynorm.layers.norm import Norm
from anynorm.registry import layer
from anynorm.surgery.new_norm import set_post_modules

__all__ = ["norm_act_layer"]


def norm_act_layer(spec: str, *, groups: str = "exact", **options: Any) -> Callable[..., Norm]:
    """Return the `norm_layer=` of timm's networks whose norms include the activation.

    timm chooses the activation of each layer. The layers have the state_dict keys of timm's BatchNormAct2d, so that pretrained
    weights can be loaded into a network with "bn".

    Args:
        spec: as in `anynorm.make`.
        groups: "exact" or "nearest", as in `anynorm.layer`.
        options: options of `anynorm.make`.

    Raises:
        MissingPackageError: if timm is not installed.
        SpecError: if groups is neither of the two. Other arguments are checked when a layer is made.
    """
    factory: Any = layer(spec, groups=groups, **options)
    # timm passes act_layer only to classes and functions of this set
    import_optional("timm.layers.create_norm_act", "timm")._NORM_ACT_REQUIRES_ARG.add(_make_norm_act)
    return partial(_make_norm_act, **factory.keywords)


def _make_norm_act(
    num_features: int,
    *,
    apply_act: bool = True,
    act_layer: Any = nn.ReLU,
    act_kwargs: dict[str, Any] | None = None,
    inplace: bool = True,
    drop_layer: Callable[[], nn.Module] | None = None,
    **options: Any,
) -> Norm:
    """Make a layer with the arguments and the children (drop, act) of timm's BatchNormAct2d."""
    create_act_layer = import_optional("timm.layers", "timm").create_act_layer
    factory: Any = layer(options.pop("spec"), groups=options.pop("groups"))
    norm: Norm = factory(num_features, **options)
    act = create_act_layer(act_layer, **{"inplace": inplace, **(act_kwargs or {})}) if apply_act else None
    drop = drop_layer() if drop_layer is not None else nn.Identity()
    set_post_modules(norm, {"drop": drop, "act": nn.Identity() if act is None else act})
    return norm
