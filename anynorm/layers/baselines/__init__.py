"""Baselines of the papers that cuts and an affine cannot define, one file per norm.

Each class has a definition in the algebra and overrides the step in which it differs. Checks, running statistics,
synchronization and surgery are the same as for all norms.
"""

from anynorm.layers.baselines import batch_renorm, group_whitening, ibn, ilm, kalman, modenorm, pointwise, sparse_switch

__all__ = ["batch_renorm", "group_whitening", "ibn", "ilm", "kalman", "modenorm", "pointwise", "sparse_switch"]
