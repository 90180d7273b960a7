"""Convert docstrings to reStructuredText for Sphinx.

Docstrings of anynorm are plain text for `help()`: code in single backticks, formulas and tables as indented or aligned lines.
reStructuredText has other markup for both, and would interpret `*`, `|` and a final `_` as markup. Aligned lines become a literal
block, or a table if they contain code, because a literal block cannot contain markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import anynorm
from anynorm.lazy import public_modules

SECTION = re.compile(r"(Args|Attributes|Options|Raises|Returns|Yields):$")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
ALIGNED = re.compile(r"\S {3,}\S")
CODE = re.compile(r"`+([^`]+)`+")
OBJECT = re.compile(r"anynorm(?:\.\w+)+")


def to_rst(lines: list[str]) -> list[str]:
    r"""Convert the lines of a docstring to reStructuredText.

    >>> print("\n".join(to_rst(["Return `x * y`:", "", "    x * y_"])))
    Return ``x * y``:
    <BLANKLINE>
    ::
    <BLANKLINE>
        x * y_
    """
    converted: list[str] = []
    for paragraph in _paragraphs(lines):
        if _is_literal(paragraph):
            converted += _literal(paragraph)
        elif paragraph[0].startswith(">>>"):
            converted += paragraph
        else:
            lines = _as_list(paragraph) if SECTION.match(paragraph[0]) else paragraph
            converted += _mark_up("\n".join(lines)).split("\n")
        converted.append("")
    return converted[:-1]


def without_options(lines: list[str]) -> list[str]:
    """Return the lines of a docstring without its section Options.

    >>> without_options(["A task.", "", "Options:", "    a: b.", "", "Raises:", "    SpecError: if …"])
    ['A task.', '', 'Raises:', '    SpecError: if …']
    """
    text = re.sub(r"^Options:\n(?:(?:    .*)?(?:\n|$))+", "", "\n".join(lines), flags=re.M)
    return text.split("\n")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Split a docstring into paragraphs: at blank lines, and where an indented block starts or ends; a section is not split."""
    paragraph: list[str] = []
    for line in lines:
        in_section = bool(paragraph) and bool(SECTION.match(paragraph[0]))
        if not line.strip():
            ends = not in_section and not (paragraph and _indent(paragraph[0]))
        elif not paragraph:
            ends = False
        else:
            in_item = ITEM.match(paragraph[0]) is not None or ALIGNED.search(paragraph[0]) is not None
            starts_block = _indent(line) > 0 and _indent(paragraph[0]) == 0 and not in_section and not in_item
            ends = starts_block or (_indent(line) == 0 and (in_section or _indent(paragraph[0]) > 0))
            ends = ends or bool(SECTION.match(line))
        if ends and paragraph:
            yield _strip_end(paragraph)
            paragraph = []
        if line.strip() or paragraph:
            paragraph.append(line)
    if paragraph:
        yield _strip_end(paragraph)


def _as_list(section: list[str]) -> list[str]:
    """Convert lines of a section that follow a blank line and are indented more than its entries to a list."""
    converted: list[str] = []
    entry, base = _indent(section[1]) if len(section) > 1 else 0, 0
    for before, line in zip(["", *section], section, strict=False):
        if base == 0 and not before.strip() and _indent(line) > entry:
            base = _indent(line)
        if line.strip() and _indent(line) < base:
            base = 0
        if base == 0 or not line.strip():
            converted.append(line)
        else:
            converted.append(" " * base + ("- " if _indent(line) == base else "  ") + line.strip())
    return converted


def _literal(paragraph: list[str]) -> list[str]:
    """Convert aligned or indented lines to a literal block; lines with code to a table or a list if they have this form."""
    indent = _indent(paragraph[0])
    if any(CODE.search(line) for line in paragraph):
        rows = _columns(paragraph)
        if rows:
            return _as_table(rows)
        if ITEM.match(paragraph[0].lstrip()):
            return _mark_up("\n".join(line[indent:] for line in paragraph)).split("\n")
    return ["::", "", *("    " + CODE.sub(r"\1", line[indent:]) for line in paragraph)]


def _columns(lines: list[str]) -> list[list[str]]:
    """Split aligned lines into rows of cells; return no rows if the lines have a single column.

    A column starts where all lines have two spaces before it. A line whose first cell is empty continues the previous row.

    >>> _columns(["ellipses    generated", "coco128     a packed data set,", "            see `archives`"])
    [['ellipses', 'generated'], ['coco128', 'a packed data set, see `archives`']]
    """
    lines = [line for line in lines if line.strip()]
    width = max(map(len, lines))
    padded = [line.ljust(width) for line in lines]
    blank = [all(line[position] == " " for line in padded) for position in range(width)]
    indent = min(map(_indent, lines))
    starts = [indent] + [p for p in range(indent + 2, width) if blank[p - 1] and blank[p - 2] and not blank[p]]
    if len(starts) == 1:
        return []
    rows: list[list[str]] = []
    for line in padded:
        cells = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], width], strict=True)]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [" ".join(filter(None, pair)) for pair in zip(rows[-1], cells, strict=True)]
    return rows


def _as_table(rows: list[list[str]]) -> list[str]:
    lines = [".. list-table::", "   :widths: auto", ""]
    for row in rows:
        lines += [f"   {'  ' if number else '* '}- {_mark_up(cell)}".rstrip() for number, cell in enumerate(row)]
    return lines


def _strip_end(paragraph: list[str]) -> list[str]:
    while paragraph and not paragraph[-1].strip():
        paragraph.pop()
    return paragraph


def _is_literal(paragraph: list[str]) -> bool:
    """Whether a paragraph is a formula or a table: it is indented, or several of its lines are aligned in columns."""
    if _indent(paragraph[0]) > 0:
        return True
    is_text = SECTION.match(paragraph[0]) or paragraph[0].startswith(">>>")
    return not is_text and sum(bool(ALIGNED.search(line)) for line in paragraph) > 1


def _mark_up(text: str) -> str:
    """Convert code in backticks to reStructuredText, and escape all other markup characters."""
    pieces: list[str] = []
    end = 0
    for match in CODE.finditer(text):
        pieces += [_escape(text[end : match.start()]), _code(match[1])]
        end = match.end()
        if text[end : end + 1].isalnum():
            pieces.append(r"\ ")
    return "".join([*pieces, _escape(text[end:])])


def _code(text: str) -> str:
    text = " ".join(text.split())
    return f":py:obj:`{_public_paths().get(text, text)}`" if OBJECT.fullmatch(text) else f"``{text}``"


@cache
def _public_paths() -> dict[str, str]:
    """Return the path under which a public name is documented, by the path of its definition.

    >>> _public_paths()["anynorm.core.cuts.Cut"]
    'anynorm.Cut'
    """
    packages = [anynorm, anynorm.lab]
    return {
        f"{module}.{name}": f"{each.__name__}.{name}"
        for each in packages
        for name, module in public_modules(each.__name__).items()
    }


def _escape(text: str) -> str:
    return re.sub(r"[\\*|`]|_(?!\w)", r"\\\g<0>", text)
