"""Callbacks of the Trainer of Hugging Face transformers, for models with norms that have running statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from anynorm.integrations.evaluation import recalibrate_from, shift_metrics_from
from anynorm.integrations.loaders import to_device
from anynorm.integrations.optional_imports import base_class, check_base
from anynorm.surgery.batches import Forward
from anynorm.surgery.morph import Morph
from anynorm.surgery.recalibrate import has_running_stats

if TYPE_CHECKING:
    TrainerCallback = object
else:
    TrainerCallback = base_class("TrainerCallback", "transformers")

__all__ = ["EstimationShiftCallback", "MorphCallback", "RecalibrationCallback"]


def call_with_keywords(model: nn.Module, batch: Any) -> Any:
    """Call a model of transformers with a batch {name: tensor}, on the device of the model.

    >>> call_with_keywords(nn.Linear(2, 3), {"input": __import__("torch").zeros(4, 2)}).shape
    torch.Size([4, 3])
    """
    return model(**to_device(batch, next(model.parameters()).device))


class RecalibrationCallback(TrainerCallback):
    """Re-estimate the running statistics from training batches before each evaluation of `Trainer.train`.

    See `anynorm.integrations.lightning.Recalibration` for when this is useful. The new statistics are kept; modes, random numbers
    and the position in the training data are restored. Models without running statistics, such as most transformers, are not
    changed. `Trainer.evaluate` outside of training has no event before it: call `anynorm.recalibrate` yourself.

    Args:
        batches: number of training batches to use, or fewer if the loader has fewer; None for all.
        loader: batches to use instead of the training data.
        forward: `forward(model, batch)`; default: `model(**batch)`.
        estimator: "pooled" or "averaged", as in `anynorm.recalibrate`.

    Raises:
        MissingPackageError: if transformers is not installed.
    """

    def __init__(
        self,
        batches: int | None = 32,
        *,
        loader: Iterable[Any] | None = None,
        forward: Forward | None = None,
        estimator: str = "pooled",
    ) -> None:
        check_base(TrainerCallback, "transformers")
        self.batches = batches
        self.loader = loader
        self.forward = forward or call_with_keywords
        self.estimator = estimator

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Recalibrate if an evaluation follows."""
        model = kwargs["model"]
        if control.should_evaluate and has_running_stats(model):
            loader = kwargs["train_dataloader"] if self.loader is None else self.loader
            recalibrate_from(loader, model, self.batches, forward=self.forward, estimator=self.estimator)

    on_epoch_end = on_step_end


class EstimationShiftCallback(TrainerCallback):
    """Log the estimation shift of every norm with running statistics after each evaluation, measured on evaluation batches.

    Logs `eval_estimation_shift/max` and `eval_estimation_shift/PATH` for each norm through `Trainer.log`.

    Args:
        trainer: the Trainer; add the callback to it with `trainer.add_callback`.
        batches: number of evaluation batches to use, or fewer if the loader has fewer; None for all.
        loader: batches to use instead of the evaluation data.
        forward: `forward(model, batch)`; default: `model(**batch)`.

    Raises:
        MissingPackageError: if transformers is not installed.
    """

    def __init__(
        self,
        trainer: Any,
        batches: int | None = 8,
        *,
        loader: Iterable[Any] | None = None,
        forward: Forward | None = None,
    ) -> None:
        check_base(TrainerCallback, "transformers")
        self.trainer = trainer
        self.batches = batches
        self.loader = loader
        self.forward = forward or call_with_keywords

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure and log."""
        model = kwargs["model"]
        if has_running_stats(model):
            loader = kwargs["eval_dataloader"] if self.loader is None else self.loader
            prefix = "eval_estimation_shift"
            self.trainer.log(shift_metrics_from(loader, model, self.batches, forward=self.forward, prefix=prefix))


class MorphCallback(TrainerCallback):
    """Take a step of `anynorm.morph` after each optimizer step of `Trainer.train`.

    Call `morph` before the Trainer is made, also to resume from a checkpoint: checkpoints of training contain the morphing
    layers. If t = 1 at the end of training, they are replaced by the new layers; otherwise, call `report.finish()`.

    Args:
        report: the report of `anynorm.morph(model, spec, steps=…)`, without an optimizer.

    Raises:
        MissingPackageError: if transformers is not installed.
    """

    def __init__(self, report: Morph) -> None:
        check_base(TrainerCallback, "transformers")
        report.check_steps_are_free()
        self.report = report

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take a step."""
        if not self.report.is_finished:
            self.report.advance_to(self.report.num_steps + 1)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Replace the layers, if t = 1."""
        if self.report.t == 1:
            self.report.finish()
