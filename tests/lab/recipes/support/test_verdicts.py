"""A verdict says what was tested, against what control, and with which power; simulations have the stated error rates."""

from dataclasses import replace

import numpy as np
import pytest

import anynorm
from anynorm.lab.recipes.support.claims import (
    OURS,
    RATIO,
    UNITS,
    Check,
    Equivalent,
    Larger,
    Level,
    Published,
    Source,
    above,
    more_accurate,
)
from anynorm.lab.recipes.support.controls import Learned, Requirement, check_recorded
from anynorm.lab.recipes.support.quantities import Computed, Constant, Measured, accuracy_drop, accuracy_of, mean_of
from anynorm.lab.recipes.support.sides import check_controls
from anynorm.lab.recipes.support.verdict_table import verdict_table
from anynorm.lab.recipes.support.verdicts import (
    EQUIVALENT,
    FAILED,
    HOLDS,
    NOT_FAIR,
    REVERSED,
    SMALLER,
    UNDECIDED,
    count_groups,
    judge,
    violated,
)
from anynorm.lab.training.items import pack_hits

TABLE_2 = Source("bgn", "Table 2")


def make_rows(means, n=8, sd=0.5, seed=0, **columns):
    """Return rows with normal accuracies around a mean per norm."""
    generator = np.random.default_rng(seed)
    return [
        {"norm": norm, "seed": number, "accuracy": mean + generator.normal(0.0, sd), "train_accuracy": 80.0, **columns}
        for norm, mean in means.items()
        for number in range(n)
    ]


def judge_one(claim, rows, controls=(), num_test=None):
    (verdict,) = judge([claim], controls, rows, num_test)
    return verdict


@pytest.mark.parametrize(
    ("mean", "published", "verdict", "note"),
    [
        (72.0, Published(72.0, 70.0), HOLDS, ""),
        (72.0, Published(80.0, 70.0), HOLDS, "smaller than published"),
        (75.0, Published(71.0, 70.0), HOLDS, "larger than published"),
        (68.0, Published(72.0, 70.0), REVERSED, ""),
        (70.0, Published(80.0, 70.0), EQUIVALENT, ""),
        (70.0, Published(72.0, 70.0), EQUIVALENT, ""),
        (70.0, None, EQUIVALENT, ""),
    ],
)
def test_the_verdict_follows_from_the_difference_its_interval_and_the_papers_difference(mean, published, verdict, note):
    rows = make_rows({"gn": mean, "bn": 70.0}, n=12, sd=0.3)
    result = judge_one(more_accurate("gn", "bn", TABLE_2, published), rows)
    assert (result.verdict, result.note) == (verdict, note)
    assert result.n == 12
    low, high = result.estimate.interval()
    assert low < mean - 70.0 < high


def test_a_difference_that_may_be_0_but_not_the_papers_is_smaller_than_published():
    rows = make_rows({"gn": 70.0, "bn": 70.0}, n=8, sd=3.0, seed=1)
    result = judge_one(more_accurate("gn", "bn", TABLE_2, Published(76.0, 70.0)), rows)
    assert result.verdict == SMALLER
    low, high = result.estimate.interval()
    assert low < 0 < high < 6


def test_an_undecided_claim_names_the_seeds_that_the_papers_difference_needs():
    rows = make_rows({"gn": 71.0, "bn": 70.0}, n=4, sd=3.0)
    result = judge_one(more_accurate("gn", "bn", TABLE_2, Published(72.0, 70.0)), rows)
    assert result.verdict == UNDECIDED
    needed = result.estimate.seeds_needed(2.0)
    assert result.note == f"needs about {needed} seeds for the paper's difference"
    assert needed > 10
    assert judge_one(more_accurate("gn", "bn", OURS), make_rows({"gn": 71.0, "bn": 70.0}, n=1)).note.startswith(
        "needs at least 2"
    )


