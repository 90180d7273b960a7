"""Generate the results in a guide: the first table of a record and some of its claims."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from anynorm.lab.recipes.support.catalog import load_recipe
from anynorm.lab.recipes.support.verdict_table import summary, verdict_table
from tools.markdown import anchor, markdown_table, recipe_heading


class Results(NamedTuple):
    """The results that a guide shows.

    Attributes:
        record: name of the record, "RECIPE.PRESET".
        columns: columns of the first table of the record.
        claims: texts; a claim is shown if its statement contains one of them.
    """

    record: str
    columns: tuple[str, ...]
    claims: tuple[str, ...]


GUIDES = {
    "domains.md": Results(
        "bgn_adaptation.desk", ("norm", "spec", "source only", "AdaBN", "adapted"), ("domain-specific", "AdaBN", "DSBN")
    ),
    "detection.md": Results(
        "sn_detection.desk",
        ("norm", "devices × samples", "backbone from", "AP", "AP, recalibrated", "AP, batch statistics", "mask AP"),
        ("than `bn`", "statistics", "`bn, pretrained`"),
    ),
    "segmentation.md": Results(
        "sn_segmentation.desk",
        ("norm", "mIoU", "mIoU, batch statistics", "mIoU, recalibrated", "mIoU, multi-scale", "paper"),
        ("`bn`",),
    ),
    "video.md": Results(
        "sn_video.desk",
        ("devices", "clips per device", "norm", "running statistics", "batch statistics", "recalibrated"),
        ("`bn`", "`sn`"),
    ),
}
"""The results of each page of docs/guide/ that shows results."""


def guide_block(page: str, folder: Path) -> str:
    """Return the results of a page as Markdown; if the record does not exist, a sentence that says so."""
    results = GUIDES[page]
    name = results.record.partition(".")[0]
    path = folder / f"{results.record}.jsonl"
    if not path.exists():
        return f"The recipe `{name}` has no record yet."
    recipe = load_recipe(name)
    record = recipe.read(path)
    table = recipe.tables(record)[0]
    rows = [[table.format(row, column) for column in results.columns] for row in table]
    source = f"Recipe `{name}`, preset `{record.preset}`, {record.settings.seeds} seeds; record `records/{results.record}.jsonl`."
    link = f"../../records/README.md#{anchor(recipe_heading(name))}"
    verdicts = recipe.judge(record)
    columns = ("claim", "difference [95 %]", "n", "verdict")
    shown = [row for row in verdict_table(verdicts) if any(text in row["claim"] for text in results.claims)]
    claims = [list(columns), *([str(row[column]) for column in columns] for row in shown)]
    return "\n".join(
        [
            f"{table.finding} {source}",
            "",
            *markdown_table([list(results.columns), *rows]),
            "",
            f"{summary(verdicts)} [All claims]({link}). Some of them:",
            "",
            *markdown_table(claims),
        ]
    )
