"""Write records/README.md, its pictures, and the results in docs/papers/, README.md and pages of docs/guide/, from the records.

The running times that `anynorm reproduce --list` prints are written, too (`anynorm/lab/recipes/minutes.json`).

    python -m tools.results        (or: make results)

A test fails if one of the pages differs from the text generated from the records.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from anynorm.errors import DataError
from anynorm.lab.recipes.support.catalog import MINUTES_FILE, load_recipe, read_header, recipe_file, recipe_names
from anynorm.lab.recipes.support.claims import PAPERS
from anynorm.lab.recipes.support.results import FOREST, pictures, write_pictures
from anynorm.lab.recipes.support.verdict_table import control_table, verdict_table
from anynorm.lab.recipes.support.verdicts import DECIDED, HOLDS, VERDICTS, Verdict
from anynorm.table import Table, pluralize
from tools.conversions import MARKER as CONVERSIONS
from tools.conversions import PAGE as CONVERSIONS_PAGE
from tools.conversions import conversions_block
from tools.guides import GUIDES, guide_block
from tools.inventory import MARKER as INVENTORY
from tools.inventory import PAGES, inventory_block, overview_rows
from tools.judged import Judged, judged_records, split_counts, strongest_verdicts
from tools.markdown import anchor, markdown_table, recipe_heading
from tools.robustness import MARKER, robustness_block

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "records"
INTRODUCTION = """# Results of the recipes

<!-- Generated from the records by `make results`; do not edit. -->

A recipe is one table or figure of a paper. Its docstring says what the paper did and what is scaled down here. Its record holds
the measured cells with seeds, code version, commit and hardware. The preset `desk` takes minutes on two cores and is a
demonstration: it decides nothing unless its controls hold. `night` takes hours on two cores, `paper` is the published setting. To
measure what is missing: `anynorm reproduce NAME --preset PRESET`; `anynorm reproduce --status` lists it.

**How to read a verdict.** Each claim compares two quantities over n seeds. The difference has a 95 % interval; "paper" is the
paper's difference, "found with 80 %" the smallest true difference that these seeds find with a power of 80 %, at the level of the
first step of Holm's correction. Intervals are those of a single claim; verdicts and p have Holm's correction over the claims of
the recipe. p is that of the test that decided. δ is the difference up to which two numbers are called equal. Intervals include
the noise of the test items (images, pairs, videos) where the rows have the metric of each item; those of older rows have it for
accuracies only, as an upper limit.

- *holds*: the difference is not 0 and has the claimed sign (of a claim of equality: it is within δ). *reversed*: the opposite.
- *equivalent*: the difference is smaller than δ, half a point or a quarter of the paper's difference unless stated otherwise.
- *smaller than published*: it may be 0, but it is not the paper's. *undecided*: neither; with the seeds a decision would need. As
  long as seeds of the design are missing, a claim is undecided.
- *not a fair test*: a control fails, mostly because a network did not learn. *failed*: a run diverged or could not be trained.

