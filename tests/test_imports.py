"""What is imported when, and in which direction."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import anynorm

PACKAGE = Path(anynorm.__file__).parent
LEVELS = {
    "errors": 0,
    "report": 1,
    "progress": 1,
    "files": 1,
    "inputs": 1,
    "core": 1,
    "kernels": 1,
    "spec": 2,
    "named": 2,
    "rows": 2,
    "beyond": 2,
    "show": 3,
    "surgery": 3,
    "diagnostics": 3,
    "plot": 4,
    "lab": 4,
    "api": 5,
    "cli": 6,
}


def loaded_by(code: str) -> set[str]:
    """Modules loaded by running code in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_anynorm_and_making_norms_loads_torch_and_nothing_heavy():
    loaded = loaded_by("import anynorm, torch; anynorm.make('sn', 8)(torch.zeros(2, 8, 3, dtype=torch.float64))")
    heavy = {
        "numba",
        "rich",
        "typer",
        "sklearn",
        "scipy",
        "matplotlib",
        "onnx",
        "onnxruntime",
        "torchmetrics",
        "torchvision",
        "pandas",
    }
    assert not heavy & loaded
    assert "torch" in loaded


def test_help_does_not_wait_for_torch():
    loaded = loaded_by(
        "from typer.testing import CliRunner\nfrom anynorm.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0"
    )
    assert "typer" in loaded
    assert "torch" not in loaded


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "anynorm":
            found |= {f"anynorm.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_up_the_map_only(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    imports = imports_of(path)
    if part in ("__init__", "__main__"):
        assert not any(name.startswith("torch") for name in imports)
        return
    for name in imports:
        top, _, rest = name.partition(".")
        if top == "anynorm" and rest:
            assert LEVELS[rest.split(".")[0]] <= LEVELS[part], f"{path.name} imports {name}"
    if part in ("core", "kernels"):
        numba = (
            {"numpy", "numba", "llvmlite"}
            if path.stem in ("cpu", "jobs", "native", "passes", "plan", "tables", "taken", "team", "whole")
            else set()
        )
        outside = {name.split(".")[0] for name in imports} - set(sys.stdlib_module_names)
        assert outside <= {"torch", "anynorm"} | numba


def test_the_public_surface_is_small_and_whole():
    assert len(anynorm.__all__) <= 30
    for name in anynorm.__all__:
        assert getattr(anynorm, name).__doc__
    assert set(anynorm.__all__) <= set(dir(anynorm))
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'\. It has: AdaIN"):
        anynorm.nothing
    assert anynorm.kernels.moments
