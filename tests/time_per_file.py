"""A pytest plugin that prints the time of each test file, and warns about files over their budget.

The measure is CPU time, of the test process and of the processes that it started and waited for: it hardly depends on what else
the machine does. It still depends on the machine, so a file over its budget is a warning and not a failure. Under pytest-xdist
the workers measure, and the main process sums and prints.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

DEFAULT_BUDGET = 15.0
BUDGETS: dict[str, float] = {
    "tests/cli/test_cli.py": 40,
    "tests/docs/test_site.py": 50,
    "tests/kernels/test_cpu.py": 45,
    "tests/kernels/test_compiled.py": 85,
    "tests/kernels/test_activation.py": 40,
    "tests/kernels/test_gpu.py": 100,
    "tests/lab/comparison/test_comparison.py": 50,
    "tests/lab/recipes/support/test_verdicts.py": 25,
    "tests/lab/recipes/test_recipes.py": 170,
    "tests/lab/tasks/detection/test_task.py": 28,
    "tests/lab/report/test_page.py": 35,
    "tests/lab/recipes/test_runs.py": 30,
    "tests/lab/tasks/generation/test_task.py": 30,
    "tests/lab/tasks/style/test_task.py": 30,
    "tests/lab/tasks/test_battery.py": 105,
    "tests/lab/training/test_devices.py": 75,
    "tests/lab/training/test_distributed.py": 50,
    "tests/lab/training/test_executors.py": 80,
    "tests/layers/test_battery.py": 125,
    "tests/layers/test_distributed.py": 55,
    "tests/layers/test_norm.py": 30,
    "tests/test_base.py": 25,
    "tests/test_docs.py": 320,
    "tests/test_examples.py": 130,
}
"""CPU seconds per file in `make test` and `make test-docs`, where the default is too small: 1.5 times those of an idle one."""
NUM_FILES = 15


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass
class FileTime:
    """The number of tests of a file, and their time in seconds."""

    tests: int = 0
    cpu: float = 0.0
    wall: float = 0.0


@dataclass(eq=False)  # pytest keeps plugins in sets
class TimePerFile:
    """Sum the time of the tests of each file, print the most expensive files, and compare them with their budgets."""

    budgets: dict[str, float] = field(default_factory=lambda: BUDGETS)
    default: float = DEFAULT_BUDGET
    files: dict[str, FileTime] = field(default_factory=lambda: defaultdict(FileTime))
    start: float = field(default_factory=cpu_seconds)

    def pytest_runtest_logstart(self) -> None:
        """Start the clock of a test."""
        self.start = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        """Add the CPU time of a phase of a test to its report, which pytest-xdist sends to the main process."""
        report = yield
        now = cpu_seconds()
        report.cpu_seconds = now - self.start
        self.start = now
        return report

    def pytest_runtest_logreport(self, report) -> None:
        """Add a phase of a test to its file."""
        file = self.files[report.nodeid.split("::")[0]]
        file.tests += report.when == "call"
        file.cpu += getattr(report, "cpu_seconds", 0.0)
        file.wall += report.duration

    def lines(self) -> list[str]:
        """Return one line per file, the most expensive first, and a line with the sum."""
        files = sorted(self.files.items(), key=lambda item: -item[1].cpu)
        rows = [*files[:NUM_FILES], (f"all {len(files)} files", self.total())]
        return [f"{time.cpu:9.1f} {time.wall:9.1f} {time.tests:6d}  {name}" for name, time in rows]

    def total(self) -> FileTime:
        """Return the sum over all files."""
        times = self.files.values()
        return FileTime(*(sum(getattr(time, name) for time in times) for name in ("tests", "cpu", "wall")))

    def over_budget(self) -> list[str]:
        """Return one message per file that took more CPU time than its budget."""
        budgets = {name: self.budgets.get(name, self.default) for name in self.files}
        return [
            f"{name} took {self.files[name].cpu:.1f} CPU seconds; its budget is {budget:g} (tests/time_per_file.py)"
            for name, budget in budgets.items()
            if self.files[name].cpu > budget
        ]

    def pytest_terminal_summary(self, terminalreporter) -> None:
        """Print the table and the warnings."""
        if not self.files:
            return
        terminalreporter.section("time per file")
        terminalreporter.line("    CPU s    wall s  tests  file")
        for line in self.lines():
            terminalreporter.line(line)
        for message in self.over_budget():
            terminalreporter.line(f"WARNING: {message}", yellow=True, bold=True)
