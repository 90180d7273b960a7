"""README.md: its code is executed by test_docs.py; here its tables, specs and length are compared with their sources."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import anynorm

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SPECS = (ROOT / "docs" / "guide" / "specs.md").read_text()


def test_the_readme_is_short_and_its_first_example_too():
    assert len(README.splitlines()) <= 150
    example = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_table_is_that_of_the_demo(page):
    demo = json.loads((ROOT / "docs" / "demo.json").read_text())
    assert f"<!-- demo -->\n{demo['markdown']}\n<!-- end of demo -->" in (ROOT / page).read_text(), "run python docs/demo.py"


@pytest.mark.parametrize("page", [README, SPECS])
def test_every_spec_in_a_first_or_second_column_can_be_constructed(page):
    cells = [cell for line in page.splitlines() if line.startswith("| ") for cell in line.split("|")[1:3]]
    spans = {span for cell in cells for span in re.findall(r"`([^`]*)`", cell)}
    numbers = {"g": "4", "G": "16", "m": "2", "K": "3", "k": "2"}
    specs = [re.sub(r"(?<=[:@,])[gGmKk]\b", lambda match: numbers[match[0]], span) for span in spans]
    specs = [spec for spec in specs if re.fullmatch(r"[a-z\[][\w:@,+/.\[\]*-]*", spec) and not spec.startswith("anynorm")]
    assert len(specs) >= 15
    for spec in specs:
        anynorm.make(spec, 32, batch_size=4)


@pytest.mark.docs
def test_the_example_of_cuts_runs():
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "cuts.py")], capture_output=True, text=True, check=True
    )
    assert "per channel" in done.stdout
    assert "hn:4" in done.stdout
