"""Curves of a run's metrics, with a check that all metrics are finite.

On a GPU, metrics stay on the device and are read every `GPU_STEPS` steps, so that the CPU does not wait for the GPU in each step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.training.distributed import Processes

GPU_STEPS = 10
"""Number of steps after which metrics are read on a GPU; on the CPU, metrics are read after each step."""


class DivergedError(Exception):
    """A metric of a run is infinite or NaN."""


class Curve:
    """The metrics of a run over its steps.

    Args:
        device: the device on which training steps compute their metrics.
        processes: the processes of the run.

    Attributes:
        points: one dictionary per evaluation: step, epoch, `train_…` (means in this process over the steps since the previous
            evaluation that have the metric) and `test_…`.
    """

    def __init__(self, device: torch.device, processes: Processes) -> None:
        self.processes = processes
        self.points: list[dict[str, float]] = []
        self._interval = 1 if device.type == "cpu" else GPU_STEPS
        self._pending: list[tuple[int, dict[str, Tensor]]] = []
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, step: int, metrics: dict[str, Tensor]) -> None:
        """Add the metrics of a training step.

        Args:
            step: number of the step.
            metrics: scalar tensors by name.

        Raises:
            DataError: if a metric is not a scalar.
            DivergedError: if a metric is not finite in any process; on a GPU, this is checked every `GPU_STEPS` steps.
        """
        self._pending.append((step, {name: scalar(name, value) for name, value in metrics.items()}))
        if len(self._pending) >= self._interval:
            self.check()

    @property
    def is_checked(self) -> bool:
        """Whether the metrics of all steps have been read; the same in all processes."""
        return not self._pending

    def check(self) -> None:
        """Read the metrics that have been added since the last check.

        Raises:
            DivergedError: if a metric is not finite in any process.
        """
        pending, self._pending = self._pending, []
        names = [(step, name) for step, metrics in pending for name in metrics]
        tensors = [value for _, metrics in pending for value in metrics.values()]
        values = torch.stack(tensors).tolist() if len(tensors) > 1 else [float(tensor) for tensor in tensors]
        failure = ""
        for (step, name), value in zip(names, values, strict=True):
            if not math.isfinite(value) and not failure:
                failure = f"the {name} is {value} in step {step}"
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1
        if pending:
            self._raise_in_all(failure, f"a metric is not finite in another process in step {pending[-1][0]}")

    def add_evaluation(self, step: int, epoch: float, metrics: dict[str, float]) -> None:
        """Add a point with the metrics of an evaluation and the means of the training metrics since the previous point.

        Args:
            step: number of finished steps.
            epoch: number of finished epochs.
            metrics: metrics of the evaluation by name.

        Raises:
            DataError: if a metric is not a number.
            DivergedError: if a metric is not finite in any process.
        """
        self.check()
        values = {name: _number(name, value) for name, value in metrics.items()}
        when = f"after step {step}"
        failure = next((f"the test {name} is {value} {when}" for name, value in values.items() if not math.isfinite(value)), "")
        self._raise_in_all(failure, f"a test metric is not finite in another process {when}")
        means = {f"train_{name}": total / self._counts[name] for name, total in self._sums.items()}
        self.points.append({"step": step, "epoch": epoch, **means, **{f"test_{name}": value for name, value in values.items()}})
        self._sums, self._counts = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the points, and the sums of metrics since the last point; the state is complete only if `is_checked`."""
        return {"points": self.points, "sums": self._sums, "counts": self._counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`."""
        self.points, self._sums, self._counts = state["points"], state["sums"], state["counts"]
        self._pending = []

    def _raise_in_all(self, failure: str, elsewhere: str) -> None:
        """Raise DivergedError in all processes if one has a failure; `elsewhere` is the message in processes without one."""
        if not self.processes.all_true(not failure):
            raise DivergedError(failure or elsewhere)


def scalar(name: str, value: Any) -> Tensor:
    """Return a metric of a training step as a detached float32 scalar.

    Raises:
        DataError: if the metric is not a tensor with one element.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().reshape(()).float()
    raise DataError(f"metrics of a training step must be scalar tensors; the metric {name!r} is {_describe(value)}.")


def _number(name: str, value: Any) -> float:
    if isinstance(value, int | float | np.number) or (isinstance(value, Tensor) and value.numel() == 1):
        return float(value)
    raise DataError(f"evaluate must return numbers; the metric {name!r} is {_describe(value)}.")


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"of type {type(value).__name__}"
