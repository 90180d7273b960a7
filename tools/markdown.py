"""Tables of Markdown."""

from __future__ import annotations


def markdown_table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table; the first row is the header."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]
