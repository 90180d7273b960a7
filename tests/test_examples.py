"""The examples are short, and print what the comment at their end says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.run import matches

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parents[1]
MARKER = "\n# Output:\n"
"""The comment after this line is the output; numbers have the tolerance of `docs.run`, and `…` stands for any words."""
SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*.py") if MARKER in path.read_text())


def read_output(script):
    """Return the output that the comment at the end of a script says."""
    comment = script.read_text().partition(MARKER)[2].splitlines()
    assert comment
    assert all(line.startswith("# ") for line in comment)
    return "\n".join(line.removeprefix("# ") for line in comment)


def test_every_user_of_the_library_has_an_example_of_at_most_60_lines():
    names = {path.stem for path in SCRIPTS}
    assert names == {"averaged_weights", "denoising", "deploy", "domains", "new_norm", "small_batches"}
    assert {path.stem: len(path.read_text().splitlines()) for path in SCRIPTS if len(path.read_text().splitlines()) > 60} == {}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_prints_what_its_comment_says(script, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert matches(read_output(script), done.stdout), done.stdout
    assert not list(tmp_path.iterdir())


def test_the_example_of_a_new_norm_also_runs_with_three_seeds(tmp_path):
    code = (ROOT / "examples" / "new_norm.py").read_text()
    assert "seeds=1" in code
    script = tmp_path / "new_norm.py"
    script.write_text(code.replace("seeds=1", "seeds=3"))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["bn", "bgv:4"]
