"""The data of the report page, as `page.js` reads them: each class is an object in the JSON, with the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what is shown.
        value: what the column is sorted by; None is last.
        mark: class of the cell in `page.css`: best (also those that are not worse), failed or "".
    """

    text: str
    value: float | str | None
    mark: str = ""

    @classmethod
    def of(cls, value: Any) -> Cell:
        """Return a cell that shows a value."""
        return cls(text_of(value), value)


@dataclass(frozen=True)
class PageTable:
    """A table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Cell]]) -> PageTable:
        """Return a table of columns by title."""
        return cls(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


@dataclass(frozen=True)
class Line:
    """A line of a chart: points (x, mean, sd) over seeds."""

    name: str
    points: Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class Chart:
    """A chart of one batch size, with one line per norm."""

    batch_size: int
    lines: Sequence[Line]


@dataclass(frozen=True)
class Curve:
    """The charts of one metric: kind is test or train."""

    kind: str
    name: str
    label: str
    charts: Sequence[Chart]


@dataclass(frozen=True)
class LayerWeights:
    """The mixing weights of one layer, by cut, for the mean and for the variance."""

    path: str
    mean: Mapping[str, float]
    var: Mapping[str, float]


@dataclass(frozen=True)
class Weights:
    """The mixing weights of the layers of one run."""

    title: str
    layers: Sequence[LayerWeights]


@dataclass(frozen=True)
class Picture:
    """A picture: embedded as `uri` with `width` and `height`, or `note` with the reason why it is not."""

    name: str
    uri: str = ""
    width: int = 0
    height: int = 0
    note: str = ""


@dataclass(frozen=True)
class Series:
    """The pictures of one run over its evaluations: kind is the name of the series."""

    kind: str
    batch_size: int
    title: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Section:
    """The section of one comparison."""

    title: str
    settings: str
    answer: str
    norms: Sequence[str]
    results: PageTable
    significance: str
    curves: Sequence[Curve]
    pictures: Sequence[Series]
    shifts: Sequence[Chart]
    layers: Mapping[int, str]
    weights: Sequence[Weights]
    cost: PageTable
    runs: PageTable
    config: Mapping[str, str]
    provenance: Mapping[str, str]


@dataclass(frozen=True)
class Page:
    """The report page."""

    summary: str
    sections: Sequence[Section]


def text_of(value: Any) -> str:
    """Return the text of a setting or a number: four significant digits; "" for None."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
