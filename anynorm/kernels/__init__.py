"""The only code that touches the big tensor, and the choice of which.

A backend is one file with `moments` and `scale`; everything between them works on tables of n × c numbers.
"""

from anynorm.kernels.reference import moments, scale

__all__ = ["moments", "scale"]
