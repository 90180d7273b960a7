"""What is imported when, in which direction, and how many calls `make` and `forward` take."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anynorm
from anynorm import lazy
from anynorm.errors import DataError

PACKAGE = Path(anynorm.__file__).parent
ROOMS = sorted(path.name for path in (PACKAGE / "lab" / "tasks").iterdir() if (path / "__init__.py").exists())
LEVELS = [
    ["errors"],
    ["lazy"],
    ["core"],
    ["kernels"],
    ["layers"],
    ["norms"],
    ["layers.baselines"],
    ["registry"],
    ["table", "progress", "io"],
    ["surgery"],
    ["diagnostics", "selftest"],
    ["draw", "sharing"],
    ["integrations", "cli"],
    ["lab.required_packages", "lab.data"],
    ["lab.models"],
    ["lab.attacks"],
    ["lab.training"],
    ["lab.tasks.classification"],
    [f"lab.tasks.{room}" for room in ROOMS if room != "classification"],
    ["lab.tasks"],
    ["lab.comparison"],
    ["lab.report", "lab.recipes"],
    ["lab.cli"],
]
"""The parts of anynorm; each may import itself and those on earlier lines. The library is whole without the lab, and a room
imports no other room, except that of classification, whose task others extend."""
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
    assert packages == {"errors", "lazy", "core", "kernels", "layers", "norms", "registry"}


def test_the_package_works_without_fcntl():
    """Windows has no fcntl."""
    code = "sys.modules['fcntl'] = None\nimport anynorm, pkgutil\nfrom importlib import import_module\n"
    code += "anynorm.make('bn', 8), anynorm.compare, anynorm.convert\n"
    code += "import anynorm.lab.training.store, anynorm.lab.data, anynorm.cli\n"
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


def part_of(module: str) -> str | None:
    """Return the longest name in `LEVEL` that contains a module of anynorm; None for `anynorm` and `anynorm.lab` themselves."""
    words = module.split(".")[1:]
    return next((name for n in range(len(words), 0, -1) if (name := ".".join(words[:n])) in LEVEL), None)


def strings_of(path: Path) -> set[str]:
    """Return the modules of anynorm that a file names in strings, such as "anynorm.lab.tasks:make_task", except docstrings."""
    tree = ast.parse(path.read_text())
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in texts}
    named = {each.partition(":")[0] for each in strings if isinstance(each, str) and re.fullmatch(r"anynorm[\w.]*(:\w+)?", each)}
    return {name for name in named if name in MODULES}


def wrong_imports(path: Path) -> list[str]:
    """Return the modules of a later level, or of another part of the same level, that a file imports or names in a string."""
    module = module_name(path)
    part = part_of(module)
    if module in ("anynorm", "anynorm.lab", "anynorm.__main__"):
        return []
    wrong = []
    for name in imports_of(path) | strings_of(path):
        target = part_of(name) if name.startswith("anynorm.") else None
        if target is not None and target != part and LEVEL[target] >= LEVEL[part]:
            wrong.append(name)
    return wrong


def test_imports_follow_the_levels():
    assert {str(path): wrong for path in FILES if (wrong := wrong_imports(path))} == {}


def test_an_import_by_string_is_seen(tmp_path):
    file = tmp_path / "module.py"
    file.write_text('"""Not anynorm.lab.tasks."""\nimport_object("anynorm.lab.tasks:make_task")\n')
    assert strings_of(file) == {"anynorm.lab.tasks"}


def test_the_algebra_depends_on_torch_alone():
    """typing_extensions is imported for type checkers only."""
    for path in FILES:
        if part_of(module_name(path)) in ("errors", "core", "kernels", "layers", "norms", "registry"):
            packages = {name.partition(".")[0] for name in imports_of(path)} - set(sys.stdlib_module_names)
            assert packages <= {"torch", "anynorm", "typing_extensions", *LAZY.get(path.name, ())}, path


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
    graph = {name: targets - {name} for name, targets in graph.items() if part_of(name)}
    assert find_cycle(graph) == []
    parts: dict[str, set[str]] = {}
    for name, targets in graph.items():
        part = part_of(name)
        parts.setdefault(part, set()).update({part_of(target) for target in targets if part_of(target)} - {part})
    assert find_cycle(parts) == []


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
    assert len(frames_of(lambda: anynorm.make("sn", 64))) <= 50
    norm, x = anynorm.make("sn", 64), torch.randn(4, 64, 8, 8, requires_grad=True)
    norm(x)
    frames = frames_of(lambda: norm(x))
    assert len(frames) < 30
    assert len(set(frames)) <= 6


def test_an_unknown_name_is_refused_with_the_list_of_public_names():
    assert dir(anynorm) == anynorm.__all__
    with pytest.raises(
        AttributeError, match=r"module 'anynorm' has no attribute 'nothing'\. Public names: ALL Accumulation AdaIN"
    ):
        anynorm.nothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"module 'anynorm\.lab' has no attribute 'nothing'\. Public names: CellTable"):
        anynorm.lab.nothing  # type: ignore[attr-defined]


def test_a_name_of_the_lab_says_which_extra_it_needs(monkeypatch):
    def import_module(name):
        raise ModuleNotFoundError(name="filelock")

    monkeypatch.setattr(lazy, "import_module", import_module)
    _, get_attribute, _ = lazy.lazy_names("anynorm")
    with pytest.raises(DataError, match=r"anynorm\.compare needs filelock: pip install 'anynorm\[lab\]'\."):
        get_attribute("compare")
    with pytest.raises(ModuleNotFoundError):
        get_attribute("convert")


def test_no_docstring_starts_with_a_verb_of_the_old_dialect():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                doc = ast.get_docstring(node) or ""
                assert doc.split(" ")[0] not in {"Give", "Say", "Tell", "Let", "Hear", "Put", "Ask"}, f"{path}: {doc}"
