"""The README's example runs, and what it claims to print is printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_prints_what_it_says():
    example = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    printed = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == example.rstrip().rsplit("# ", 1)[1]
    assert len([line for line in example.splitlines() if line.strip()]) <= 12


def test_the_surgery_example_runs():
    example = re.findall(r"```python\n(.*?)```", README, re.S)[1]
    start = """
import torch, anynorm
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.last, self.bn2 = nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64)
    def forward(self, x):
        return x + self.bn2(self.last(self.bn(self.conv(x)).relu()))
model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), Block())
images = torch.randn(8, 3, 8, 8)
loader, example = images.split(4), images[:2]
"""
    before, after = example.split("anynorm.recalibrate")
    code = start + before + 'anynorm.convert(model, "bn", "all")\nanynorm.recalibrate' + after  # a gn has no statistics to estimate
    printed = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    assert "error_after" in printed.stdout


def test_the_diagnostics_example_runs(tmp_path):
    example = re.findall(r"```python\n(.*?)```", README, re.S)[2]
    start = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
loader = torch.randn(64, 3, 8, 8).split(32)
"""
    command = [sys.executable, "-W", "error", "-c", start + example]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    assert "recalibrate" in printed.stdout.splitlines()[-1].lower()
    assert (tmp_path / "shift.png").exists()


def test_the_table_on_the_first_screen_is_that_of_the_record():
    rows = json.loads((ROOT / "docs" / "demo.json").read_text())["rows"]
    for row in rows:
        errors = [row[f"error %, batch {size}"] for size in (4, 32)]
        shifts = [f"{row[f'shift, batch {size}']:.2f}" for size in (4, 32)]
        assert f"| `{row['norm']}` | {errors[0]} | {shifts[0]} | {errors[1]} | {shifts[1]} |" in README


def test_the_drawing_is_what_the_command_draws():
    words = re.search(r"\$ anynorm (show .*)\n", README)[1].split()
    code = "from anynorm.cli import main; main()"
    printed = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True).stdout
    block = re.search(r"\$ anynorm show.*?```", README, re.S)[0]
    for line in block.splitlines()[2:-1]:
        if line.strip() != "…":
            assert line in printed.splitlines()


def test_every_spec_of_the_readme_can_be_made():
    import anynorm

    table = README.split("## One idea")[1].split("## Conditions")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [spec for cell in first_cells for spec in re.findall(r"`(.*?)`", cell)]
    numbers = {"g": "4", "G": "16", "m": "2", "K": "3", "k": "2"}
    specs = [re.sub(r"(?<=[:@,])[gGmKk]\b", lambda m: numbers[m[0]], spec) for spec in listed]
    assert len(specs) > 15
    for spec in specs:
        anynorm.make(spec, 32, batch_size=4)


def test_the_example_of_cuts_runs():
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "cuts.py")], capture_output=True, text=True, check=True
    )
    assert "per channel" in done.stdout
    assert "hn:4" in done.stdout
