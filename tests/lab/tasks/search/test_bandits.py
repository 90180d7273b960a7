"""Bandit policies: unbiased estimates, synthetic tables, frequencies of draws, and the distribution of random search."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from anynorm.errors import DataError, SpecError
from anynorm.lab.tasks.search.bandits import POLICIES, Exp3, LeastSquares, RandomSearch

EDGES, OPS = 3, 4


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make(name):
    return POLICIES[name](EDGES, OPS)


def play(policy, loss, rounds, seed=0):
    """Draw architectures and learn their losses; return the draws."""
    random, draws = generator(seed), []
    for _ in range(rounds):
        choice = policy.sample(random)
        policy.update(choice, loss(choice.tolist()))
        draws.append(choice)
    return torch.stack(draws)


def table(seed=1):
    """Return a random loss per architecture."""
    values = np.random.default_rng(seed).random((OPS,) * EDGES)
    return lambda choice: float(values[tuple(choice)])


def test_the_increment_of_exp3_is_an_unbiased_estimate_of_the_mean_loss_given_an_operation():
    loss, policy = table(), Exp3(EDGES, OPS, lr=0.1)
    play(policy, loss, 20)  # so that π is not uniform
    probabilities, before = policy.probabilities().double().numpy(), policy.loss_sums.clone()
    expected_increment, mean_loss = np.zeros((EDGES, OPS)), np.zeros((EDGES, OPS))
    for choice in itertools.product(range(OPS), repeat=EDGES):
        p = math.prod(probabilities[e, o] for e, o in enumerate(choice))
        policy.loss_sums.copy_(before)
        policy.update(torch.tensor(choice), loss(choice))
        expected_increment += p * (policy.loss_sums - before).numpy()
        for e, o in enumerate(choice):
            mean_loss[e, o] += p / probabilities[e, o] * loss(choice)
    np.testing.assert_allclose(expected_increment, mean_loss, rtol=1e-5)  # float32 sums
    assert probabilities.std() > 0.01


def test_least_squares_recovers_a_given_sum_over_edges():
    weights = np.random.default_rng(0).normal(size=(EDGES, OPS))
    policy = LeastSquares(EDGES, OPS, lr=1e-6)
    draws = play(policy, lambda choice: 2.0 + sum(weights[e, o] for e, o in enumerate(choice)), 60)
    effects = policy.effects().numpy()
    for e in range(EDGES):
        counts = torch.bincount(draws[:, e], minlength=OPS).numpy()
        assert counts.min() > 0
        expected = weights[e] - (counts * weights[e]).sum() / counts.sum()
        np.testing.assert_allclose(effects[e], expected, atol=1e-4)  # float32 sums
    assert policy.recommend().tolist() == weights.argmin(1).tolist()


def test_the_effects_of_least_squares_are_those_of_numpy_and_0_for_operations_never_drawn():
    loss, policy = table(), LeastSquares(EDGES, OPS)
    design, losses = [], []
    for choice in itertools.product(range(OPS - 1), repeat=EDGES):
        policy.update(torch.tensor(choice), loss(choice))
        design.append(np.eye(OPS)[list(choice)].ravel())
        losses.append(loss(choice))
    solution = np.linalg.lstsq(np.array(design), np.array(losses) - np.mean(losses), rcond=None)[0].reshape(EDGES, OPS)
    seen = solution[:, : OPS - 1]
    np.testing.assert_allclose(policy.effects()[:, : OPS - 1], seen - seen.mean(1, keepdims=True), atol=1e-5)
    assert (policy.effects()[:, OPS - 1] == 0).all()


def test_a_constant_loss_has_no_effects_even_after_a_few_rounds():
    policy = LeastSquares(2, 3)
    for choice in ([0, 0], [0, 1], [1, 2]):  # no operation of the first edge is seen with all of the second
        policy.update(torch.tensor(choice), 2.3)
    assert policy.effects().abs().max() < 1e-5


@pytest.mark.parametrize("name", ["exp3", "least-squares"])
def test_a_policy_is_the_softmax_of_its_negative_loss_sums_and_recommends_their_minimum(name):
    policy = make(name)
    play(policy, table(), 30)
    sums = -policy.scores().double().numpy()
    expected = np.exp(-policy.lr * sums) / np.exp(-policy.lr * sums).sum(1, keepdims=True)
    np.testing.assert_allclose(policy.probabilities(), expected, rtol=1e-5)
    assert policy.recommend().tolist() == sums.argmin(1).tolist()


@pytest.mark.parametrize("name", ["exp3", "least-squares"])
def test_a_policy_finds_the_best_operations(name):
    best = [2, 0, 3]
    policy = POLICIES[name](EDGES, OPS, lr=0.05)
    play(policy, lambda choice: sum(a != b for a, b in zip(choice, best, strict=True)) / EDGES, 600)
    assert policy.recommend().tolist() == best
    assert policy.probabilities()[range(EDGES), best].min() > 0.5


@pytest.mark.parametrize("name", list(POLICIES))
def test_the_frequencies_of_draws_match_the_probabilities(name):
    policy = make(name)
    play(policy, table(), 12)
    random = generator(4)
    draws = torch.stack([policy.sample(random) for _ in range(1500)])
    probabilities = policy.probabilities().double()
    for e in range(EDGES):
        expected = probabilities[e] / probabilities[e].sum()
        counts = torch.bincount(draws[:, e], minlength=OPS)
        assert stats.chisquare(counts.numpy(), (1500 * expected).numpy()).pvalue > 0.01
    joint = torch.zeros(OPS, OPS)
    for a, b, _ in draws.tolist():
        joint[a, b] += 1
    assert stats.chi2_contingency(joint.numpy()).pvalue > 0.01  # edges are independent


def test_the_loss_of_random_search_has_the_distribution_of_the_best_of_n():
    num_draws, repetitions = 5, 400
    values = np.random.default_rng(2).random(OPS**EDGES)
    loss = lambda choice: float(values[int(np.ravel_multi_index(choice, (OPS,) * EDGES))])  # noqa: E731
    best = []
    for seed in range(repetitions):
        policy = RandomSearch(EDGES, OPS)
        play(policy, loss, num_draws, seed)
        assert loss(policy.recommend().tolist()) == pytest.approx(float(policy.best_loss))
        best.append(float(policy.best_loss))
    for level in np.quantile(values, [0.05, 0.15, 0.3, 0.5]):
        expected = 1 - (values > level).mean() ** num_draws
        count = sum(value <= level for value in best)
        assert stats.binomtest(count, repetitions, expected).pvalue > 0.01


@pytest.mark.parametrize("name", list(POLICIES))
def test_the_state_of_a_policy_is_saved_and_resumed(name):
    first, second = make(name), make(name)
    play(first, table(), 10)
    second.load_state_dict(first.state_dict())
    assert torch.equal(play(first, table(), 10, seed=1), play(second, table(), 10, seed=1))
    assert torch.equal(first.scores(), second.scores())


def test_errors_name_what_must_be():
    policy = make("exp3")
    with pytest.raises(DataError, match=r"must be 3 operation indices in \[0, 4\); got \[0, 1, 4\]"):
        policy.update(torch.tensor([0, 1, 4]), 1.0)
    with pytest.raises(DataError, match=r"must be 3 operation indices in \[0, 4\); got \[0, 1\]"):
        policy.update(torch.tensor([0, 1]), 1.0)
    with pytest.raises(DataError, match="must be finite; got nan"):
        policy.update(torch.tensor([0, 1, 2]), math.nan)
    with pytest.raises(SpecError, match="at least 1 edge and 1 operation; got 0 and 4"):
        Exp3(0, 4)
    with pytest.raises(SpecError, match="greater than 0; got 0"):
        LeastSquares(3, 4, lr=0)


def test_exp3_stays_finite_when_probabilities_underflow():
    policy = Exp3(1, 2, lr=0.01)
    policy.loss_sums.copy_(torch.tensor([[0.0, 11_000.0]]))
    assert float(policy.probabilities()[0, 1]) == 0
    policy.update(torch.tensor([0]), 2.0)
    assert policy.loss_sums.tolist() == [[2.0, 11_000.0]]


def test_random_search_ranks_the_edges_of_an_architecture_at_random_and_always_the_same():
    policy = RandomSearch(14, 8)
    first = set()
    for number in range(20):
        policy.update(policy.sample(torch.Generator().manual_seed(number)), -float(number))
        assert torch.equal(policy.logits(), policy.logits())
        assert torch.equal(policy.logits().argmax(1), policy.recommend())
        first.add(int(policy.logits().max(1).values.argmax()))
    assert len(first) > 5
