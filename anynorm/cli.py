"""The command line: parse, call, print. A table for a person, --json for a program; torch is loaded by what needs it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import anynorm
from anynorm.errors import AnynormError, ShapeError

app = typer.Typer(help="Any norm, in any model.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
AsJson = Annotated[bool, typer.Option("--json", help="Print data for a program.")]
_COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan", "bright_red", "bright_green", "bright_blue", "bright_magenta")


@app.callback(invoke_without_command=True)
def start(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Any norm, in any model."""
    if version:
        typer.echo(anynorm.__version__)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the zoo: spec, class, cuts, population, affine, paper."""
    from anynorm.show import listing

    lines = listing()
    if as_json:
        _print_json(lines)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("spec", "class", "cuts", "population", "affine", "paper"):
        title = "cuts: samples·channels·space" if column == "cuts" else column
        table.add_column(title, overflow="fold", no_wrap=column in ("spec", "class"))
    for line in lines:
        table.add_row(*(Text(value) for column, value in line.items() if column != "what"))
    console = _console()
    console.print(table)
    console.print(
        f"{len(lines)} norms. Cuts of mean / variance; N, C, S: each index on its own. `anynorm show SPEC` explains one."
    )


@app.command()
def show(
    spec: Annotated[str, typer.Argument(help="A norm, such as bn, hn:32, in+ln+bn or sabn@10.")],
    shape: Annotated[str, typer.Option(help="N,C,H,W (or N,C; N,C,L; N,C,T,H,W).")] = "8,32,8,8",
    as_json: AsJson = False,
) -> None:
    """Explain a norm: formula, counts, and which pixels share a statistic."""
    from anynorm.show import describe

    about = describe(spec, _shape(shape))
    if as_json:
        _print_json(about)
        return
    console = _console()
    named = "" if about["means"] == about["spec"] else f" = {about['means']}"
    console.print(Text(f"{about['spec']}{named}   {about['class']}, input {'×'.join(map(str, about['shape']))}", style="bold"))
    for line in about["formula"]:
        console.print(Text(f"  {line}"))
    console.print(Text(f"\nparameters   {about['parameters']:>8} = {about['parameter_terms']}"))
    console.print(Text(f"statistics   {about['statistics']:>8} = {about['statistic_terms']}"))
    console.print(Text(f"kept         {about['kept']:>8}   population: {about['population']}"))
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


Model = Annotated[str, typer.Option("--model", help="package.module:factory, called without arguments.")]
Checkpoint = Annotated[Path | None, typer.Option(help="A state_dict to load, .safetensors or torch's.")]
Out = Annotated[Path | None, typer.Option(help="Where to write the changed state_dict, as safetensors.")]
Data = Annotated[str, typer.Option(help="Inputs: an .npz, .npy or .pt file of (n, c, …), or package.module:factory.")]
Paths = Annotated[
    list[str] | None, typer.Option("--where", help="Paths of norms, such as 'layer3.*'; may be given more than once.")
]


@app.command()
def inspect(model: Model, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """List a model's norms: path, class, spec, channels, what is kept."""
    from anynorm.surgery.files import load_model
    from anynorm.surgery.inspect import inspect as look

    _print_report(look(load_model(model, checkpoint)), as_json)


@app.command()
def convert(
    spec: Annotated[str, typer.Argument(help="The norm to put in, such as gn:32.")],
    model: Model,
    checkpoint: Checkpoint = None,
    where: Paths = None,
    fit: Annotated[str | None, typer.Option(help="Calibration inputs on which γ and β are solved.")] = None,
    groups: Annotated[str, typer.Option(help="exact, or nearest: the nearest group number that divides the channels.")] = "exact",
    batch_size: Annotated[int | None, typer.Option(help="Samples a device in training, for bgn without a number.")] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Replace a model's norms, carrying over what can be."""
    from anynorm.surgery.files import load_model, read_batches

    loaded = load_model(model, checkpoint).eval()
    data = None if fit is None else list(read_batches(fit))
    options: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    _finish(anynorm.convert(loaded, spec, where, fit=data, groups=groups, **options), out, as_json)


@app.command()
def xbn(
    model: Model,
    norm: Annotated[str, typer.Option(help="The batch-free norm put in.")] = "gn:64",
    position: Annotated[int, typer.Option(help="Which norm of each block: 1, 2 or 3.")] = 2,
    every: Annotated[int, typer.Option(help="Every so many blocks: 1, 2, 4 or 8.")] = 1,
    stem: Annotated[bool, typer.Option(help="The norm before the first block too.")] = False,
    checkpoint: Checkpoint = None,
    fit: Annotated[str | None, typer.Option(help="Calibration inputs on which γ and β are solved.")] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Make the residual blocks of a model XBNBlocks."""
    from anynorm.surgery.files import load_model, read_batches

    loaded = load_model(model, checkpoint).eval()
    data = None if fit is None else list(read_batches(fit))
    _finish(anynorm.xbn(loaded, norm, position, every, stem, fit=data), out, as_json)


@app.command()
def fold(
    model: Model,
    data: Data,
    condition: Annotated[int | None, typer.Option(help="The class or domain that conditional norms are folded for.")] = None,
    checkpoint: Checkpoint = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Fold norms with fixed statistics into the layers beside them; the first batch of --data is the example."""
    from anynorm.surgery.files import load_model, read_batches

    loaded = load_model(model, checkpoint).eval()
    _finish(anynorm.fold(loaded, next(iter(read_batches(data, 2))), condition=condition), out, as_json)


@app.command()
def recalibrate(
    model: Model,
    data: Data,
    batches: Annotated[int | None, typer.Option(help="How many batches; all, if not given.")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples a batch, where --data is a file.")] = 64,
    estimator: Annotated[str, typer.Option(help="pooled or averaged.")] = "pooled",
    checkpoint: Checkpoint = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the kept statistics of a model's norms again."""
    from anynorm.surgery.files import load_model, read_batches

    loaded = load_model(model, checkpoint)
    _finish(anynorm.recalibrate(loaded, read_batches(data, batch_size), batches, estimator=estimator), out, as_json)


def _finish(report: Any, out: Path | None, as_json: bool) -> None:
    """Write the changed model and print the report."""
    if out is not None:
        from anynorm.surgery.files import save_model

        save_model(report.model, out)
        report.finding += f" Written to {out}."
    _print_report(report, as_json)


def _print_report(report: Any, as_json: bool) -> None:
    sys.stdout.write((report.json() if as_json else report.table()) + "\n")


def _console() -> Console:
    """A console as wide as the terminal; what is piped is not folded."""
    return Console() if sys.stdout.isatty() else Console(width=200)


def _print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def main() -> None:
    """Run the command line; misuse goes to stderr with exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no γ gets a ?
    try:
        app()
    except AnynormError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(2)
