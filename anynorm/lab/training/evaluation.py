"""The result of an evaluation: metrics, and the value of each test item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from anynorm.lab.training.items import ItemValues


@dataclass(frozen=True)
class Evaluation:
    """Metrics of networks on test data.

    Attributes:
        metrics: the metrics by name.
        items: one value per test item by the name of a metric, see `anynorm.lab.training.task.Task`. It has only metrics whose
            items are all known to this process.

    >>> clean, attacked = Evaluation({"error": 50.0}, {"error": [True, False]}), Evaluation({"error": 100.0})
    >>> (clean | attacked.with_suffix(", attacked")).metrics
    {'error': 50.0, 'error, attacked': 100.0}
    """

    metrics: dict[str, float] = field(default_factory=dict)
    items: dict[str, ItemValues] = field(default_factory=dict)

    def __or__(self, other: Evaluation) -> Evaluation:
        """Return the metrics of both evaluations."""
        return Evaluation(self.metrics | other.metrics, self.items | other.items)

    def only(self, name: str) -> Evaluation:
        """Return the evaluation with one of its metrics."""
        return Evaluation({name: self.metrics[name]}, {name: self.items[name]} if name in self.items else {})

    def with_prefix(self, prefix: str) -> Evaluation:
        """Return the evaluation with a prefix of each name."""
        return self._renamed(lambda name: prefix + name)

    def with_suffix(self, suffix: str) -> Evaluation:
        """Return the evaluation with a suffix of each name."""
        return self._renamed(lambda name: name + suffix)

    def _renamed(self, rename: Callable[[str], str]) -> Evaluation:
        metrics = {rename(name): value for name, value in self.metrics.items()}
        return Evaluation(metrics, {rename(name): values for name, values in self.items.items()})
