"""Settings and claims of `sn_batch_size`: Table 2, Figs. 1b, 6b and 6c, and sec. 4.1 of sn."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from anynorm.lab.recipes.sn.device_grid import DeviceGrid
from anynorm.lab.recipes.sn.training import LEARNED_DESK
from anynorm.lab.recipes.support.claims import Claim, Equivalent, Larger, Published, Source, more_accurate
from anynorm.lab.recipes.support.quantities import Linear, Measured, accuracy_of, mean_of
from anynorm.lab.training.sweep import Row

TABLE_2: dict[str, dict[str, float]] = {
    "(8, 32)": {"bn": 76.4, "gn": 75.9, "sn": 76.9},
    "(8, 16)": {"bn": 76.3, "gn": 75.8, "sn": 76.7},
    "(8, 8)": {"bn": 75.2, "gn": 76.0, "sn": 76.7},
    "(8, 4)": {"bn": 72.7, "gn": 75.8, "sn": 75.9},
    "(8, 2)": {"bn": 65.3, "gn": 75.9, "sn": 75.6},
    "(1, 16)": {"bn": 76.2, "gn": 75.9, "sn": 76.3},
    "(1, 32)": {"bn": 76.5, "gn": 75.8, "sn": 76.6},
    "(8, 1)": {"gn": 75.5, "sn": 75.0},
    "(1, 8)": {"bn": 75.4, "gn": 75.5, "sn": 75.9},
}
"""The paper's accuracy in % by setting (devices, samples per device)."""
NORMS = ("bn", "gn", "sn")
LARGE, SMALL, ONE = "(8, 32)", "(8, 2)", "(8, 1)"
BN_FAILS = "points that bn loses from (8, 32) to (8, 2)"
"""The effect that must be there before small differences at small batches are tested: 11.1 points in the paper."""
GN_NEAR_BN = "points of gn above bn at (8, 32)"
"""What must be there before the accuracy of GN is compared: it is 0.5 points below BN in the paper. GN needs more steps than
BN."""
SAME_SAMPLES = {"(8, 2)": "(1, 16)", "(8, 4)": "(1, 32)"}
"""Settings with as many samples per step on one device."""


@dataclass(frozen=True, kw_only=True)
class BatchSizeSettings(DeviceGrid):
    """Settings of norms by devices and samples per device.

    Args:
        bn_with_one_sample: whether BN is trained with one sample per device.
        averaged_samples: numbers of training samples over which SN's statistics are averaged for a test; the last gives the
            accuracy. Empty to test with moving averages.
        min_train_accuracy: training accuracy in % from which on a network has learned.
    """

    bn_with_one_sample: bool = False
    averaged_samples: tuple[int, ...] = ()
    min_train_accuracy: float = LEARNED_DESK


def claims(settings: BatchSizeSettings) -> list[Claim]:
    """Return the orders of each setting, what BN loses with small batches and why, and the order of the learning curves."""
    result: list[Claim] = []
    table, text = Source("sn", "Table 2"), Source("sn", "sec. 4.1, comparisons")
    for setting in settings.divisions:
        paper = TABLE_2[setting]
        for pair in (("sn", "bn"), ("gn", "bn"), ("sn", "gn")):
            if {*pair} <= paper.keys():
                better, worse = sorted(pair, key=lambda norm: -paper[norm])
                claim = more_accurate(better, worse, table, Published(paper[better], paper[worse]), setting=setting)
                is_small = "bn" not in pair and settings.divisions[setting].samples <= 4
                requires = (BN_FAILS,) * is_small + (GN_NEAR_BN,) * ("gn" in pair)
                result.append(replace(claim, requires=requires))
    if settings.bn_with_one_sample and ONE in settings.divisions:
        source = table._replace(quote="The '-' in (8, 1) indicates BN does not converge.")
        one_sample = [more_accurate(norm, "bn", source, setting=ONE) for norm in ("sn", "gn")]
        result += [replace(claim, loser_may_fail=True, group="bn fails at (8, 1)") for claim in one_sample]
    for norm in ("gn", "sn"):
        lost = Published(*(round(TABLE_2[LARGE][name] - TABLE_2[SMALL][name], 1) for name in ("bn", norm)))
        statement = f"`bn` loses more points from {LARGE} to {SMALL} than `{norm}`"
        larger, smaller = (_loss(name, LARGE, SMALL) for name in ("bn", norm))
        group = "bn loses more at (8, 2)"
        result.append(Larger(statement=statement, source=text, published=lost, group=group, larger=larger, smaller=smaller))
    return result + _mean_claims(settings) + _statistics_claims(settings, text) + _curve_claims(settings)


