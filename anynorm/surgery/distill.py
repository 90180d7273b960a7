"""Distillation of a converted network: it is trained on unlabeled samples to return what its original returns.

First the stages (residual blocks), one after the other: the inputs of a stage are those that it has in the converted network, its
targets the outputs of the same stage in the original. So a stage also learns to undo what is left of the errors before it. Then
all parameters together, on the outputs of the original. Both networks are in eval mode: the converted network is trained as it is
in inference, and its running statistics stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import SurgeryError
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.distill_activations import Activations, check_finite, check_single_calls, inputs_of, output_of
from anynorm.surgery.distill_checkpoint import Checkpoint, fingerprint
from anynorm.surgery.distill_data import Augment, Samples, read_samples, shift_and_flip, tensors_of
from anynorm.surgery.distill_stages import Stage, check_models, check_sample_count, find_stages
from anynorm.surgery.distill_training import Budget, Optimization, relative_error
from anynorm.surgery.find import find_norms
from anynorm.surgery.modes import preserve_modes
from anynorm.surgery.recalibrate import recalibrate
from anynorm.surgery.report import SurgeryReport
from anynorm.table import pluralize

DEFAULT_STEPS = 1000
END = "end to end"
END_LR = 0.2  # of the learning rate, for the end-to-end phase after stages, whose parameters are trained already


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
    run = _Distillation(model, original, found, samples, forward or call, budget, stage_share if found else 0.0, lr, seed)
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


@dataclass
class _Distillation:
    """One run; see `distill`."""

    model: nn.Module
    original: nn.Module
    stages: list[Stage]
    samples: Samples
    forward: Forward
    budget: Budget
    stage_share: float
    lr: float
    seed: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    batches: list[tuple[Tensor, list[Any]]] = field(default_factory=list)
    activations: tuple[Activations | None, ...] = (None, None)  # of the last stage that was trained

    def run(self, file: Checkpoint) -> tuple[list[dict[str, Any]], str]:
        """Run all phases that the checkpoint does not have, and return the rows and the finding of the report."""
        state = file.read() or {}
        if state:
            self.model.load_state_dict(state["model"])
            self.rows = state["rows"]
        else:
            self._check_outputs()
            self._set_missing_statistics()
        for index in range(len(self.rows), len(self.stages)):
            self._train_stage(index)
            file.write(self._state(None))
        self.batches, self.activations = [], (None, None)
        if len(self.rows) == len(self.stages):
            self._train_end(state.get("end"), lambda end: file.write(self._state(end)))
            file.write(self._state(None))
        return self.rows, self._finding()

    def _state(self, end: dict[str, Any] | None) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "rows": self.rows, "end": end}

    def _check_outputs(self) -> None:
        """Check the outputs of both models on the held-out samples, and how often they call the stages."""
        first = self.samples.parts(self.samples.held_out)[0]
        for model, modules in (
            (self.model, {stage.path: stage.module for stage in self.stages}),
            (self.original, {stage.path: stage.original for stage in self.stages}),
        ):
            check_single_calls(model, modules, lambda each: self.forward(each, first))
        with torch.no_grad():
            targets = self.forward(self.original, first)
            check_finite(targets, "its output")
            relative_error(self.forward(self.model, first), targets)
        for stage in self.stages:
            output = output_of(self.original, stage.original, lambda each: self.forward(each, first))
            check_finite(output, f"the output of block '{stage.path}'")
            num_held_out = min(len(self.samples.held_out), self.samples.batch_size)
            values = sum(tensor.numel() for tensor in tensors_of(output)) // num_held_out
            check_sample_count(stage, max(values, 1), len(self.samples.train))

    def _set_missing_statistics(self) -> None:
        """Estimate the running statistics of norms that have none yet, such as a bn that was a gn before."""
        counters = [getattr(site.module, "num_batches_tracked", None) for site in find_norms(self.model)]
        if any(isinstance(counter, Tensor) and not counter.any() for counter in counters):
            recalibrate(self.model, self.samples.parts(self.samples.train), forward=self.forward)

    def _stage_budget(self) -> Budget:
        part = self.stage_share / len(self.stages)
        if self.budget.seconds is not None:
            return Budget(None, self.budget.seconds * part)
        return Budget(round((self.budget.steps or 0) * self.stage_share), None)

    def _activations(self, index: int, indices: Tensor, batches: list[Any], before: Activations | None) -> Activations:
        """Return the activations of a stage, from those of the stage before if its output is the input of this one."""
        stage = self.stages[index]
        activations = None
        if before is not None:
            run = self._call(batches[0])
            calls = inputs_of(self.model, stage.module, run), inputs_of(self.original, stage.original, run)
            previous = self.stages[index - 1]
            activations = before.next((previous.module, previous.original), stage.original, calls)
        if activations is None:
            activations = Activations([], [], [len(part) for part in torch.split(indices, self.samples.batch_size)])
            for batch in batches:
                activations.inputs.append(inputs_of(self.model, stage.module, self._call(batch)))
                activations.targets.append(output_of(self.original, stage.original, self._call(batch)))
        for target in activations.targets:
            check_finite(target, f"the output of block '{stage.path}'")
        return activations

    def _batches(self) -> list[tuple[Tensor, list[Any]]]:
        """Return the indices and batches of the training part, augmented once for all stages, and of the held-out part."""
        if not self.batches:
            generator = torch.Generator().manual_seed(self.seed)
            train = [self.samples.augmented(part, generator) for part in self.samples.parts(self.samples.train)]
            self.batches = [
                (self.samples.train, train),
                (self.samples.held_out, self.samples.parts(self.samples.held_out)),
            ]
        return self.batches

    def _call(self, batch: Any) -> Any:
        return lambda model: self.forward(model, batch)

    def _train_stage(self, index: int) -> None:
        stage, budget = self.stages[index], self._stage_budget()
        row: dict[str, Any] = {"path": stage.path, "parameters": sum(each.numel() for each in stage.parameters)}
        if not stage.parameters or budget.fraction() == 1:
            reason = "no step: its part of the budget is 0" if stage.parameters else "no parameter with requires_grad"
            self.activations = (None, None)
            self.rows.append({**row, "steps": 0, "error_before": None, "error_after": None, "note": reason})
            return
        start = time.monotonic()
        generator = torch.Generator().manual_seed(self.seed + 1 + index)
        train, held_out = (
            self._activations(index, indices, batches, before)
            for (indices, batches), before in zip(self._batches(), self.activations, strict=True)
        )
        self.activations = (train, held_out)
        budget.used_seconds = time.monotonic() - start

        def loss() -> Tensor:
            (args, kwargs), targets = train.minibatch(self.samples.batch_size, generator)
            return relative_error(stage.module(*args, **kwargs), targets)

        def error() -> float:
            total = 0.0
            for (args, kwargs), targets, size in zip(held_out.inputs, held_out.targets, held_out.sizes, strict=True):
                total += float(relative_error(stage.module(*args, **kwargs), targets)) * size
            return total / sum(held_out.sizes)

        name = f"block {index + 1} of {len(self.stages)}"
        training = Optimization(stage.module, stage.parameters, loss, error, budget, self.lr, name)
        training.run(generator)
        self.rows.append({**row, **_result(training)})

    def _train_end(self, state: dict[str, Any] | None, save: Any) -> None:
        seconds = None if self.budget.seconds is None else self.budget.seconds * (1 - self.stage_share)
        steps = None if self.budget.steps is None else round(self.budget.steps * (1 - self.stage_share))
        generator = torch.Generator().manual_seed(self.seed)
        parts = self.samples.parts(self.samples.held_out)
        with torch.no_grad():
            targets = [self.forward(self.original, part) for part in parts]

        def loss() -> Tensor:
            batch = self.samples.minibatch(generator)
            with torch.no_grad():
                target = self.forward(self.original, batch)
            check_finite(target, "its output")
            return relative_error(self.forward(self.model, batch), target)

        def error() -> float:
            errors = [
                float(relative_error(self.forward(self.model, part), target)) for part, target in zip(parts, targets, strict=True)
            ]
            return sum(errors) / len(errors)

        parameters = [each for each in self.model.parameters() if each.requires_grad]
        lr = self.lr * (END_LR if self.stage_share else 1.0)
        training = Optimization(self.model, parameters, loss, error, Budget(steps, seconds), lr, "the whole network", save)
        if steps != 0 and seconds != 0:
            training.run(generator, state)
            self.rows.append({"path": END, "parameters": sum(each.numel() for each in parameters), **_result(training)})

    def _finding(self) -> str:
        end = self.rows[-1] if self.rows[-1]["path"] == END else None
        text = f"{pluralize(len(self.stages), 'block')} distilled on {pluralize(len(self.samples.train), 'sample')}"
        if end is None:
            return f"{text}; no end-to-end phase (stage_share=1)."
        errors = f"{end['error_before']:.3g} to {end['error_after']:.3g}"
        return f"{text}, then the whole network: error of its outputs on {len(self.samples.held_out)} held-out samples {errors}."


def _result(training: Optimization) -> dict[str, Any]:
    stopped = training.budget.fraction() < 1
    columns = {"steps": training.budget.step, "error_before": training.errors[0], "error_after": min(training.errors)}
    return columns | ({"note": "stopped early: the held-out error did not decrease"} if stopped else {})
