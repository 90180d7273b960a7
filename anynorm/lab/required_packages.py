"""The packages of the extra `lab`, by the names under which they are imported."""

from importlib.util import find_spec

from anynorm.errors import DataError

PACKAGES = (
    *("PIL", "filelock", "lightning_fabric", "matplotlib", "pooch", "pycocotools", "scipy", "sklearn", "torchmetrics"),
    "typing_extensions",
)


def require_packages(command: str) -> None:
    """Check that all packages of the lab are installed, so that a command does not miss one after hours of training.

    Raises:
        DataError: if a package is not installed.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise DataError(f"anynorm {command} needs {', '.join(missing)}: pip install 'anynorm[lab]'.")
