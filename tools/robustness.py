"""The measured part of docs/guide/robustness.md: accuracies by the mode of norms during an attack, from two records."""

from __future__ import annotations

import statistics
from pathlib import Path

from anynorm.recipes.support.record import Record, read_record
from anynorm.recipes.support.robustness import ROBUST
from anynorm.recipes.support.rows import select
from anynorm.tasks.robustness import TRAIN_MODE
from anynorm.training.statistics import LEVEL, mean_sd, paired_t_test

MARKER = "robustness"
"""Name of the markers on the page."""
PARTS = (
    ("bgn_adversarial.desk", "Adversarial training (`--task adversarial`, ε = 4/255)", ""),
    ("sabn_adversarial.desk", "AdvProp, adversarial branch (`--task advprop`, ε = 8/255)", "_adversarial_branch"),
    ("sabn_adversarial.desk", "AdvProp, clean branch", ""),
)
"""The name of a record, the title of its table, and the end of the names of its columns."""
HEADER = ["network", "clean images", "eval-mode attack", "train-mode attack", "difference", "p"]


def robustness_block(folder: Path) -> str:
    """Return the tables of the records in a folder, each with a sentence; a sentence if there is no record."""
    paths = [(folder / f"{name}.json", title, branch) for name, title, branch in PARTS]
    parts = [_part(read_record(path), title, branch) for path, title, branch in paths if path.exists()]
    return "\n\n".join(parts) if parts else "The recipes `bgn_adversarial` and `sabn_adversarial` have no record yet."


def _part(record: Record, title: str, branch: str) -> str:
    attack = record.settings["attacks"][-1]
    columns = [f"accuracy{branch}", f"{ROBUST}{attack}{branch}", f"{ROBUST}{attack}{TRAIN_MODE}{branch}"]
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    weaker: list[str] = []
    stronger: list[str] = []
    for norm in record.settings["norms"]:
        values = [select(record.rows, column, norm=norm) for column in columns]
        if None in [value for column in values for value in column]:
            lines.append(f"| `{norm}` | failed | | | | |")
            continue
        differences = [train - evaluated for evaluated, train in zip(*values[1:], strict=True)]
        p = min(paired_t_test(values[2], values[1]), paired_t_test(values[1], values[2]))
        if p < LEVEL and any(differences):
            (weaker if statistics.fmean(differences) > 0 else stronger).append(f"`{norm}`")
        cells = [*(mean_sd(column, ".1f", ".1f") for column in values), mean_sd(differences, "+.1f", ".1f")]
        lines.append(f"| `{norm}` | {' | '.join(cells)} | {_format_p(p, differences)} |")
    steps = attack.removeprefix("pgd")
    count = f"{record.settings['seeds']} seeds, {record.settings['options']['num_attacked']} test images each"
    finding = (
        f"Accuracy in %, mean ± sd over {count}, attacked by PGD with {steps} steps; "
        f"record `records/{record.recipe}.{record.preset}.json`. The difference is train mode minus eval mode: above 0, the "
        "attack in train mode is the weaker one. p: one-sided paired t-test. "
        f"The train-mode attack is significantly weaker for {_join(weaker)}, and significantly stronger for {_join(stronger)}."
    )
    return "\n".join([f"**{title}.** {finding}", "", *lines])


def _format_p(p: float, differences: list[float]) -> str:
    return f"{p:.2g}" if any(differences) else "equal"


def _join(names: list[str]) -> str:
    return ", ".join(names) if names else "none of them"
