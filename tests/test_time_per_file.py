"""The time of each test file is measured where it runs, summed where it is printed, and compared with its budget."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.time_per_file import BUDGETS, FileTime, TimePerFile

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.time_per_file import TimePerFile
def pytest_configure(config):
    config.pluginmanager.register(TimePerFile({"test_idle.py": 0.05, "test_busy.py": 0.05}, default=9.0))
"""
TESTS = {
    "test_idle.py": "import time\ndef test_idle():\n    time.sleep(0.3)\n",
    "test_busy.py": """
import subprocess, sys, time
import pytest
BUSY = "import time\\nwhile time.process_time() < 0.3: pass"
@pytest.fixture
def fixture():
    exec(BUSY.replace("0.3", str(time.process_time() + 0.3)))
def test_in_a_fixture(fixture):
    pass
def test_in_a_child():
    subprocess.run([sys.executable, "-c", BUSY], check=True)
""",
}


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_cpu_time_of_tests_fixtures_and_children_is_summed_per_file(workers, tmp_path):
    if workers:
        pytest.importorskip("xdist", reason="needs the dev extra")
    (tmp_path / "folder").mkdir()
    folder = {
        "folder/conftest.py": "",
        "folder/test_other.py": "def test_other():\n    pass\n",
    }  # pytest compares plugins by folder
    for name, text in {**TESTS, **folder, "conftest.py": CONFTEST, "pytest.ini": "[pytest]\n"}.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout  # a file over its budget is a warning
    rows = {
        line.split(maxsplit=3)[3]: line.split()[:3]
        for line in done.stdout.splitlines()
        if line.endswith(("y.py", "e.py", "files"))
    }
    busy, idle, total = (rows[name] for name in ("test_busy.py", "test_idle.py", "all 3 files"))
    assert (busy[2], idle[2], total[2]) == ("2", "1", "4")
    assert float(busy[0]) >= 0.6
    assert float(idle[0]) < 0.3 <= float(idle[1])
    assert "WARNING: test_busy.py took" in done.stdout
    assert "its budget is 0.05" in done.stdout


def test_the_most_expensive_files_are_first_and_only_those_over_their_budget_are_warned_about():
    plugin = TimePerFile({"a.py": 5.0}, default=1.0)
    for name, cpu in (("a.py", 3.0), ("a.py", 1.0), ("b.py", 2.0), ("c.py", 0.5)):
        plugin.pytest_runtest_logreport(SimpleNamespace(nodeid=f"{name}::test", when="call", duration=cpu / 2, cpu_seconds=cpu))
    assert [line.split() for line in plugin.lines()] == [
        ["4.0", "2.0", "2", "a.py"],
        ["2.0", "1.0", "1", "b.py"],
        ["0.5", "0.2", "1", "c.py"],
        ["6.5", "3.2", "4", "all", "3", "files"],
    ]
    assert plugin.total() == FileTime(4, 6.5, 3.25)
    assert plugin.over_budget() == ["b.py took 2.0 CPU seconds; its budget is 1 (tests/time_per_file.py)"]


def test_every_budget_is_that_of_a_file():
    assert [name for name in BUDGETS if not (ROOT / name).is_file()] == []