Claims about the same networks on both sides (two attacks, the layers of a network) are counted once, with their least favourable
verdict. Comparisons of one norm with several others are several claims. Claims of the papers and ours are counted apart. Minutes
are those of one core; a run that several recipes share counts in each. Training accuracies of `desk` rows that have no curve are
means over the whole run, so "did not learn" is strict there.
"""


def results_page(folder: Path = RECORDS) -> str:
    """Return the text of records/README.md."""
    sections = [INTRODUCTION]
    for name in recipe_names():
        recipe = load_recipe(name)
        path = f"anynorm/lab/recipes/{recipe_file(name)}"
        presets = ", ".join(f"`{preset}`" for preset in recipe.presets)
        sections.append(f"## {recipe_heading(name)}\n\n[`{path}`](../{path}), presets {presets}.\n")
        records = [judged for judged in judged_records(folder) if judged.recipe.name == name]
        sections += [_record_section(judged, folder) for judged in records]
    return "\n".join(sections)


def overview(folder: Path = RECORDS) -> str:
    """Return the tables of docs/papers/README.md: items of each paper by status, and claims of each record by verdict."""
    rows = [["recipe", "reproduces", "preset", "cells", *(f"{name}" for name in VERDICTS), "ours"]]
    for recipe, record, verdicts in judged_records(folder):
        papers, ours = split_counts(verdicts)
        link = f"[`{recipe.name}`](../../records/README.md#{anchor(recipe_heading(recipe.name))})"
        source = read_header(recipe.name).source
        numbers = [str(papers[name] or "") for name in VERDICTS]
        rows.append([link, source, record.preset, str(len(record.rows)), *numbers, _counts_text(ours)])
    return "\n".join([*markdown_table(overview_rows(folder)), "", *markdown_table(rows)])


def summary(folder: Path = RECORDS) -> str:
    """Return a summary of the verdicts of all records, for README.md."""
    by_recipe = strongest_verdicts(folder)
    verdicts = [_with_unique_group(verdict, recipe) for recipe, found in by_recipe.items() for verdict in found]
    papers, ours = split_counts(verdicts)
    total = sum(papers.values())
    decided = sum(papers[name] for name in DECIDED)
    others = {name: papers[name] for name in VERDICTS if name not in DECIDED}
    return (
        f"{len(by_recipe)} recipes have been measured so far. Of the {total} distinct claims of the papers that they test, "
        f"{decided} are decided: {_counts_text({name: papers[name] for name in DECIDED})}. "
        f"The others: {_counts_text(others)}.{_exploratory_note(verdicts)}\n"
        f"Of our own {sum(ours.values())} claims: {_counts_text(ours)}."
    )


def _exploratory_note(verdicts: list[Verdict]) -> str:
    """Return how many of the decided claims are exploratory, as a sentence; "" if none is."""
    decided = [verdict for verdict in verdicts if verdict.decided]
    exploratory = sum(verdict.exploratory for verdict in decided)
    share = "All" if exploratory == len(decided) else str(exploratory)
    why = "their claims were written or changed after the measurement"
    return f" {share} of the decided ones are exploratory: {why}." if exploratory else ""


def _with_unique_group(verdict: Verdict, recipe: str) -> Verdict:
    """Return a verdict whose group is unique among recipes, unless recipes share runs and so name the same group."""
    if verdict.claim.group:
        return verdict
    return replace(verdict, claim=replace(verdict.claim, group=f"{recipe}: {verdict.claim.statement}"))


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def minutes(folder: Path = RECORDS) -> str:
    """Return the JSON of the minutes of each recipe's presets, null for presets without a record."""
    lines = []
    for name in recipe_names():
        times = {judged.record.preset: judged.record.minutes for judged in judged_records(folder) if judged.recipe.name == name}
        rounded = {preset: round(times[preset], 1) if preset in times else None for preset in load_recipe(name).presets}
        lines.append(f"  {json.dumps(name)}: {json.dumps(rounded)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


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


def _record_section(judged: Judged, folder: Path) -> str:
    """Return the section of a record as Markdown: provenance, forest plot, claims, controls, checks, tables and pictures."""
    recipe, record, verdicts = judged
    sources = {name: ", ".join(record.values_of_provenance(name)) for name in ("hardware", "torch", "commit")}
    lines = [
        f"Preset `{record.preset}`: {pluralize(len(record.rows), 'cell')}, {record.minutes:.0f} minutes of one core on "
        f"{sources['hardware']}, torch {sources['torch']}, commit {sources['commit']}."
    ]
    if record.design != recipe.design(record.settings):
        lines.append("Its claims were written after it was measured: the verdicts are exploratory.")
    paths = pictures(recipe.name, record.preset, folder)
    if paths and FOREST in paths[0].name:
        lines += ["", f"![differences with their intervals]({paths.pop(0).name})"]
    table = verdict_table(verdicts)
    if verdicts:
        lines += ["", table.finding, "", *_table_lines(table, emphasized="verdict")]
    controls = control_table(recipe.check_controls(record))
    if controls.rows:
        lines += ["", f"Controls: {controls.finding}", "", *_table_lines(controls)]
    if checks := recipe.checks(record):
        lines += ["", "Checks (theorems, not evidence):", ""]
        lines += [f"- {statement}: {'passed' if passed else '**violated**'}" for statement, passed in checks.items()]
    if record.failure_summary:
        lines += ["", record.failure_summary]
    for table in recipe.tables(record):
        lines += ["", table.finding, "", *_table_lines(table)]
    lines += ["", *(f"![{recipe.name}]({picture.name})\n" for picture in paths)]
    return "\n".join(lines)


def _table_lines(table: Table, emphasized: str = "") -> list[str]:
    """Return a table as Markdown; values of an emphasized column are bold unless they are "holds"."""
    columns = list(table.rows[0])
    rows = [[table.format(row, column) for column in columns] for row in table]
    if emphasized:
        index = columns.index(emphasized)
        for row in rows:
            row[index] = row[index] if row[index].startswith(HOLDS) else f"**{row[index]}**"
    return markdown_table([columns, *rows])


if __name__ == "__main__":
    for each in judged_records(RECORDS):
        write_pictures(each.recipe, each.record, RECORDS)
    (RECORDS / "README.md").write_text(results_page())
    (ROOT / "anynorm" / "lab" / "recipes" / MINUTES_FILE).write_text(minutes())
    for path, content in ((ROOT / "README.md", summary()), (ROOT / "docs" / "papers" / "README.md", overview())):
        path.write_text(insert(content, path.read_text()))
    for paper in PAPERS:
        page = PAGES / f"{paper}.md"
        page.write_text(insert(inventory_block(paper, RECORDS), page.read_text(), INVENTORY))
    guide = ROOT / "docs" / "guide" / "robustness.md"
    guide.write_text(insert(robustness_block(RECORDS), guide.read_text(), MARKER))
    CONVERSIONS_PAGE.write_text(insert(conversions_block(), CONVERSIONS_PAGE.read_text(), CONVERSIONS))
    for name in GUIDES:
        page = ROOT / "docs" / "guide" / name
        page.write_text(insert(guide_block(name, RECORDS), page.read_text()))
    sys.stdout.write("Wrote records/, the results in README.md, docs/papers/ and docs/guide/.\n")
