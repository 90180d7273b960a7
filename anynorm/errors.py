"""Exceptions of anynorm. Each message says what was expected, what was received, and what would work.

All derive from `AnynormError`, a subclass of `ValueError`, so code that handles the errors of torch's layers keeps working.
"""


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
