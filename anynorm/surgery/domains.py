"""Initialization of domain-specific norms: the statistics and affine of one domain are copied to all other domains."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import SurgeryError
from anynorm.layers.norm import Norm
from anynorm.layers.running_stats import STAT_PREFIXES
from anynorm.surgery.find import check_model
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.undo import all_or_nothing
from anynorm.table import pluralize

_AFFINE = ("class_weight", "class_bias")


@torch.no_grad()
def copy_domain(model: nn.Module, source: int = 0) -> SurgeryReport:
    """Copy the statistics and affine of one domain to all other domains in every norm of a model, in place.

    Norms without classes or domains are not changed. Use this function after training on one domain, so that training on the
    other domains starts from its values.

    Args:
        model: a model with norms per class or domain, such as `bn.aux@2` or `gn:8.cc@2`.
        source: index of the domain to copy.

    Returns:
        A report with one row per norm; the column `copied` lists the names of the copied tensors.

    Raises:
        SurgeryError: if no norm has domains, or if `source` is not a domain of every norm with domains. The model is unchanged.

    >>> import anynorm
    >>> print(copy_domain(nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make("bn.aux@2", 8))))
    path  norm      copied
    1     bn.aux@2  class_weight, class_bias, running_mean, running_var, num_batches_tracked
    Domain 0 copied to all other domains in 1 norm.
    """
    check_model(model)
    norms = {path: module for path, module in model.named_modules() if isinstance(module, Norm) and module.norm_spec.num_classes}
    if not norms:
        raise SurgeryError(
            f"No norm of this {type(model).__name__} has domains; nothing was changed. Norms that have: bn.aux@2, gn:8.cc@2, …"
        )
    for path, norm in norms.items():
        if not 0 <= source < norm.norm_spec.num_classes:
            raise SurgeryError(
                f"source must be a domain of every norm; got {source}, and '{path}' ({norm.spec}) has the domains "
                f"0 to {norm.norm_spec.num_classes - 1}. Nothing was changed."
            )
    rows: list[dict[str, Any]] = []
    with all_or_nothing() as undo_log:
        for path, norm in norms.items():
            tensors = domain_tensors(norm)
            for tensor in tensors.values():
                undo_log.undo_steps.append(partial(_assign, tensor, tensor.clone()))
                tensor.copy_(tensor[source].clone().expand_as(tensor))
            rows.append({"path": path, "norm": norm.spec, "copied": list(tensors)})
    finding = f"Domain {source} copied to all other domains in {pluralize(len(norms), 'norm')}."
    return SurgeryReport(rows, finding, model, undo_log.undo)


def domain_tensors(norm: Norm) -> dict[str, Tensor]:
    """Return the parameters and buffers of a norm that have one row per class or domain, by name."""
    affine = {name: norm._parameters[name] for name in _AFFINE}
    stats = {name: buffer for name, buffer in norm._buffers.items() if name.startswith(STAT_PREFIXES)}
    stats.pop("num_batches_skipped", None)
    if not norm.norm_spec.affine.num_domains:  # statistics shared by the classes
        stats = {}
    return {name: tensor for name, tensor in {**affine, **stats}.items() if tensor is not None}


@torch.no_grad()
def _assign(tensor: Tensor, value: Tensor) -> None:
    tensor.copy_(value)