@pytest.mark.parametrize(("mean", "verdict"), [(70.2, HOLDS), (75.0, REVERSED), (71.0, UNDECIDED)])
def test_an_equivalence_holds_within_delta_and_is_reversed_beyond(mean, verdict):
    rows = make_rows({"gn": mean, "bn": 70.0}, n=10, sd=0.4)
    sides = accuracy_of(norm="gn"), accuracy_of(norm="bn")
    claim = Equivalent(statement="equal", source=TABLE_2, first=sides[0], second=sides[1], delta=1.0)
    assert judge_one(claim, rows).verdict == verdict


def test_ratios_are_compared_as_logarithms():
    rows = make_rows({"gn": 20.0, "bn": 10.0}, sd=0.2)
    claim = Larger(statement="×", source=OURS, larger=accuracy_of(norm="gn"), smaller=accuracy_of(norm="bn"), scale=RATIO)
    result = judge_one(claim, rows)
    assert result.verdict == HOLDS
    assert np.exp(result.estimate.difference) == pytest.approx(2.0, rel=0.03)
    rows[0]["accuracy"] = -1.0
    with pytest.raises(anynorm.DataError, match="is about a ratio, which needs numbers above 0"):
        judge_one(claim, rows)


def test_a_network_that_did_not_learn_makes_a_claim_not_a_fair_test_unless_the_paper_claims_the_failure():
    rows = make_rows({"gn": 70.0, "bn": 10.0})
    for row in rows:
        row["train_accuracy"] = 12.0 if row["norm"] == "bn" and row["seed"] == 3 else 80.0
    claim = more_accurate("gn", "bn", TABLE_2)
    result = judge_one(claim, rows, [Learned(25.0)])
    assert (result.verdict, result.p) == (NOT_FAIR, None)
    assert result.note == "training accuracy (%) of norm bn: 12, below 25"
    fails = Larger(statement="bn fails", source=TABLE_2, larger=claim.larger, smaller=claim.smaller, loser_may_fail=True)
    assert judge_one(fails, rows, [Learned(25.0)]).verdict == HOLDS
    reverse = Larger(statement="x", source=TABLE_2, larger=claim.smaller, smaller=claim.larger, loser_may_fail=True)
    assert judge_one(reverse, rows, [Learned(25.0)]).verdict == NOT_FAIR
    elsewhere = Learned(25.0, where={"norm": "gn"})
    assert judge_one(claim, rows, [elsewhere]).verdict == HOLDS


def test_a_claim_is_tested_only_if_the_large_effect_is_there():
    rows = make_rows({"gn": 72.0, "sn": 74.0, "bn": 71.0})
    effect = Requirement("bn fails", accuracy_of(norm="gn") - accuracy_of(norm="bn"), at_least=5.0)
    claim = Larger(
        statement="sn > gn",
        source=TABLE_2,
        requires=("bn fails",),
        larger=accuracy_of(norm="sn"),
        smaller=accuracy_of(norm="gn"),
    )
    result = judge_one(claim, rows, [effect])
    assert result.verdict == NOT_FAIR
    assert result.note.startswith("bn fails: 1.08")
    (control,) = check_controls([], [effect], rows)
    assert not control.passed
    present = Requirement("bn fails", accuracy_of(norm="gn") - accuracy_of(norm="bn"), at_least=0.2)
    assert judge_one(claim, rows, [present]).verdict == HOLDS
    with pytest.raises(anynorm.DataError, match=r"requires 'bn fails'; the recipe has none"):
        judge_one(claim, rows)


