"""ENAS's controller: the exact policy, and samples that follow it."""

import math

import pytest
import torch

import anynorm
from anynorm.lab.tasks.search.controller import NORM_POSITIONS, Controller
from tests.helpers import same


def controller(num_edges=3, num_ops=3, spec="ln", seed=0, scale=10.0):
    """Return a controller whose policy is far from uniform."""
    torch.manual_seed(seed)
    built = Controller(num_edges, num_ops, hidden_size=8, norms=dict.fromkeys(NORM_POSITIONS, spec) if spec else None).double()
    with torch.no_grad():
        for parameter in (built.start, built.embedding.weight, built.classifier.weight):
            parameter.mul_(scale)
    return built


@pytest.mark.parametrize("spec", ["", "ln", "gn:4", "ln+gn:4", "bn"])
def test_the_exact_policy_sums_to_one_and_agrees_with_the_score_of_each_cell(spec):
    policy = controller(spec=spec).eval()
    log_policy, cells = policy.log_policy(), policy.all_cells()
    assert cells.tolist()[:4] == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0]]
    same(log_policy.exp().sum(), torch.ones((), dtype=torch.float64))
    scores = policy.score(cells)
    same(scores.log_probs, log_policy)
    entropy = -(log_policy.exp() @ log_policy)
    same(log_policy.exp() @ scores.entropies, entropy)  # the chain rule of entropies
    assert entropy < 3 * math.log(3) - 1e-3


def test_samples_follow_the_exact_policy():
    policy = controller().eval()
    count = 20_000
    uniform = torch.rand(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        samples = policy.sample(uniform)
        expected = count * policy.log_policy().exp()
    same(samples.log_probs, policy.score(samples.ops).log_probs)
    frequencies = torch.bincount((samples.ops * torch.tensor([9, 3, 1])).sum(1), minlength=27)
    assert expected.min() > 5
    chi_square = float(((frequencies - expected) ** 2 / expected).sum())
    assert chi_square < 54.1  # 26 degrees of freedom: exceeded with probability 0.001


def test_the_published_settings_are_those_of_a_new_controller():
    torch.manual_seed(0)
    new = Controller(6, 5)
    for name, parameter in new.named_parameters():
        if name == "classifier.bias":
            assert not parameter.any()
        else:
            assert 0.05 < float(parameter.detach().abs().max()) <= 0.1 + 1e-7
    assert new.cell.bias_ih is None
    assert new.cell.hidden_size == 64


def test_probabilities_differ_by_at_most_the_bound_of_the_tanh_constant():
    steep = controller(num_edges=1, num_ops=5, scale=1e6)
    policy = steep.log_policy().exp().detach()
    assert float(policy.max() / policy.min()) == pytest.approx(math.exp(2 * 2.5))


def test_temperature_divides_the_logits_before_tanh():
    cold = controller(num_edges=1)
    logits = cold.classifier(cold.cell(cold.start)[0])
    cold.temperature = 4.0
    same(cold.log_policy(), (2.5 * (logits / 4).tanh()).log_softmax(1)[0])


def test_unusable_arguments_are_refused():
    with pytest.raises(anynorm.SpecError, match="tanh_constant must be greater than 0; got 0"):
        Controller(2, 2, tanh_constant=0)
    with pytest.raises(anynorm.SpecError, match="temperature must be greater than 0; got -1"):
        Controller(2, 2, temperature=-1)
    with pytest.raises(anynorm.SpecError, match="norms of the controller must be at input hidden cell; got gate"):
        Controller(2, 2, norms={"gate": "ln"})
