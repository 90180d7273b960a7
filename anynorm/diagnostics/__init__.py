"""Diagnostics of the normalization in a network: one module per question, each answered by a `DiagnosticReport`.

adaptation           does adapting statistics to new data improve the accuracy?        (Schneider et al. 2020)
estimation_shift     good in train mode, bad in eval mode: which norm causes it?       (xbn Def. 2)
fluctuation          how much do batch statistics fluctuate during training?           (hn Figs. 6, 7)
gradient_balance     do gradients of classes have equal norms and similar directions?  (sabn eqs. 4, 5)
importance           which cut does each mixed norm use after training?                (sn Figs. 1, 4, 7)
perturb              how sensitive is a model to wrong running statistics?             (xbn eq. 5)
"""

from anynorm.diagnostics.adaptation import Target, adaptation
from anynorm.diagnostics.batch_statistics import batch_statistics
from anynorm.diagnostics.corruptions import corruption_targets
from anynorm.diagnostics.estimation_shift import estimation_shift
from anynorm.diagnostics.fluctuation import batch_fluctuation, fluctuation
from anynorm.diagnostics.gradient_balance import gradient_balance
from anynorm.diagnostics.importance import importance
from anynorm.diagnostics.perturb import perturb, perturbation_curve
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.diagnostics.scores import accuracy

__all__ = [
    "DiagnosticReport",
    "Target",
    "accuracy",
    "adaptation",
    "batch_fluctuation",
    "batch_statistics",
    "corruption_targets",
    "estimation_shift",
    "fluctuation",
    "gradient_balance",
    "importance",
    "perturb",
    "perturbation_curve",
]
