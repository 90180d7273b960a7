"""Helpers for Markdown pages: tables, headings and anchors."""

from __future__ import annotations

import re

from anynorm.lab.recipes.support.catalog import read_header


def markdown_table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table; the first row is the header."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def anchor(heading: str) -> str:
    """Return the anchor of a heading, which is the same on GitHub and on the documentation site.

    >>> anchor("hn Figs. 6 and 7: `hn:32`, at batch size 2")
    'hn-figs-6-and-7-hn32-at-batch-size-2'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def recipe_heading(name: str) -> str:
    """Return the heading of a recipe in records/README.md."""
    header = read_header(name)
    return f"{header.source}: {header.title}"
