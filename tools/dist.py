"""Build the sdist and the wheel, and test both in an empty environment outside the clone.

    python -m tools.dist [--extras lab,export,…]        (or: make dist)

1. The sdist is built from the clone, and the wheel from the sdist, against the installed torch (no build isolation).
2. A virtual environment in a temporary directory gets the pinned torch, then the wheel under constraints.txt, without extras.
3. `smoke.py` runs there, `mypy --strict` checks `typed_client.py` against the installed wheel, and the extras are installed and
   imported.

The files are written to dist/. A complete run takes a few minutes, most of them for the installation of torch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "tools"
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = ("lab", "generation", "video", "export", "cluster", "tensorboard", "hf")
"""The extras to test; the extra `dev` is tested by `make test`."""
IN_SDIST = (
    "csrc/operators.cpp",
    "csrc/autograd.cpp",
    "csrc/driver.h",
    "csrc/ragged.h",
    "setup.py",
    "constraints.txt",
    "LICENSE",
    "CITATION.cff",
    "anynorm/py.typed",
)
IN_WHEEL = (
    "anynorm/py.typed",
    "anynorm/lab/report/page.html",
    "anynorm/lab/report/page.js",
    "anynorm/lab/report/page.css",
    "anynorm/lab/recipes/minutes.json",
)
NOT_IN_WHEEL = ("tests/", "docs/", "tools/", "benchmarks/", "examples/", "csrc/")


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, then the wheel from the sdist; return both paths."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    build_sdist = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r}, {{'--global-option': '--quiet'}})"
    run([sys.executable, "-c", build_sdist], cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    run([*pip(sys.executable), "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(sdist)], cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """Check that the sdist and the wheel have all required files, and that the wheel has no files outside the package.

    Raises:
        SystemExit: if a file is missing, or the wheel has files that do not belong to the package.
    """
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    recipes = {str(path.relative_to(ROOT)) for path in (ROOT / "anynorm" / "lab" / "recipes").rglob("*.py")}
    missing = sorted({*IN_SDIST, *recipes} - in_sdist) + sorted({*IN_WHEEL, *recipes} - in_wheel)
    if missing:
        sys.exit(f"the sdist or the wheel lacks {' '.join(missing)}")
    if extra := sorted(name for name in in_wheel if name.startswith(NOT_IN_WHEEL)):
        sys.exit(f"the wheel must have the package only; got {' '.join(extra)}")


def create_environment(folder: Path, wheel: Path) -> str:
    """Create a virtual environment with the pinned torch and the wheel; return the path of its Python."""
    run([sys.executable, "-m", "venv", str(folder)])
    python = str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")
    torch = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    install(python, torch)
    install(python, str(wheel))
    return python


def test_environment(python: str, folder: Path, wheel: Path, extras: Iterable[str]) -> None:
    """Test an environment in a folder outside the clone: the smoke test, mypy, and the extras."""
    for name in ("smoke.py", "typed_client.py"):
        shutil.copy(TOOLS / name, folder)
    run([python, "-W", "error", "-c", "import anynorm"], cwd=folder)
    run([python, "-W", "error", "smoke.py"], cwd=folder)
    install(python, "mypy")
    run([python, "-m", "mypy", "--strict", "typed_client.py"], cwd=folder)
    for extra in extras:
        install(python, f"{wheel}[{extra}]")
        run([python, "smoke.py", "--extra", extra], cwd=folder)
    run([python, "smoke.py", "--import-all"], cwd=folder)


def install(python: str, *packages: str) -> None:
    """Install packages with the versions of constraints.txt."""
    run([*pip(python), "install", "-c", str(CONSTRAINTS), *packages])


def pip(python: str) -> list[str]:
    """Return the beginning of a pip command."""
    return [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def run(command: list[str], cwd: Path | None = None) -> None:
    """Print a command and run it, without PYTHONPATH and similar variables; exit if it fails."""
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=environment, check=False)
    if done.returncode:
        sys.exit(f"failed with exit code {done.returncode}: {' '.join(command)}")


def main() -> None:
    """Build the sdist and the wheel, and test them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default=",".join(EXTRAS), help="comma-separated extras to test (default: all for users)")
    extras = [name for name in parser.parse_args().extras.split(",") if name]
    sdist, wheel = build(ROOT / "dist")
    check_contents(sdist, wheel)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = create_environment(folder / "venv", wheel)
        test_environment(python, folder, wheel, extras)
    sys.stdout.write(f"{sdist.name} and {wheel.name} are in dist/ and pass the smoke test.\n")


if __name__ == "__main__":
    main()
