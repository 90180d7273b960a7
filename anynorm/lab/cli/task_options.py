"""Flags of the options of a task: `anynorm compare --task detection --fpn-channels 64`, listed by `--task detection --help`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_origin

import typer
from typer.core import TyperCommand

from anynorm.errors import SpecError, did_you_mean
from anynorm.lab.tasks import task_class

if TYPE_CHECKING:
    from anynorm.lab.training.options import Options

_TASK = "anynorm.task"
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of the command: flags that it does not have are left for `parse_flags`."""


class TaskCommand(TyperCommand):
    """A command whose help has the options of the task that `--task` names, if it is given; help alone does not import torch."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; note the task first, because `--help` ends the parsing."""
        given = [arg.partition("=")[2] or value for arg, value in zip(args, [*args[1:], ""], strict=False) if _is_task(arg)]
        ctx.meta[_TASK] = given[-1] if given else ""
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command, and the options of the task."""
        super().format_help(ctx, formatter)
        if task := ctx.meta.get(_TASK):
            typer.echo(f" Options of {task}:\n\n{describe_options(task_class(task).options_class)}\n")


def describe_options(options: type[Options]) -> str:
    """Return the flags of options with their documentation and defaults, two lines per option."""
    from anynorm.lab.training.value_types import describe_type, field_types, format_value

    lines = []
    for name, text in options.descriptions().items():
        default = format_value(options.defaults()[name]) or '""'
        lines.append(f"   {_flag(name)}   {describe_type(field_types(options)[name])} [default: {default}]\n       {text}")
    return "\n".join(lines)


def parse_flags(args: list[str], options: type[Options]) -> dict[str, Any]:
    """Return the options of a task that are given as `--name value` or `--name=value`; a flag may be `--name` or `--no-name`.

    The flag of an option with several values can be repeated: `--attack fgsm --attack pgd:4` is `--attack fgsm,pgd:4`.

    Raises:
        SpecError: if an argument is not a flag of an option, or has no value.
    """
    from anynorm.lab.training.value_types import field_types

    values: dict[str, Any] = {}
    kinds, rest = field_types(options), list(args)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        negated = name.removeprefix("no_")
        if flag == _flag(name) and name in kinds:
            if not equals and kinds[name] is bool and (not rest or rest[0].startswith("--")):
                value = "true"
            elif not equals:
                if not rest:
                    raise SpecError(f"{flag} must have a value.")
                value = rest.pop(0)
            repeated = name in values and get_origin(kinds[name]) is tuple
            values[name] = f"{values[name]},{value}" if repeated else value
        elif name != negated and kinds.get(negated) is bool and not equals:
            values[negated] = "false"
        else:
            raise SpecError(f"there is no flag {flag!r}.{did_you_mean(flag, map(_flag, kinds), count=1) or ' See --help.'}")
    return values


def _is_task(arg: str) -> bool:
    return arg.partition("=")[0] == "--task"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
