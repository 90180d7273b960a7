"""The page of all recipes, written from their records: `python -m anynorm.lab.results recipes`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from anynorm.lab.recipe import SMOKE, Recipe, load_recipe
from anynorm.lab.record import Record, read_record

HEAD = """# Recipes

One file is one table or figure of a paper: its header says what is measured and what is scaled down, its claims are data, and its
records are numbers with seeds, spread, commit and hardware. This page is written from the records by `make results`, and a test
sees to it that it was. `anynorm reproduce NAME --preset …` measures again; verdicts are
Student's paired t-test at 5 %, seed by seed (draw by draw of noise on one network in xbn_perturbation).
"""


def page(folder: Path) -> str:
    """Write the page of the recipes in a folder."""
    parts = [HEAD]
    for path in sorted(folder.glob("*.py")):
        recipe = load_recipe(path.stem, folder)
        parts.append(_about(recipe, path))
        for record in sorted(folder.glob(f"records/{recipe.name}.*.json")):
            if f".{SMOKE}." not in record.name:
                parts.append(_told(recipe, read_record(record), folder))
    return "\n".join(parts)


def _about(recipe: Recipe, path: Path) -> str:
    head = (inspect.getdoc(inspect.getmodule(recipe.claims)) or "").partition("\n")[0]
    return f"## {head}\n\n[`{path.name}`]({path.name}), presets {', '.join(f'`{name}`' for name in recipe.presets)}.\n"


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
    (Path(sys.argv[1]) / "README.md").write_text(page(Path(sys.argv[1])))
