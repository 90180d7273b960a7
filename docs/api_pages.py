"""Generate the pages of the API reference: the public names of `anynorm`, one page per package, and the command line."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import anynorm
from docs.docstrings import to_rst

FUNCTIONS = (
    "make layer convert xbn recalibrate fold compare condition sync freeze unfreeze split_decay harden merge copy_domain zoo"
)
"""The order of the functions on the page of public names; those that are not listed follow."""
GROUPS = {
    "Norms": ("layers.norm", "layers.algebra"),
    "Tasks": ("training",),
    "Errors": ("errors",),
}
"""The parts of the page of public names after the functions, with the modules whose classes they show."""
PACKAGES = {
    "registry": "from a spec to a layer",
    "core": "cuts, moments, mixing, affine, specs",
    "layers": "layers, running statistics, conditions, baselines",
    "kernels": "the passes over x: reference, C++, Triton",
    "surgery": "changing the norms of a model",
    "diagnostics": "what normalization does to a network",
    "plot": "plots of reports and cuts",
    "show": "descriptions of norms",
    "attacks": "adversarial images",
    "few_shot": "classes added to a trained classifier",
    "data": "data sets, transforms, streams",
    "models": "networks",
    "io": "checkpoints, inputs and pictures",
    "training": "the trainer, runs and sweeps",
    "tasks": "classification, detection, generation and other tasks",
    "comparison": "training the same network with many norms",
    "report": "report pages",
    "stylization": "pictures in the style of another",
    "recipes": "tables and figures of papers",
    "integrations": "adapters to other packages",
    "table": "tables of text",
    "progress": "progress bars",
    "errors": "exceptions",
}
"""Short descriptions of the packages, in the order of the index. Other packages follow without a description."""
HIDDEN = {"cli", "__main__"}
"""Packages without a page. The command line has a separate page."""
MODULES_ONLY = {"recipes", "report", "tasks"}
"""Packages of which only module docstrings are shown: tasks have their own pages, and the others are internals of commands."""
NOT_IMPORTED = {"anynorm.kernels.gpu_kernels"}
"""Modules that cannot be imported here, because they need Triton."""


def api_pages() -> dict[str, str]:
    """Return the text of all pages of the API reference, by file name."""
    names = [module.name for module in pkgutil.iter_modules(anynorm.__path__) if module.name not in HIDDEN]
    order = [*PACKAGES, *names]
    packages = sorted(names, key=order.index)
    pages = {f"api/{name}.rst": package_page(name) for name in packages}
    return {"api/index.rst": index_page(packages), "api/public.rst": public_page(), "api/cli.md": command_page(), **pages}


def index_page(packages: list[str]) -> str:
    """Return the index page, which lists the packages."""
    lines = [
        *_title("API reference", "="),
        "All pages here are generated from docstrings. The command line has :doc:`a page of its own <cli>`.",
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
    ]
    lines += ["   public"]
    lines += [f"   anynorm.{name}: {PACKAGES[name]} <{name}>" if name in PACKAGES else f"   {name}" for name in packages]
    return "\n".join(lines) + "\n"


def public_page() -> str:
    """Return the page of all names of `anynorm.__all__`: a table, and their docstrings."""
    groups = public_groups()
    lines = [*_title("anynorm: public names", "="), "The public API: ``import anynorm`` provides these names.", ""]
    lines += [".. list-table::", "   :widths: auto", ""]
    for name in [name for names in groups.values() for name in names]:
        lines += [f"   * - :py:obj:`~anynorm.{name}`", f"     - {summary_line(name)}"]
    for title, names in groups.items():
        lines += ["", *_title(title, "-")]
        for name in names:
            item = getattr(anynorm, name)
            if isinstance(item, type):
                shows_members = not issubclass(item, Exception)
                lines += [
                    f".. autoclass:: anynorm.{name}",
                    *(["   :members:"] if shows_members else []),
                    "   :show-inheritance:",
                    "",
                ]
            else:
                lines += [f".. autofunction:: anynorm.{name}", ""]
    return "\n".join(lines)


def public_groups() -> dict[str, list[str]]:
    """Return the public names of each part of their page, in the order of the page."""
    classes = [name for name in anynorm.__all__ if isinstance(getattr(anynorm, name), type)]
    functions = [name for name in anynorm.__all__ if name not in classes]
    order = [*FUNCTIONS.split(), *functions]
    groups = {"Functions": sorted(functions, key=order.index)}
    for title, prefixes in GROUPS.items():
        names = [name for prefix in prefixes for name in classes if anynorm._MODULE_OF[name].startswith(prefix)]
        groups[title] = names
    others = [name for name in classes if not any(name in names for names in groups.values())]
    return groups | ({"Others": others} if others else {})


def summary_line(name: str) -> str:
    """Return the first line of the docstring of a public name as reStructuredText.

    >>> summary_line("merge")
    'Merge the shared affine of every sandwich norm into its affine per class, in place; outputs stay the same.'
    """
    return to_rst([(getattr(anynorm, name).__doc__ or "").strip().splitlines()[0]])[0]


def package_page(name: str) -> str:
    """Return the page of a package, with one section per module; names that the package exports are described only once."""
    package = f"anynorm.{name}"
    exported = set(getattr(import_module(package), "__all__", ()))
    lines = _title(package + (f": {PACKAGES[name]}" if name in PACKAGES else ""), "=")
    for module in modules_of(package):
        public = [item for item in anynorm.__all__ if f"anynorm.{anynorm._MODULE_OF[item]}" == module]
        hidden = [*public, *(exported if module != package else ())]
        lines += [] if module == package else _title(module, "-")
        lines += [f".. automodule:: {module}"]
        lines += ["   :no-index:"] if module.removeprefix(f"{package}.") in exported else []  # a function has the same name
        lines += [] if name in MODULES_ONLY else ["   :members:", "   :show-inheritance:"]
        lines += [f"   :exclude-members: {', '.join(sorted(hidden))}"] if hidden else []
        links = ", ".join(f":py:obj:`anynorm.{item}`" for item in public)
        lines += ["", f"Described with the public names: {links}.", ""] if public else [""]
    return "\n".join(lines)


def modules_of(package: str) -> list[str]:
    """Return the names of a module or package and of all modules in it, without private modules and `NOT_IMPORTED`."""
    module = import_module(package)
    if not hasattr(module, "__path__"):
        return [package]
    found = [info.name for info in pkgutil.walk_packages(module.__path__, f"{package}.")]
    return [package, *(name for name in found if name not in NOT_IMPORTED and not name.rpartition(".")[2].startswith("_"))]


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


def _title(text: str, mark: str) -> list[str]:
    return [text, mark * len(text), ""]
