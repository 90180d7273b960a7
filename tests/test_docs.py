"""The guides print what their commands print."""

import os
import re
import shutil
from pathlib import Path

import pytest

from docs.run import commands, filled, printed
from tests.real import needs_shared, unpack_datasets

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def test_a_guide_is_filled_in_block_by_block(tmp_path):
    text = "a\n```console\n$ echo one\nold\n$ echo two\n```\nb\n```python\n$ echo three\n```\n"
    assert commands(text) == [("echo one", "old\n"), ("echo two", "")]
    wanted = "a\n```console\n$ echo one\none\n$ echo two\ntwo\n```\nb\n```python\n$ echo three\n```\n"
    assert filled(text, tmp_path) == wanted


@needs_shared
@pytest.mark.slow
def test_the_guide_to_diagnosis_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(unpack_datasets("cifar10", "cifar10_resnet_pretrained")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for name in ("noisy.py", "symptom.py"):
        shutil.copy(ROOT / "docs" / "guide" / name, tmp_path)
    asked = commands((ROOT / "docs" / "guide" / "diagnose.md").read_text())
    assert len(asked) == 7
    for command, told in asked:
        found = printed(command, tmp_path)
        assert NUMBER.sub("#", found).split() == NUMBER.sub("#", told).split(), command
        for new, old in zip(NUMBER.findall(found), NUMBER.findall(told), strict=True):
            # a picture or two in 250 may go the other way on another machine
            assert float(new) == pytest.approx(float(old), rel=0.05, abs=0.02), command
