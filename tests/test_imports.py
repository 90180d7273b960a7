"""What is imported when, in which direction, and how many calls `make` and `forward` take."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anynorm

PACKAGE = Path(anynorm.__file__).parent
LEVELS = [
    ["errors"],
    ["core"],
    ["kernels"],
    ["layers"],
    ["registry"],
    ["table", "progress", "io"],
    ["show", "surgery", "diagnostics"],
    ["data", "models", "plot"],
    ["attacks", "few_shot"],
    ["training"],
    ["tasks"],
    ["recipes", "comparison", "report", "stylization", "integrations"],
    ["cli"],
]
"""The packages and modules of anynorm; each may import itself and those on earlier lines."""
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
LAZY = {"gpu.py": ["triton"], "gpu_kernels.py": ["triton"]}
"""What files import at first use that the package does not depend on."""
HEAVY = {"rich", "typer", "sklearn", "scipy", "matplotlib", "onnx", "onnxruntime", "torchvision", "pandas", "sqlite3"}


def loaded_by(code: str) -> set[str]:
    """Return the modules loaded by running code in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_make_loads_torch_but_neither_the_trainer_nor_heavy_packages():
    loaded = loaded_by("import anynorm, torch; anynorm.make('sn', 8)(torch.zeros(2, 8, 3, dtype=torch.float64))")
    assert "torch" in loaded
    assert not HEAVY & loaded - loaded_by("import torch")
    packages = {name.split(".")[1] for name in loaded if name.startswith("anynorm.")}
    assert packages == {"errors", "core", "kernels", "layers", "registry"}


def test_the_package_works_without_fcntl():
    """Windows has no fcntl."""
    code = "sys.modules['fcntl'] = None\nimport anynorm, pkgutil\nfrom importlib import import_module\n"
    code += "anynorm.make('bn', 8), anynorm.compare, anynorm.convert\n"
    code += "import anynorm.training.store, anynorm.data, anynorm.cli\n"
    loaded_by(code)


def test_help_does_not_load_torch():
    loaded = loaded_by(
        "from typer.testing import CliRunner\nfrom anynorm.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0"
    )
    assert "typer" in loaded
    assert "torch" not in loaded


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, *, at_import: bool = False) -> set[str]:
    """Return the modules that a file imports, or only those that importing it loads."""
    names = set()
    tree = ast.parse(path.read_text())
    nodes = list(_executed(tree)) if at_import else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            existing = {name for name in submodules if name in MODULES}
            names |= existing or {node.module}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def _executed(node: ast.AST):
    """Yield the nodes that run when a module is imported: no function bodies, no TYPE_CHECKING blocks."""
    for child in ast.iter_child_nodes(node):
        is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not is_typing and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _executed(child)


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {module_name(path): path for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_levels(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    imports = imports_of(path)
    if part in ("__init__", "__main__"):
        assert not any(name.startswith("torch") for name in imports)
        return
    for name in imports:
        top, _, rest = name.partition(".")
        if top == "anynorm" and rest:
            assert LEVEL[rest.split(".")[0]] <= LEVEL[part], f"{path.name} imports {name}"
    if part in ("core", "kernels", "layers"):
        assert {name.split(".")[0] for name in imports} - set(sys.stdlib_module_names) <= {
            "torch",
            "anynorm",
            *LAZY.get(path.name, ()),
        }


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return a cycle of a directed graph as a list of nodes; empty if there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return path[path.index(node) :]
        if node not in done:
            for target in sorted(graph.get(node, ())):
                cycle = visit(target, [*path, node])
                if cycle:
                    return cycle
            done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node, []))), [])


def test_no_module_imports_itself_through_others():
    graph = {name: {target for target in imports_of(path, at_import=True) if target in MODULES} for name, path in MODULES.items()}
    graph = {name: targets - {name} for name, targets in graph.items() if name != "anynorm"}
    assert find_cycle(graph) == []
    packages: dict[str, set[str]] = {}
    for name, targets in graph.items():
        package = name.split(".")[1]
        packages.setdefault(package, set()).update({target.split(".")[1] for target in targets if "." in target} - {package})
    assert find_cycle(packages) == []


def test_a_cycle_is_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}}) == []


def frames_of(call) -> list[str]:
    """Return the file of every Python frame of the package that a call enters."""
    files: list[str] = []

    def profile(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(PACKAGE)):
            files.append(file)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def test_make_and_forward_take_few_calls_in_few_files():
    anynorm.make("sn", 64)
    assert len(frames_of(lambda: anynorm.make("sn", 64))) < 80
    norm, x = anynorm.make("sn", 64), torch.randn(4, 64, 8, 8, requires_grad=True)
    norm(x)
    frames = frames_of(lambda: norm(x))
    assert len(frames) < 30
    assert len(set(frames)) <= 6


def test_every_public_name_exists_and_is_documented():
    assert len(anynorm.__all__) == 46
    for name in anynorm.__all__:
        assert getattr(anynorm, name).__doc__
    assert set(anynorm.__all__) <= set(dir(anynorm))
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'\. Public names: AdaIN"):
        anynorm.nothing
    assert anynorm.kernels.moments
    assert callable(anynorm.compare)


def test_no_docstring_starts_with_a_verb_of_the_old_dialect():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                doc = ast.get_docstring(node) or ""
                assert doc.split(" ")[0] not in {"Give", "Say", "Tell", "Let", "Hear", "Put", "Ask"}, f"{path}: {doc}"
