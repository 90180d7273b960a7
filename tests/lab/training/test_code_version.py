"""The version of the code changes with what a run executes, and not with comments."""

import pytest

from anynorm.lab.training import code_version as module
from anynorm.lab.training.code_version import SHARED, code_version, cpu_family, without_comments


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one file per entry of `SHARED`, a room and a C++ source; cached versions are forgotten."""
    root = tmp_path / "anynorm"
    for name in (
        *(each if each.endswith(".py") else f"{each}/a.py" for each in SHARED),
        "lab/tasks/detection/task.py",
        "cli/a.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x = 1\n")
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.h").write_text("int x = 1; // one\n")
    monkeypatch.setattr(module, "ROOT", root)
    code_version.cache_clear()
    yield root
    code_version.cache_clear()


@pytest.mark.parametrize(
    ("file", "text", "same"),
    [
        ("core/a.py", '"""Text."""\n\nx = 1  # one\n', True),
        ("core/a.py", "x = 2\n", False),
        ("lab/training/a.py", "x = 2\n", False),
        ("cli/a.py", "x = 2\n", True),
        ("lab/tasks/detection/task.py", "x = 2\n", False),
        ("../csrc/a.h", "/* a */ int  x = 1;\n", True),
        ("../csrc/a.h", "int x = 2;\n", False),
    ],
)
def test_the_version_changes_with_code_that_a_run_may_execute(package, file, text, same):
    before = code_version(("lab/tasks/detection",))
    (package / file).write_text(text)
    code_version.cache_clear()
    assert (code_version(("lab/tasks/detection",)) == before) == same


def test_the_code_of_another_room_does_not_count(package):
    before = code_version()
    (package / "lab/tasks/detection/task.py").write_text("x = 2\n")
    code_version.cache_clear()
    assert code_version() == before
    assert code_version(sources=("y = 1",)) != before


def test_files_without_comments_keep_their_code(tmp_path):
    path = tmp_path / "a.cpp"
    path.write_text('const char* url = "x"; /* several\nlines */ int y; // end\n')
    assert without_comments(path) == 'const char* url = "x"; int y;'


def test_the_kind_of_processor_has_a_maker_and_its_vector_instructions():
    maker, instructions = cpu_family().split(" ", 1)
    assert maker
    assert instructions
