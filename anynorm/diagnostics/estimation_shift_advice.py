"""The finding of an estimation shift report: the cause of the shift, and a recommendation in the last sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from anynorm.table import pluralize

MIN_SHIFT = 0.3
"""Shifts below this value are normal: a well-trained ResNet-20 has 0.23 on test images, which are not cropped like the training
images (docs/guide/diagnose.md)."""

MIN_NORMS_FOR_TREND = 6
"""Minimum number of norms for a trend over depth; with fewer norms, it cannot be distinguished from chance."""


def advise(rows: list[dict[str, Any]], num_samples: int, score: float | None) -> str:
    """Return the finding of an estimation shift report.

    Args:
        rows: the rows of the report, in the order of execution of the norms.
        num_samples: number of samples on which the shift was measured.
        score: score of the model before any correction, or None.
    """
    measured = [row for row in rows if "shift" in row]
    worst = max(measured, key=lambda row: row["shift"])
    threshold = max(MIN_SHIFT, 2 / math.sqrt(num_samples))  # 2 / √n: sampling error of a mean, in standard deviations
    size = f"{pluralize(len(measured), 'norm')}, {num_samples} samples"
    largest = f"the largest shift is {worst['shift']:.2g} ('{worst['path']}')"
    if worst["shift"] < threshold and threshold > MIN_SHIFT:
        return f"{size}: {largest}, and {num_samples} samples cannot resolve a shift below {threshold:.2g}. Use more data."
    if worst["shift"] < threshold:
        return (
            f"{size}: the running statistics fit; {largest}, below the threshold of {threshold:.2g}. No action needed: a gap "
            "between train and eval mode has another cause (dropout, augmentation, data)."
        )
    cause, action = _cause_and_action(measured, threshold)
    num_frozen = sum(row["shift"] >= threshold and "frozen" in row.get("note", "") for row in measured)
    if num_frozen:
        action = f"Unfreeze the {pluralize(num_frozen, 'frozen norm')} first. {action}"
    return f"{size}: {cause}.{_score_sentence(measured, score)} {action}"


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Return a sentence, after a space, about batches that did not change running statistics; "" without any.

    Args:
        skipped: number of skipped batches by the path of the norm, in the order of the norms.
    """
    if not skipped:
        return ""
    path = next(iter(skipped))
    return (
        f" In training, {pluralize(len(skipped), 'norm')} skipped batches whose statistics were infinite or NaN; the first of "
        f"them, '{path}', {pluralize(skipped[path], 'batch', 'batches')}: such values came from before it, by an overflow of "
        "mixed precision or from the data."
    )


def _cause_and_action(rows: list[dict[str, Any]], threshold: float) -> tuple[str, str]:
    shifted = [row for row in rows if row["shift"] >= threshold]
    worst = max(shifted, key=lambda row: row["shift"])
    sufficient = [row for row in rows if row.get("max_remaining", math.inf) < threshold]
    if len(shifted) == 1 or sufficient:
        norm = max(sufficient, key=lambda row: row["shift_removed"]) if sufficient else worst
        removed = (
            f"; correcting it alone removes {100 * norm['shift_removed']:.0f} % of all shift" if "shift_removed" in norm else ""
        )
        return (
            f"one norm is at fault, '{norm['path']}' (shift {norm['shift']:.2g}{removed})",
            "Recalibrate on data like that of inference, and check the layer that feeds this norm.",
        )
    third = max(1, len(rows) // 3)
    first, last = (sum(row["shift"] for row in third_of_rows) / third for third_of_rows in (rows[:third], rows[-third:]))
    if len(rows) >= MIN_NORMS_FOR_TREND and last > 2 * first and _depth_correlation(rows) > 0.5:
        return (
            f"shift grows with depth, from {first:.2g} in the first third to {last:.2g} in the last (worst '{worst['path']}', "
            f"{worst['shift']:.2g}): each norm passes its error on",
            "Recalibrate on data like that of inference; for the next training, put a batch-free norm into every block "
            "(anynorm.xbn).",
        )
    return (
        f"{len(shifted)} norms have a shift of {threshold:.2g} or more, without a trend over depth (worst '{worst['path']}', "
        f"{worst['shift']:.2g})",
        "Recalibrate on data like that of inference.",
    )


def _depth_correlation(rows: list[dict[str, Any]]) -> float:
    """Return Spearman's rank correlation of the shift and the position of a norm: Pearson's correlation of the two ranks."""
    shifts = torch.tensor([row["shift"] for row in rows], dtype=torch.float64)
    smaller = (shifts[:, None] > shifts).double().sum(1)
    ranks = smaller + ((shifts[:, None] == shifts).double().sum(1) - 1) / 2  # equal shifts share the mean of their ranks
    return float(torch.corrcoef(torch.stack([torch.arange(len(rows)), ranks]))[0, 1])


def _score_sentence(rows: list[dict[str, Any]], score: float | None) -> str:
    if score is None:
        return ""
    best = max(rows, key=lambda row: row.get("score", -math.inf))
    return f" Score {score:.4g} as it is, {best['score']:.4g} with '{best['path']}' alone corrected."
