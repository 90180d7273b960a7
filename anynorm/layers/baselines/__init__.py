"""Norms that the papers compare with and that are not made of cuts and an affine alone, one file per norm.

Each starts from a definition in the algebra and overrides the step in which it differs. Checks, running statistics,
synchronization and surgery are those of every norm.
"""

from anynorm.layers.baselines import batch_renorm, group_whitening, ibn, ilm, kalman, modenorm, sparse_switch

__all__ = ["batch_renorm", "group_whitening", "ibn", "ilm", "kalman", "modenorm", "sparse_switch"]