def test_a_control_without_a_number_is_refused_when_measuring_and_fails_in_an_old_record():
    row = {"norm": "bn", "seed": 0, "accuracy": 50.0}
    with pytest.raises(anynorm.DataError, match=r"'training accuracy \(%\)' has no number: .* a finite 'train_accuracy'"):
        check_recorded([Learned(20.0)], row)
    check_recorded([Learned(20.0)], row | {"failure": "diverged"})
    check_recorded([Learned(20.0, where={"norm": "gn"})], row)
    rows = [{**row, "norm": norm, "seed": seed} for norm in ("bn", "gn") for seed in range(3)]
    result = judge_one(more_accurate("gn", "bn", OURS), rows, [Learned(20.0)])
    assert (result.verdict, result.note.count("not recorded")) == (NOT_FAIR, 2)
    with pytest.raises(anynorm.DataError, match="threshold of the control 'x' must be a number; got nan"):
        Learned(float("nan"), name="x")


def test_failed_runs_decide_a_claim_only_if_the_paper_claims_the_failure():
    rows = make_rows({"gn": 70.0, "bn": 10.0}, n=3)
    for row in rows:
        if row["norm"] == "bn":
            row |= {"accuracy": None, "failure": "the loss is nan"}
    claim = more_accurate("gn", "bn", TABLE_2)
    result = judge_one(claim, rows)
    assert (result.verdict, result.note, result.p) == (FAILED, "3 of 6 runs failed", None)
    fails = Larger(statement="bn fails", source=TABLE_2, larger=claim.larger, smaller=claim.smaller, loser_may_fail=True)
    assert judge_one(fails, rows).verdict == HOLDS
    rows[-1] |= {"accuracy": 11.0}
    assert judge_one(fails, rows).verdict == FAILED


def test_pairs_whose_sides_come_from_different_code_or_processors_are_left_out():
    rows = make_rows({"gn": 71.0, "bn": 70.0}, n=5, sd=0.1, code="a", cpu="AMD AVX2")
    rows[0]["code"] = "b"
    rows[9]["cpu"] = "Intel AVX512"
    for row in (rows[2], rows[7]):  # both sides of seed 2
        row["code"] = "c"
    result = judge_one(more_accurate("gn", "bn", OURS), rows)
    assert result.n == 3
    assert "2 seeds left out: their two sides come from different code or processors" in result.note


def test_delta_must_be_possible():
    gn, bn = accuracy_of(norm="gn"), accuracy_of(norm="bn")
    for delta in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(anynorm.DataError, match=r"delta must be greater than 0; got .* for the claim 'x'"):
            Larger(statement="x", source=OURS, delta=delta, larger=gn, smaller=bn)
    with pytest.raises(anynorm.DataError, match=r"delta must be smaller than the paper's difference of 2; got 3"):
        Larger(statement="x", source=TABLE_2, published=Published(72.0, 70.0), delta=3.0, larger=gn, smaller=bn)
    with pytest.raises(anynorm.DataError, match=r"delta must be greater than 1; got 0.9"):
        Equivalent(statement="x", source=OURS, first=gn, second=bn, delta=0.9, scale=RATIO)


def test_the_default_delta_is_a_quarter_of_the_papers_difference_and_at_least_half_a_point():
    assert more_accurate("gn", "bn", TABLE_2, Published(80.0, 70.0)).transformed_delta == 2.5
    assert more_accurate("gn", "bn", TABLE_2, Published(71.0, 70.0)).transformed_delta == 0.5
    assert more_accurate("gn", "bn", OURS).transformed_delta == 0.5


def test_claims_of_one_group_count_once_with_their_least_favourable_verdict():
    rows = make_rows({"gn": 75.0, "sn": 70.0, "bn": 70.0}, n=10, sd=0.3)
    claims = [more_accurate(a, "bn", TABLE_2) for a in ("gn", "sn")] + [more_accurate("gn", "sn", TABLE_2)]
    verdicts = judge(claims, [], rows, None)
    assert [verdict.verdict for verdict in verdicts] == [HOLDS, EQUIVALENT, HOLDS]
    assert count_groups(verdicts) == dict.fromkeys(count_groups([]), 0) | {HOLDS: 2, EQUIVALENT: 1}
    grouped = [
        Larger(statement=c.statement, source=c.source, larger=c.larger, smaller=c.smaller, group="one") for c in claims[:2]
    ]
    counts = count_groups(judge([*grouped, claims[2]], [], rows, None))
    assert (counts[HOLDS], counts[EQUIVALENT]) == (1, 1)


