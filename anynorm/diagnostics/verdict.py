"""What a profile of estimation shift means, and what to do about it."""

from __future__ import annotations

import math
from typing import Any

from anynorm.diagnostics.ranks import rank_correlation

NOTHING = 0.25
"""In deviations: a healthy ResNet-20 shows 0.24 on test images that are not cropped as those of training were (docs/guide)."""
MOST = 0.75
"""The part of all shift that one norm must explain to be the one."""


def say(rows: list[dict[str, Any]], samples: int, score: float | None) -> str:
    """Judge the rows of the norms in the order they ran."""
    measured = [row for row in rows if "shift" in row]
    told = f"{len(measured)} norms, {samples} samples"
    worst = max(measured, key=lambda row: row["shift"])
    limit = max(NOTHING, 2 / math.sqrt(samples))
    if worst["shift"] < limit:
        words = f"{told}: no shift above {worst['shift']:.2g} deviations ('{worst['path']}')"
        words += f", and {samples} samples cannot tell less than {limit:.2g}." if limit > NOTHING else "."
        return f"{words} Leave the statistics: a gap between train and eval has another cause (dropout, augmentation, data)."
    return f"{told}: {_blame(measured, worst, limit)}{_scored(measured, score)}"


def _blame(rows: list[dict[str, Any]], worst: dict[str, Any], limit: float) -> str:
    shifted = [row for row in rows if row["shift"] >= limit]
    one = max(rows, key=lambda row: row.get("cures", -math.inf))
    if len(shifted) == 1 or one.get("cures", 0.0) >= MOST:
        culprit = one if one.get("cures", 0.0) >= MOST else worst
        part = f", {100 * culprit['cures']:.0f} % of all shift goes when it alone is put right" if "cures" in culprit else ""
        told = f"one norm is at fault, '{culprit['path']}' (shift {culprit['shift']:.2g}{part})"
        return f"{told}: recalibrate, and look at what feeds it."
    first, last = _thirds(rows)
    if last > 2 * first and rank_correlation(range(len(rows)), [row["shift"] for row in rows]) > 0.5:
        return (
            f"shift grows with depth, from {first:.2g} in the first third to {last:.2g} deviations in the last (worst "
            f"'{worst['path']}', {worst['shift']:.2g}): each norm passes its error on. Recalibrate on data like that of "
            "inference; in the next training, a batch-free norm in every block (xbn) stops it."
        )
    return (
        f"{len(shifted)} norms are shifted by {limit:.2g} deviations or more, without growing with depth (worst "
        f"'{worst['path']}', {worst['shift']:.2g}): recalibrate on data like that of inference."
    )


def _thirds(rows: list[dict[str, Any]]) -> tuple[float, float]:
    part = max(1, len(rows) // 3)
    first, last = ([row["shift"] for row in some] for some in (rows[:part], rows[-part:]))
    return sum(first) / part, sum(last) / part


def _scored(rows: list[dict[str, Any]], score: float | None) -> str:
    if score is None:
        return ""
    best = max(rows, key=lambda row: row["score"])
    return f" Score {score:.4g} as it is, {best['score']:.4g} with '{best['path']}' alone put right."
