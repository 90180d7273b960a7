"""Training imports on every platform."""

import subprocess
import sys
from pathlib import Path

import anynorm

MODULES = sorted(path.stem for path in (Path(anynorm.__file__).parent / "lab" / "training").glob("[a-z]*.py"))


def test_training_imports_without_unix_modules_and_without_sqlite():
    assert "store" in MODULES
    imports = "\n".join(f"import anynorm.lab.training.{name}" for name in MODULES)
    code = f"import sys\nfor name in ('fcntl', 'sqlite3'):\n    sys.modules[name] = None\n{imports}\nimport anynorm.lab.tasks"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_training_does_not_import_tasks():
    imports = "\n".join(f"import anynorm.lab.training.{name}" for name in MODULES)
    code = f"import sys\n{imports}\nassert not [name for name in sys.modules if name.startswith('anynorm.lab.tasks')]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
