"""Write one HTML page with the runs of a store: recommendation, results, curves, pictures, estimation shift, and more.

The page is `page.html` with `page.css`, `page.js` and the data as JSON embedded, so it needs no other file and no network. A
comparison is a group of runs that differ only in norm, batch size, seed, and learning rate scaled with the batch size. Each
comparison is one section of the page, the newest first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import anynorm
from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write
from anynorm.lab.comparison.step_times import StepTimes
from anynorm.lab.report.page_data import Page
from anynorm.lab.report.section import make_section
from anynorm.lab.training.config import LR_SCALINGS
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.store import Store, StoredRun
from anynorm.table import json_safe, pluralize

VARIED = ("norm", "batch_size", "seed", "lr")
"""The settings in which the runs of one comparison differ."""


def write_page(root: Path, path: Path) -> tuple[int, list[str]]:
    """Write the page of a store.

    Args:
        root: the folder of the store.
        path: the path of the HTML file.

    Returns:
        The number of runs on the page, and one sentence per omitted run with its id and the reason.

    Raises:
        DataError: if the store or the folder of `path` does not exist, or the store has no finished run.
    """
    if not root.is_dir():
        raise DataError(f"{root} must be a folder of runs; it does not exist. Run `anynorm compare` first.")
    if not path.absolute().parent.is_dir():
        raise DataError(f"The folder of {path} must exist; {path.parent} does not.")
    store = Store(root)
    runs = store.runs()
    records = [run.record for run in runs if run.record is not None]
    omitted = [_describe_omitted(run) for run in runs if run.record is None]
    if not records:
        raise DataError(f"{root} must hold at least one finished run; it holds none. Run `anynorm compare` first.")
    times = StepTimes(root)
    data = Page(
        summary=f"{pluralize(len(records), 'run')} in {root}, written by anynorm {anynorm.__version__}",
        sections=[make_section(group, VARIED, times, store) for group in group_records(records)],
    )
    html = _inline(json.dumps(json_safe(data), allow_nan=False))
    with atomic_write(path) as temporary:
        temporary.write_text(html, encoding="utf-8")
    return len(records), omitted


def _describe_omitted(run: StoredRun) -> str:
    return f"run {run.id} is {run.status}{': ' * bool(run.note)}{run.note}".rstrip(".") + "."


def group_records(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Group the records of runs into comparisons; the comparison with the newest run is first.

    Args:
        records: the records of the runs, the oldest first.
    """
    groups: list[list[RunRecord]] = []
    for record in records:
        group = next((group for group in groups if _is_one_comparison([*group, record])), None)
        if group is not None:
            groups.remove(group)
        groups.append([*(group or []), record])  # the group of the newest run moves to the end
    return groups[::-1]


def _is_one_comparison(records: Sequence[RunRecord]) -> bool:
    """Whether runs differ only in `VARIED`, and one rule of `LR_SCALINGS` explains their learning rates."""
    configs = [record.config for record in records]
    shared = [{name: value for name, value in config.items() if name not in VARIED} for config in configs]
    if any(settings != shared[0] for settings in shared):
        return False
    for scale in LR_SCALINGS.values():
        base_lrs = [config["lr"] / scale(config["batch_size"]) for config in configs]
        if all(math.isclose(lr, base_lrs[0]) for lr in base_lrs):
            return True
    return False


def _inline(data: str) -> str:
    """Return the HTML page with style, script and data embedded."""
    folder = Path(__file__).parent
    page = (folder / "page.html").read_text(encoding="utf-8")
    page = page.replace("/*STYLE*/", (folder / "page.css").read_text(encoding="utf-8"))
    page = page.replace("/*SCRIPT*/", (folder / "page.js").read_text(encoding="utf-8"))
    return page.replace("/*DATA*/", data.replace("<", "\\u003c"))  # so that no text in the data closes the script element