def test_a_check_that_is_violated_is_named():
    rows = make_rows({"gn": 75.0, "bn": 70.0})
    check = Check(statement="gn > bn", reason="theorem", larger=accuracy_of(norm="gn"), smaller=accuracy_of(norm="bn"))
    assert violated([check], rows) == []
    rows[0]["accuracy"] = 10.0
    assert violated([check], rows) == [check]


def test_quantities_are_computed_seed_by_seed():
    rows = [
        {"norm": "bn", "batch_size": size, "seed": seed, "accuracy": 10.0 * size + seed} for size in (2, 8) for seed in (0, 1)
    ]
    drop = accuracy_drop(8, 2, norm="bn")
    assert [drop.at(rows, seed) for seed in (0, 1)] == [60.0, 60.0]
    assert drop.seeds(rows) == {0, 1}
    assert drop.cells == ({"norm": "bn", "batch_size": 8}, {"norm": "bn", "batch_size": 2})
    both = mean_of([accuracy_of(norm="bn", batch_size=size) for size in (2, 8)])
    assert both.at(rows, 1) == 51.0
    ratio = Computed(lambda a, b: a / b, [accuracy_of(norm="bn", batch_size=size) for size in (8, 2)])
    assert ratio.at(rows, 0) == 4.0
    rows[0]["accuracy"] = None
    assert (both.at(rows, 0), ratio.at(rows, 0), Constant(3.0).at(rows, 0)) == (None, None, 3.0)
    assert Measured(lambda row: row["batch_size"], {"norm": "bn", "batch_size": 2}).at(rows, 0) == 2
    with pytest.raises(anynorm.DataError, match=r"must have one row; got 2\. Name all keys of the cell"):
        accuracy_of(norm="bn").at(rows, 0)
    with pytest.raises(anynorm.DataError, match=r"has no column 'loss'; it has norm, batch_size"):
        Measured("loss", {"norm": "bn", "batch_size": 2}).at(rows, 0)


def test_a_quantity_is_compared_with_a_number():
    rows = make_rows({"gn": 30.0}, n=6)
    assert judge_one(above(10.0, accuracy_of(norm="gn"), "gn is above chance", OURS), rows).verdict == HOLDS


def test_the_noise_of_the_test_images_is_that_of_the_hits_or_else_the_binomial_limit():
    generator = np.random.default_rng(0)
    rows = make_rows({"gn": 70.0, "bn": 70.0}, n=4)
    without = judge_one(more_accurate("gn", "bn", OURS), rows).estimate
    limit = judge_one(more_accurate("gn", "bn", OURS), rows, num_test=1000).estimate
    assert (without.test_variance, limit.test_variance) == (0.0, pytest.approx(2 * 70 * 30 / 1000, rel=0.01))
    easy = generator.random(1000) < 0.7
    for row in rows:
        row["hits"] = pack_hits((easy ^ (generator.random(1000) < 0.05)).tolist())
    images = judge_one(more_accurate("gn", "bn", OURS), rows, num_test=1000).estimate
    assert images.test_variance < 0.1 * limit.test_variance  # the networks err on the same images


