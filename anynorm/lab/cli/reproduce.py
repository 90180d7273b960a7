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
    status: Annotated[bool, typer.Option("--status", help="Show which cells are measured, missing, and the hours left.")] = False,
    preset: Annotated[
        str, typer.Option(help="smoke (seconds), desk (a demonstration), night (hours) or paper (the published setting).")
    ] = "smoke",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds to measure now; by default all of the preset.")
    ] = None,
    pilot: Annotated[
        bool, typer.Option("--pilot", help="Measure seeds from 1000 on with validation data, to choose settings; never judged.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a setting of the preset, such as training.config.lr=0.03, norms=bn,gn:8 or groups=auto; repeatable. The "
            "record gets a name of its own, and its verdicts are exploratory.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of parallel runs; by default one per GPU, or one per core with one thread each."),
    ] = None,
    executor: Executor = "local",
    runs: Annotated[Path, typer.Option(help="Folder of the run store; recipes share training runs.")] = Path("runs/recipes"),
    records: Annotated[Path, typer.Option(help="Folder for records (JSON Lines) and plots.")] = Path("records"),
    as_json: AsJson = False,
) -> None:
    """Measure what is missing of a recipe, print its tables and controls, test the claims and plot the results.

    Measured cells are appended to the record one by one; run the command again to resume, in any order, over days. The exit code
    is 1 if a claim is reversed or runs failed.
    """
    if list_:
        from anynorm.lab.recipes.support.catalog import recipe_table

        print_table(recipe_table(), as_json)
        return
    if name is None and not status:
        raise typer.BadParameter("give the name of a recipe, or --list, or --status.", param_hint="NAME")
    require_packages("reproduce")

    from anynorm.lab.recipes.support.catalog import load_recipe, recipe_names
    from anynorm.lab.recipes.support.recipe import SMOKE
    from anynorm.lab.recipes.support.results import write_pictures
    from anynorm.lab.recipes.support.setting_changes import with_changes
    from anynorm.lab.recipes.support.status import status_table
    from anynorm.lab.recipes.support.verdict_table import control_table, verdict_table
    from anynorm.lab.recipes.support.verdicts import FAILED, REVERSED
    from anynorm.lab.training.devices import Hardware, num_gpus
    from anynorm.lab.training.executors import make_executor

    if status:
        names = [name] if name else recipe_names()
        print_table(status_table(map(load_recipe, names), records), as_json)
        return
    recipe = load_recipe(str(name))
    if set_:
        recipe, preset = with_changes(recipe, preset, set_)
    devices = recipe.settings(preset).num_devices
    workers = 1 if devices > 1 else processes or num_gpus(Hardware()) or None  # a run on several devices uses all devices
    try:
        record = recipe.run(preset, records, make_executor(executor, workers, devices=devices), runs, seeds=seeds, pilot=pilot)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. Run the same command again to resume.\n")
        raise
    if pilot:
        sys.stdout.write(f"Wrote {recipe.path(preset, records, pilot=True)} ({len(record.cells)} cells of a pilot).\n")
        return
    verdicts = recipe.judge(record)
    tables = recipe.tables(record)
    controls, claims = control_table(recipe.check_controls(record)), verdict_table(verdicts)
    claims.finding = f"{recipe.conclusion(record)} {claims.finding}"
    write_pictures(recipe, record, records)
    if as_json:
        extra = {"tables": [table.to_dict() for table in tables], "controls": controls.to_dict()}
        print_json(claims.to_dict() | extra)
    else:
        sys.stdout.write("\n\n".join(map(str, [*tables, controls, claims])) + "\n")
    raise typer.Exit(int(preset != SMOKE and any(verdict.verdict in (REVERSED, FAILED) for verdict in verdicts)))
