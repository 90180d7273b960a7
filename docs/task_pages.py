"""Pages of tasks: one per name of `anynorm.lab.tasks.TASKS`, from docstrings, options and the defaults of `anynorm compare`."""

from __future__ import annotations

from pathlib import Path

from anynorm.lab.comparison.compare import make_comparison
from anynorm.lab.comparison.comparison import Comparison
from anynorm.lab.tasks import TASKS, task_class
from anynorm.lab.training.config import Config
from anynorm.lab.training.devices import Hardware
from anynorm.lab.training.options import Options
from anynorm.lab.training.task import Task
from docs.docstrings import CODE, OBJECT

DOCS = Path(__file__).parent
_DOMAINS = "`--data` is the source domain, `--set target=NAME` the target domain; see `anynorm.lab.tasks.adaptation.data`."
_IMAGES = "`--data` is a data set of images with labels; see `anynorm.lab.data`."
_SEARCH_IMAGES = f"{_IMAGES} One half of the training images trains the weights, the other half the architecture."
DATA = {
    "classification": _IMAGES,
    "adversarial": _IMAGES,
    "advprop": _IMAGES,
    "architecture_evaluation": f"{_IMAGES} `--model` is the architecture, `darts:GENOTYPE`.",
    "few_shot": "`--data` has base classes for training and novel classes for tests; see `anynorm.lab.tasks.few_shot.data`.",
    "generation": _IMAGES,
    "style_transfer": (
        "`--data` has the content images, and `--set styles=NAME` the style images, which have no default; see "
        "`anynorm.lab.data.unlabeled`."
    ),
    "single_style_transfer": (
        "`--data` has the content images, see `anynorm.lab.data.unlabeled`, and `--set style_image=PATH` is the picture with the "
        "style, which has no default."
    ),
    "controller_search": (
        "`--set table=PATH` is a file with the accuracies of NAS-Bench-201 (see `anynorm.lab.tasks.search.nasbench`), "
        "`--set data_set=NAME` the data set on which they were measured. There are no images."
    ),
    **dict.fromkeys(("darts", "darts_second_order", "manas_exp3", "manas_least_squares", "random_search"), _SEARCH_IMAGES),
    **dict.fromkeys(("source_only", "adabn", "dsbn", "can", "can_all_classes"), _DOMAINS),
    "detection": (
        "`--data` has images with boxes and, for `--set masks=true`, masks of objects; see "
        "`anynorm.lab.tasks.detection.data.datasets`."
    ),
    "segmentation": "`--data` has images with a class per pixel; see `anynorm.lab.tasks.segmentation.data`.",
    "video": "`--data` has videos with labels; see `anynorm.lab.tasks.video.data`.",
}
"""The data of each task, and the options that name them."""
ARGUMENTS = {
    "style_transfer": " --data folder:photos --set styles=folder:paintings",
    "single_style_transfer": " --data folder:photos --set style_image=painting.jpg",
}
"""Further arguments of the command of a task, whose data have no default."""
UNUSED = {"style_transfer": ("model",), "single_style_transfer": ("model",), "controller_search": ("data", "model")}
"""Arguments that a task does not use."""
GUIDES = {
    "classification": ("compare", "training", "robustness"),
    "adversarial": ("robustness",),
    "advprop": ("robustness",),
    "few_shot": ("few_shot",),
    "generation": ("generation",),
    **dict.fromkeys(("style_transfer", "single_style_transfer"), ("style_transfer",)),
    **dict.fromkeys(("darts", "darts_second_order", "manas_exp3", "manas_least_squares", "random_search"), ("search",)),
    **dict.fromkeys(("architecture_evaluation", "controller_search"), ("search",)),
    **dict.fromkeys(("source_only", "adabn", "dsbn", "can", "can_all_classes"), ("domains",)),
    "detection": ("detection",),
    "segmentation": ("segmentation",),
    "video": ("video",),
}
"""The guides about each task, files of docs/guide."""
ARGUMENT_TEXTS = {
    "norms": "norms to compare",
    "batch_sizes": "samples per batch",
    "seeds": "runs per norm and batch size",
    "data": "data set",
    "model": "network",
    "width": "width multiplier of the network",
    "epochs": "number of epochs",
    "lr": "learning rate at batch size 32, from which `--lr-scaling` computes that of other sizes",
    "lr_scaling": "how the learning rate follows the batch size: linear, sqrt or none",
}
"""Arguments of `anynorm compare` with an option of their own."""
SETTING_TEXTS = {
    "image_size": "side of training images, in pixels",
    "grad_accum_steps": "forward passes per step",
    "optimizer": "optimizer",
    "schedule": "schedule of the learning rate",
    "warmup_epochs": "epochs over which the learning rate rises from 0",
    "weight_decay": "weight decay",
    "nesterov": "whether SGD uses Nesterov momentum",
    "num_evals": "evaluations per run",
}
"""Settings of all tasks for which a task may have a default of its own."""
IN_255THS = ("epsilon", "step_size")
"""Options that are fractions of the range of 8-bit pixels."""


