"""The aims: ratios to torch that the kernels should reach on an AMD and on an Intel processor, with 1 and with 2 threads.

An aim bounds the median or the worst ratio over norms and shapes. The bound that counts is that of the processor of the results;
every line has both. An aim without results is reported as not measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from causes import CAUSES
from targets import MIN_MEGABYTES, MODE, Results

SMALL_SHAPES = ([4, 64, 8, 8], [64, 128], [256, 512])
INFERENCE = "inference"
FUSED_NORMS = ("bn fused", "hn fused", "sn fused", "bgn fused")
THREADS = (1, 2)
NUM_LISTED = 4
"""Number of ratios above a bound that the page lists."""


@dataclass(frozen=True)
class Aim:
    """An aim for one number of threads.

    Args:
        name: the ratio.
        statistic: which statistic of the ratios is bounded.
        bounds: the largest value on AMD and on Intel processors.
        threads: the number of threads.
        cases: the measured ratios, each with its norm and shape or network; empty if they were not measured.
        hardware: the processor on which they were measured.
        cause: what a profile showed to be the cause of ratios above the bounds.
    """

    name: str
    statistic: Literal["median", "worst"]
    bounds: tuple[float, float]
    threads: int
    cases: list[tuple[str, float]]
    hardware: str
    cause: str = ""

    @property
    def values(self) -> list[float]:
        """The measured ratios."""
        return [ratio for _, ratio in self.cases]

    @property
    def largest(self) -> list[tuple[str, float]]:
        """The largest ratios above the bound, the largest first."""
        above = [case for case in self.cases if case[1] > self.bound]
        return sorted(above, key=lambda case: -case[1])[:NUM_LISTED]

    @property
    def measured(self) -> float | None:
        """The statistic of the measured ratios; None if they were not measured."""
        if not self.values:
            return None
        return statistics.median(self.values) if self.statistic == "median" else max(self.values)

    @property
    def bound(self) -> float:
        """The bound for the processor of the results."""
        return self.bounds[0 if "AMD" in self.hardware else 1]

    @property
    def is_met(self) -> bool:
        """Whether the ratio was measured and is within the bound."""
        return self.measured is not None and self.measured <= self.bound

    @property
    def verdict(self) -> str:
        """`met`, `missed by` the difference to the bound, or `not measured`."""
        if self.measured is None:
            return "not measured"
        return "met" if self.is_met else f"missed by {self.measured - self.bound:.3f}"

    @property
    def cells(self) -> list[str]:
        """The cells of a table: aim, threads, measured, bounds, verdict."""
        measured = "" if self.measured is None else f"{self.measured:.3f}"
        bounds = " / ".join(f"{bound:g}" for bound in self.bounds)
        return [f"{self.name}, {self.statistic}", str(self.threads), measured, f"≤ {bounds}", self.verdict]

    def __str__(self) -> str:
        name, threads, measured, bounds, verdict = self.cells
        return f"{name}, {threads} thread{'s' * (self.threads > 1)}: {measured or '–'} (AMD / Intel {bounds}): {verdict}"


Row = dict[str, Any]
Ratios = Callable[[Row, list[str]], dict[str, float]]
"""A function from a row and the specs of its results to the ratios of norms."""


@dataclass(frozen=True)
class Rule:
    """How an aim follows from the rows of a results file: `file` and `rows` name them, `ratios` computes the ratios of a row."""

    name: str
    statistic: Literal["median", "worst"]
    bounds: tuple[float, float]
    file: str
    rows: str
    ratios: Ratios


def _layer(row: Row, specs: list[str]) -> dict[str, float]:
    return _ratios(row["seconds"][MODE], specs, "nn.BatchNorm") if row["megabytes"] >= MIN_MEGABYTES else {}


def _small(row: Row, specs: list[str]) -> dict[str, float]:
    return _ratios(row["seconds"][MODE], specs, "nn.BatchNorm") if row["shape"] in SMALL_SHAPES else {}


def _small_inference(row: Row, specs: list[str]) -> dict[str, float]:
    return _ratios(row["seconds"][INFERENCE], specs, "nn.BatchNorm") if row["shape"] in SMALL_SHAPES else {}


def _fused(kind: str) -> Ratios:
    return lambda row, specs: _ratios(row["seconds"][kind], specs, "torch")


def _network(mode: str, *names: str) -> Ratios:
    def ratios(row: Row, _: list[str]) -> dict[str, float]:
        is_meant = row["mode"] == mode and (not names or row["network"] in names)
        return _ratios(row["seconds"], list(FUSED_NORMS), "nn.BatchNorm2d") if is_meant else {}

    return ratios


def _saved(row: Row, _: list[str]) -> dict[str, float]:
    saved: dict[str, float] = row["saved"]
    return saved


RULES = (
    Rule("layer / nn.BatchNorm, x of 0.1 MB and more", "median", (0.4, 0.65), "layers", "rows", _layer),
    Rule("layer / nn.BatchNorm, x of 0.1 MB and more", "worst", (1.0, 1.0), "layers", "rows", _layer),
    Rule("norm + ReLU, fused / nn.BatchNorm2d + nn.ReLU", "median", (0.35, 0.5), "fused", "rows", _fused("norm + ReLU")),
    Rule("norm + add + ReLU, fused / torch", "median", (0.4, 0.55), "fused", "rows", _fused("norm + add + ReLU")),
    Rule("layer / nn.BatchNorm at 4×64×8×8, 64×128, 256×512", "worst", (1.0, 1.0), "layers", "rows", _small),
    Rule("inference of a layer at the same shapes / nn.BatchNorm", "worst", (1.2, 1.2), "layers", "rows", _small_inference),
    Rule(
        "MobileNetV2 step, fused / nn.BatchNorm2d",
        "worst",
        (0.78, 0.78),
        "model",
        "rows",
        _network("training step", "mobilenetv2"),
    ),
    Rule("ResNet-50 step, fused / nn.BatchNorm2d", "worst", (0.94, 0.94), "model", "rows", _network("training step", "resnet50")),
    Rule("inference of networks, fused / nn.BatchNorm2d", "worst", (0.95, 0.95), "model", "rows", _network("inference")),
    Rule("compiled norm + ReLU / compiled torch", "median", (0.3, 0.3), "fused", "compiled", _fused("norm + ReLU")),
    Rule("bytes saved by norm + ReLU / bytes of x", "worst", (1.05, 1.05), "fused", "rows", _saved),
)


def all_aims(results: Results) -> list[Aim]:
    """Return all aims, each for 1 and for 2 threads."""
    return [_aim(rule, threads, results.get(rule.file, {})) for rule in RULES for threads in THREADS]


def _aim(rule: Rule, threads: int, results: dict[str, Any]) -> Aim:
    rows = [row for row in results.get(rule.rows, []) if row.get("threads", results.get("threads")) == threads]
    found = [(_place(row), rule.ratios(row, results.get("specs", []))) for row in rows]
    cases = [(f"`{norm}` at {place}", ratio) for place, ratios in found for norm, ratio in ratios.items()]
    cause = CAUSES.get((rule.name, rule.statistic), "")
    return Aim(rule.name, rule.statistic, rule.bounds, threads, cases, results.get("hardware", ""), cause)


def _place(row: Row) -> str:
    return "×".join(map(str, row["shape"])) if "shape" in row else f"{row['network']}, batch size {row['batch_size']}"


def _ratios(times: dict[str, float], names: list[str], base: str) -> dict[str, float]:
    return {name: times[name] / times[base] for name in names if name in times}
