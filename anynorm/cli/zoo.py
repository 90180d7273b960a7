"""`anynorm list` and `anynorm show`: the norms there are, and what one does."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anynorm.cli.options import AsJson, make_console, print_json
from anynorm.errors import ShapeError

_COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan", "bright_red", "bright_green", "bright_blue", "bright_magenta")


def list_(as_json: AsJson = False) -> None:
    """List the zoo: spec, class, cuts, population, affine, paper."""
    from anynorm.show import listing

    lines = listing()
    if as_json:
        print_json(lines)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("spec", "class", "cuts", "population", "affine", "paper"):
        title = "cuts: samples·channels·space" if column == "cuts" else column
        table.add_column(title, overflow="fold", no_wrap=column in ("spec", "class"))
    for line in lines:
        table.add_row(*(Text(value) for column, value in line.items() if column != "what"))
    count = sum(line["class"] != "not implemented" for line in lines)
    console = make_console()
    console.print(table)
    console.print(f"{count} norms. Cuts of mean / variance; N, C, S: each index on its own. `anynorm show SPEC` explains one.")


def show(
    spec: Annotated[str, typer.Argument(help="A norm, such as bn, hn:32, in+ln+bn or sabn@10.")],
    shape: Annotated[str, typer.Option(help="N,C,H,W (or N,C; N,C,L; N,C,T,H,W).")] = "8,32,8,8",
    as_json: AsJson = False,
) -> None:
    """Explain a norm: formula, counts, and which pixels share a statistic."""
    from anynorm.show import describe

    about = describe(spec, _shape(shape))
    if as_json:
        print_json(about)
        return
    console = make_console()
    named = "" if about["means"] == about["spec"] else f" = {about['means']}"
    console.print(Text(f"{about['spec']}{named}   {about['class']}, input {'×'.join(map(str, about['shape']))}", style="bold"))
    for line in about["formula"]:
        console.print(Text(f"  {line}"))
    console.print(Text(f"\nparameters   {about['parameters']:>8} = {about['parameter_terms']}"))
    if about["statistic_terms"]:
        console.print(Text(f"statistics   {about['statistics']:>8} = {about['statistic_terms']}"))
    console.print(Text(f"kept         {about['kept']:>8}   population: {about['update_rule']}"))
    for name, cut in about["cuts"].items():
        repeats = " (there are too few letters: they repeat)" if cut["letters_repeat"] else ""
        console.print(Text(f"\n{name}: samples·channels·space in {cut['axes']} parts; a letter is a statistic{repeats}"))
        _draw(console, cut["drawing"], about["drawn"])


def _draw(console: Console, panels: list[list[str]], drawn: dict[str, list[int]]) -> None:
    """Print a panel a sample side by side, a row a channel, a column a position, a colour a statistic."""
    titles = [f"sample {index}" for index in drawn["samples"]]
    width = max(len(panels[0][0]), *map(len, titles)) + 2
    fits = max(1, (console.width - 14) // width)
    titles, panels = titles[:fits], panels[:fits]
    console.print(Text(" " * 14 + "".join(title.ljust(width) for title in titles).rstrip()))
    letters = sorted({letter for panel in panels for row in panel for letter in row})
    for channel, rows in zip(drawn["channels"], zip(*panels, strict=True), strict=True):
        line = Text(f"  channel {channel}".ljust(14))
        for row in rows:
            for letter in row:
                line.append(letter, style=_COLOURS[letters.index(letter) % len(_COLOURS)])
            line.append(" " * (width - len(row)))
        line.rstrip()
        console.print(line)


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in text.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if len(sizes) < 2 or min(sizes) < 1:
        raise ShapeError(f"--shape {text!r} is no shape; write N,C,H,W with whole numbers from 1, such as 8,32,8,8.")
    return sizes
