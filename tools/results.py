"""Write records/README.md, and the results in docs/papers/README.md, README.md and pages of docs/guide/, from the records.

The running times that `anynorm reproduce --list` prints are written, too (`anynorm/lab/recipes/minutes.json`).

    python -m tools.results        (or: make results)

A test fails if one of the pages differs from the text generated from the records.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anynorm.errors import DataError
from anynorm.lab.recipes.support.catalog import MINUTES_FILE, load_recipe, read_header, recipe_file, recipe_names
from anynorm.lab.recipes.support.claims import HOLDS, VERDICTS
from anynorm.lab.recipes.support.recipe import SMOKE, Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.table import pluralize
from tools.guides import GUIDES, guide_block
from tools.markdown import anchor, markdown_table, recipe_heading
from tools.robustness import MARKER, robustness_block

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "records"
INTRODUCTION = """# Results of the recipes

<!-- Generated from the records by `make results`; do not edit. -->

A recipe is one table or figure of a paper. Its docstring says what the paper did and what is scaled down here. Its record holds
the measurements with seeds, commit, versions and hardware. A recipe called "ours" has hypotheses of our own, stated before they
were measured. The preset `desk` takes minutes on two cores, `paper` is the published setting. To
measure again: `anynorm reproduce NAME --preset PRESET`; `anynorm reproduce --list` has all.

Each claim states that one quantity is larger than another. "larger" and "smaller" are our measurements of the two (mean ± sd over
n seeds), "paper" has the paper's own numbers in the same order. The verdict is Student's paired one-sided t-test at 5 %, seed by
seed (in `xbn_perturbation`: draw by draw of the noise, on one network). Minutes are wall-clock time; those of
training runs are their total time divided by the number of processes, and a run that several recipes share counts in each.
"""


def results_page(folder: Path = RECORDS) -> str:
    """Return the text of records/README.md."""
    sections = [INTRODUCTION]
    for recipe, records in _recipes_with_records(folder):
        path = f"anynorm/lab/recipes/{recipe_file(recipe.name)}"
        source = f"[`{path}`](../{path})"
        presets = ", ".join(f"`{name}`" for name in recipe.presets)
        sections.append(f"## {recipe_heading(recipe.name)}\n\n{source}, presets {presets}.\n")
        sections += [_record_section(recipe, record, folder) for record in records]
    return "\n".join(sections)


def overview(folder: Path = RECORDS) -> str:
    """Return a Markdown table with one row per record and the number of claims per verdict, for docs/papers/README.md."""
    rows = [["recipe", "reproduces", "preset", "runs", *VERDICTS]]
    for recipe, records in _recipes_with_records(folder):
        for record in records:
            counts = _count_verdicts(recipe, record)
            link = f"[`{recipe.name}`](../../records/README.md#{anchor(recipe_heading(recipe.name))})"
            rows.append([link, read_header(recipe.name).source, record.preset, str(len(record.rows)), *map(str, counts)])
    return "\n".join(markdown_table(rows))


def summary(folder: Path = RECORDS) -> str:
    """Return a summary of the verdicts of all records of papers, for README.md."""
    of_papers = [pair for pair in _recipes_with_records(folder) if read_header(pair[0].name).source != "ours"]
    counts = [_count_verdicts(recipe, record) for recipe, records in of_papers for record in records]
    holds, contradicted, unclear, failed = (sum(column) for column in zip(*counts, strict=True))
    total = holds + contradicted + unclear + failed
    return (
        f"{len(counts)} tables and figures have been measured so far. "
        f"Of the {total} claims of the papers that they test, {holds} hold,\n"
        f"{contradicted} do not hold, {unclear} are not significant over our seeds, and {failed} could not be measured."
    )


def minutes(folder: Path = RECORDS) -> str:
    """Return the JSON of the minutes of each recipe's presets, null for presets without a record."""
    lines = []
    for recipe, records in _recipes_with_records(folder):
        times = {record.preset: record.minutes for record in records}
        lines.append(f"  {json.dumps(recipe.name)}: {json.dumps({preset: times.get(preset) for preset in recipe.presets})}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _count_verdicts(recipe: Recipe[Any], record: RecipeRecord[Any]) -> list[int]:
    verdicts = [row["verdict"] for row in recipe.judge(record)]
    return [verdicts.count(verdict) for verdict in VERDICTS]


def insert(content: str, text: str, name: str = "results") -> str:
    """Replace the content between two markers of a text, and return the new text.

    Args:
        content: the new content.
        text: the text with the markers `<!-- NAME -->` and `<!-- end of NAME -->`.
        name: the name of the markers.

    Raises:
        DataError: if the text does not have both markers.
    """
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, start, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not start or not end:
        raise DataError(f"the text must have a line {first} and a line {last}, between which the results go.")
    return f"{before}{first}\n{content}\n{last}{after}"


def _recipes_with_records(folder: Path) -> Iterator[tuple[Recipe[Any], list[RecipeRecord[Any]]]]:
    """Yield each recipe with its records, except records of the smoke preset."""
    for name in recipe_names():
        paths = [path for path in sorted(folder.glob(f"{name}.*.json")) if path.stem != f"{name}.{SMOKE}"]
        recipe = load_recipe(name)
        yield recipe, [recipe.read(path) for path in paths]


def _record_section(recipe: Recipe[Any], record: RecipeRecord[Any], folder: Path) -> str:
    """Return the section of a record as Markdown: provenance, claims with verdicts, tables and pictures."""
    source = record.provenance
    lines = [
        f"Preset `{record.preset}`: {len(record.rows)} runs, {record.minutes:.0f} minutes with "
        f"{pluralize(source['processes'], 'process', 'processes')} of {pluralize(source['threads'], 'thread')} on "
        f"{source['hardware']}, torch {source['torch']}, commit {source['commit']}.",
        "",
    ]
    claims = [["claim", "paper", "larger", "smaller", "n", "p", "verdict"]]
    for row in recipe.judge(record):
        verdict = row["verdict"] if row["verdict"] == HOLDS else f"**{row['verdict']}**"
        claims.append(
            [row["claim"], row["paper"], str(row["larger"]), str(row["smaller"]), str(row["n"]), f"{row['p']:.2g}", verdict]
        )
    lines += markdown_table(claims)
    if record.failure_summary:
        lines += ["", record.failure_summary]
    for table in recipe.tables(record):
        columns = list(table.rows[0])
        rows = [[table.format(row, column) for column in columns] for row in table]
        lines += ["", table.finding, "", *markdown_table([columns, *rows])]
    pictures = sorted(folder.glob(f"{recipe.name}.{record.preset}*.png"))
    lines += ["", *(f"![{recipe.name}]({picture.name})\n" for picture in pictures)]
    return "\n".join(lines)


if __name__ == "__main__":
    (RECORDS / "README.md").write_text(results_page())
    (ROOT / "anynorm" / "lab" / "recipes" / MINUTES_FILE).write_text(minutes())
    for path, content in ((ROOT / "README.md", summary()), (ROOT / "docs" / "papers" / "README.md", overview())):
        path.write_text(insert(content, path.read_text()))
    guide = ROOT / "docs" / "guide" / "robustness.md"
    guide.write_text(insert(robustness_block(RECORDS), guide.read_text(), MARKER))
    for name in GUIDES:
        page = ROOT / "docs" / "guide" / name
        page.write_text(insert(guide_block(name, RECORDS), page.read_text()))
    sys.stdout.write("Wrote records/README.md and the results in README.md, docs/papers/README.md and docs/guide/.\n")
