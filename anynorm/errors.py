"""Exceptions raised by anynorm. Every message says what was requested, what was received, and what would work.

All derive from `AnynormError`, which is a `ValueError`: code that already handles the errors of torch's layers keeps working.
"""


class AnynormError(ValueError):
    """Base class of all errors that anynorm raises on purpose."""


class SpecError(AnynormError):
    """Raised when a spec, or an option that completes it, is invalid."""


class ShapeError(AnynormError):
    """Raised when the shape of a tensor does not fit the norm that receives it."""


class ConditionError(AnynormError):
    """Raised when a class, domain or style is missing or does not fit the layer or its input."""


class StateError(AnynormError):
    """Raised when a state_dict holds values that a norm cannot use."""


class SurgeryError(AnynormError):
    """Raised when a model cannot be changed as requested. The model is left unchanged."""


class FoldError(SurgeryError):
    """Raised when a norm has no fixed (a, b), or no neighboring layer that can absorb them."""


class DataError(AnynormError):
    """Raised when a model, a checkpoint or data cannot be found, read or used."""


class ReadError(DataError):
    """Raised when images cannot be read while a run trains. The run can be resumed when they can be read again."""


class DiskError(DataError):
    """Raised when a file cannot be written. The previous file, if any, is intact."""


class DiagnosticError(AnynormError):
    """Raised when a diagnostic cannot be computed. The model is left unchanged."""
