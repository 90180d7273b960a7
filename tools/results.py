"""What recipes found, written from their records: their page, and the table of a README.

python -m anynorm.lab.results recipes README.md
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from anynorm.errors import DataError
from anynorm.recipes.support.recipe import SMOKE, Recipe, load_recipe
from anynorm.recipes.support.record import Record, read_record

HEAD = """# Recipes

One file is one table or figure of a paper: its header says what is measured and what is scaled down, its claims are data, and its
records are numbers with seeds, spread, commit and hardware. This page is written from the records by `make results`, and a test
sees to it that it was. `anynorm reproduce NAME --preset …` measures again; verdicts are
Student's paired t-test at 5 %, seed by seed (draw by draw of noise on one network in xbn_perturbation). Minutes of training are
those of the runs, shared among the processes; runs that several recipes want are done once, and count for each.
"""


START, END = "<!-- results -->", "<!-- end of results -->"


def page(folder: Path) -> str:
    """Write the page of the recipes in a folder."""
    parts = [HEAD]
    for path in sorted(folder.glob("*.py")):
        recipe = load_recipe(path.stem)
        parts.append(_about(recipe, path))
        parts += [_told(recipe, record, folder) for record in _records(recipe, folder)]
    return "\n".join(parts)


def overview(folder: Path) -> str:
    """Write a table of all records: what was measured, and how many claims of the paper it bears out."""
    lines = [
        "| recipe | of the paper | preset | runs | hold | do not hold | not significant | failed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.py")):
        recipe = load_recipe(path.stem)
        for record in _records(recipe, folder):
            verdicts = [row["verdict"] for row in recipe.judge(record)]
            counts = [str(verdicts.count(word)) for word in ("holds", "does not hold", "not significant", "failed")]
            what = _head(recipe).partition(":")[0]
            cells = [f"[`{recipe.name}`](recipes/README.md)", what, record.preset, str(len(record.rows)), *counts]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_overview(text: str, folder: Path) -> str:
    """Put the table between its marks in a text."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise DataError(f"There is no place for the results: a line {START} and a line {END} make one.")
    return f"{before}{START}\n{overview(folder)}\n{END}{after}"


def _records(recipe: Recipe, folder: Path) -> list[Record]:
    """Read the records of a recipe, but for those of its smoke."""
    paths = sorted(folder.glob(f"records/{recipe.name}.*.json"))
    return [read_record(path) for path in paths if f".{SMOKE}." not in path.name]


def _head(recipe: Recipe) -> str:
    return (inspect.getdoc(inspect.getmodule(recipe.claims)) or "").partition("\n")[0]


def _about(recipe: Recipe, path: Path) -> str:
    return f"## {_head(recipe)}\n\n[`{path.name}`]({path.name}), presets {', '.join(f'`{name}`' for name in recipe.presets)}.\n"


def _told(recipe: Recipe, record: Record, folder: Path) -> str:
    """Write a record: what it bears out, where it comes from, its pictures."""
    made = record.provenance
    lines = [
        f"Preset `{record.preset}`: {len(record.rows)} runs, {record.minutes:.0f} minutes in {made['processes']} process(es) of "
        f"{made['threads']} thread(s) on {made['hardware']}, torch {made['torch']}, commit {made['commit']}.\n",
        "| claim | paper | larger | smaller | n | p | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in recipe.judge(record):
        verdict = row["verdict"] if row["verdict"] == "holds" else f"**{row['verdict']}**"
        cells = [row["claim"], row["paper"], row["larger"], row["smaller"], str(row["n"]), f"{row['p']:.2g}", verdict]
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    lines += ["", record.failures] if record.failures else []
    for table in recipe.tables(record):
        columns = list(table.rows[0])
        lines += ["", table.finding, "", f"| {' | '.join(map(_cell, columns))} |", "|---" * len(columns) + "|"]
        lines += [f"| {' | '.join(_cell(str(row[column])) for column in columns)} |" for row in table]
    pictures = sorted(folder.glob(f"records/{recipe.name}.{record.preset}*.png"))
    lines += ["", *(f"![{recipe.name}](records/{picture.name})\n" for picture in pictures)]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    recipes, readme = Path(sys.argv[1]), Path(sys.argv[2])
    (recipes / "README.md").write_text(page(recipes))
    readme.write_text(with_overview(readme.read_text(), recipes))
