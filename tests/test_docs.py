"""Every page runs as a reader would paste it, and prints what it says."""

import re
from pathlib import Path

import pytest

from docs.run import Block, matches, read_blocks, read_data_names, run_in_sandbox
from tests.helpers import without_space
from tests.real import REAL, unpack_datasets

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def cases():
    for page in PAGES:
        text = page.read_text()
        marks = REAL if read_data_names(text) else []
        yield pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", list(cases()))
def test_the_page_runs_and_prints_what_it_says(page):
    text = page.read_text()
    blocks = [block for block in read_blocks(text) if not block.is_skipped]
    if not any(block.language in ("python", "console") for block in blocks):
        return
    names = read_data_names(text)
    env = {"OMP_NUM_THREADS": "1"} | ({"ANYNORM_DATA": str(unpack_datasets(*names))} if names else {})
    done = run_in_sandbox(page, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("page", "file", "count"), [("tasks.md", "examples/frequency.py", 6), ("generation.md", "docs/guide/own_gan.py", 5)]
)
def test_the_pieces_of_an_example_are_those_of_its_file(page, file, count):
    text = (ROOT / "docs" / "guide" / page).read_text()
    pieces = re.findall(rf"<!-- not run: part of [\w/]*{Path(file).name} -->\n```python\n(.*?)```", text, re.S)
    assert len(pieces) == count
    source = without_space((ROOT / file).read_text())
    assert all(without_space(code) in source for code in pieces)


# The tool itself


def check(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    return run_in_sandbox(page)


def test_blocks_have_a_language_a_position_and_a_reason_if_they_are_skipped():
    text = "a\n```python\nx = 1\n```\n\n```\nout\n```\nb\n<!-- not run: slow -->\n\n```console\n$ x\n```\n```text\nc\n```\n"
    blocks = read_blocks(text)
    assert [(block.language, block.code, block.is_skipped) for block in blocks] == [
        ("python", "x = 1\n", False),
        ("output", "out\n", False),
        ("console", "$ x\n", True),
        ("text", "c\n", False),
    ]
    assert all(text[block.offset :].startswith(block.code) for block in blocks)
    assert read_blocks("```\na\n```\n") == [Block("", "a\n", 4)]
    assert read_blocks("```python\nx\n```\n```text\nout\n```\n")[1].language == "output"


@pytest.mark.parametrize("comment", ["<!-- not run: -->", "<!-- not run -->", "<!--not run:-->"])
def test_a_block_skipped_without_a_reason_raises(comment):
    with pytest.raises(ValueError, match="line 2: write the reason"):
        read_blocks(f"a\n{comment}\n```python\n```\n")


def test_names_of_data_sets_are_read():
    assert read_data_names("# T\n<!-- needs data: cifar10 mnist -->\n") == ["cifar10", "mnist"]
    assert read_data_names("# T\n") == []


@pytest.mark.parametrize(
    ("expected", "actual", "is_match"),
    [
        ("a 1.00\nb", "a  1.04\n\nb\n", True),
        ("a 1.00", "a 1.06", False),
        ("loss 0.01", "loss 0.029", True),
        ("19 norms", "18 norms", False),
        ("a b", "a c", False),
        ("a", "a\nb", False),
        ("a\n…", "a\nb\nc", True),
        ("…\nc 3", "a 1\nb 2\nc 3", True),
        ("…\nc 3", "c 9\nc 3", True),
        ("…\nc 3", "c 3\nc 9", False),
        ("a\n…\nc", "a\nc", True),
        ("a\n…\nc", "a\nb", False),
        ("path … 0.5", "path bn1 16 0.5", True),
        ("path … 0.5", "path bn1 16 0.7", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_outputs_match_up_to_white_space_tolerance_and_ellipsis(expected, actual, is_match):
    assert matches(expected, actual) is is_match


GOOD = """
```python
import pathlib, pickle
class Point:
    x = 1.001
print(Point.x)  # 1.0
print(1)
for k in range(2):
    print(k)
```
```
1.001
1
…
1
```
```python
pickle.dumps(Point())
pathlib.Path("made.txt").write_text("made by python")
print("two", "words")  # two …
print("a\\nb")  # a comment on two lines
```
```console
$ cat made.txt && \\
  echo
made by python
$ echo error; exit 3
error
$ python -c "raise ValueError('no')"
…
ValueError: no
```
<!-- not run: shows only -->
```console
$ exit 1
```
```bash
exit 1
```
"""


def test_a_page_that_says_what_it_prints_passes(tmp_path):
    done = check(tmp_path, GOOD)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("x = 1.001", "x = 1.2", "print(Point.x)"),
        ("1.001\n1\n", "1.001\n2\n", "--- printed\n1.001\n1\n"),
        ("made by python\n", "made by hand\n", "$ cat made.txt"),
        ("error\n", "…\n", "$ echo error; exit 3"),
        ("error\n", "", "$ echo error; exit 3"),
        ("<!-- not run: shows only -->", "", "$ exit 1"),
        ("pickle.dumps(Point())", "import warnings; warnings.warn('old')", "UserWarning: old"),
        ("pickle.dumps(Point())", "pickle.dumps(point)", "line 18, in <module>"),
    ],
)
def test_a_page_that_differs_fails_and_shows_the_place(old, new, message, tmp_path):
    assert old in GOOD
    done = check(tmp_path, GOOD.replace(old, new))
    assert done.returncode == 1
    assert message in done.stdout + done.stderr


def test_files_that_a_page_links_to_can_be_imported(tmp_path):
    (tmp_path / "helper.py").write_text("value = 3\n")
    done = check(tmp_path, "[the helper](helper.py)\n```python\nimport helper\nprint(helper.value)  # 3\n```\n")
    assert done.returncode == 0, done.stderr


def test_an_update_writes_actual_outputs_and_pictures_into_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one\n$ echo two > a.png; echo 2\n3\n$ echo new\n…old\n…\n```\n![a](a.png)\n")
    assert run_in_sandbox(page, "--update").returncode == 1
    updated = "```console\n$ echo one\none\n$ echo two > a.png; echo 2\n2\n$ echo new\n…old\n…\n```\n![a](a.png)\n"
    assert page.read_text() == updated
    assert (tmp_path / "a.png").read_text() == "two\n"
