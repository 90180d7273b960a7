"""Estimates agree with scipy, and simulations have the stated error rates, coverage and power."""

import math

import numpy as np
import pytest
from scipy import stats

from anynorm.lab.training.estimates import (
    LEVEL,
    Estimate,
    estimate_paired,
    estimate_unpaired,
    image_variance,
    moderate,
    noncentrality,
    pairing_helps,
    pooled_correlation,
)

FIRST, SECOND = [3.1, 2.9, 3.4, 3.0, 3.3], [2.0, 2.8, 2.1, 2.4, 2.2]


def test_a_paired_estimate_has_the_interval_and_the_p_value_of_scipy():
    estimate, expected = estimate_paired(FIRST, SECOND), stats.ttest_rel(FIRST, SECOND)
    assert estimate.p_different() == pytest.approx(expected.pvalue)
    assert estimate.interval() == pytest.approx(tuple(expected.confidence_interval()))


def test_an_unpaired_estimate_is_that_of_welch():
    estimate, expected = estimate_unpaired(FIRST, SECOND), stats.ttest_ind(FIRST, SECOND, equal_var=False)
    assert estimate.p_different() == pytest.approx(expected.pvalue)
    assert estimate.interval() == pytest.approx(tuple(expected.confidence_interval()))


def test_equivalence_is_decided_by_two_one_sided_tests():
    estimate, delta = estimate_paired(FIRST, SECOND), 1.5
    differences = np.subtract(FIRST, SECOND)
    below = stats.ttest_1samp(differences, delta, alternative="less").pvalue
    above = stats.ttest_1samp(differences, -delta, alternative="greater").pvalue
    assert estimate.p_equivalent(delta) == pytest.approx(max(below, above))
    assert (estimate.p_equivalent(delta) < LEVEL) == (max(map(abs, estimate.interval(2 * LEVEL))) < delta)


def test_a_difference_beyond_delta_has_an_interval_outside():
    estimate = estimate_paired(FIRST, SECOND)
    for delta in (0.2, 0.4, 0.8):
        assert (estimate.p_beyond(delta) < LEVEL) == (estimate.interval()[0] > delta)


@pytest.mark.parametrize("n", [3, 8])
def test_differences_without_spread_have_the_p_value_of_the_sign_test(n):
    estimate = estimate_paired([2.0 + seed for seed in range(n)], [1.0 + seed for seed in range(n)])
    assert estimate.p_different() == pytest.approx(stats.binomtest(n, n).pvalue)
    assert estimate.p_equivalent(2.0) == pytest.approx(stats.binomtest(n, n, alternative="greater").pvalue)
    assert estimate.p_equivalent(0.5) == 1.0
    generator = np.random.default_rng(0)
    others = [estimate_paired(*generator.normal(size=(2, n)).tolist()) for _ in range(8)]
    assert moderate([estimate, *others], max_df=27)[0] == estimate  # the spread of other quantities says nothing about it


@pytest.mark.parametrize("n", [3, 8, 20])
def test_the_smallest_difference_is_found_in_80_percent_of_simulations(n):
    generator = np.random.default_rng(n)
    estimate = Estimate(0.0, n, 1.0, n - 1)
    samples = generator.normal(estimate.smallest_difference(), 1.0, (20_000, n))
    found = stats.ttest_1samp(samples, 0.0, axis=1).pvalue < LEVEL
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_the_number_of_seeds_needed_makes_the_smallest_difference_as_small_as_asked():
    estimate = Estimate(0.3, 4, 1.0, 3)
    needed = estimate.seeds_needed(0.5)
    smallest = [Estimate(0.3, n, 1.0, n - 1).smallest_difference() for n in (needed - 1, needed)]
    assert smallest[0] > 0.5 >= smallest[1]
    assert noncentrality(needed - 1) / math.sqrt(needed) == pytest.approx(smallest[1])
    assert Estimate(0.3, 4, 1.0, 3, test_variance=1.0).seeds_needed(0.5) is None
    assert estimate.seeds_needed(1e-3) is None


def simulate(generator, variances, n=4, repetitions=400):
    """Yield estimates of the differences of several comparisons without a true difference."""
    for _ in range(repetitions):
        samples = generator.normal(0.0, np.sqrt(variances)[:, None], (len(variances), n))
        yield [estimate_paired(sample, [0.0] * n) for sample in samples]


