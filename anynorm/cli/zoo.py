"""`anynorm list` and `anynorm show`: the available norms, and the definition of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anynorm.cli.options import AsJson, make_console, print_json
from anynorm.errors import ShapeError

DEFAULT_SHAPE = "8,32,8,8"
_COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan", "bright_red", "bright_green", "bright_blue", "bright_magenta")
_TITLES = {
    "spec": "spec",
    "class": "class",
    "cuts": "cuts: samples·channels·space",
    "running_statistics": "running statistics",
    "affine": "affine",
    "paper": "paper",
}

_INFERENCE = {
    "yes": "running statistics",
    "no": "the statistics of each input",
    "partly": "running statistics where a cut pools over samples, else the statistics of each input",
}


def list_(as_json: AsJson = False) -> None:
    """List all norms: spec, class, cuts, running statistics, affine, paper."""
    from anynorm.draw.descriptions import list_norms

    norms = list_norms()
    if as_json:
        print_json(norms)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in _TITLES.items():
        table.add_column(title, overflow="fold", no_wrap=column in ("spec", "class"))
    for norm in norms:
        table.add_row(*(Text(norm[column]) for column in _TITLES))
    console = make_console()
    console.print(table)
    console.print(
        f"{len(norms)} norms. Cuts: number of parts per axis (N, C, S: one part per index), mean / variance where they differ. "
        "`anynorm show SPEC` explains one."
    )


def show(
    spec: Annotated[str, typer.Argument(help="Spec of a norm, such as bn, hn:32, in+ln+bn or sabn@10.")],
    shape: Annotated[
        str | None,
        typer.Option(
            help="Shape of the input: N,C,H,W (or N,C; N,C,L; N,C,T,H,W). By default 8,32,8,8, and a smaller shape for --svg.",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Write a picture of the cuts to this file (.svg, .png or .pdf).", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the formula of a norm, the number of its parameters and statistics, and a diagram of its cuts."""
    from anynorm.draw.descriptions import describe

    about = describe(spec, _parse_shape(shape or DEFAULT_SHAPE))
    if svg is not None:
        from anynorm.draw import save_cuts

        save_cuts(spec, svg, _parse_shape(shape) if shape else None)
    if as_json:
        print_json(about)
        return
    console = make_console()
    alias = "" if about["canonical"] == about["spec"] else f" = {about['canonical']}"
    console.print(Text(f"{about['spec']}{alias}   {about['class']}, input {'×'.join(map(str, about['shape']))}", style="bold"))
    for line in about["formula"]:
        console.print(Text(f"  {line}"))
    console.print(Text(f"\nparameters          {about['num_parameters']:>8} = {about['parameter_terms']}"))
    if about["statistic_terms"]:
        console.print(Text(f"statistics          {about['num_statistics']:>8} = {about['statistic_terms']}"))
    inference = _INFERENCE[about["running_statistics"].partition(",")[0]] if about["cuts"] else "no statistics"
    console.print(Text(f"running statistics  {about['num_running_statistics']:>8}   inference uses {inference}"))
    for name, cut in about["cuts"].items():
        repeats = " (letters repeat: there are more statistics than letters)" if cut["letters_repeat"] else ""
        console.print(Text(f"\n{name}: {cut['axes']} parts of samples·channels·space; same letter = same statistic{repeats}"))
        _draw(console, cut["drawing"], about["drawn"])
    if svg is not None:
        console.print(Text(f"\nWrote {svg}."))


def _draw(console: Console, panels: list[list[str]], drawn: dict[str, list[int]]) -> None:
    """Print one panel per sample, side by side: one row per channel, one column per position, one color per statistic."""
    titles = [f"sample {index}" for index in drawn["samples"]]
    width = max(len(panels[0][0]), *map(len, titles)) + 2
    num_panels = max(1, (console.width - 14) // width)
    titles, panels = titles[:num_panels], panels[:num_panels]
    console.print(Text(" " * 14 + "".join(title.ljust(width) for title in titles).rstrip()))
    letters = sorted({letter for panel in panels for row in panel for letter in row})
    for channel, rows in zip(drawn["channels"], zip(*panels, strict=True), strict=True):
        line = Text(f"  channel {channel}".ljust(14))
        for row in rows:
            for letter in row:
                line.append(letter, style=_COLORS[letters.index(letter) % len(_COLORS)])
            line.append(" " * (width - len(row)))
        line.rstrip()
        console.print(line)


def _parse_shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in text.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if len(sizes) < 2 or min(sizes) < 1:
        raise ShapeError(f"--shape must be N,C or N,C,H,W and so on, integers of at least 1, such as 8,32,8,8; got {text!r}.")
    return sizes
