"""What a profile of estimation shift means, and what to do about it."""

from __future__ import annotations

import math
from typing import Any

from anynorm.diagnostics.ranks import rank_correlation

NOTHING = 0.3
"""A healthy ResNet-20 shows 0.23 on test images that are not cropped as those of training were (docs/guide/diagnose.md)."""

FEW = 6
"""Of fewer norms nobody can tell whether something grows with depth."""


def say(rows: list[dict[str, Any]], samples: int, score: float | None) -> str:
    """Judge the rows of the norms in the order they ran."""
    measured = [row for row in rows if "shift" in row]
    told = f"{len(measured)} norm{'s' if len(measured) > 1 else ''}, {samples} samples"
    worst = max(measured, key=lambda row: row["shift"])
    limit = max(NOTHING, 2 / math.sqrt(samples))
    if worst["shift"] < limit and limit > NOTHING:
        return (
            f"{told}: the largest shift is {worst['shift']:.2g} ('{worst['path']}'), and {samples} samples cannot tell less than "
            f"{limit:.2g}. Give more data."
        )
    if worst["shift"] < limit:
        words = f"{told}: no shift above {worst['shift']:.2g} ('{worst['path']}')."
        return f"{words} Leave the statistics: a gap between train and eval has another cause (dropout, augmentation, data)."
    shifted = [row for row in measured if row["shift"] >= limit]
    frozen = [row for row in shifted if "frozen" in row.get("note", "")]
    thaw = f" {len(frozen)} of them are frozen: unfreeze them first." if frozen else ""
    return f"{told}: {_blame(measured, shifted, limit)}{thaw}{_scored(measured, score)}"


def _blame(rows: list[dict[str, Any]], shifted: list[dict[str, Any]], limit: float) -> str:
    worst = max(rows, key=lambda row: row["shift"])
    healing = [row for row in rows if row.get("left", math.inf) < limit]
    if len(shifted) == 1 or healing:
        one = max(healing, key=lambda row: row["cures"]) if healing else worst
        part = f", {100 * one['cures']:.0f} % of all shift goes when it alone is put right" if "cures" in one else ""
        return f"one norm is at fault, '{one['path']}' (shift {one['shift']:.2g}{part}): recalibrate, and look at what feeds it."
    first, last = _thirds(rows)
    if len(rows) >= FEW and last > 2 * first and rank_correlation(range(len(rows)), [row["shift"] for row in rows]) > 0.5:
        return (
            f"shift grows with depth, from {first:.2g} in the first third to {last:.2g} in the last (worst '{worst['path']}', "
            f"{worst['shift']:.2g}): each norm passes its error on. Recalibrate on data like that of inference; in the next "
            "training, a batch-free norm in every block (xbn) stops it."
        )
    return (
        f"{len(shifted)} norms are shifted by {limit:.2g} or more, without growing with depth (worst '{worst['path']}', "
        f"{worst['shift']:.2g}): recalibrate on data like that of inference."
    )


def _thirds(rows: list[dict[str, Any]]) -> tuple[float, float]:
    part = max(1, len(rows) // 3)
    first, last = ([row["shift"] for row in some] for some in (rows[:part], rows[-part:]))
    return sum(first) / part, sum(last) / part


def _scored(rows: list[dict[str, Any]], score: float | None) -> str:
    if score is None:
        return ""
    best = max(rows, key=lambda row: row.get("score", -math.inf))
    return f" Score {score:.4g} as it is, {best['score']:.4g} with '{best['path']}' alone put right."
