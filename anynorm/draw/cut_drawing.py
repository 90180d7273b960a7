"""Drawings of cuts: a block in which values that share a statistic have the same color (Wu & He 2018, Fig. 2).

The block of samples × channels × positions is drawn in isometric projection, with three faces: the first sample (left), the last
channel (right) and the first position (top). The background is transparent and the text is gray, so that a picture is readable
on light and on dark pages.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anynorm.draw.axes import FigureAndAxes
from anynorm.draw.blocks import Block, Drawing, Index, find_blocks
from anynorm.errors import DataError

HUES = ("#2f6db5", "#e07b39", "#3d9970", "#8e5bb5", "#d0485b", "#d3a72a", "#2aa1b3", "#a9714b")
TEXT = "#83868c"
CHANNEL, SAMPLE, POSITION = (0.87, -0.42), (0.87, 0.42), (0.0, -0.72)
"""One step along each axis, in the units of the drawing."""
GAP = 2.6
"""Space between two blocks."""
UNIT = 0.3
"""Inches of the figure per unit of the drawing."""
Point = tuple[float, float]


def cuts(spec: str, shape: tuple[int, ...] | None = None, *, ax: Any = None, legend: bool = True) -> FigureAndAxes:
    """Draw which values share a statistic: values of one color are normalized by the same mean or variance.

    Args:
        spec: spec of a norm, such as `hn:32`.
        shape: shape of the input, (n, c, …), of which at most 4 samples, 8 channels and 6 positions are drawn; None for a small
            shape.
        ax: axes to draw into; None for a new figure with a transparent background.
        legend: whether to write below the blocks what a color means.

    Raises:
        SpecError: if the spec is invalid.
        ShapeError: if the spec does not fit the shape.
        DataError: if matplotlib is not installed.

    >>> fig, ax = cuts("hn:2")
    """
    drawing = find_blocks(spec, shape)
    width, height, lowest = _extent(drawing)
    total = len(drawing.blocks) * (width + GAP) - GAP
    sentences = [*(["Values of one color share a statistic"] if legend else []), *drawing.notes]
    caption = "; ".join(sentences) + "." if sentences else ""
    left, right, bottom, top = -1.0, total + 0.6, lowest - (3.9 if caption else 3.3), lowest + height + 1.5
    if ax is None:
        ax = _transparent_axes((max(3.4, UNIT * (right - left)), UNIT * (top - bottom)))
    for k, block in enumerate(drawing.blocks):
        corner = (k * (width + GAP), 0.0)
        middle = corner[0] + width / 2
        _draw_block(ax, block, drawing.indices, corner)
        _label_axes(ax, drawing, corner)
        ax.text(middle, lowest - 0.75, block.cut, ha="center", va="top", fontsize=11, color=TEXT, fontweight="bold")
        ax.text(middle, lowest - 1.6, _wrap(block.words), ha="center", va="top", fontsize=9, color=TEXT, linespacing=1.2)
        if block.joined_by:
            ax.text(corner[0] - 1.5, lowest + height / 2, block.joined_by, ha="center", va="center", fontsize=14, color=TEXT)
    _label_statistics(ax, drawing, width, lowest + height + 0.5)
    ax.text(
        (left + right) / 2,
        bottom + 0.1,
        _wrap(caption, 40 * len(drawing.blocks)),
        ha="center",
        va="bottom",
        fontsize=7.5,
        color=TEXT,
    )
    ax.set(aspect="equal", xlim=(left, right), ylim=(bottom, top))
    ax.set_axis_off()
    return ax.figure, ax


def save_cuts(spec: str, path: Path | str, shape: tuple[int, ...] | None = None, *, legend: bool = True) -> None:
    """Write the drawing of the cuts of a norm to a file; equal arguments produce identical files.

    Args:
        spec: spec of a norm, such as `hn:32`.
        path: file to write; its suffix determines the format, such as .svg or .png.
        shape: shape of the input; None for a small shape.
        legend: whether to write below the blocks what a color means.

    Raises:
        SpecError: if the spec is invalid.
        ShapeError: if the spec does not fit the shape.
        DataError: if matplotlib is not installed, the suffix is not a picture format, or the folder does not exist.
    """
    from anynorm.draw import check_picture

    check_picture(path)
    import matplotlib

    fig, _ = cuts(spec, shape, legend=legend)
    with matplotlib.rc_context({"svg.hashsalt": "anynorm"}):
        metadata = {"Date": None, "Title": f"cuts of {spec}"} if Path(path).suffix == ".svg" else None
        fig.savefig(path, dpi=200, metadata=metadata)


def _transparent_axes(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("Plots need matplotlib: pip install 'anynorm[lab]'.") from None
    fig = Figure(figsize=size, facecolor="none")
    return fig.add_axes((0, 0, 1, 1))


def _extent(drawing: Drawing) -> tuple[float, float, float]:
    """Return the width and height of a block, and the y of its lowest point; the left corner of the top face is at (0, 0)."""
    samples, channels, positions = map(len, drawing.indices)
    width = samples * SAMPLE[0] + channels * CHANNEL[0]
    lowest = channels * CHANNEL[1] + positions * POSITION[1]
    return width, samples * SAMPLE[1] - lowest, lowest


def _project(point: Sequence[float], corner: Point) -> Point:
    """Return the coordinates (x, y) in the drawing of a point (sample, channel, position) of a block."""
    steps = list(zip(point, (SAMPLE, CHANNEL, POSITION), strict=True))
    return corner[0] + sum(count * step[0] for count, step in steps), corner[1] + sum(count * step[1] for count, step in steps)


def _faces(sizes: Index) -> Iterator[tuple[str, Index, list[Index]]]:
    """Yield the face, index and corners of each visible side of a value."""
    samples, channels, positions = sizes
    for c in range(channels):
        for s in range(positions):
            yield "left", (0, c, s), [(0, c, s), (0, c + 1, s), (0, c + 1, s + 1), (0, c, s + 1)]
    for n in range(samples):
        for s in range(positions):
            x = channels
            yield "right", (n, x - 1, s), [(n, x, s), (n + 1, x, s), (n + 1, x, s + 1), (n, x, s + 1)]
        for c in range(channels):
            yield "top", (n, c, 0), [(n, c, 0), (n + 1, c, 0), (n + 1, c + 1, 0), (n, c + 1, 0)]


def _draw_block(ax: Any, block: Block, indices: list[list[int]], corner: Point) -> None:
    from matplotlib.collections import PolyCollection

    sizes = tuple(map(len, indices))
    colors = color_parts(block.parts)
    sides, polygons, facecolors = [], [], []
    for side, place, corners in _faces(sizes):
        index = tuple(axis[k] for axis, k in zip(indices, place, strict=True))
        sides.append(side)
        polygons.append([_project(point, corner) for point in corners])
        facecolors.append(colors[block.parts[index]])
    cells = PolyCollection(
        polygons, facecolors=facecolors, edgecolors="white", linewidths=0.7, label=f"{block.statistics}: {block.cut}"
    )
    ax.add_collection(cells)
    shades = {
        "left": (0, 0, 0, 0),
        "right": (0, 0, 0, 0.14),
        "top": (1, 1, 1, 0.14),
    }  # a second layer: the colors of the first are exactly those of the parts
    ax.add_collection(PolyCollection(polygons, facecolors=[shades[side] for side in sides], linewidths=0))


def color_parts(parts: dict[Index, Index]) -> dict[Index, str]:
    """Return a distinct color for each part.

    The first of channels, samples and positions in which parts differ determines the hue; the other two determine the tone.

    >>> color_parts({(0, 0, 0): (0, 0, 0), (1, 0, 0): (0, 0, 0)})
    {(0, 0, 0): '#2f6db5'}
    """
    distinct = sorted(set(parts.values()))
    columns = list(zip(*distinct, strict=True))
    order = [k for k in (*range(len(columns) - 2, -1, -1), len(columns) - 1) if len(set(columns[k])) > 1]
    first = order[0] if order else 0
    hues = sorted(set(columns[first]))
    tones = sorted({tuple(part[k] for k in order[1:]) for part in distinct})
    return {
        part: _tone(_hue(hues.index(part[first])), tones.index(tuple(part[k] for k in order[1:])), len(tones))
        for part in distinct
    }


def _hue(number: int) -> str:
    if number < len(HUES):
        return HUES[number]
    red, green, blue = colorsys.hls_to_rgb(number * 0.618 % 1, 0.5, 0.5)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _tone(color: str, number: int, count: int) -> str:
    """Return a color mixed with white: tone 0 is the color itself, the last tone is the palest."""
    white = 0.68 * number / max(1, count - 1)
    channels = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(value + (255 - value) * white):02x}" for value in channels)


def _label_axes(ax: Any, drawing: Drawing, corner: Point) -> None:
    """Write the names of the axes along the edges of a block."""
    samples, channels, positions = map(len, drawing.indices)
    texts = [
        text if count == size else f"{count} of {size} {text}"
        for text, count, size in zip(("samples", "channels", "positions"), map(len, drawing.indices), drawing.shape, strict=True)
    ]
    angle = 25.8  # of the drawn edges, in degrees
    style = {"ha": "center", "va": "center", "fontsize": 8.5, "color": TEXT, "rotation_mode": "anchor"}
    x, y = _project((samples / 2, channels, positions), corner)
    ax.text(x + 0.26, y - 0.5, texts[0], rotation=angle, **style)
    x, y = _project((0, channels / 2, positions), corner)
    ax.text(x - 0.26, y - 0.5, texts[1], rotation=-angle, **style)
    x, y = _project((0, 0, positions / 2), corner)
    ax.text(x - 0.45, y, texts[2], rotation=90, **style)


def _label_statistics(ax: Any, drawing: Drawing, width: float, top: float) -> None:
    """Write the names of the statistics above their blocks."""
    names = [block.statistics for block in drawing.blocks]
    for name in dict.fromkeys(names):
        first, last = names.index(name), len(names) - 1 - names[::-1].index(name)
        middle = ((first + last) * (width + GAP) + width) / 2
        ax.text(middle, top, name, ha="center", va="bottom", fontsize=11, color=TEXT)


def _wrap(text: str, limit: int = 26) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, limit))
