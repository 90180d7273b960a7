"""Progress bars are drawn on a terminal only, one at a time, and leave the items unchanged."""

import os
import pty
import subprocess
import sys

from anynorm.progress import reserve_display, track, track_bytes


def run_on_terminal(code: str) -> str:
    """Run code with a terminal as its stderr; return what it wrote there."""
    reader, writer = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=writer, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"})
    os.close(writer)
    written = b""
    while True:
        try:
            piece = os.read(reader, 4096)
        except OSError:  # the process has closed its end
            break
        if not piece:
            break
        written += piece
    os.close(reader)
    assert process.wait() == 0, written.decode()
    return written.decode()


def test_a_bar_shows_count_and_rate_and_bars_inside_it_are_not_drawn():
    code = """
import time
from anynorm.progress import track
def inner():
    for k in track([1, 2], "inside"):
        time.sleep(0.15)
        yield k
assert list(track(inner(), "outside", 2)) == [1, 2]
for _ in track(range(3), "beside"):
    assert list(track([7], "within")) == [7]
    time.sleep(0.15)
assert list(track(iter([4, 5]), "unsized")) == [4, 5]
"""
    written = run_on_terminal(code)
    assert "outside" in written
    assert "2/2" in written
    assert "/s" in written
    assert "beside" in written
    assert "inside" not in written
    assert "within" not in written


def test_a_download_shows_bytes_and_rate_and_the_bar_is_removed_after_an_error():
    code = """
import time
from anynorm.progress import _active_displays, track_bytes
try:
    with track_bytes("downloading x") as bar:
        bar.total = 4_000_000
        for _ in range(3):
            bar.update(1_000_000)
            time.sleep(0.15)
        raise OSError
except OSError:
    pass
assert not _active_displays
"""
    written = run_on_terminal(code)
    assert "downloading x" in written
    assert "/4.0 MB" in written
    assert "MB/s" in written


def test_items_are_passed_on_without_a_terminal():
    assert list(track(iter(range(5)), "x", 3)) == [0, 1, 2]
    with reserve_display():
        assert list(track([1], "x")) == [1]
    with track_bytes("x") as bar:
        assert bar is None


def test_a_comparison_fills_a_table_on_a_terminal(tmp_path):
    code = f"""
import sys
from anynorm.cli import main
sys.argv = "anynorm compare --model small --width 0.5 --num-train 32 --epochs 1 --norms bn,gn:4 --batch-sizes 16".split()
sys.argv += ["--seeds", "1", "--processes", "1", "--runs", {str(tmp_path)!r}]
main()
"""
    written = run_on_terminal(code)
    assert "test error %" in written
    assert "batch 16" in written
    assert "training" in written
    assert "2/2" in written
