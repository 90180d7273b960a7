"""`anynorm reproduce`: reproduction of a table or figure of a paper, and tests of the paper's claims."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from anynorm.cli.options import AsJson, Executor, print_json, print_table
from anynorm.lab.required_packages import require_packages


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A recipe, such as xbn_mlp; --list shows all.", show_default=False)] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the recipes and the running times of their presets.")] = False,
    preset: Annotated[str, typer.Option(help="smoke (seconds), desk (minutes) or paper (the published setting).")] = "smoke",
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of parallel runs; by default one per GPU, or one per core with one thread each."),
    ] = None,
    executor: Executor = "local",
    runs: Annotated[Path, typer.Option(help="Folder of the run store; recipes share training runs.")] = Path("runs/recipes"),
    records: Annotated[Path, typer.Option(help="Folder for records (JSON) and plots.")] = Path("records"),
    as_json: AsJson = False,
) -> None:
    """Run a recipe, print its tables, test the paper's claims and plot the results.

    The exit code is 1 if a claim does not hold or runs failed.
    """
    if list_:
        from anynorm.lab.recipes.support.catalog import recipe_table

        print_table(recipe_table(), as_json)
        return
    if name is None:
        raise typer.BadParameter("give the name of a recipe, or --list.", param_hint="NAME")
    require_packages("reproduce")

    from anynorm.lab.recipes.support.catalog import load_recipe
    from anynorm.lab.recipes.support.claims import DOES_NOT_HOLD, FAILED
    from anynorm.lab.recipes.support.recipe import SMOKE
    from anynorm.lab.training.devices import Hardware, num_gpus
    from anynorm.lab.training.executors import make_executor

    recipe = load_recipe(name)
    devices = recipe.settings(preset).num_devices
    workers = 1 if devices > 1 else processes or num_gpus(Hardware()) or None  # a run on several devices uses all devices
    try:
        record = recipe.run(preset, records, make_executor(executor, workers, devices=devices), runs)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. Run the same command again to resume.\n")
        raise
    tables, verdicts = recipe.tables(record), recipe.judge(record)
    recipe.plot(record, records / f"{recipe.name}.{preset}")
    if as_json:
        print_json(verdicts.to_dict() | {"tables": [table.to_dict() for table in tables]})
    else:
        sys.stdout.write("\n\n".join(map(str, [*tables, verdicts])) + "\n")
    raise typer.Exit(int(preset != SMOKE and any(row["verdict"] in (DOES_NOT_HOLD, FAILED) for row in verdicts)))