def test_the_noise_of_test_items_reaches_ratios_means_and_computed_quantities():
    """The reference is a bootstrap over items of the same numbers."""
    generator = np.random.default_rng(1)
    difficulty = generator.gamma(4.0, 1.0, 400)
    rows = []
    for norm, factor in (("gn", 1.0), ("bn", 1.3 * generator.lognormal(0.0, 0.5, 400))):
        for seed in range(3):
            losses = factor * difficulty * generator.lognormal(0.0, 0.2, 400)
            rows.append({"norm": norm, "seed": seed, "loss": losses.mean(), "items": {"loss": losses.tolist()}})
    bn, gn = (Measured("loss", {"norm": norm}) for norm in ("bn", "gn"))
    ratio = Larger(statement="ratio", source=OURS, scale=RATIO, larger=bn, smaller=gn)
    computed = Larger(
        statement="computed",
        source=OURS,
        scale=UNITS,
        larger=Computed(lambda a, b: np.log(a / b), (bn, gn)),
        smaller=Constant(0.0),
    )
    items = {norm: np.stack([row["items"]["loss"] for row in rows if row["norm"] == norm]) for norm in ("bn", "gn")}
    draws = generator.integers(400, size=(4000, 400))
    samples = [np.mean(np.log(items["bn"][:, draw].mean(1) / items["gn"][:, draw].mean(1))) for draw in draws]
    for claim in (ratio, computed):
        variance = judge_one(claim, rows).estimate.test_variance
        # the bootstrap also has a third of the noise of an item in a single run, which belongs to the seeds
        assert 0.8 * np.var(samples) < variance < 1.05 * np.var(samples)


def test_the_binomial_limit_takes_accuracies_of_one_sign_as_correlated():
    rows = make_rows({"gn": 50.0, "ln": 50.0, "bn": 50.0}, n=4)
    mean = mean_of([accuracy_of(norm="gn"), accuracy_of(norm="ln")])
    claim = Larger(statement="mean", source=OURS, larger=mean, smaller=accuracy_of(norm="bn"))
    limit = judge_one(claim, rows, num_test=1000).estimate.test_variance
    assert limit == pytest.approx(2 * 50 * 50 / 1000, rel=0.02)  # not (1/2 + 1) · 2.5, as if gn and ln erred on other images
    attacked = Larger(
        statement="robust",
        source=OURS,
        larger=Measured("accuracy", {"norm": "gn"}, num_test=250),
        smaller=Measured("accuracy", {"norm": "bn"}, num_test=250),
    )
    assert judge_one(attacked, rows, num_test=1000).estimate.test_variance == pytest.approx(2 * 50 * 50 / 250, rel=0.02)


@pytest.mark.parametrize(("n", "verdict"), [(5, "undecided"), (6, "holds")])
def test_equal_differences_of_all_seeds_are_judged_by_the_sign_test(n, verdict):
    rows = [{"norm": norm, "seed": seed, "accuracy": 70.0 + (norm == "gn")} for norm in ("gn", "bn") for seed in range(n)]
    result = judge_one(more_accurate("gn", "bn", OURS), rows)
    assert result.verdict == verdict
    if verdict == "undecided":
        assert result.note == "all 5 seeds have the same difference; the sign test needs 6 seeds"


def test_an_unfair_test_is_estimated_but_not_tested():
    rows = make_rows({"gn": 80.0, "bn": 70.0, "ln": 70.0}, n=6)
    for row in rows:
        row["train_accuracy"] = 12.0 if row["norm"] == "bn" else 80.0
    claims = [more_accurate("gn", "bn", OURS), more_accurate("gn", "ln", OURS)]
    unfair, fair = judge(claims, [Learned(25.0)], rows, None)
    assert (unfair.verdict, unfair.p, fair.verdict) == (NOT_FAIR, None, HOLDS)
    assert unfair.estimate.difference == pytest.approx(10.0, abs=1.0)
    assert fair.level == 0.05  # the unfair test is not in the family


def test_powers_are_those_of_the_corrected_level():
    rows = make_rows({f"norm{k}": 70.0 for k in range(5)}, n=8)
    claims = [more_accurate(f"norm{k}", "norm0", OURS) for k in range(1, 5)]
    verdict = judge(claims, [], rows, None)[0]
    assert verdict.level == 0.05 / 4
    row = verdict_table([verdict]).rows[0]
    assert float(row["found with 80 %"]) > 1.2 * verdict.estimate.smallest_difference()


