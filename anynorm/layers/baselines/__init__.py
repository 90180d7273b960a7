"""Norms that the papers compare with and that are no cuts with an affine: one file each, rows of the zoo like all others.

What such a norm shares with the algebra, it has from there: a row names the cuts it starts from, and its class overrides the step
in which it differs. Admission, population, synchronisation and surgery are those of every norm.
"""

from anynorm.layers.baselines import batch_renorm, group_whitening, ibn, ilm, kalman, modenorm, sparse_switch

__all__ = ["batch_renorm", "group_whitening", "ibn", "ilm", "kalman", "modenorm", "sparse_switch"]
