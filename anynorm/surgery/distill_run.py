"""The phases of a distillation: stages one after the other, then all parameters; from a checkpoint if there is one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.surgery.batches import Forward
from anynorm.surgery.distill_activations import Activations, check_finite, check_single_calls, inputs_of, output_of
from anynorm.surgery.distill_checkpoint import Checkpoint
from anynorm.surgery.distill_data import Samples, tensors_of
from anynorm.surgery.distill_stages import Stage, check_sample_count
from anynorm.surgery.distill_training import Budget, Optimization, relative_error
from anynorm.surgery.find import find_norms
from anynorm.surgery.recalibrate import recalibrate
from anynorm.table import pluralize

END = "end to end"
END_LR = 0.2  # of the learning rate, for the end-to-end phase after stages, whose parameters are trained already


@dataclass
class Distillation:
    """One run of `distill`, whose arguments and models have been checked."""

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
        trained = f"distilled on {pluralize(len(self.samples.train), 'sample')}"
        text = (
            f"{pluralize(len(self.stages), 'block')} {trained}, then the whole network"
            if self.stages
            else f"The network {trained}"
        )
        if end is None:
            return f"{pluralize(len(self.stages), 'block')} {trained}; no end-to-end phase (stage_share=1)."
        errors = f"{end['error_before']:.3g} to {end['error_after']:.3g}"
        return f"{text}: error of its outputs on {len(self.samples.held_out)} held-out samples {errors}."


def _result(training: Optimization) -> dict[str, Any]:
    stopped = training.budget.fraction() < 1
    columns = {"steps": training.budget.step, "error_before": training.errors[0], "error_after": min(training.errors)}
    return columns | ({"note": "stopped early: the held-out error did not decrease"} if stopped else {})
