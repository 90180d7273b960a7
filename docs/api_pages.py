"""Generate the pages of the API reference: the public names of `anynorm` and its public packages, data sets, and commands."""

from __future__ import annotations

import pkgutil
import textwrap
from importlib import import_module
from types import ModuleType

import anynorm
from anynorm.lazy import public_modules
from docs.docstrings import OBJECT, to_rst
from docs.task_pages import DATA

FUNCTIONS = (
    "make layer convert xbn recalibrate fold to_rms compare condition sync freeze unfreeze split_decay harden merge copy_domain "
    "save_pretrained load_pretrained push_to_hub zoo"
)
"""The order of the functions on the page of `anynorm`; those that are not listed follow."""
GROUPS = {
    "Norms": ("norms", "layers.baselines"),
    "Defining a norm": ("layers", "core.cuts", "core.spec", "kernels"),
    "Running statistics": ("core.update_rules",),
    "Training": ("lab",),
    "Reports": ("surgery", "table"),
    "Errors": ("errors",),
}
"""The parts of the page of `anynorm` after the functions, with the modules whose classes they show."""
PACKAGES = {
    "diagnostics": "what normalization does to a network",
    "draw": "plots of reports and cuts",
    "kernels": "selection of the kernels",
    "integrations": "adapters to other packages",
    "lab": "training, data, models and tasks",
}
"""Short descriptions of the public packages, in the order of the index."""


def api_pages() -> dict[str, str]:
    """Return the text of all pages of the API reference, by file name."""
    packages = {f"api/{name}.rst": package_page(f"anynorm.{name}") for name in PACKAGES}
    pages = {"api/index.rst": index_page(), "api/public.rst": public_page(), "api/data.rst": data_page()}
    return {**pages, **packages, "api/cli.md": command_page()}


def index_page() -> str:
    """Return the index page, which lists the packages."""
    lines = [
        *_title("API reference", "="),
        "All pages here are generated from docstrings. The command line has :doc:`a page of its own <cli>`.",
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
        "   public",
        *(f"   anynorm.{name}: {text} <{name}>" for name, text in PACKAGES.items()),
        "   data",
    ]
    return "\n".join(lines) + "\n"


def public_page() -> str:
    """Return the page of the names of `anynorm.__all__`: a table, and their docstrings. Its packages have pages of their own."""
    groups = public_groups()
    lines = [*_title("anynorm: public names", "="), "``import anynorm`` provides these names.", ""]
    return "\n".join([*lines, *_table("anynorm", groups), *_sections("anynorm", groups)])


def public_groups() -> dict[str, list[str]]:
    """Return the public names of each part of the page of `anynorm`, in the order of the page."""
    modules = public_modules("anynorm")
    names = [name for name in anynorm.__all__ if not isinstance(getattr(anynorm, name), ModuleType)]
    functions = [name for name in names if not isinstance(getattr(anynorm, name), type) and callable(getattr(anynorm, name))]
    order = [*FUNCTIONS.split(), *functions]
    groups = {"Functions": sorted(functions, key=order.index)}
    others = [name for name in names if name not in functions]
    for title, prefixes in GROUPS.items():
        starts = tuple(f"anynorm.{prefix}" for prefix in prefixes)
        groups[title] = [name for name in others if modules[name].startswith(starts)]
        others = [name for name in others if name not in groups[title]]
    return groups | ({"Others": others} if others else {})


def package_page(package: str) -> str:
    """Return the page of a public package: its docstring, a table of its names, and their docstrings."""
    lines = [*_title(f"{package}: {PACKAGES[package.partition('.')[2]]}", "="), f".. automodule:: {package}", ""]
    names = import_module(package).__all__
    if isinstance(getattr(import_module(package), names[0]), ModuleType):
        for name in names:
            lines += [*_title(f"{package}.{name}", "-"), f".. automodule:: {package}.{name}", "   :members:", ""]
        return "\n".join(lines)
    groups = lab_groups() if package == "anynorm.lab" else {"Names": names}
    return "\n".join([*lines, *_table(package, groups), *_sections(package, groups)])