@pytest.mark.parametrize(
    "variances",
    [np.ones(12), np.geomspace(0.01, 100.0, 12), np.array([1.0] * 10 + [400.0] * 2)],
    ids=["equal", "spread", "two_collapsed"],
)
def test_shared_variances_keep_the_error_rate(variances):
    """Also if variances differ by orders of magnitude: then nearly nothing is shared."""
    generator = np.random.default_rng(0)
    rates = [
        np.mean([estimate.p_different() < LEVEL for estimate in moderate(estimates, max_df=12 * 3)])
        for estimates in simulate(generator, variances)
    ]
    assert np.mean(rates) < LEVEL + 0.012


def test_one_unstable_norm_is_not_compared_with_the_variance_of_the_others():
    """Five norms have the sd 1, the sixth has 4: shrinking its variance would find differences that are not there."""
    generator = np.random.default_rng(1)
    wrong = []
    for estimates in simulate(generator, np.array([1.0] * 8 + [16.0]), n=3, repetitions=1500):
        wrong.append(moderate(estimates, max_df=18)[-1].p_different() < LEVEL)
    assert np.mean(wrong) < LEVEL + 0.02


def test_a_variance_that_is_small_by_chance_is_raised():
    generator = np.random.default_rng(0)
    estimates = next(simulate(generator, np.ones(12)))
    alone = min(estimate.variance for estimate in estimates)
    shared = min(estimate.variance for estimate in moderate(estimates, max_df=36))
    assert shared > 2 * alone


def test_fewer_than_three_comparisons_share_nothing():
    estimates = [estimate_paired(FIRST, SECOND)] * 2
    assert moderate(estimates, max_df=10) == estimates


def simulate_accuracies(generator, n, m, difference=5.0):
    """Return hits of two networks per seed: images differ in difficulty, and in which network suits them."""
    ease = generator.normal(0.5, 1.0, m)
    suits = generator.normal(0.0, 0.8, m)
    seeds = generator.normal(0.0, 0.05, (2, n, 1))
    shift = difference / 100 / 0.26
    logits = np.stack([ease + suits / 2 + seeds[0] + shift, ease - suits / 2 + seeds[1]])
    return 100.0 * (logits + generator.normal(0.0, 1.0, logits.shape) > 0)


def test_intervals_with_the_noise_of_the_test_images_cover_the_true_difference():
    """Without it, they cover the difference on these test images only."""
    generator = np.random.default_rng(0)
    n, m = 6, 400
    truth = np.mean([np.subtract(*simulate_accuracies(generator, 50, 20_000).mean((1, 2))) for _ in range(20)])
    covered: list[bool] = []
    covered_without: list[bool] = []
    for _ in range(400):
        hits = simulate_accuracies(generator, n, m)
        means = hits.mean(2)
        plain = estimate_paired(means[0], means[1])
        with_images = Estimate(plain.difference, n, plain.variance, plain.df, image_variance(hits[0] - hits[1]))
        for estimate, result in ((with_images, covered), (plain, covered_without)):
            low, high = estimate.interval()
            result.append(low <= truth <= high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.03)
    assert np.mean(covered_without) < 0.92


def test_pairs_are_used_where_the_sides_are_correlated():
    generator = np.random.default_rng(0)
    common = generator.normal(size=(50, 8))
    related = [tuple((row + generator.normal(0, 0.3, (2, 8))).tolist()) for row in common]
    independent = [tuple(generator.normal(size=(2, 8)).tolist()) for _ in range(50)]
    assert pooled_correlation(related) > 0.85
    assert abs(pooled_correlation(independent)) < 0.15
    assert pairing_helps(pooled_correlation(related), 8)
    assert not pairing_helps(pooled_correlation(independent), 8)
    assert pooled_correlation([([1.0, 1.0], [2.0, 2.0])]) == 1.0


def test_sides_with_a_negative_correlation_are_paired():
    assert pairing_helps(-0.3, 3)
    generator = np.random.default_rng(3)
    covered = []
    for _ in range(2000):
        first, second = generator.multivariate_normal([0.0, 0.0], [[1.0, -0.5], [-0.5, 1.0]], 8).T
        low, high = estimate_paired(first, second).interval()
        covered.append(low <= 0 <= high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)