def task_pages() -> dict[str, str]:
    """Return the list of tasks and one page per task by file name."""
    return {"tasks/index.md": index_page(), **{f"tasks/{name}.md": task_page(name) for name in TASKS}}


def index_page() -> str:
    """Return the list of tasks."""
    lines = [
        "# List of tasks",
        "",
        "A task defines what is trained: networks, data, loss and metric. `anynorm compare --task NAME` compares norms on it;",
    ]
    lines += ["[Tasks](../guide/tasks.md) shows how to write one.", "", "```{toctree}", ":hidden:", "", *TASKS, "```", ""]
    lines += ["| task | | compared by |", "|---|---|---|"]
    for name in TASKS:
        lines.append(f"| [`{name}`]({name}.md) | {first_line(task_class(name))} | {_metric(default_comparison(name))} |")
    return "\n".join([*lines, ""])


def task_page(name: str) -> str:
    """Return the page of a task."""
    task, comparison = task_class(name), default_comparison(name)
    better = "higher" if comparison.metric.higher_is_better else "lower"
    parts = [f"# Task: {name}", f"{first_line(task)} Runs are compared by their {_metric(comparison)}; {better} is better."]
    parts += [link_objects(DATA[name]), f"```bash\nanynorm compare --task {name}{ARGUMENTS.get(name, '')}\n```"]
    parts += [f"Defaults of `anynorm compare --task {name}`:", defaults_table(name, comparison), _guides(name)]
    parts += ["## How it works", _directive("automodule", task.__module__)]
    parts += ["## Settings", "`--set NAME=VALUE` changes these, and [those of all tasks](../guide/training.md):"]
    parts += [options_table(task.options_of(comparison.base))]
    parts += [_directive("autoclass", f"{task.__module__}.{task.__name__}")]
    return "\n\n".join(parts) + "\n"


def default_comparison(name: str) -> Comparison:
    """Return the comparison of `anynorm compare --task NAME` without further arguments."""
    return make_comparison({"task": name}, Path("runs"), Hardware())


def defaults_table(name: str, comparison: Comparison) -> str:
    """Return a table of the arguments that a comparison has by default, without the options of its task.

    Settings of all tasks are in it if the task has a default of its own for them.
    """
    lines = ["| argument | default | |", "|---|---|---|"]
    defaults = Config()
    own = {key: text for key, text in SETTING_TEXTS.items() if getattr(comparison.base, key) != getattr(defaults, key)}
    for key, text in (ARGUMENT_TEXTS | own).items():
        value = getattr(comparison if hasattr(comparison, key) else comparison.base, key)
        if value is not None and key not in UNUSED.get(name, ()):
            argument = f"--set {key}" if key in own else f"--{key.replace('_', '-')}"
            lines.append(f"| `{argument}` | {_format(key, value)} | {text} |")
    return "\n".join(lines)


def options_table(options: Options) -> str:
    """Return a table of the options of a task in a comparison; where they differ from those of the class, it has both."""
    descriptions, defaults = options.descriptions(), options.defaults()
    lines = ["| setting | default | |", "|---|---|---|"]
    for name, default in defaults.items():
        value = getattr(options, name)
        remark = f" The default outside of comparisons is {_format(name, default)}." if value != default else ""
        lines.append(f"| `{name}` | {_format(name, value)} | {link_objects(descriptions[name] + remark)} |")
    return "\n".join(lines)


def link_objects(text: str) -> str:
    """Return Markdown in which the names of objects of anynorm are links.

    >>> link_objects("see `anynorm.lab.data` and `--data`")
    'see {py:obj}`anynorm.lab.data` and `--data`'
    """
    return CODE.sub(lambda code: f"{{py:obj}}{code[0]}" if OBJECT.fullmatch(code[1]) else code[0], text)


def first_line(task: type[Task]) -> str:
    """Return what a task is: the first line of its docstring."""
    return (task.__doc__ or "").splitlines()[0]


def _guides(name: str) -> str:
    paths = [DOCS / "guide" / f"{guide}.md" for guide in GUIDES[name]]
    links = ", ".join(f"[{path.read_text().partition('# ')[2].splitlines()[0]}](../guide/{path.name})" for path in paths)
    return f"Guide{'s' * (len(paths) > 1)}: {links}."


def _directive(directive: str, target: str) -> str:
    return f"```{{eval-rst}}\n.. {directive}:: {target}\n   :no-index:\n```"


def _format(name: str, value: object) -> str:
    """Return a value as `--set` takes it."""
    if isinstance(value, tuple | list):
        return ", ".join(_format(name, item) for item in value) or '`""`'
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if name in IN_255THS and isinstance(value, float) and (value * 255).is_integer():
        return f"`{round(value * 255)}/255`"
    return f"`{value}`" if value != "" else '`""`'


def _metric(comparison: Comparison) -> str:
    name, unit = comparison.metric.name, comparison.metric.unit
    return f"{f'`{name}`' if '_' in name else name}{' in ' * bool(unit)}{unit}"
