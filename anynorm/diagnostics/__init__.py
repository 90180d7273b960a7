"""What normalization does to a network: one question a file, each answered by a report.

estimation_shift     good in train mode, bad in eval: which norm is at fault?        (xbn Def. 2)
fluctuation          how much do batch statistics fluctuate while a model trains?    (hn Figs. 6, 7)
gradient_balance     do classes pull the weights equally, in different directions?   (sabn eqs. 4, 5)
importance           which cut has each mixed norm come to use?                      (sn Figs. 1, 4, 7)
perturb              how does a model bear wrong statistics?                         (xbn eq. 5)
"""

from anynorm.diagnostics.estimation_shift import estimation_shift
from anynorm.diagnostics.fluctuation import batch_fluctuation, fluctuation
from anynorm.diagnostics.gradient_balance import gradient_balance
from anynorm.diagnostics.importance import importance
from anynorm.diagnostics.perturb import perturb, perturbation_curve
from anynorm.diagnostics.report import Report

__all__ = [
    "Report",
    "batch_fluctuation",
    "estimation_shift",
    "fluctuation",
    "gradient_balance",
    "importance",
    "perturb",
    "perturbation_curve",
]
