"""Callbacks of Lightning, from the package lightning or pytorch_lightning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from anynorm.integrations.evaluation import recalibrate_from, shift_metrics_from
from anynorm.integrations.optional_imports import base_class, check_base
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.morph import Morph
from anynorm.surgery.recalibrate import has_running_stats

if TYPE_CHECKING:
    Callback = object
else:
    Callback = base_class("Callback", "lightning.pytorch", "pytorch_lightning")

__all__ = ["EstimationShiftMonitor", "Morphing", "Recalibration"]


class _NormCallback(Callback):
    """A callback that runs batches through the module before each validation epoch of `fit`."""

    def __init__(self, batches: int | None, loader: Iterable[Any] | None, forward: Forward | None) -> None:
        check_base(Callback, "lightning")
        super().__init__()
        self.batches = batches
        self.loader = loader
        self.forward = forward or call

    def _is_due(self, trainer: Any, pl_module: nn.Module) -> bool:
        return trainer.state.fn == "fit" and not trainer.sanity_checking and has_running_stats(pl_module)

    def _forward_of(self, trainer: Any) -> Forward:
        """Return the forward function with the device, the transfer hooks and the precision of the trainer."""

        def forward(pl_module: nn.Module, batch: Any) -> Any:
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
            with trainer.precision_plugin.forward_context():
                return self.forward(pl_module, batch)

        return forward


class Recalibration(_NormCallback):
    """Re-estimate the running statistics from training batches before each validation epoch.

    Useful if the running statistics were collected with other weights (averaged weights such as EMA and SWA; list this callback
    after `WeightAveraging`, which exchanges the weights at the same point), if they lag behind because of a large learning rate
    or a small momentum, or if they are noisy because of small batches. Otherwise the running statistics of training are as good,
    and cost nothing. Each validation costs `batches` forward passes without gradient.

    The new statistics are kept: checkpoints contain the validated statistics, and training continues to update them. Modes,
    random numbers and the position in the training data are restored. With several processes, statistics are pooled over all of
    them. Modules without running statistics are not changed, and `trainer.validate` does not recalibrate.

    Args:
        batches: number of training batches to use, or fewer if the loader has fewer; None for all.
        loader: batches to use instead of the trainer's training data; required if that is a collection of loaders.
        forward: `forward(pl_module, batch)`; default: `pl_module(x)` for a batch (x, …), see `anynorm.surgery.batches`.
        estimator: "pooled" or "averaged", as in `anynorm.recalibrate`.

    Raises:
        MissingPackageError: if Lightning is not installed.
    """

    def __init__(
        self,
        batches: int | None = 32,
        *,
        loader: Iterable[Any] | None = None,
        forward: Forward | None = None,
        estimator: str = "pooled",
    ) -> None:
        super().__init__(batches, loader, forward)
        self.estimator = estimator

    def on_validation_epoch_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Recalibrate."""
        if self._is_due(trainer, pl_module):
            loader = trainer.train_dataloader if self.loader is None else self.loader
            recalibrate_from(loader, pl_module, self.batches, forward=self._forward_of(trainer), estimator=self.estimator)


class EstimationShiftMonitor(_NormCallback):
    """Log the estimation shift of every norm with running statistics, once per validation epoch, measured on validation batches.

    Logs `estimation_shift/max` and `estimation_shift/PATH` for each norm, which other callbacks can monitor. List it after
    `Recalibration` to measure the recalibrated statistics. With several processes, the mean of their values is logged.

    Args:
        batches: number of validation batches to use, or fewer if the loader has fewer; None for all.
        loader: batches to use instead of the trainer's validation data; required if that is a collection of loaders.
        forward: as for `Recalibration`.

    Raises:
        MissingPackageError: if Lightning is not installed.
    """

    def __init__(self, batches: int | None = 8, *, loader: Iterable[Any] | None = None, forward: Forward | None = None) -> None:
        super().__init__(batches, loader, forward)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Measure and log."""
        if self._is_due(trainer, pl_module):
            loader = trainer.val_dataloaders if self.loader is None else self.loader
            forward = self._forward_of(trainer)
            metrics = shift_metrics_from(loader, pl_module, self.batches, forward=forward, prefix="estimation_shift")
            pl_module.log_dict(metrics, sync_dist=True)


class Morphing(Callback):
    """Take a step of `anynorm.morph` after each training batch with an optimizer step.

    Call `morph` before `trainer.fit`, also to resume from a checkpoint: checkpoints of training contain the morphing layers. If
    t = 1 at the end of `fit`, they are replaced by the new layers; otherwise, call `report.finish()`.

    Args:
        report: the report of `anynorm.morph(module, spec, steps=…)`, without an optimizer.

    Raises:
        MissingPackageError: if Lightning is not installed.
    """

    def __init__(self, report: Morph) -> None:
        check_base(Callback, "lightning")
        super().__init__()
        report.check_steps_are_free()
        self.report = report
        self._last_step = 0

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Remember the number of steps, which is not 0 after a checkpoint was loaded."""
        self._last_step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take a step, unless the batch only accumulated gradients."""
        if trainer.global_step > self._last_step and not self.report.is_finished:
            self.report.advance_to(self.report.num_steps + 1)
        self._last_step = trainer.global_step

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Replace the layers, if t = 1."""
        if self.report.t == 1:
            self.report.finish()
