"""The code of the guide that needs other packages is code that `make interop` runs."""

import re
from pathlib import Path

from tests.helpers import without_space

ROOT = Path(__file__).parents[2]


def test_every_block_that_is_not_run_is_part_of_a_test_with_the_real_package():
    text = (ROOT / "docs" / "guide" / "integrations.md").read_text()
    blocks = re.findall(r"<!-- not run: needs [\w ]+; part of (tests/interop/[\w/.]+) -->\n```python\n(.*?)```", text, re.S)
    assert len(blocks) == text.count("not run: needs") == 9
    for file, code in blocks:
        assert without_space(code) in without_space((ROOT / file).read_text()), code


def test_the_versions_of_the_guide_are_those_of_the_constraints():
    text = (ROOT / "docs" / "guide" / "integrations.md").read_text()
    packages, _, _ = (ROOT / "constraints-interop.txt").read_text().partition("# What these need")
    versions = re.findall(r"==(.*)", packages)
    assert len(versions) == 11
    assert [version for version in versions if version not in text] == []
