"""Generate one page per task in `anynorm.tasks.TASKS` from docstrings, options, and links to guides that mention the task."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from anynorm.tasks import TASKS, task_class
from anynorm.training.task import Task

DOCS = Path(__file__).parent


def task_pages() -> dict[str, str]:
    """Return the text of the index page and of the page of each task, by file name."""
    return {"tasks/index.md": index_page(), **{f"tasks/{name}.md": task_page(name) for name in TASKS}}


def index_page() -> str:
    """Return the index page, which lists the tasks."""
    lines = [
        "# List of tasks",
        "",
        "A task defines what is trained: networks, data, loss and metric. `anynorm compare --task NAME` compares norms on it;",
    ]
    lines += ["[Tasks](../guide/tasks.md) shows how to write one.", "", "```{toctree}", ":hidden:", "", *TASKS, "```", ""]
    lines += ["| task | what is trained | compared by |", "|---|---|---|"]
    for name in TASKS:
        task = task_class(name)
        lines.append(f"| [`{name}`]({name}.md) | {_first_line(task.__doc__)} | {_metric(task)} |")
    return "\n".join([*lines, ""])


def task_page(name: str) -> str:
    """Return the page of a task."""
    task = task_class(name)
    defaults = ", ".join(f"{key}: {_format(value)}" for key, value in task.comparison_defaults.items())
    better = "higher" if task.metric.higher_is_better else "lower"
    parts = [f"# Task: {name}", f"{_first_line(task.__doc__)} Runs are compared by their {_metric(task)}; {better} is better."]
    parts += [f"```bash\nanynorm compare --task {name}\n```", f"By default, {defaults}.", *_guides(name)]
    parts += ["## How it works", _directive("automodule", task.__module__)]
    parts += ["## Settings", *_options(task), _directive("autoclass", f"{task.__module__}.{task.__name__}")]
    return "\n\n".join(parts) + "\n"


def _options(task: type[Task]) -> list[str]:
    if not task.default_options:
        return ["This task has no options; [Training](../guide/training.md) lists the settings that all tasks share."]
    described = option_descriptions(task)
    rows = "\n".join(f"| `{name}` | {_format(value)} | {described[name]} |" for name, value in task.default_options.items())
    return [
        "`--set NAME=VALUE` changes one of these options, or one of the [settings of all tasks](../guide/training.md):",
        f"| setting | default | |\n|---|---|---|\n{rows}",
    ]


def option_descriptions(task: type[Task]) -> dict[str, str]:
    """Return the description of each option, from the section Options of the class or of a base class.

    An entry may describe several options: "a, b: text".
    """
    descriptions: dict[str, str] = {}
    for each in reversed(task.__mro__):
        section = re.search(r"^Options:\n((?:    .*\n?|\n(?=    ))+)", inspect.cleandoc(each.__dict__.get("__doc__") or ""), re.M)
        for entry in re.split(r"\n(?! )", inspect.cleandoc(section[1])) if section else []:
            names, _, text = entry.partition(": ")
            descriptions |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return descriptions


def _guides(name: str) -> list[str]:
    """Return links to the guides that mention the task in text or in a command."""
    mentions = re.compile(rf"`{name}`|--task {name}\b")
    found = [path for path in sorted((DOCS / "guide").glob("*.md")) if mentions.search(path.read_text())]
    links = ", ".join(f"[{path.read_text().partition('# ')[2].splitlines()[0]}](../guide/{path.name})" for path in found)
    return [f"Guides: {links}."] if links else []


def _directive(directive: str, target: str) -> str:
    return f"```{{eval-rst}}\n.. {directive}:: {target}\n   :no-index:\n```"


def _format(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(_format(item) for item in value)
    if isinstance(value, float) and not value.is_integer() and (value * 255).is_integer():
        return f"`{round(value * 255)}/255`"
    return f"`{value}`" if value != "" else '`""`'


def _metric(task: type[Task]) -> str:
    return f"{task.metric.name} in {task.metric.unit}" if task.metric.unit else task.metric.name


def _first_line(doc: str | None) -> str:
    return (doc or "").splitlines()[0]