def lab_groups() -> dict[str, list[str]]:
    """Return the public names of the lab by the folder, or for tasks the room, in which they are defined."""
    groups: dict[str, list[str]] = {}
    for name, module in sorted(public_modules("anynorm.lab").items()):
        folder, *rest = module.split(".")[2:]
        title = f"Task: {rest[0].replace('_', ' ')}" if folder == "tasks" and len(rest) > 1 else folder.capitalize()
        groups.setdefault(title, []).append(name)
    return dict(sorted(groups.items(), key=lambda item: (item[0].startswith("Task:"), item[0])))


def data_page() -> str:
    """Return the page of the modules that read data sets, to which the pages of tasks refer."""
    lines = [*_title("Data sets", "="), "The names of data sets, their files, and the modules of the lab that read them.", ""]
    names = {name for text in DATA.values() for name in OBJECT.findall(text)}
    for module in sorted({module for name in names for module in modules_of(name)}):
        lines += [*_title(module, "-"), f".. automodule:: {module}", ""]
    return "\n".join(lines)


def summary_line(path: str) -> str:
    """Return the first line of the docstring of a public name as reStructuredText.

    >>> summary_line("anynorm.merge")
    'Merge the shared affine of every sandwich norm into its affine per class, in place; outputs stay the same.'
    """
    package, _, name = path.rpartition(".")
    item = getattr(import_module(package), name)
    if not callable(item):
        return f"``{textwrap.shorten(repr(item), 70, placeholder=' …')}``"
    return to_rst([(item.__doc__ or "").strip().splitlines()[0]])[0]


def modules_of(package: str) -> list[str]:
    """Return the names of a module or package and of all modules in it, without private modules."""
    module = import_module(package)
    if not hasattr(module, "__path__"):
        return [package]
    found = [info.name for info in pkgutil.walk_packages(module.__path__, f"{package}.")]
    return [package, *(name for name in found if not name.rpartition(".")[2].startswith("_"))]


def command_page() -> str:
    """Return the page of the command line: the output of `--help` of every command."""
    import typer
    from typer.testing import CliRunner

    from anynorm.cli import app

    runner = CliRunner(env={"COLUMNS": "90", "TERM": "dumb", "NO_COLOR": "1", "TERMINAL_WIDTH": "90"})

    def help_of(*words: str) -> str:
        text = runner.invoke(app, [*words, "--help"], prog_name="anynorm").output
        return f"```text\n{text.strip()}\n```\n"

    group = typer.main.get_command(app)
    parts = ["# Command line\n", "`anynorm COMMAND --help` prints each of these.\n", help_of()]
    for name, command in sorted(getattr(group, "commands", {}).items()):
        subcommands = getattr(command, "commands", {})
        parts += [f"## anynorm {name}\n", help_of(name)]
        for subname in subcommands:
            parts += [f"### anynorm {name} {subname}\n", help_of(name, subname)]
    return "\n".join(parts)


def _table(package: str, groups: dict[str, list[str]]) -> list[str]:
    lines = [".. list-table::", "   :widths: auto", ""]
    for name in [name for names in groups.values() for name in names]:
        lines += [f"   * - :py:obj:`~{package}.{name}`", f"     - {summary_line(f'{package}.{name}')}"]
    return [*lines, ""]


def _sections(package: str, groups: dict[str, list[str]]) -> list[str]:
    lines: list[str] = []
    for title, names in groups.items():
        lines += ["", *_title(title, "-")]
        for name in names:
            item = getattr(import_module(package), name)
            if isinstance(item, type):
                members = [] if issubclass(item, Exception) else ["   :members:"]
                lines += [f".. autoclass:: {package}.{name}", *members, "   :show-inheritance:", ""]
            else:
                lines += [f".. {'autofunction' if callable(item) else 'autodata'}:: {package}.{name}", ""]
    return lines


def _title(text: str, mark: str) -> list[str]:
    return [text, mark * len(text), ""]
