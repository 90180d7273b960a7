"""Matching of anchors or regions to objects, and sampling of them for the losses."""

from __future__ import annotations

import torch
from torch import Tensor

BACKGROUND, IGNORE = -1, -2


def match(iou: Tensor, *, high: float, low: float, allow_low_quality_matches: bool) -> Tensor:
    """Match candidates (anchors or regions) to objects.

    Args:
        iou: IoU of candidates and objects, (n, m).
        high: minimum IoU for which a candidate is matched to the object that it overlaps most.
        low: IoU below which it is background; between the two it is ignored.
        allow_low_quality_matches: whether the candidates with the largest IoU for an object are positive even if it is below
            `high`, so that small objects have anchors (Ren et al. 2015, sec. 3.1.2); each is matched to the object that it
            overlaps most.

    Returns:
        For each candidate, the index of its object, `BACKGROUND` or `IGNORE`, (n,).

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
    """Return the indices of randomly sampled candidates: positive ones, and background.

    Args:
        matched: the result of `match`.
        count: total number of samples, if there are enough.
        positive_fraction: maximum fraction of positive samples; the others are background.
    """
    positive, negative = (matched >= 0).nonzero()[:, 0], (matched == BACKGROUND).nonzero()[:, 0]
    positive = _choose(positive, int(count * positive_fraction))
    return positive, _choose(negative, count - len(positive))


def _choose(indices: Tensor, count: int) -> Tensor:
    """Return `count` of the indices at random, by torch's global generator on the CPU; all of them if there are fewer."""
    if len(indices) <= count:
        return indices
    return indices[torch.randperm(len(indices))[:count].to(indices.device)]
