"""Bars are drawn on a terminal, one at a time, and items pass through them unchanged."""

import os
import pty
import subprocess
import sys

from anynorm.progress import reserve_display, track


def on_a_terminal(code: str) -> str:
    """Run code with a terminal as its stderr, and give what was written there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"})
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    assert process.wait() == 0, written.decode()
    return written.decode()


def test_a_bar_tells_count_and_rate_and_bars_inside_it_are_not_drawn():
    code = """
import time
from anynorm.progress import shown
def inner():
    for k in shown([1, 2], "inside"):
        time.sleep(0.15)
        yield k
found = list(shown(inner(), "outside", 2))
assert found == [1, 2]
for _ in shown(range(3), "beside"):
    assert list(shown([7], "within")) == [7]
    time.sleep(0.15)
assert list(shown(iter([4, 5]), "unsized")) == [4, 5]
"""
    written = on_a_terminal(code)
    assert "outside" in written
    assert "2/2" in written
    assert "/s" in written
    assert "beside" in written
    assert "inside" not in written
    assert "within" not in written


def test_items_pass_without_a_terminal():
    assert list(track(iter(range(5)), "x", 3)) == [0, 1, 2]
    with reserve_display():
        assert list(track([1], "x")) == [1]


def test_a_comparison_fills_a_table_on_a_terminal(tmp_path):
    code = f"""
import sys
from anynorm.cli import main
sys.argv = "anynorm compare --model small --width 0.5 --images 32 --epochs 1 --norms bn,gn:4 --batch-sizes 16 --seeds 1".split()
sys.argv += ["--processes", "1", "--runs", {str(tmp_path)!r}]
main()
"""
    written = on_a_terminal(code)
    assert "error %, batch 16" in written
    assert "comparing" in written
    assert "2/2" in written
