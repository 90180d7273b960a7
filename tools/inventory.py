"""The inventory of a paper: every method, equation, table, figure and experiment, and its status here.

docs/papers/PAPER.json has one entry per item of the paper: `item`, `kind`, `what`, `here` (where it is in the project), and
`recipe` (which measures it) or `missing` (why it is not there). The status is computed from the records:

    implemented                a method or an equation, in code and tested
    measured conclusively      all claims that the paper makes there are decided
    measured, exploratory      all are decided, by claims that were written or changed after the measurement
    measured, partly decided   some are decided
    measured, undecided        none is decided
    measured, not a fair test  the controls of all of its claims fail
    runs, not measured         a recipe has the setting; it has no record with a claim about this item
    missing                    with the reason
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from anynorm.errors import DataError
from anynorm.lab.recipes.support.claims import PAPERS
from anynorm.lab.recipes.support.verdicts import NOT_FAIR, Verdict
from tools.judged import strongest_verdicts
from tools.markdown import markdown_table

PAGES = Path(__file__).parents[1] / "docs" / "papers"
KINDS = {
    "method": "Methods",
    "equation": "Equations",
    "table": "Tables",
    "figure": "Figures",
    "appendix": "Appendices",
    "text": "Experiments and statements in the text",
}
IMPLEMENTED, CONCLUSIVE = "implemented", "measured conclusively"
PARTLY, UNDECIDED = "measured, partly decided", "measured, undecided"
EXPLORATORY = "measured, exploratory"
UNFAIR, NOT_MEASURED, MISSING = "measured, not a fair test", "runs, not measured", "missing"
STATUSES = (IMPLEMENTED, CONCLUSIVE, EXPLORATORY, PARTLY, UNDECIDED, UNFAIR, NOT_MEASURED, MISSING)
MARKER = "inventory"


class Item(NamedTuple):
    """One item of a paper.

    Attributes:
        item: its name in the paper, such as "Table 2" or "sec. 4.1, saturation".
        kind: a key of `KINDS`.
        what: what it says or shows.
        here: where it is in the project and what deviates, as Markdown.
        recipe: the recipe that measures it; "" if none does.
        missing: why it, or a part of it, is not there; "" if all is.
    """

    item: str
    kind: str
    what: str
    here: str = ""
    recipe: str = ""
    missing: str = ""


def read_inventory(paper: str, folder: Path = PAGES) -> list[Item]:
    """Read the inventory of a paper.

    Raises:
        DataError: if an entry has an unknown key or kind, is listed twice, or says neither where it is nor why it is missing.
    """
    items = []
    for values in json.loads((folder / f"{paper}.json").read_text()):
        if unknown := values.keys() - set(Item._fields):
            raise DataError(f"{paper}.json: {values.get('item')} has the unknown keys {sorted(unknown)}.")
        item = Item(**values)
        if item.kind not in KINDS:
            raise DataError(f"{paper}.json: the kind of {item.item} must be one of {', '.join(KINDS)}; got {item.kind!r}.")
        if not item.here and not item.missing:
            raise DataError(f"{paper}.json: {item.item} must say where it is (here) or why it is missing.")
        items.append(item)
    if repeated := [name for name, count in Counter(item.item for item in items).items() if count > 1]:
        raise DataError(f"{paper}.json lists {', '.join(repeated)} more than once.")
    return items


def status(item: Item, verdicts: list[Verdict]) -> str:
    """Return the status of an item, one of `STATUSES`.

    Args:
        item: the item.
        verdicts: the verdicts of the strongest record of each recipe about the item.
    """
    if verdicts:
        if all(verdict.decided for verdict in verdicts):
            return EXPLORATORY if any(verdict.exploratory for verdict in verdicts) else CONCLUSIVE
        if any(verdict.decided for verdict in verdicts):
            return PARTLY
        return UNFAIR if all(verdict.verdict == NOT_FAIR for verdict in verdicts) else UNDECIDED
    if item.recipe:
        return NOT_MEASURED
    return IMPLEMENTED if item.here else MISSING


def verdicts_by_place(folder: Path) -> dict[tuple[str, str], list[Verdict]]:
    """Return the verdicts that count, see `strongest_verdicts`, by (paper, place)."""
    places: dict[tuple[str, str], list[Verdict]] = {}
    for verdicts in strongest_verdicts(folder).values():
        for verdict in verdicts:
            source = verdict.claim.source
            if source.paper:
                places.setdefault((source.paper, source.place), []).append(verdict)
    return places


def inventory_block(paper: str, records: Path) -> str:
    """Return the tables of the inventory of a paper as Markdown, with the number of items per status."""
    places = verdicts_by_place(records)
    items = read_inventory(paper)
    statuses = {item.item: status(item, places.get((paper, item.item), [])) for item in items}
    counts = Counter(statuses.values())
    parts = [f"{len(items)} items: " + ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name]) + "."]
    for kind, title in KINDS.items():
        rows = [["item", "what", "here", "status"]]
        for item in (item for item in items if item.kind == kind):
            found = places.get((paper, item.item), [])
            rows.append([item.item, item.what, _where(item), _status_text(statuses[item.item], found)])
        if len(rows) > 1:
            parts.append("\n".join([f"## {title}", "", *markdown_table(rows)]))
    return "\n\n".join(parts)


def overview_rows(records: Path) -> list[list[str]]:
    """Return one row per paper with the number of items per status, for docs/papers/README.md."""
    places = verdicts_by_place(records)
    rows = [["paper", "items", *STATUSES]]
    for paper in PAPERS:
        items = read_inventory(paper)
        counts = Counter(status(item, places.get((paper, item.item), [])) for item in items)
        rows.append([f"[{paper}]({paper}.md)", str(len(items)), *(str(counts[name]) for name in STATUSES)])
    return rows


def _where(item: Item) -> str:
    missing = f"**Missing:** {item.missing}" if item.missing else ""
    return " ".join(filter(None, (item.here, missing)))


def _status_text(name: str, verdicts: list[Verdict]) -> str:
    counts: dict[str, Any] = Counter(verdict.verdict for verdict in verdicts)
    numbers = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{name} ({numbers})" if numbers else name
