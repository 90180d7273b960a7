"""Exceptions of anynorm. Each message says what was expected, what was received, and what would work.

All derive from `AnynormError`, a subclass of `ValueError`, so code that handles the errors of torch's layers keeps working.
"""

import difflib
from collections.abc import Iterable


class AnynormError(ValueError):
    """Base class of all exceptions of anynorm."""


class SpecError(AnynormError):
    """Raised when a spec, or an argument of a norm or function, is invalid."""


class ShapeError(AnynormError):
    """Raised when a norm does not support the shape of its input."""


class ConditionError(AnynormError):
    """Raised when the condition of a norm (class, domain or style) is missing or invalid."""


class StateError(AnynormError):
    """Raised when a state_dict has invalid values, such as NaN."""


class SurgeryError(AnynormError):
    """Raised when a model cannot be changed as requested. The model is left unchanged."""


class FoldError(SurgeryError):
    """Raised when a norm cannot be folded: it has no fixed (a, b), or no neighboring layer to fold them into."""


class DataError(AnynormError):
    """Raised when a model, a checkpoint or data cannot be found, read or used."""


class ReadError(DataError):
    """Raised when images cannot be read during training. The run can be resumed once they are readable."""


class DiskError(DataError):
    """Raised when a file cannot be written, or a checkpoint cannot be used. The previous file, if any, is intact."""


class DiagnosticError(AnynormError):
    """Raised when a diagnostic cannot be computed. The model is left unchanged."""


def similar_names(name: str, known: Iterable[str], count: int = 2) -> list[str]:
    """Return at most `count` of the known names that are most similar to a name, the most similar first."""
    return difflib.get_close_matches(name, list(known), n=count)


def did_you_mean(name: str, known: Iterable[str], count: int = 2) -> str:
    """Return the end of a message about an unknown name, after a space: its most similar names; "" if none is similar.

    >>> did_you_mean("minst", ["digits", "mnist"])
    ' Did you mean mnist?'
    """
    similar = similar_names(name, known, count)
    return f" Did you mean {' or '.join(similar)}?" if similar else ""


def unknown_name(what: str, name: str, known: Iterable[str], *forms: str) -> str:
    """Return the message about an unknown name: the most similar names, and all names that are known.

    Args:
        what: what the name should have been the name of.
        name: the unknown name.
        known: the names that are known.
        forms: further forms that a name may have.

    >>> unknown_name("dataset", "minst", ["digits", "mnist"], "folder:PATH")
    "unknown dataset 'minst'. Did you mean mnist? Usable: digits mnist folder:PATH."
    """
    names = list(known)
    return f"unknown {what} {name!r}.{did_you_mean(name, names)} Usable: {' '.join([*names, *forms])}."
