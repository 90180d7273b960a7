"""Episodes of few-shot learning: W classes (ways), K images of each to learn from (shots), Q to classify (queries).

Episodes depend only on a seed and the labels, so all norms and all runs are evaluated on the same episodes. Episodes with
different numbers of shots have the same classes and queries; the images of fewer shots are the first of those of more.

    imprint       argmax of cos(f, w_c), w_c the imprinted weights of `anynorm.lab.models.imprinting`                   (Qi et
    al. 2018)
    prototypes    argmin of ‖f − m_c‖, m_c the mean feature of the shots of a class                        (Snell et al. 2017)

The 95 % confidence interval of the mean accuracy of E episodes is ± 1.96 sd/√E. It is the uncertainty of the
measurement for one network; networks trained with different seeds can differ by more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anynorm.errors import DataError
from anynorm.lab.models.imprinting import class_weights

Z_95 = 1.96
"""Quantile of the normal distribution for an interval of 95 %."""
Score = Callable[[Tensor, Tensor], Tensor]
"""Maps features of shots (W, K, c) and of queries (n, c) to scores (n, W); the class with the largest one is predicted."""


class Episodes(NamedTuple):
    """Indices of images of E episodes.

    Attributes:
        support: (E, W, K), the images to learn from.
        query: (E, W, Q), the images to classify; the class of an image is its position on the second axis.
    """

    support: Tensor
    query: Tensor

    def part(self, rank: int, count: int) -> Episodes:
        """Return every `count`-th episode, from `rank` on."""
        return Episodes(self.support[rank::count], self.query[rank::count])


def draw_episodes(
    labels: Tensor,
    num_episodes: int,
    *,
    num_ways: int,
    num_shots: int,
    num_queries: int,
    groups: Tensor | None = None,
    seed: int = 0,
) -> Episodes:
    """Draw episodes without replacement within an episode.

    Args:
        labels: the class of each image, (n,), from 0.
        num_episodes: E.
        num_ways: W, the number of classes per episode.
        num_shots: K, the number of images per class to learn from.
        num_queries: Q, the number of images per class to classify.
        groups: the group of each class, such as its alphabet. The classes of an episode are then of one group, and all groups of
            at least W classes are drawn with equal probability. None for any classes.
        seed: seed of the episodes.

    Raises:
        DataError: if there are fewer classes, or fewer images of a class, than an episode needs.
    """
    for name, value, least in (
        ("num_episodes", num_episodes, 2),
        ("num_ways", num_ways, 2),
        ("num_shots", num_shots, 1),
        ("num_queries", num_queries, 1),
    ):
        if value < least:
            raise DataError(f"{name} must be at least {least}; got {value}.")
    members = [torch.nonzero(labels == label).flatten() for label in range(int(labels.max()) + 1)]
    needed = num_shots + num_queries
    _check_samples(members, num_shots, num_queries)
    pools = _class_pools(len(members), groups, num_ways)
    generator = torch.Generator().manual_seed(seed)
    episodes = []
    for _ in range(num_episodes):
        pool = pools[int(torch.randint(len(pools), (), generator=generator))]
        classes = pool[torch.randperm(len(pool), generator=generator)[:num_ways]].tolist()
        images = [members[label][torch.randperm(len(members[label]), generator=generator)[:needed]] for label in classes]
        episodes.append(torch.stack(images))
    drawn = torch.stack(episodes)
    return Episodes(drawn[..., num_queries:], drawn[..., :num_queries])  # queries do not depend on the number of shots


def _check_samples(members: list[Tensor], num_shots: int, num_queries: int) -> None:
    smallest = min(range(len(members)), key=lambda label: len(members[label]))
    if len(members[smallest]) < num_shots + num_queries:
        raise DataError(
            f"an episode needs {num_shots} + {num_queries} images per class (shots + num_queries); novel class {smallest} has "
            f"{len(members[smallest])}. Use fewer queries or shots."
        )


def _class_pools(num_classes: int, groups: Tensor | None, num_ways: int) -> list[Tensor]:
    """Return the sets of classes from which the classes of an episode are drawn."""
    if groups is None:
        pools = [torch.arange(num_classes)]
    else:
        pools = [torch.nonzero(groups == group).flatten() for group in sorted(set(groups.tolist()))]
    large = [pool for pool in pools if len(pool) >= num_ways]
    if not large:
        where = "" if groups is None else " of one group (alphabet)"
        largest = max(len(pool) for pool in pools)
        raise DataError(f"an episode needs {num_ways} novel classes{where} (num_ways); got {largest}. Use fewer ways.")
    return large


def imprint_scores(shots: Tensor, queries: Tensor) -> Tensor:
    """Return the cosines of queries (n, c) with the imprinted weights of each class of shots (W, K, c)."""
    num_ways, num_shots, _ = shots.shape
    labels = torch.arange(num_ways).repeat_interleave(num_shots)
    return nn.functional.normalize(queries, dim=-1) @ class_weights(shots.flatten(0, 1), labels, num_ways).T


def prototype_scores(shots: Tensor, queries: Tensor) -> Tensor:
    """Return the negative distances of queries (n, c) to the mean of each class of shots (W, K, c)."""
    return -torch.cdist(queries, shots.mean(1))


def episode_accuracy(score: Score, shots: Tensor, queries: Tensor) -> float:
    """Return the accuracy of an episode in percent.

    Args:
        score: `imprint_scores` or `prototype_scores`.
        shots: features (W, K, c).
        queries: features (W, Q, c).
    """
    truth = torch.arange(len(queries), device=queries.device).repeat_interleave(queries.shape[1])
    return 100 * float((score(shots, queries.flatten(0, 1)).argmax(1) == truth).float().mean())


def confidence_interval(accuracies: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of the mean over episodes: 1.96 sd/√E.

    >>> round(confidence_interval([60.0, 70.0, 80.0, 70.0]), 2)
    8.0
    """
    return Z_95 * statistics.stdev(accuracies) / math.sqrt(len(accuracies))
