"""The norms of a generator: those of its blocks take classes, the last one does not."""

from __future__ import annotations

from typing import Any

from torch import nn

from anynorm.core.spec import NormSpec
from anynorm.errors import SpecError
from anynorm.lab.training.config import Config
from anynorm.lab.training.norm_layout import Alternating, Layout
from anynorm.layers.norm import Norm


def set_generator_norms(generator: Any, config: Config, num_classes: int, *, shared_embedding: bool) -> None:
    """Replace the norms of a generator's blocks by those of a run, and its last norm by the same without classes.

    Args:
        generator: a generator; all its norms are replaced alike if it has no `blocks` and `output_norm`.
        config: the run.
        num_classes: number of classes of the data.
        shared_embedding: whether the affine of the norms is predicted from an embedding of the class.

    Raises:
        SpecError: if a norm does not have the number of classes of the data, or takes a style without a shared embedding.
    """
    layout = Layout.parse(config.norm, config.batch_size, num_classes)
    for spec in layout.norms:
        _check_spec(spec, config.norm, num_classes, shared_embedding=shared_embedding)
    if isinstance(getattr(generator, "output_norm", None), nn.BatchNorm2d):
        last = nn.ModuleList([generator.output_norm])
        Alternating((layout.norms[-1].with_affine(""),)).apply(last)
        generator.output_norm = last[0]
    layout.apply(getattr(generator, "blocks", generator))
    for module in generator.modules():
        if isinstance(module, Norm):
            module.reset_parameters()  # γ of classes ~ N(1, 0.02); a replaced norm had γ = 1


def _check_spec(spec: NormSpec, norm: str, num_classes: int, *, shared_embedding: bool) -> None:
    if bool(spec.takes_style) != shared_embedding:
        raise SpecError(
            "a norm with a predicted affine (bn.style, bn.sastyle, …) needs shared_embedding=true, and the reverse; "
            f"got {norm} and shared_embedding={str(shared_embedding).lower()}."
        )
    if spec.num_classes and spec.num_classes != num_classes:
        raise SpecError(f"{norm} has {spec.num_classes} classes; the data have {num_classes}. Usable: @{num_classes} or @K.")