def test_one_failed_run_does_not_show_that_a_norm_fails():
    rows = [{"norm": "gn", "seed": seed, "accuracy": 70.0} for seed in (0, 1)]
    rows += [{"norm": "bn", "seed": seed, "accuracy": None} for seed in (0, 1)]
    claim = replace(more_accurate("gn", "bn", OURS), loser_may_fail=True)
    assert judge_one(claim, rows).verdict == HOLDS
    assert judge_one(claim, [row for row in rows if row["seed"] == 0]).verdict == FAILED


def test_values_that_are_not_finite_and_ratios_of_zero_are_refused():
    rows = make_rows({"gn": 80.0, "bn": 70.0})
    rows[0]["accuracy"] = float("nan")
    with pytest.raises(anynorm.DataError, match="has a value that is not finite; a failed run must have None"):
        judge_one(more_accurate("gn", "bn", OURS), rows)
    with pytest.raises(anynorm.DataError, match="published numbers of a ratio must be above 0; got 0 and 1"):
        replace(more_accurate("gn", "bn", OURS), scale=RATIO, published=Published(0, 1))


def test_a_claim_about_layers_needs_a_group():
    bn, gn = accuracy_of(norm="bn"), accuracy_of(norm="gn")
    with pytest.raises(anynorm.DataError, match=r"about each layer must have a group, .* got none for the claim 'deeper'"):
        Larger(statement="deeper", source=OURS, level=Level.LAYER, larger=bn, smaller=gn)


@pytest.mark.parametrize("n", [3, 8])
def test_in_at_most_5_percent_of_recipes_without_an_effect_a_claim_is_decided_wrongly(n):
    """Seven norms are compared with one, so the claims are not independent of each other."""
    norms = [f"norm{index}" for index in range(7)]
    claims = [more_accurate(norm, "bn", OURS) for norm in norms]
    wrong = 0
    repetitions = 300
    for repetition in range(repetitions):
        rows = make_rows(dict.fromkeys(["bn", *norms], 70.0), n=n, sd=2.0, seed=repetition)
        wrong += any(verdict.verdict in (HOLDS, REVERSED) for verdict in judge(claims, [], rows, None))
    assert wrong / repetitions < 0.05 + 2 * np.sqrt(0.05 * 0.95 / repetitions)


def test_the_papers_difference_is_found_as_often_as_the_power_says():
    found, power = 0, []
    repetitions = 200
    for repetition in range(repetitions):
        rows = make_rows({"gn": 71.5, "bn": 70.0}, n=8, sd=1.0, seed=repetition)
        verdict = judge_one(more_accurate("gn", "bn", TABLE_2, Published(71.5, 70.0)), rows)
        found += verdict.verdict == HOLDS
        power.append(verdict.estimate.smallest_difference())
    assert np.mean(power) == pytest.approx(1.6, abs=0.15)  # 2.3 · 1.414 / √8 · …: the true difference is a little smaller
    assert 0.68 < found / repetitions < 0.85


def test_an_undecided_claim_says_if_more_seeds_would_not_help():
    rows = make_rows({"gn": 70.3, "bn": 70.0}, n=4, sd=3.0)
    published = Published(70.2, 70.0)
    hidden = judge_one(more_accurate("gn", "bn", TABLE_2, published), rows, num_test=100)
    assert hidden.note.startswith("the choice of the test images alone hides ")
    values = {"gn": [40.0, 100.0, 40.0, 100.4], "bn": [100.0, 40.0, 100.0, 40.0]}
    noisy = [{"norm": norm, "seed": seed, "accuracy": value} for norm in values for seed, value in enumerate(values[norm])]
    result = judge_one(more_accurate("gn", "bn", TABLE_2, Published(71.0, 70.0)), noisy)
    assert result.note == "needs over 1000 seeds for the paper's difference"
