"""Run the code blocks of a page as a reader would, and compare their output with the page.

    python -m docs.run docs/guide/diagnose.md              report every difference; exit code 1 if there is one
    python -m docs.run --update docs/guide/diagnose.md     also write the actual outputs into the page, and update its pictures

All blocks of a page run from top to bottom in one temporary directory, which has copies of the .py files that the page links to:

    ```python     runs in one namespace; warnings are errors. If `print(…)  # text` prints one line, it must match the text.
    ```           or ```text, right after a python block: the expected output of that block
    ```console    each `$ command` runs in a shell; the lines after it are its expected output
    ```bash       not run (installation)

Numbers may differ by 5 % or 0.02. In an expected output, a line `…` stands for any number of lines, and a word `…` for any number
of words. The expected output of a command that fails must end with the last line that it prints. Two comments control a page:

    <!-- not run: reason -->            right before a block: do not run it
    <!-- needs data: NAME NAME -->      the page needs these data sets under $ANYNORM_DATA
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(?P<language>\w*).*\n(?P<code>(?:.*\n)*?)```$", re.M)
SKIP = re.compile(r"<!-- *not run\b:? *(?P<reason>(?:(?!-->).)*?) *-->\s*\Z", re.S)
DATA = re.compile(r"<!-- *needs data: *(.*?) *-->")
COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<output>(?:(?!\$ ).*\n)*)", re.M)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")
ANY = "…"
ABOUT = "~"


class Block(NamedTuple):
    """A fenced block; `offset` is the position of its code in the page."""

    language: str
    code: str
    offset: int
    is_skipped: bool = False


class Difference(NamedTuple):
    """An output that differs from the expected output; `offset` is the position of the expected output in the page."""

    offset: int
    source: str
    expected: str
    actual: str


def read_blocks(text: str) -> list[Block]:
    """Return the blocks of a page; a plain or text block right after a python block gets the language `output`.

    Raises:
        ValueError: if a block is skipped without a reason.
    """
    blocks: list[Block] = []
    end = 0
    for fence in FENCE.finditer(text):
        language, before, end = fence["language"], text[end : fence.start()], fence.end()
        skip = SKIP.search(before)
        if skip and not skip["reason"]:
            raise ValueError(f"line {text.count(chr(10), 0, fence.start())}: write the reason: <!-- not run: reason -->")
        if language in ("", "text") and not before.strip() and blocks and blocks[-1].language == "python":
            language = "output"
        blocks.append(Block(language, fence["code"], fence.start("code"), bool(skip)))
    return blocks


def read_data_names(text: str) -> list[str]:
    """Return the names of the data sets that a page needs."""
    return [name for names in DATA.findall(text) for name in names.split()]


def matches(expected: str, actual: str) -> bool:
    r"""Whether an output matches the expected output, up to white space, the tolerance of numbers, and `…`.

    Numbers have a tolerance of 5 %, and of 20 if `~` precedes the expected one: results of short trainings depend on the rounding
    of the processor.

    >>> matches("error 2.31 %", "error  2.30 %"), matches("error 2.31 %", "error 9.99 %")
    (True, False)
    >>> matches("sn ~92 %", "sn 81 %"), matches("sn ~92 %", "sn 9 %")
    (True, False)
    >>> matches("first\n…\nlast …", "first\nsecond\nlast of all")
    True
    """

    def words_match(left: str, right: str) -> bool:
        left, tolerance = left.removeprefix(ABOUT), 20 if left.startswith(ABOUT) else 0.02
        if NUMBER.sub("#", left) != NUMBER.sub("#", right):
            return False
        pairs = zip(NUMBER.findall(left), NUMBER.findall(right), strict=True)
        return all(math.isclose(float(a), float(b), rel_tol=0.05, abs_tol=tolerance) for a, b in pairs)

    def lines_match(left: str, right: str) -> bool:
        return _sequences_match(left.split(), right.split(), words_match)

    return _sequences_match(_lines(expected), _lines(actual), lines_match)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _sequences_match(expected: list[str], actual: list[str], match: Callable[[str, str], bool]) -> bool:
    """Whether two sequences match entry by entry; an expected entry `…` matches any number of entries."""
    if not expected:
        return not actual
    if expected[0] == ANY:
        return any(_sequences_match(expected[1:], actual[k:], match) for k in range(len(actual) + 1))
    return bool(actual) and match(expected[0], actual[0]) and _sequences_match(expected[1:], actual[1:], match)


def check_console(block: Block) -> Iterator[Difference]:
    """Run the commands of a console block in the current directory, and yield the differences."""
    for match in COMMAND.finditer(block.code):
        done = subprocess.run(match["command"], shell=True, capture_output=True, text=True, check=False)
        expected, actual = match["output"], done.stdout + (done.stderr if done.returncode else "")
        hides_failure = done.returncode != 0 and _lines(expected)[-1:] in ([], [ANY])
        if hides_failure or not matches(expected, actual):
            yield Difference(block.offset + match.start("output"), f"$ {match['command']}", expected, actual)


def check_python(
    block: Block, first_line: int, output: Block | None, page: Path, namespace: dict[str, Any]
) -> Iterator[Difference]:
    """Run a python block and yield the differences from comments after print calls and from its expected output.

    Args:
        block: the python block.
        first_line: the line of the page on which the code starts, for tracebacks.
        output: the block with the expected output; None if the page has none.
        page: the path of the page, for tracebacks.
        namespace: the namespace in which the block runs.
    """
    tokens = tokenize.generate_tokens(io.StringIO(block.code).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    printed = ""
    for statement in ast.parse(block.code).body:
        source, comment = ast.unparse(statement), comments.get(statement.end_lineno or 0, "")
        ast.increment_lineno(statement, first_line - 1)  # so that tracebacks show line numbers of the page
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            exec(compile(ast.Module([statement], []), str(page), "exec"), namespace)
        text = stdout.getvalue()
        printed += text
        if comment and source.startswith("print(") and text.count("\n") == 1 and not matches(comment, text):
            yield Difference(block.offset + block.code.index(comment), source, comment, text.rstrip("\n"))
    if output is not None and not matches(output.code, printed):
        yield Difference(output.offset, block.code, output.code, printed)


def check_page(page: Path) -> Iterator[Difference]:
    """Run all blocks of a page in the current directory, and yield the differences."""
    text = page.read_text()
    module = types.ModuleType("__main__")  # so that classes of the page can be pickled
    sys.modules["__main__"] = module
    blocks = [block for block in read_blocks(text) if not block.is_skipped]
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language == "python":
            output = after if after is not None and after.language == "output" else None
            first_line = text.count("\n", 0, block.offset) + 1
            yield from check_python(block, first_line, output, page, module.__dict__)
        elif block.language == "console":
            yield from check_console(block)


def update_page(page: Path, differences: list[Difference]) -> None:
    """Write actual outputs into a page, except where the page has `…`, and copy the pictures that it shows to its folder."""
    text = page.read_text()
    for difference in reversed(differences):
        end = difference.offset + len(difference.expected)
        if ANY not in difference.expected:
            text = text[: difference.offset] + difference.actual + text[end:]
    page.write_text(text)
    for picture in re.findall(r"!\[[^]]*\]\(([\w.-]+)\)", text):
        if Path(picture).exists():
            shutil.copy(picture, page.parent)


def run_in_sandbox(page: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run this module for one page in a new process, in a temporary directory.

    Args:
        page: the path of the page.
        arguments: further command-line options of this module.
        env: additional environment variables.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # `python` and `anynorm` of this venv
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PATH": path, "PYTHONPATH": python_path} | (env or {})
    with tempfile.TemporaryDirectory() as folder:
        for name in re.findall(r"\]\(([\w-]+\.py)\)", page.read_text()):
            shutil.copy(page.parent / name, folder)
        command = [sys.executable, "-W", "error", "-m", "docs.run", "--here", *arguments, str(page.resolve())]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def main() -> int:
    """Check the pages named on the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description="Run the code of pages and compare it with what they say.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--update", action="store_true", help="write the actual outputs into the pages")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in the current directory and this process
    options = parser.parse_args()
    status = 0
    for page in options.pages:
        if not options.here:
            done = run_in_sandbox(page, *(["--update"] if options.update else []))
            sys.stdout.write(f"{page}: {'ok' if done.returncode == 0 else 'differs'}\n{done.stdout}{done.stderr}")
            status |= done.returncode
            continue
        differences = list(check_page(page))
        for difference in differences:
            sys.stdout.write(f"{difference.source}\n--- expected\n{difference.expected}\n--- printed\n{difference.actual}\n")
        if options.update:
            update_page(page, differences)
        status |= bool(differences)
    return status


if __name__ == "__main__":
    sys.exit(main())
