"""Distillation of a converted network: it is trained on unlabeled samples to return what its original returns.

First the stages (residual blocks), one after the other: the inputs of a stage are those that it has in the converted network, its
targets the outputs of the same stage in the original. So a stage also learns to undo what is left of the errors before it. Then
all parameters together, on the outputs of the original. Both networks are in eval mode: the converted network is trained as it is
in inference, and its running statistics stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anynorm.errors import SurgeryError
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.distill_checkpoint import Checkpoint, fingerprint
from anynorm.surgery.distill_data import Augment, read_samples, shift_and_flip
from anynorm.surgery.distill_run import Distillation
from anynorm.surgery.distill_stages import check_models, find_stages
from anynorm.surgery.distill_training import Budget
from anynorm.surgery.modes import preserve_modes
from anynorm.surgery.report import SurgeryReport

DEFAULT_STEPS = 1000


def distill(
    model: nn.Module,
    original: nn.Module,
    data: Any,
    *,
    stages: Sequence[str] | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    stage_share: float = 0.3,
    batch_size: int = 32,
    lr: float = 1e-3,
    augment: Augment | None = shift_and_flip,
    forward: Forward | None = None,
    checkpoint: str | Path | None = None,
    seed: int = 0,
) -> SurgeryReport:
    """Train a converted network, in place, to return what its original returns; labels are not needed.

    Args:
        model: the converted network, best with `convert(model, spec, fit=…)`. Its parameters with `requires_grad` are trained.
        original: a copy of the network before the conversion.
        data: samples: batches as those of `recalibrate`, or a tensor. Labels are not used. All samples are kept in memory; a
            tenth of them, 256 at most, is held out to choose the best state.
        stages: paths of the modules that are trained one after the other; None for the residual blocks, as in `xbn`; [] for
            none.
        steps: the budget in steps of end-to-end training; a step of all stages counts as one. By default 1000.
        minutes: the budget in minutes, instead of steps. The result then depends on the speed of the machine.
        stage_share: the part of the budget for the stages; the rest is for the end-to-end phase.
        batch_size: samples per step.
        lr: the highest learning rate of Adam, 0.2 of it in an end-to-end phase after stages; half a cosine after a warm-up.
        augment: function of the inputs of a minibatch and a `torch.Generator`. By default, images are shifted and flipped; None
            for no augmentation.
        forward: a function `forward(model, batch)` that calls a model, if the call in `anynorm.surgery.batches` does not suit it.
        checkpoint: file that is written after each stage and ten times in the end-to-end phase. If it exists, the run resumes
            from it, with the result of a run that was not interrupted if the budget is in steps.
        seed: seed of the held-out part, the minibatches and the augmentation.

    Returns:
        A report with one row per stage and one for the end-to-end phase: number of parameters and steps, and the error on the
        held-out samples before and after. 0 is the output of the original, 1 a constant; see `anynorm.surgery.distill_training`.

    Raises:
        SurgeryError: if the arguments do not fit, the original returns NaN, or the training diverges. After an error or an
            interrupt the model is as before; the checkpoint has the last finished stage or evaluation.

    >>> import copy
    >>> import anynorm
    >>> _ = torch.manual_seed(0)
    >>> original = anynorm.lab.CifarResNet(8, norm=nn.BatchNorm2d, width=8)
    >>> model, images = copy.deepcopy(original), torch.randn(64, 3, 16, 16)
    >>> _ = anynorm.convert(model, "ln", fit=images)
    >>> report = distill(model, original, images, steps=20)
    >>> [row["path"] for row in report]
    ['layer1.0', 'layer2.0', 'layer3.0', 'end to end']
    """
    budget = _budget(steps, minutes)
    _check_settings(stage_share, batch_size, lr)
    check_models(model, original)
    found = find_stages(model, original, stages)
    samples = read_samples(data, batch_size, augment, torch.Generator().manual_seed(seed))
    settings = {
        "steps": budget.steps,
        "minutes": minutes,
        "stage_share": stage_share,
        "batch_size": batch_size,
        "lr": lr,
        "seed": seed,
        "stages": [stage.path for stage in found],
        "augment": getattr(augment, "__qualname__", str(type(augment))),
    }
    run = Distillation(model, original, found, samples, forward or call, budget, stage_share if found else 0.0, lr, seed)
    undo = _snapshot(model)
    try:
        with _inference(model, original):
            file = Checkpoint(checkpoint, fingerprint(model, original, samples.batch, settings) if checkpoint else {})
            rows, finding = run.run(file)
    except BaseException:
        undo()
        raise
    return SurgeryReport(rows, finding, model, undo)


def _budget(steps: int | None, minutes: float | None) -> Budget:
    if steps is not None and minutes is not None:
        raise SurgeryError(f"the budget is either steps= or minutes=; got steps={steps!r} and minutes={minutes!r}.")
    if minutes is not None:
        if not (isinstance(minutes, int | float) and minutes > 0):
            raise SurgeryError(f"minutes must be positive; got {minutes!r}. The model is unchanged.")
        return Budget(None, 60.0 * minutes)
    steps = DEFAULT_STEPS if steps is None else steps
    if not isinstance(steps, int) or steps < 1:
        raise SurgeryError(f"steps must be an integer of at least 1; got {steps!r}. The model is unchanged.")
    return Budget(steps, None)


def _check_settings(stage_share: float, batch_size: int, lr: float) -> None:
    if not 0 <= stage_share <= 1:
        raise SurgeryError(f"stage_share must be in [0, 1]; got {stage_share!r}.")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise SurgeryError(f"batch_size must be an integer of at least 1; got {batch_size!r}.")
    if not lr > 0:
        raise SurgeryError(f"lr must be positive; got {lr!r}.")


def _snapshot(model: nn.Module) -> Any:
    """Return a function that restores all parameters and buffers of a model, and their gradients, as they are now."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    copies = {name: (tensor, tensor.detach().clone()) for name, tensor in tensors}
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]

    def restore() -> None:
        now = dict([*model.named_parameters(), *model.named_buffers()])
        replaced = [name for name, (_, old) in copies.items() if name not in now or now[name].shape != old.shape]
        if replaced:
            raise SurgeryError(f"'{replaced[0]}' has been replaced since: undo the later operation first.")
        with torch.no_grad():
            for name, (_, old) in copies.items():
                now[name].copy_(old)
        for parameter, gradient in gradients:
            parameter.grad = gradient

    return restore


@contextmanager
def _inference(model: nn.Module, original: nn.Module) -> Iterator[None]:
    """Set both models to eval mode, without compiled code, which would skip hooks; keep the gradients of the parameters."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    modules = [*model.modules(), *original.modules()]
    with preserve_modes(modules), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        model.eval()
        original.eval()
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
