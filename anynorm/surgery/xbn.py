"""XBNBlock: a batch-free norm in each residual block, so that estimation shift does not accumulate over depth (xbn)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from anynorm.core.spec import NormSpec
from anynorm.errors import SurgeryError
from anynorm.registry import parse, split_options
from anynorm.surgery.batches import Forward, calibration
from anynorm.surgery.blocks import Block, find_blocks
from anynorm.surgery.find import NormSite, check_model, find_norms
from anynorm.surgery.replace import replace_norms
from anynorm.surgery.report import SurgeryReport
from anynorm.table import pluralize


def xbn(
    model: nn.Module,
    norm: str | NormSpec = "gn:64",
    position: int | Sequence[int] = 2,
    every: int = 1,
    stem: bool = False,
    *,
    fit: Any = None,
    forward: Forward | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> SurgeryReport:
    """Replace one norm, or several, in each residual block, in place.

    Args:
        model: the model.
        norm: spec of the new norm, or a `NormSpec`. If its number of groups does not divide the channels of a layer, the nearest
            number that does is used.
        position: which norm of a block to replace: 1, 2 or 3 (XBNBlock-P1 to P3), or several of them. In blocks of two norms, 1
            and 2 mean the first norm, 3 the last.
        every: 1 for every block; 2, 4 or 8 for every second, fourth or eighth block (XBNBlock-D2 to D8).
        stem: whether to replace the norm before the first block too, as the authors' networks do.
        fit: calibration batches, as in `convert`.
        forward: as in `convert`.
        optimizer: as in `convert`.
        options: options of `anynorm.make`.

    Returns:
        A report with one row per replaced norm.

    Raises:
        SurgeryError: if the model has no residual blocks, or `position` or `every` does not fit them. The model is unchanged.

    >>> import anynorm
    >>> print(xbn(anynorm.lab.CifarResNet(8, norm=nn.BatchNorm2d), "gn:8", every=2))
    path          block  norms_in_block  norm         new_norm  channels  transferred  not_transferred
    layer2.0.bn1  2      2               BatchNorm2d  gn:8      32        γ, β         running statistics
    1 of 3 residual blocks is an XBNBlock (P2, D2). 1 of 1 norm is now gn:8.
    """
    check_model(model)
    sites = find_norms(model)
    blocks = find_blocks(model, sites)
    if not blocks:
        raise SurgeryError(
            f"This {type(model).__name__} has no residual blocks: no module merges two branches from its input, one "
            "of them with more norms. Choose the norms by hand: anynorm.convert(model, spec, where=[…])."
        )
    if not isinstance(every, int) or not 1 <= every <= len(blocks):
        raise SurgeryError(f"every must be an integer from 1 to the number of blocks, {len(blocks)}; got {every!r}.")
    positions = (position,) if isinstance(position, int) else tuple(position)
    if not positions:
        raise SurgeryError("position must be 1, 2 or 3, or several of them; got none.")
    arguments, layer_options = split_options(options)
    norm_spec = norm if isinstance(norm, NormSpec) else parse(norm, **arguments)
    specs: dict[NormSite, NormSpec] = {}
    columns: dict[str, dict[str, Any]] = {}
    if stem:
        first = _stem_norm(sites, blocks)
        specs[first], columns[first.path] = norm_spec, {"block": "stem", "norms_in_block": None}
    for number, block in enumerate(blocks, start=1):
        for site in [_norm_at(block, each) for each in positions] if number % every == 0 else []:
            specs[site], columns[site.path] = norm_spec, {"block": number, "norms_in_block": len(block.norms)}
    report = replace_norms(
        model, specs, fit=calibration(fit, forward), groups="nearest", optimizer=optimizer, options=layer_options
    )
    report.rows[:] = [{"path": row["path"], **columns[row["path"]], **row} for row in report.rows]
    count = len({row["block"] for row in report.rows if row["block"] != "stem" and row["new_norm"]})
    verb = "is an XBNBlock" if count == 1 else "are XBNBlocks"
    kind = ", ".join([*(f"P{each}" for each in positions), f"D{every}"])
    report.finding = f"{count} of {len(blocks)} residual blocks {verb} ({kind}). {report.finding}"
    return report


def _norm_at(block: Block, position: int) -> NormSite:
    count = len(block.norms)
    index = {1: 0, 2: 0, 3: count - 1}.get(position) if count <= 2 else position - 1 if isinstance(position, int) else None
    if index is None or not 0 <= index < count:
        raise SurgeryError(
            f"position must be 1, 2 or 3; got {position!r} for block '{block.path}', which has "
            f"{pluralize(count, 'norm')} on its main branch ({' '.join(site.path for site in block.norms)})."
        )
    return block.norms[index]


def _stem_norm(sites: list[NormSite], blocks: list[Block]) -> NormSite:
    """Return the first norm of the model, if it is not inside a block."""
    inside_blocks = {id(module) for block in blocks for module in block.module.modules()}
    if id(sites[0].module) in inside_blocks:
        raise SurgeryError("stem=True needs a norm before the first residual block; the model has none. Use stem=False.")
    return sites[0]
