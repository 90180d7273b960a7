"""Evaluation of a trained network with its norms in three modes: how much of the error comes from running statistics.

    running statistics                eval mode, as the network is deployed
    batch statistics                  statistics of each test batch, with as many samples per batch as in training
    recalibrated                      running statistics re-estimated on training samples (`anynorm.recalibrate`)

A small error with batch statistics and a large error with running statistics, as BatchNorm has with one or two images per device,
means that training succeeded and running statistics are the cause. If recalibration reduces the error, they were a bad estimate;
if not, the network needs the statistics of each batch. Segmentation and video recalibrate with the batch size of training,
detection with large batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from anynorm.diagnostics.batch_statistics import batch_statistics
from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.options import Options, option
from anynorm.surgery.batches import Forward
from anynorm.surgery.recalibrate import has_running_stats, recalibrate

BATCH_STATISTICS, RECALIBRATED = "batch statistics", "recalibrated"


@dataclass(frozen=True)
class NormModeOptions(Options):
    """The options of a task of images that evaluates in several modes of the norms."""

    norm_modes: bool = option(
        False,
        "whether the last evaluation is repeated with batch statistics, and with recalibrated running statistics; see "
        "`anynorm.lab.training.norm_modes`.",
    )
    recalibration_images: int = option(
        64, "number of training images on which running statistics are recalibrated with `norm_modes`.", minimum=1
    )


def evaluate_norm_modes(
    network: nn.Module,
    evaluate: Callable[[], Evaluation],
    batches: Iterable[Any],
    forward: Forward | None = None,
) -> Evaluation:
    """Return the metrics of a network with batch statistics, and with recalibrated running statistics.

    Args:
        network: the network, in eval mode; it is not changed.
        evaluate: returns its metrics, on test batches of as many samples as a training batch.
        batches: training samples on which running statistics are estimated.
        forward: function of model and batch that calls the network; None to call it with the batch or its first entry.

    Returns:
        The metrics "NAME, batch statistics" and "NAME, recalibrated"; none for a network without running statistics.
    """
    if not has_running_stats(network):
        return Evaluation()
    with batch_statistics(network):
        result = evaluate().with_suffix(f", {BATCH_STATISTICS}")
    with preserve_buffers(network):
        recalibrate(network, batches, forward=forward)
        return result | evaluate().with_suffix(f", {RECALIBRATED}")
