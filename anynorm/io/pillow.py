"""Pillow, which reads and writes image files: a package that the library does not depend on."""

from importlib.util import find_spec

from anynorm.errors import DataError


def require_pillow() -> None:
    """Check that Pillow can be imported.

    Raises:
        DataError: if it is not installed.
    """
    if find_spec("PIL") is None:
        raise DataError("image files need Pillow: pip install pillow.")
