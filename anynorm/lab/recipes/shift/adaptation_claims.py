"""Claims of the recipe `shift_adaptation`: our hypotheses, and the xbn paper's statement on robustness."""

from __future__ import annotations

from anynorm.lab.recipes.shift.adaptation_results import (
    SHIFTS,
    ShiftSettings,
    corruption_loss,
    is_corrupted,
    mean_result,
    named,
    rank_correlation,
    shift_with,
)
from anynorm.lab.recipes.support.claims import OURS, UNITS, Larger, Source
from anynorm.lab.recipes.support.quantities import Constant

SCHNEIDER = OURS._replace(quote="after Schneider et al. 2020 on few images")
ROBUST = Source("xbn", "Abstract", "seems to be more robust to distribution shift")


def claims(settings: ShiftSettings) -> list[Larger]:
    """Return our hypotheses, and the statement of the xbn paper on robustness."""
    adaptable = [norm for norm in settings.norms if not norm.startswith("gn")]
    domain = settings.domain
    result = []
    for data in (*settings.corruptions, domain):
        where = f"on {domain.partition('@')[0]}" if data == domain else f"under {data} (mean of severities)"
        for norm in adaptable:
            after, before = (
                mean_result(column, settings, norm, named(data), shift=shift_with(data, settings))
                for column in ("recalibrated", "source")
            )
            statement = f"`{norm}`: recalibrated is more accurate than source {where}"
            result.append(
                Larger(
                    statement=statement,
                    source=OURS,
                    larger=after,
                    smaller=before,
                    group="" if data == domain else f"recalibration of {norm}",
                )
            )
    for norm in adaptable:
        statement = f"`{norm}`: a larger estimation shift goes with a larger gain of recalibration (Spearman over corruptions)"
        correlation = rank_correlation(settings, norm)
        result.append(Larger(statement=statement, source=OURS, larger=correlation, smaller=Constant(0.0), scale=UNITS))
    return [*result, *_claims_of_bn(settings), *_claims_of_xbn(settings)]


def _claims_of_bn(settings: ShiftSettings) -> list[Larger]:
    """Return the hypotheses on kinds of statistics, and on BN against GN."""
    many, few = settings.num_unlabeled
    gn = next(norm for norm in settings.norms if norm.startswith("gn"))
    mixed, few_recalibrated = (mean_result(name, settings, "bn", is_corrupted, few=True) for name in ("mixed", "recalibrated"))
    recalibrated, per_batch = (mean_result(name, settings, "bn", is_corrupted) for name in ("recalibrated", "per_batch"))
    size = settings.eval_batch_size
    return [
        Larger(
            statement=f"`bn`: mixed is more accurate than recalibrated, from {few} images",
            source=SCHNEIDER,
            larger=mixed,
            smaller=few_recalibrated,
        ),
        Larger(
            statement=f"`bn`: recalibrated on {many} images is more accurate than per batch of {size}",
            source=OURS,
            larger=recalibrated,
            smaller=per_batch,
        ),
        Larger(
            statement=f"`bn` loses more accuracy by corruption than `{gn}`, with source statistics (points)",
            source=OURS,
            larger=corruption_loss(settings, "bn"),
            smaller=corruption_loss(settings, gn),
        ),
        Larger(
            statement=f"`bn` recalibrated is more accurate than `{gn}` under corruption",
            source=OURS,
            larger=recalibrated,
            smaller=mean_result("source", settings, gn, is_corrupted),
        ),
    ]


def _claims_of_xbn(settings: ShiftSettings) -> list[Larger]:
    """Return the claims that BN loses more accuracy by a shift of the data than a network with XBN blocks."""
    result = []
    for norm in (norm for norm in settings.norms if norm.startswith("xbn")):
        source, group = ROBUST, f"xbn robustness, {norm}"
        bn, other = (corruption_loss(settings, each) for each in ("bn", norm))
        statement = f"`bn` loses more accuracy by corruption than `{norm}`, with source statistics (points)"
        result.append(Larger(statement=statement, source=source, larger=bn, smaller=other, group=group))
        domain = settings.domain
        sides = (mean_result("source", settings, each, named(domain), shift=SHIFTS[1]) for each in (norm, "bn"))
        statement = f"`{norm}` is more accurate than `bn` on {domain.partition('@')[0]}, with source statistics"
        result.append(Larger(statement=statement, source=source, larger=next(sides), smaller=next(sides), group=group))
    return result
