"""Which object an anchor or a region belongs to, and which of them are used in a training step."""

from __future__ import annotations

import torch
from torch import Tensor

BACKGROUND, IGNORE = -1, -2


def match(iou: Tensor, *, high: float, low: float, allow_low_quality_matches: bool) -> Tensor:
    """Return the index of the object of each candidate, as (n,).

    Args:
        iou: of candidates and objects, (n, m).
        high: IoU from which a candidate belongs to the object that it overlaps most.
        low: IoU below which it is background; between the two it is ignored.
        allow_low_quality_matches: whether the candidates that overlap an object most belong to the object that they overlap most
            themselves, even if that is little, so that small objects have anchors (Ren et al. 2015, sec. 3.1.2).

    Returns:
        An index, `BACKGROUND` or `IGNORE`.

    >>> match(torch.tensor([[0.8, 0.1], [0.2, 0.4], [0.5, 0.3], [0.1, 0.1]]), high=0.7, low=0.3, allow_low_quality_matches=True)
    tensor([ 0,  1, -2, -1])
    """
    if not iou.shape[1]:
        return torch.full((len(iou),), BACKGROUND, device=iou.device)
    best, index = iou.max(1)
    matched = index.masked_fill(best < high, IGNORE).masked_fill_(best < low, BACKGROUND)
    if allow_low_quality_matches:
        is_best = ((iou == iou.max(0).values) & (iou > 0)).any(1)
        matched = torch.where(is_best, index, matched)
    return matched


def sample(matched: Tensor, count: int, positive_fraction: float) -> tuple[Tensor, Tensor]:
    """Return the indices of randomly chosen candidates: those with an object, and background.

    Args:
        matched: of `match`.
        count: of both together, if there are enough.
        positive_fraction: largest part of the candidates with an object; background takes the rest.
    """
    positive, negative = (matched >= 0).nonzero()[:, 0], (matched == BACKGROUND).nonzero()[:, 0]
    positive = _choose(positive, int(count * positive_fraction))
    return positive, _choose(negative, count - len(positive))


def _choose(indices: Tensor, count: int) -> Tensor:
    """Return `count` of the indices at random, by torch's global generator on the CPU; all of them if there are fewer."""
    if len(indices) <= count:
        return indices
    return indices[torch.randperm(len(indices))[:count].to(indices.device)]
