"""torch's own cases of norms (its ModuleInfo database) with our layers in place of torch's: equal, or a difference on purpose."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.peers.differences import DIFFERENCES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "migration.md"
NUM_MODULES = 9


def results(*options: str) -> list[dict[str, Any]]:
    """Run the cases in a process of their own, and return a row per check."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.peers.modules", *options]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("options", [[], pytest.param(["--all"], marks=pytest.mark.thorough)])
def test_every_case_of_torch_is_equal_or_a_difference_on_purpose(options):
    rows = results(*options)
    assert len({row["module"] for row in rows}) == NUM_MODULES
    differing = [row for row in rows if row["result"]]
    unexpected = [row for row in differing if not any(each.covers(row) for each in DIFFERENCES)]
    assert not unexpected, unexpected[:5]
    for each in DIFFERENCES:
        assert not each.cases or any(each.covers(row) for row in differing), f"torch's cases do not show: {each.sentence}"
    assert len(differing) < len(rows) / 10


def test_the_page_lists_the_differences():
    section = PAGE.read_text().partition("## Differences from torch\n")[2].partition("\n## ")[0]
    lines = [line.removeprefix("- ") for line in section.splitlines() if line.startswith("- ")]
    assert lines == [each.sentence for each in DIFFERENCES]
    assert len(lines) <= 10
