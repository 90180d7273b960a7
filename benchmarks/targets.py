"""The performance targets of kernels and streamed data: limits of the median and worst value of a ratio over shapes and norms.

Targets of layers are for float32, forward + backward, 1 and 2 threads, and inputs of at least 0.1 MB; there is a separate target
for the shape 4×64×8×8 (0.07 MB).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

MODE = "forward + backward"
MIN_MEGABYTES = 0.1
LARGE_MEGABYTES = 6
SMALL_SHAPE = [4, 64, 8, 8]
Results = dict[str, dict[str, Any]]
"""The contents of the JSON files, by the name of the script that wrote them."""


@dataclass(frozen=True)
class Limit:
    """A limit of a value: maximum `most`, or minimum `least`."""

    most: float | None = None
    least: float | None = None

    def is_met(self, value: float) -> bool:
        """Whether a value is within the limit."""
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    def __str__(self) -> str:
        return f"≤ {self.most}" if self.least is None else f"≥ {self.least}"


@dataclass(frozen=True)
class Target:
    """A target: the measured values of a quantity, and limits of their median and worst value (None for no limit)."""

    name: str
    values: list[float]
    median_limit: Limit | None
    worst_limit: Limit | None

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def worst(self) -> float:
        """The worst value: the maximum, or the minimum if the limit is a minimum."""
        limit = self.median_limit or self.worst_limit
        return max(self.values) if limit is not None and limit.least is None else min(self.values)

    @property
    def is_met(self) -> bool:
        """Whether the median and the worst value are within their limits."""
        pairs = ((self.median_limit, self.median), (self.worst_limit, self.worst))
        return all(limit is None or limit.is_met(value) for limit, value in pairs)

    @property
    def verdict(self) -> str:
        """`met` or `missed`."""
        return "met" if self.is_met else "missed"

    def __str__(self) -> str:
        values = {"median": (self.median, self.median_limit), "worst": (self.worst, self.worst_limit)}
        if len(self.values) == 1:
            values = {"measured": (self.median, self.median_limit or self.worst_limit)}
        parts = [f"{name} {value:.3f}{f' (target {limit})' if limit else ''}" for name, (value, limit) in values.items()]
        return f"{self.verdict:>6}  {self.name}: {', '.join(parts)}"


def layer_targets(results: dict[str, Any]) -> list[Target]:
    """Return the targets of benchmarks/layers.py."""
    cells = [(row, row["seconds"][MODE], spec) for row in results["rows"] for spec in results["specs"]]
    cells = [(row, times, spec) for row, times, spec in cells if spec in times]
    small = [cell for cell in cells if cell[0]["shape"] == SMALL_SHAPE]
    ours = [cell for cell in cells if cell[0]["megabytes"] >= MIN_MEGABYTES]
    large = [cell for cell in ours if cell[0]["megabytes"] >= LARGE_MEGABYTES]
    switch = [cell for cell in ours if cell[2] == "sn"]
    targets = [
        Target("ours / nn.BatchNorm", _ratios(ours, "nn.BatchNorm"), Limit(0.4), Limit(1.0)),
        Target("ours / nn.GroupNorm", _ratios(ours, "nn.GroupNorm"), Limit(1.1), Limit(1.5)),
        Target("our sn / published SN", _ratios(switch, "published SN"), Limit(0.083), Limit(0.167)),
        Target("ours / memory traffic, x of 6 MB and more", _ratios(large, "traffic"), Limit(1.35), None),
        Target("ours / nn.BatchNorm2d at 4×64×8×8", _ratios(small, "nn.BatchNorm"), Limit(1.0), None),
        Target("bytes saved for backward / bytes of x", [row["saved"][s] for row, _, s in ours], Limit(1.02), Limit(1.05)),
    ]
    return [target for target in targets if target.values]


def model_targets(results: dict[str, Any]) -> list[Target]:
    """Return the target of benchmarks/model.py."""
    values = [
        row["seconds"]["sn"] / row["seconds"]["nn.BatchNorm2d"]
        for row in results["rows"]
        if row["network"] == "resnet50" and row["mode"] == "training step" and row["batch_size"] in (2, 8)
    ]
    name = "ResNet-50 step, sn / nn.BatchNorm2d, batch 2 and 8"
    return [Target(name, values, None, Limit(0.95))] if values else []


def startup_targets(results: dict[str, Any]) -> list[Target]:
    """Return the target of benchmarks/startup.py."""
    extra = results["seconds"]["anynorm"] - results["seconds"]["torch"]
    return [Target("extra time to the first output of a new process, against torch alone (s)", [extra], Limit(0.3), None)]


def stream_targets(results: dict[str, Any]) -> list[Target]:
    """Return the targets of benchmarks/stream.py; the speed is the median over rounds of the ratio to memory."""
    streamed = [row for row in results["rows"] if row["workers"]]
    peaks = [peak for row in streamed for peak in row["worker_megabytes"]]
    return [
        Target("images/s, streamed / in memory", [row["median_ratio"] for row in streamed], Limit(least=0.9), None),
        Target("peak memory of a worker that decodes images (MB)", peaks, None, Limit(600)),
    ]


def all_targets(results: Results) -> list[Target]:
    """Return the targets of all existing results, in the order layers, model, startup, stream."""
    functions = {"layers": layer_targets, "model": model_targets, "startup": startup_targets, "stream": stream_targets}
    return [target for name, function in functions.items() if name in results for target in function(results[name])]


def _ratios(cells: list[tuple[dict[str, Any], dict[str, float], str]], name: str) -> list[float]:
    """Return the time of the norm divided by the time of the candidate `name`, for each cell."""
    return [times[spec] / times[name] for _, times, spec in cells]
