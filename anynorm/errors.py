"""One tree of errors: each says what was asked, what came, and what would work.

All are `AnynormError`, and all are `ValueError`, so code that already guards torch's layers keeps working.
"""


class AnynormError(ValueError):
    """Stands above every error this library raises on purpose."""


class SpecError(AnynormError):
    """Tells that a spec, or an option that completes it, has no meaning."""


class ShapeError(AnynormError):
    """Tells that a tensor does not fit the norm it was given to."""


class ConditionError(AnynormError):
    """Tells that a class, domain or style is missing or does not fit."""


class StateError(AnynormError):
    """Tells that a state_dict holds values no norm can work with."""


class SurgeryError(AnynormError):
    """Tells that a model cannot be changed as was asked; it is as it was."""


class FoldError(SurgeryError):
    """Tells that a norm has no fixed (a, b), or no neighbour that can take them."""


class DataError(AnynormError):
    """Tells that a model, a checkpoint or data named by a text cannot be fetched or read."""


class DiskError(DataError):
    """Tells that a file could not be written; the one that was there stands."""


class DiagnosticError(AnynormError):
    """Tells that a question about a model has no answer; the model is as it was."""
