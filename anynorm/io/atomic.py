"""Atomic file writing: a reader sees the previous file or the complete new file, never a partial one.

The content is written to a temporary file in the same directory and flushed to disk (fsync); then the file is renamed to the
target path.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anynorm.errors import DiskError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Replace a file at the end of a `with` block; if the block raises, the file is not changed.

    Args:
        path: The file to write. Its directory must exist.

    Yields:
        A temporary path in the same directory, named `<name>.<random>.part`, to which the content must be written. Its suffix
        differs from that of `path`: pass the format to functions that derive it from the suffix (`np.savez`, `savefig`).

    Raises:
        DiskError: if the block or the final rename raises OSError or RuntimeError (`torch.save` reports a full disk as
            RuntimeError). Other exceptions propagate unchanged. The temporary file is removed in every case.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "record.json"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("{}")
    >>> target.read_text(), [entry.name for entry in target.parent.iterdir()]
    ('{}', ['record.json'])
    """
    target = Path(path)
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except (OSError, RuntimeError) as error:
        remedy = "free disk space" if target.parent.is_dir() else f"create the folder {target.parent}"
        raise DiskError(f"cannot write {target}: {error}. The previous file is intact; {remedy} and run again.") from error
    finally:
        temporary.unlink(missing_ok=True)
