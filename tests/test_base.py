"""The library is whole with its base dependencies: torch, numpy, typer, rich and safetensors.

These tests hide the packages of all extras; `make test-base` runs them, and the tests of the library, where none is installed.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anynorm
from anynorm.lab.required_packages import PACKAGES
from docs.run import matches
from tests.helpers import data

ROOT = Path(__file__).parents[1]
LAB = [name for name in PACKAGES if name not in ("filelock", "typing_extensions")]
"""The packages of the lab, without those of torch."""
EXTRAS = [*LAB, "av", "datasets", "onnx", "onnxruntime", "onnxscript", "ray", "tensorboard", "torchao", "triton"]
HIDE = f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS}))\n"
COMMAND = "from anynorm.cli import main\nmain()\n"
SIX_NORMS = """
from torch import nn
def six_norms():
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 2))
"""


def run(code, *words, cwd=None):
    """Run code in a process in which no package of an extra can be imported."""
    command = [sys.executable, "-c", HIDE + code, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def result_of(*words, cwd):
    """Return the JSON that a command prints."""
    done = run(COMMAND, *words, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def library_modules():
    """Yield the names of the modules of the library, but for the kernels in Triton's own language, and of the lab itself."""
    package = Path(anynorm.__file__).parent
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name.startswith("anynorm.lab.") and name not in ("anynorm.__main__", "anynorm.kernels.gpu_kernels"):
            yield name


@pytest.fixture
def folder(tmp_path):
    """A folder with a module that makes a network, and inputs with labels for it."""
    (tmp_path / "nets.py").write_text(SIX_NORMS)
    np.savez(tmp_path / "x.npz", x=data(64, 3, 4, 4).numpy(), y=np.arange(64) % 2)
    return tmp_path


def test_every_module_of_the_library_and_the_lab_itself_can_be_imported():
    names = list(library_modules())
    assert {"anynorm.draw", "anynorm.io.inputs", "anynorm.kernels.gpu", "anynorm.lab", "anynorm.cli"} <= set(names)
    done = run("".join(f"import {name}\n" for name in names))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_examples_of_the_readme_run():
    first, second = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[:2]
    done = run(first + second)
    assert done.returncode == 0, done.stderr
    (expected,) = re.findall(r"^print\(.*?\)  # (Hetero.*)$", first, re.M)
    assert matches(expected, done.stdout.splitlines()[0])


def test_diagnose_measures_the_shift_of_six_norms(folder):
    report = result_of("diagnose", "nets:six_norms", "--data", "x.npz", cwd=folder)
    assert len(report["rows"]) == 6
    assert all(row["shift"] >= 0 for row in report["rows"])


def test_recalibrate_and_fold_change_a_checkpoint(folder):
    result_of("recalibrate", "--model", "nets:six_norms", "--data", "x.npz", "--out", "new.safetensors", cwd=folder)
    report = result_of(
        "fold",
        "--model",
        "nets:six_norms",
        "--data",
        "x.npz",
        "--checkpoint",
        "new.safetensors",
        "--out",
        "f.safetensors",
        cwd=folder,
    )
    assert [row["into"] is not None for row in report["rows"]] == [True] * 6
    assert (folder / "f.safetensors").stat().st_size > 0


def test_the_help_lists_the_commands_of_the_lab_with_their_extra():
    done = run(COMMAND, "--help")
    assert done.returncode == 0, done.stderr
    _, _, lab = done.stdout.partition("Lab (pip install 'anynorm[lab]')")
    assert [name for name in ("compare", "report", "reproduce", "runs", "stylize") if f" {name} " not in lab] == []


@pytest.mark.parametrize("words", [["compare"], ["reproduce", "hn_sn"]], ids=" ".join)
def test_commands_of_the_lab_say_which_extra_they_need(words, tmp_path):
    done = run(COMMAND, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == f"DataError: anynorm {words[0]} needs {', '.join(LAB)}: pip install 'anynorm[lab]'."


def test_the_packages_of_the_lab_are_those_of_its_extra():
    text = (ROOT / "pyproject.toml").read_text()
    names = re.findall(r'"([\w-]+)>=', re.search(r"^lab = \[(.*?)\]", text, re.M | re.S)[1])
    modules = {"pillow": "PIL", "scikit-learn": "sklearn", "lightning-fabric": "lightning_fabric"}
    assert sorted(modules.get(name, name) for name in names) == sorted(PACKAGES)


def test_a_folder_of_images_and_pictures_say_what_to_install(folder):
    (folder / "images").mkdir()
    (folder / "images" / "1.png").touch()
    done = run(COMMAND, "diagnose", "nets:six_norms", "--data", "images", cwd=folder)
    assert (done.returncode, done.stderr.strip()) == (2, "DataError: image files need Pillow: pip install pillow.")
    done = run("import torch, anynorm.io.pictures\nanynorm.io.pictures.encode_png(torch.zeros(1, 2, 2, dtype=torch.uint8))")
    assert done.stderr.endswith("anynorm.errors.DataError: image files need Pillow: pip install pillow.\n")


@pytest.mark.parametrize("words", [["diagnose", "nets:six_norms", "--data", "x.npz", "--plot", "a.png"]])
def test_plots_say_what_to_install_before_anything_is_measured(words, folder):
    done = run(COMMAND, *words, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == "DataError: Plots need matplotlib: pip install 'anynorm[lab]'."