def _mean_claims(settings: BatchSizeSettings) -> list[Claim]:
    """Return that SN is the most accurate norm on average over the settings, as Fig. 1b shows."""
    source = Source("sn", "Fig. 1b", "SN is close to the ideal case more than BN and GN")
    result: list[Claim] = []
    for other in ("bn", "gn"):
        labels = [setting for setting in settings.divisions if other in TABLE_2[setting]]
        larger, smaller = (mean_of([accuracy_of(norm=norm, setting=each) for each in labels]) for norm in ("sn", other))
        published = Published(*(round(statistics.fmean(TABLE_2[each][norm] for each in labels), 2) for norm in ("sn", other)))
        statement = f"`sn` is more accurate than `{other}`, averaged over {len(labels)} settings"
        group = f"sn Table 2: sn and {other}, mean over settings"
        result.append(
            Larger(
                statement=statement,
                source=source,
                published=published,
                larger=larger,
                smaller=smaller,
                group=group,
                requires=(GN_NEAR_BN,) if other == "gn" else (),
            )
        )
    return result


def _loss(norm: str, before: str, after: str) -> Linear:
    """Return the points of accuracy that a norm loses from one setting to another."""
    return accuracy_of(norm=norm, setting=before) - accuracy_of(norm=norm, setting=after)


def _statistics_claims(settings: BatchSizeSettings, source: Source) -> list[Claim]:
    """Return that GN does not depend on the batch, and that BN depends on the samples of its statistics, not of gradients."""
    result: list[Claim] = []
    if settings.bn_with_one_sample:
        sides = [accuracy_of(norm="gn", setting=setting) for setting in (LARGE, SMALL)]
        statement = f"`gn` is as accurate at {SMALL} as at {LARGE}"
        quote = "GN obtains around 75.9% in all cases"
        published = Published(TABLE_2[LARGE]["gn"], TABLE_2[SMALL]["gn"])
        result.append(
            Equivalent(
                statement=statement,
                source=source._replace(quote=quote),
                published=published,
                first=sides[0],
                second=sides[1],
                delta=0.5,
            )
        )
    for several, one in SAME_SAMPLES.items():
        if {several, one} <= settings.divisions.keys() and _samples(settings, several) == _samples(settings, one):
            statement = f"`bn` is more accurate with the samples of a step on one device, {one}, than on several, {several}"
            published = Published(TABLE_2[one]["bn"], TABLE_2[several]["bn"])
            larger, smaller = (accuracy_of(norm="bn", setting=setting) for setting in (one, several))
            result.append(Larger(statement=statement, source=source, published=published, larger=larger, smaller=smaller))
    if {"(8, 16)", SMALL, "(1, 16)"} <= settings.divisions.keys():
        bn = {setting: TABLE_2[setting]["bn"] for setting in ("(8, 16)", SMALL, "(1, 16)")}
        statement = (
            "`bn` loses more by fewer samples per statistic, (8, 16) to (8, 2), than by fewer per gradient, (8, 16) to (1, 16)"
        )
        published = Published(round(bn["(8, 16)"] - bn[SMALL], 1), round(bn["(8, 16)"] - bn["(1, 16)"], 1))
        quote = "BN's performance are sensitive to the statistics more than the gradients"
        by_statistic, by_gradient = (_loss("bn", "(8, 16)", other) for other in (SMALL, "(1, 16)"))
        result.append(
            Larger(
                statement=statement,
                source=source._replace(quote=quote),
                published=published,
                larger=by_statistic,
                smaller=by_gradient,
            )
        )
    return result


def _samples(settings: BatchSizeSettings, setting: str) -> int:
    devices, samples = settings.divisions[setting]
    return devices * samples


def mean_test_accuracy(row: Row) -> float | None:
    """Return the test accuracy of a row, averaged over all evaluations: larger for faster convergence; None for a failed run."""
    return None if row["failure"] else 100 - statistics.fmean(point[2] for point in row["curve"])


def _curve_claims(settings: BatchSizeSettings) -> list[Claim]:
    """Return the order of the learning curves, for settings with more than one evaluation."""
    if settings.training.config.num_evals < 2:
        return []
    result: list[Claim] = []
    for place, setting, others in (("Fig. 6b", LARGE, ("bn", "gn")), ("Fig. 6c", SMALL, ("gn",))):
        for other in others:
            statement = f"`sn` converges faster than `{other}`: accuracy averaged over all evaluations (setting {setting})"
            larger, smaller = (Measured(mean_test_accuracy, {"norm": norm, "setting": setting}) for norm in ("sn", other))
            source = Source("sn", place, "SN enables faster convergence")
            result.append(Larger(statement=statement, source=source, larger=larger, smaller=smaller, group="sn Fig. 6"))
    return result
