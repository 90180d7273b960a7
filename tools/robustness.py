"""Generate the results in docs/guide/robustness.md: accuracies by the mode of norms during an attack, from two records."""

from __future__ import annotations

import statistics
from pathlib import Path

from anynorm.lab.recipes.support.adversarial import AdversarialSettings
from anynorm.lab.recipes.support.catalog import read_record
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import select
from anynorm.lab.tasks.classification.robustness import RobustMetric
from anynorm.lab.training.result import Result
from anynorm.lab.training.significance import LEVEL, holm, paired_t_test

MARKER = "robustness"
"""Name of the two markers on the page between which the results are inserted."""
PARTS = (
    ("bgn_adversarial.desk", "Adversarial training (`--task adversarial`, ε = 4/255)", ""),
    ("sabn_adversarial.desk", "AdvProp, adversarial branch (`--task advprop`, ε = 8/255)", "_adversarial_branch"),
    ("sabn_adversarial.desk", "AdvProp, clean branch", ""),
)
"""For each table: the name of the record, the title of the table, and the suffix of the names of its columns."""
HEADER = ["network", "clean images", "eval-mode attack", "train-mode attack", "difference", "p"]


def robustness_block(folder: Path) -> str:
    """Return the tables of the records in a folder as Markdown; if there are no records, a sentence that says so."""
    paths = [(folder / f"{name}.jsonl", title, branch) for name, title, branch in PARTS]
    parts = [_part(read_record(path), title, branch) for path, title, branch in paths if path.exists()]
    return "\n\n".join(parts) if parts else "The recipes `bgn_adversarial` and `sabn_adversarial` have no record yet."


def _part(record: RecipeRecord[AdversarialSettings], title: str, branch: str) -> str:
    attack = record.settings.attacks[-1]
    columns = [f"accuracy{branch}", *(RobustMetric(attack, mode, branch).accuracy for mode in ("eval", "train"))]
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    by_norm = {norm: [select(record.rows, column, norm=norm) for column in columns] for norm in record.settings.norms}
    complete = {norm: values for norm, values in by_norm.items() if None not in [value for column in values for value in column]}
    differences = {norm: [b - a for a, b in zip(*values[1:], strict=True)] for norm, values in complete.items()}
    p_values = holm({norm: _two_sided(*complete[norm][1:]) for norm in complete if any(differences[norm])})
    weaker: list[str] = []
    stronger: list[str] = []
    for norm in by_norm:
        if norm not in complete:
            lines.append(f"| `{norm}` | failed | | | | |")
            continue
        p = p_values.get(norm)
        if p is not None and p < LEVEL:
            (weaker if statistics.fmean(differences[norm]) > 0 else stronger).append(f"`{norm}`")
        cells = [*(f"{Result.of(column):.1f}" for column in complete[norm]), f"{Result.of(differences[norm]):+.1f ± .1f}"]
        lines.append(f"| `{norm}` | {' | '.join(cells)} | {'equal' if p is None else f'{p:.2g}'} |")
    steps = attack.removeprefix("pgd")
    count = f"{record.settings.seeds} seeds, {record.settings.options.num_attacked} test images each"
    finding = (
        f"Accuracy in %, mean ± sd over {count}, attacked by PGD with {steps} steps; "
        f"record `records/{record.recipe}.{record.preset}.jsonl`. The difference is train mode minus eval mode: above 0, the "
        "attack in train mode is the weaker one. p: two-sided paired t-test, Holm's correction over the networks. "
        f"The train-mode attack is significantly weaker for {_join(weaker)}, and significantly stronger for {_join(stronger)}."
    )
    return "\n".join([f"**{title}.** {finding}", "", *lines])


def _two_sided(a: list[float], b: list[float]) -> float:
    return min(1.0, 2 * min(paired_t_test(a, b), paired_t_test(b, a)))


def _join(names: list[str]) -> str:
    return ", ".join(names) if names else "none of them"
