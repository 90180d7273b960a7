"""Pictures that tasks write as artifacts, for the report page: PNG files as `data:` URIs, grouped into series over evaluations.

samples/step-00000500.png  samples/step-00001000.png  …    the series samples/step, sorted by number
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from anynorm.lab.comparison.results import Results
from anynorm.lab.report.page_data import Picture, Series
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.store import Store

MAX_BYTES = 2_000_000
"""Maximum size of a file, and of all files of a series together, that are embedded."""
MAX_PICTURES = 8
"""Maximum number of pictures of a series on the page."""
_STEP = re.compile(r"(?:(?<=step)|(?<=epoch))[-_. ]?(\d+)")
_LAST_NUMBER = re.compile(r"[-_. ]?(\d+)(?!.*\d)")
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def find_pictures(results: Results, store: Store) -> list[Series]:
    """Return the series of pictures of a comparison, sorted by name, batch size and norm.

    For each norm and batch size, the pictures are those of the run with the smallest seed that has pictures.

    Args:
        results: the runs of the comparison.
        store: the store of the runs.
    """
    runs: list[tuple[RunRecord, dict[str, list[str]]]] = []
    for size in results.batch_sizes:
        for norm in results.norms:
            names_by_run = ((record, group_names(store.artifacts(record.id))) for record in results.cell(norm, size))
            runs += [pair for pair in names_by_run if pair[1]][:1]
    return [
        Series(kind, record.batch_size, _title(record), _read_series(store.folder(record.id) / "artifacts", names[kind]))
        for kind in sorted({kind for _, names in runs for kind in names})
        for record, names in runs
        if kind in names
    ]


def _title(record: RunRecord) -> str:
    return f"{record.norm}, batch size {record.batch_size}, seed {record.seed}{', failed' * (not record.done)}"


def group_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the names of PNG files into series, and sort each series by number.

    The number is the one after "step" or "epoch", or else the last number in the name. A name without a number is a series of its
    own.

    >>> group_names(["grid/step-9.png", "grid/step-10.png", "epoch-2/map-4.png", "final.png", "loss.txt"])
    {'grid/step': ['grid/step-9.png', 'grid/step-10.png'], 'epoch/map-4': ['epoch-2/map-4.png'], 'final': ['final.png']}
    """
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        stem, dot, suffix = name.rpartition(".")
        if dot and suffix.lower() == "png":
            match = _STEP.search(stem) or _LAST_NUMBER.search(stem)
            kind = stem if match is None else (stem[: match.start()] + stem[match.end() :]).strip("/")
            numbered.setdefault(kind, []).append((0 if match is None else int(match[1]), name))
    return {kind: [name for _, name in sorted(pairs)] for kind, pairs in numbered.items()}


def _read_series(folder: Path, names: Sequence[str]) -> list[Picture]:
    """Return evenly spaced pictures of a series, including the first and the last; only the last if one can be embedded."""
    largest = max((size for name in names if (size := _size(folder / name)) <= MAX_BYTES), default=0)
    count = min(len(names), MAX_PICTURES, MAX_BYTES // max(largest, 1))
    if count == 1:
        return [_read(folder, names[-1])]
    return [_read(folder, names[round(k * (len(names) - 1) / (count - 1))]) for k in range(count)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(folder: Path, name: str) -> Picture:
    path = folder / name
    if (size := _size(path)) > MAX_BYTES:
        return Picture(name, note=f"not embedded: {size / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:g} MB")
    try:
        content = path.read_bytes()
    except OSError as error:
        return Picture(name, note=f"cannot be read: {error.strerror}")
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))  # in IHDR, the first chunk
    if not content.startswith(_SIGNATURE) or not width * height:
        return Picture(name, note="not embedded: not a PNG file")
    return Picture(name, f"data:image/png;base64,{base64.b64encode(content).decode()}", width, height)
