"""Generate the results in a guide: the first table of a record and some of its claims."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from anynorm.lab.recipes.support.catalog import load_recipe
from anynorm.lab.recipes.support.claims import DOES_NOT_HOLD, FAILED, HOLDS, NOT_SIGNIFICANT
from tools.markdown import anchor, markdown_table, recipe_heading

VERDICTS = {
    HOLDS: ("holds", "hold"),
    DOES_NOT_HOLD: ("does not hold", "do not hold"),
    NOT_SIGNIFICANT: ("is not significant", "are not significant"),
    FAILED: ("could not be measured", "could not be measured"),
}
"""The text of each verdict, for one claim and for several."""


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
    path = folder / f"{results.record}.json"
    if not path.exists():
        return f"The recipe `{name}` has no record yet."
    recipe = load_recipe(name)
    record = recipe.read(path)
    table = recipe.tables(record)[0]
    rows = [[table.format(row, column) for column in results.columns] for row in table]
    source = f"Recipe `{name}`, preset `{record.preset}`, {record.settings.seeds} seeds; record `records/{results.record}.json`."
    link = f"../../records/README.md#{anchor(recipe_heading(name))}"
    claims = [["claim", "larger", "smaller", "p", "verdict"]]
    verdicts = list(recipe.judge(record))
    counts = {verdict: sum(row["verdict"] == verdict for row in verdicts) for verdict in VERDICTS}
    texts = [f"{count} {VERDICTS[verdict][count != 1]}" for verdict, count in counts.items() if count]
    for row in verdicts:
        if any(text in row["claim"] for text in results.claims):
            claims.append([row["claim"], str(row["larger"]), str(row["smaller"]), f"{row['p']:.2g}", row["verdict"]])
    return "\n".join(
        [
            f"{table.finding} {source}",
            "",
            *markdown_table([list(results.columns), *rows]),
            "",
            f"All {len(verdicts)} claims of the recipe ([list]({link})): {', '.join(texts)}. Some of them:",
            "",
            *markdown_table(claims),
        ]
    )
