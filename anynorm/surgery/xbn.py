"""XBNBlock: one norm of each residual block becomes batch-free, so that estimation shift does not pile up over depth (xbn)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anynorm.errors import SurgeryError
from anynorm.surgery.batches import Forward, calibration
from anynorm.surgery.blocks import Block, find_blocks
from anynorm.surgery.convert import replace_norms
from anynorm.surgery.find import NormSite, check_model, find_norms
from anynorm.surgery.report import Report


def xbn(
    model: nn.Module,
    norm: str = "gn:64",
    position: int = 2,
    every: int = 1,
    stem: bool = False,
    *,
    fit: Any = None,
    forward: Forward | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> Report:
    """Replace one norm in each residual block, in place.

    Args:
        norm: the norm put in; its group number is clipped to what divides a layer's channels.
        position: which norm of a block: 1, 2 or 3 (XBNBlock-P1 to P3). In blocks of two, 1 and 2 are the first, 3 is the last.
        every: 2, 4 or 8 takes every second, fourth or eighth block (XBNBlock-D2 to D8).
        stem: the norm before the first block too.
        fit: calibration batches, and `forward`, as in `convert`.
    """
    check_model(model)
    sites = find_norms(model)
    blocks = find_blocks(model, sites)
    if not blocks:
        raise SurgeryError(
            f"This {type(model).__name__} has no residual blocks: nowhere do two ways from a module's input meet again, one of "
            "them through norms. Choose the norms by hand: anynorm.convert(model, spec, where=[…])."
        )
    if not isinstance(every, int) or not 1 <= every <= len(blocks):
        raise SurgeryError(f"every={every!r} takes no block of {len(blocks)}; give a whole number from 1 to {len(blocks)}.")
    chosen: dict[NormSite, str] = {}
    where: dict[str, dict[str, Any]] = {}
    if stem:
        first = _stem(sites, blocks)
        chosen[first], where[first.path] = norm, {"block": "stem"}
    for number, block in enumerate(blocks, start=1):
        if number % every == 0:
            site = _at(block, position)
            chosen[site], where[site.path] = norm, {"block": number, "of": len(block.norms)}
    report = replace_norms(model, chosen, fit=calibration(fit, forward), groups="nearest", optimizer=optimizer, options=options)
    report.rows[:] = [{"path": row["path"], **where[row["path"]], **row} for row in report.rows]
    taken = sum(1 for row in report.rows if row["block"] != "stem")
    report.finding = f"{taken} of {len(blocks)} residual blocks are XBNBlocks (P{position}, D{every}). {report.finding}"
    return report


def _at(block: Block, position: int) -> NormSite:
    count = len(block.norms)
    index = {1: 0, 2: 0, 3: count - 1}.get(position) if count <= 2 else position - 1 if isinstance(position, int) else None
    if index is None or not 0 <= index < count:
        raise SurgeryError(
            f"position={position!r} is not in block '{block.path}', which has {count} norm{'s' if count > 1 else ''} on its main "
            f"branch ({' '.join(site.path for site in block.norms)}). Give 1, 2 or 3."
        )
    return block.norms[index]


def _stem(sites: list[NormSite], blocks: list[Block]) -> NormSite:
    inside = {id(module) for block in blocks for module in block.module.modules()}
    for site in sites:
        if id(site.module) in inside:
            break
        return site
    raise SurgeryError("stem=True finds no norm before the first block.")
