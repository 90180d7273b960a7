"""The charts of a comparison for the report page: learning curves, estimation shift by layer, and mixing weights."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from anynorm.lab.comparison.results import Results
from anynorm.lab.report.page_data import Chart, Curve, LayerWeights, Line, Weights
from anynorm.lab.training.record import RunRecord

Points = Callable[[RunRecord], Iterable[tuple[float, float | None]]]
"""A function that returns the points (x, y) of a run; y is None where it was not measured."""


def make_curves(results: Results) -> list[Curve]:
    """Return the charts of every metric: first the test metric of the comparison, then other test metrics, then train metrics."""
    metric = results.metric
    names = dict.fromkeys(name for record in results.records for point in record.curve for name in point)
    own = (f"test_{metric.name}", f"train_{metric.name}")
    curves = []
    for name in sorted(names, key=lambda name: (name != own[0], name.startswith("train_"))):
        kind, _, bare = name.partition("_")
        if kind in ("test", "train") and bare and (charts := _make_charts(results, partial(_curve_points, name))):
            curves.append(Curve(kind, bare, f"{kind} {metric.label if name in own else bare}", charts))
    return curves


def make_shifts(results: Results) -> list[Chart]:
    """Return the charts of the estimation shift by layer."""
    return _make_charts(results, lambda record: ((layer.position, layer.shift) for layer in record.shift or ()))


def make_weights(results: Results) -> list[Weights]:
    """Return the learned mixing weights of each layer, from the run with the smallest seed of each norm and batch size."""
    weights = []
    for norm in results.norms:
        for size in results.batch_sizes:
            first = next((record for record in results.cell(norm, size) if record.importance), None)
            if first is not None:
                layers = [_layer_weights(layer) for layer in first.importance or ()]
                weights.append(Weights(f"{norm}, batch size {size}, seed {first.seed}", layers))
    return weights


def _make_charts(results: Results, points: Points) -> list[Chart]:
    """Return one chart per batch size, with one line per norm; batch sizes and norms without points are left out."""
    charts = []
    for size in results.batch_sizes:
        lines = [line for norm in results.norms if (line := _make_line(norm, results.cell(norm, size), points)).points]
        if lines:
            charts.append(Chart(size, lines))
    return charts


def _make_line(norm: str, records: Iterable[RunRecord], points: Points) -> Line:
    values: dict[float, list[float]] = {}
    for record in records:
        for x, y in points(record):
            if y is not None:
                values.setdefault(x, []).append(y)
    return Line(
        norm, [(x, statistics.fmean(ys), statistics.stdev(ys) if len(ys) > 1 else 0.0) for x, ys in sorted(values.items())]
    )


def _curve_points(name: str, record: RunRecord) -> Iterable[tuple[float, float | None]]:
    """Return pairs (epoch, value) of a metric."""
    return ((point["epoch"] or 0.0, point.get(name)) for point in record.curve)


def _layer_weights(layer: Mapping[str, Any]) -> LayerWeights:
    mean, var = (
        {name.removeprefix(side): value for name, value in layer.items() if name.startswith(side)} for side in ("mean_", "var_")
    )
    return LayerWeights(layer["path"], mean, var)
