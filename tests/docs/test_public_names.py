"""A name is public if each step of its path is in `__all__` of the step before; documentation and examples use no other names."""

import ast
import re
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from mypy import api

import anynorm
from anynorm.layers.registered import REGISTRY, RegisteredNorm
from anynorm.lazy import public_modules
from docs.run import ROOT, read_blocks

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = [*sorted((ROOT / "docs" / "guide").glob("*.py")), *sorted((ROOT / "examples").glob("*.py"))]
DOTTED = re.compile(r"(?<![\w/.-])anynorm(?:\.[A-Za-z_]\w*)+")


def public_names(package: str = "anynorm") -> list[str]:
    """Return the paths of all public names, those of packages included."""
    names: list[str] = []
    for name in import_module(package).__all__:
        path = f"{package}.{name}"
        names += [path]
        if isinstance(resolve(path), ModuleType):
            names += public_names(path)
    return names


def resolve(path: str) -> object:
    """Return the object with a path that starts with `anynorm`."""
    value: object = anynorm
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value


def first_private_step(path: str) -> str | None:
    """Return the beginning of a path that is not public; None if it is public, up to attributes of public classes and functions.

    >>> first_private_step("anynorm.diagnostics.esm.measure"), first_private_step("anynorm.Task.metric")
    ('anynorm.diagnostics.esm', None)
    """
    value: object = anynorm
    parts = path.split(".")
    for number, name in enumerate(parts[1:], 2):
        if not isinstance(value, ModuleType) or name == "__version__":
            return None
        if name not in value.__all__:
            return ".".join(parts[:number])
        value = getattr(value, name)
    return None


def imported_names(code: str) -> list[str]:
    """Return the paths of the names of anynorm in a program: its imports, and attributes of what it imports.

    >>> imported_names("from anynorm import draw as d; d.cuts('bn')")
    ['anynorm.draw', 'anynorm.draw.cuts']
    """
    tree = ast.parse(code)
    bound: dict[str, str] = {}
    paths: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "anynorm":
                    paths.append(alias.name)
                    bound[alias.asname or "anynorm"] = alias.name if alias.asname else "anynorm"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "anynorm":
            for alias in node.names:
                paths.append(f"{node.module}.{alias.name}")
                bound[alias.asname or alias.name] = paths[-1]
    for node in ast.walk(tree):
        parts: list[str] = []
        value: ast.AST = node
        while isinstance(value, ast.Attribute):
            parts.insert(0, value.attr)
            value = value.value
        if parts and isinstance(value, ast.Name) and value.id in bound:
            paths.append(".".join([bound[value.id], *parts]))
    return [path for path in paths if path != "anynorm"]


@pytest.mark.parametrize("path", [*PAGES, *CODE], ids=lambda path: str(path.relative_to(ROOT)))
def test_documentation_and_examples_use_public_names_only(path):
    text = path.read_text()
    code = text if path.suffix == ".py" else "".join(block.code for block in read_blocks(text) if block.language == "python")
    used = {*imported_names(code), *DOTTED.findall(text)}
    private = sorted({str(first_private_step(name)) for name in used} - {"None"})
    assert not private, f"{path.name} uses {' '.join(private)}"


def test_imports_and_attributes_of_a_program_are_found():
    code = "import anynorm.lab.data as d, torch\nfrom anynorm.core.cuts import Cut\nimport anynorm\n"
    code += "d.load(); anynorm.draw.axes.COLORS\n"
    assert {"anynorm.lab.data", "anynorm.lab.data.load", "anynorm.core.cuts.Cut"} <= set(imported_names(code))
    assert "anynorm.draw.axes.COLORS" in imported_names(code)
    assert first_private_step("anynorm.core.cuts.Cut") == "anynorm.core"
    assert first_private_step("anynorm.draw.axes.COLORS") == "anynorm.draw.axes"
    assert first_private_step("anynorm.__version__") is None
    assert first_private_step("anynorm.Task.metric.name") is None


@pytest.mark.parametrize("path", public_names())
def test_every_public_name_exists_in_one_place_and_is_documented(path):
    value = resolve(path)
    assert value.__doc__ if callable(value) or isinstance(value, ModuleType) else is_documented_constant(path)
    assert not path.rpartition(".")[2].startswith("_")
    if callable(value) and not path.startswith("anynorm.integrations"):
        assert [other for other in public_names() if resolve(other) is value] == [path]


def is_documented_constant(path: str) -> bool:
    """Whether a string follows the assignment of a constant."""
    package, _, name = path.rpartition(".")
    body = ast.parse(Path(str(sys.modules[public_modules(package)[name]].__file__)).read_text()).body
    for statement, following in pairwise(body):
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and any(getattr(each, "id", "") == name for each in targets):
            return isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    return False


def test_the_classes_of_all_norms_are_public():
    classes = {value for value in map(resolve, public_names()) if isinstance(value, type) and issubclass(value, RegisteredNorm)}
    assert {norm for norm in REGISTRY.values() if norm.__module__.startswith("anynorm.")} <= classes


@pytest.mark.slow
def test_type_checkers_see_every_public_name(tmp_path):
    paths = public_names()
    imports = sorted({"import anynorm", *(f"import {path}" for path in paths if isinstance(resolve(path), ModuleType))})
    client = tmp_path / "client.py"
    client.write_text("\n".join([*imports, *(f"reveal_type({path})" for path in paths), "anynorm.mke"]))
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    out, _, _ = api.run([*options, str(client)])
    notes = re.findall(r'Revealed type is "(.*)"', out)
    assert len(notes) == len(paths), out
    assert not [path for path, note in zip(paths, notes, strict=True) if note == "Any"]
    assert re.findall(r"error: (.*)", out)[0].startswith('Module has no attribute "mke"'), out
