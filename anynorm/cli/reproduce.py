"""`anynorm reproduce`: a table or figure of a paper, measured, beside what the paper says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from anynorm.cli.options import AsJson, Executor, print_report


def reproduce(
    name: Annotated[str, typer.Argument(help="A recipe, such as xbn_mlp.")],
    preset: Annotated[str, typer.Option(help="smoke (seconds), desk (minutes) or paper (the published setting).")] = "smoke",
    processes: Annotated[
        int | None, typer.Option(min=1, help="How many at once, of one thread each; by default as many as cores.")
    ] = None,
    executor: Executor = "local",
    runs: Annotated[Path | None, typer.Option(help="Where training runs are kept; by default in runs/recipes.")] = None,
    recipes: Annotated[Path, typer.Option(help="The folder of the recipes.")] = Path("recipes"),
    records: Annotated[
        Path | None, typer.Option(help="Where records and pictures go; by default into the recipes' folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe, judge the paper's claims by it, and draw it; exit 1 where a claim does not hold, or its runs failed."""
    from anynorm.recipes.support.presets import RUNS
    from anynorm.recipes.support.recipe import SMOKE, load_recipe
    from anynorm.training.executors import make_executor

    if runs is not None:
        os.environ[RUNS] = str(runs)
    recipe = load_recipe(name)
    folder = recipes / "records" if records is None else records
    try:
        record = recipe.run(preset, folder, make_executor(executor, processes))
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. The same command goes on where it was.\n")
        raise
    judged = recipe.judge(record)
    recipe.draw(record, folder / f"{recipe.name}.{preset}")
    print_report(judged, as_json)
    raise typer.Exit(int(preset != SMOKE and any(row["verdict"] in ("does not hold", "failed") for row in judged)))
