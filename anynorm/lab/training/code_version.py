"""The version of the code that a run executes, and the kind of processor: what may change the last digits of a result.

The version is a hash of syntax trees, so comments, docstrings and formatting do not change it. Of C++ sources, comments and white
space are left out. It covers the packages that every training uses, the room of its task, and the version of torch.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
SHARED = (
    *("core", "kernels", "layers", "surgery", "diagnostics", "norms.py", "registry.py"),
    *("lab/data", "lab/models", "lab/training", "lab/attacks.py", "lab/tasks/run.py"),
)
"""Files and folders of the package that every training may use."""
ANALYSIS = ("estimates.py", "significance.py", "result.py")
"""Files of lab/training that compare the results of runs. A run does not execute them."""


@lru_cache
def code_version(rooms: tuple[str, ...] = (), sources: tuple[str, ...] = ()) -> str:
    """Return a hash of the code that a run executes.

    Args:
        rooms: folders of tasks, such as "lab/tasks/detection".
        sources: further source code in Python.
    """
    digest = hashlib.sha256(f"torch {metadata.version('torch')}".encode())
    for path in _files((*SHARED, *sorted(rooms))):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\n{without_comments(path)}\n".encode())
    for path in sorted((ROOT.parent / "csrc").glob("*")):  # only in a clone
        digest.update(f"{path.name}\n{without_comments(path)}\n".encode())
    for source in sources:
        digest.update(dump(source).encode())
    return digest.hexdigest()[:12]


@lru_cache
def cpu_family() -> str:
    """Return the maker of the processor and the vector instructions that torch uses, such as "AuthenticAMD AVX2"."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        vendor = next(line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id"))
    except (OSError, StopIteration):
        vendor = platform.machine()
    return f"{vendor} {torch.backends.cpu.get_cpu_capability()}"


def without_comments(path: Path) -> str:
    """Return the code of a file in a form that comments, docstrings and formatting do not change."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return dump(text)
    return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).split())


def dump(source: str) -> str:
    """Return the syntax tree of Python code without docstrings, as text.

    >>> dump("x = 1  # one") == dump("x=1")
    True
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)] or [ast.Pass()]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, or a text after a constant that documents it."""
    return (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    )


def _files(names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        path = ROOT / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        yield from (file for file in files if file.parent.name != "training" or file.name not in ANALYSIS)
