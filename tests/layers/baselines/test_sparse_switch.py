"""SparsestMax, and the norm that is weighed by it."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anynorm
from anynorm.layers.baselines.sparse_switch import sparsemax, sparsestmax
from tests.helpers import data, make, same, same_state
from tests.layers.baselines import references

CORNER = math.sqrt(2 / 3)
NUMBERS = st.floats(-3, 3, width=32)


@given(st.lists(NUMBERS, min_size=2, max_size=5), st.floats(0, 1))
def test_weights_are_on_the_simplex_and_not_inside_the_radius_whatever_the_logits(logits, share):
    k = len(logits)
    radius = torch.tensor(share * math.sqrt((k - 1) / k), dtype=torch.float64)
    w = sparsestmax(torch.tensor(logits, dtype=torch.float64), radius)
    assert w.min() >= 0
    assert abs(float(w.sum()) - 1) < 1e-9
    assert float((w - 1 / k).norm()) > float(radius) - 1e-6
    assert int(w.argmax()) == int(torch.tensor(logits).argmax()) or max(logits) - logits[int(w.argmax())] < 1e-6


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.7, 0.9, 1.0])
def test_equal_logits_give_weights_on_the_simplex_at_the_radius(share):
    radius = torch.tensor(share * CORNER, dtype=torch.float64)
    w = sparsestmax(torch.ones(3, dtype=torch.float64), radius)
    same(w.sum(), torch.tensor(1.0, dtype=torch.float64))
    same((w - 1 / 3).norm(), radius, rtol=1e-9, atol=1e-9)


@given(st.lists(NUMBERS, min_size=3, max_size=3))
def test_at_radius_0_it_is_the_nearest_point_of_the_simplex(logits):
    w = sparsemax(torch.tensor(logits, dtype=torch.float64))
    tried = references.nearest_on_simplex(logits, 0.0, fine=100)
    assert math.dist(w.tolist(), logits) <= math.dist(tried, logits) + 1e-9
    assert math.dist(w.tolist(), tried) < 0.03


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("logits", [[0.4, 0.3, 0.1], [0.5, 0.45, -0.2], [0.1, 0.0, 0.2]])
def test_beyond_the_radius_it_is_close_to_the_result_of_exhaustive_search(logits, share):
    p = sparsemax(torch.tensor(logits, dtype=torch.float64)).tolist()
    w = sparsestmax(torch.tensor(logits, dtype=torch.float64), torch.tensor(share * CORNER, dtype=torch.float64)).tolist()
    tried = references.nearest_on_simplex(p, share * CORNER)
    assert math.dist(w, p) <= math.dist(tried, p) + 0.02


def test_at_the_end_one_cut_has_all_the_weight():
    w = sparsestmax(torch.randn(50, 3, dtype=torch.float64), torch.tensor(CORNER, dtype=torch.float64))
    same(w.max(-1).values, torch.ones(50, dtype=torch.float64))


def test_ssn_starts_as_equal_weights_and_ends_as_one_norm():
    norm: Any = anynorm.make("ssn", 8)
    norm.ramp.copy_(torch.tensor([0, 4]))
    same(norm.mixing_weights("mean"), torch.full((1, 3), 1 / 3))
    x = data(4, 8, 3, 3)
    same(norm(x), anynorm.make("sn", 8)(x), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        norm.mean_weight.copy_(torch.tensor([1.0, 1.1, 1.05]))
        norm.var_weight.copy_(torch.tensor([1.0, 1.0, 1.05]))
    radii = []
    for _ in range(4):
        radii.append(float(norm.radius()))
        norm(x)
    same(torch.tensor(radii), torch.tensor([0.25, 0.5, 0.75, 1.0]) * CORNER)
    same(norm.mixing_weights("mean"), torch.tensor([[0.0, 1.0, 0.0]]))
    same(norm.mixing_weights("var"), torch.tensor([[0.0, 0.0, 1.0]]))
    settled = make("ln/bn", channels=8)
    settled.load_state_dict({k: v for k, v in norm.state_dict().items() if k in settled.state_dict()}, strict=False)
    settled.running_var.copy_(norm.running_var)
    same(norm.eval()(x), settled.eval()(x), rtol=1e-5, atol=1e-5)


def test_the_schedule_continues_after_a_checkpoint_and_stops_in_inference():
    norm = make("ssn")
    for _ in range(2):
        norm(data(4, 16, 3, 3))
    again: Any = anynorm.make("ssn", 16)
    again.load_state_dict(norm.state_dict())
    assert float(again.radius()) == float(norm.radius()) > 0
    again.eval()(data(4, 16, 3, 3))
    same_state(again, norm)


def test_gradients_reach_the_logits_at_equal_weights():
    norm: Any = anynorm.make("ssn", 8)
    norm(data(4, 8, 3, 3)).square().mean().backward()
    assert norm.var_weight.grad.abs().max() > 0


def test_harden_selects_the_cut_that_ssn_would_end_with():
    model: Any = torch.nn.Sequential(make("ssn"))
    with torch.no_grad():
        for logits in (model[0].mean_weight, model[0].var_weight):
            logits.copy_(torch.tensor([0.0, 0.0, 1.0]))
    ended: Any = copy.deepcopy(model).eval()
    ended[0].num_passes.fill_(100)
    assert anynorm.harden(model).rows[0]["new_norm"] == "bn"
    x = data(4, 16, 3, 3)
    same(model.eval()(x), ended(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9])
def test_gradients_reach_equal_logits_at_any_radius_but_the_last(share):
    logits = torch.ones(3, dtype=torch.float64).requires_grad_()
    w = sparsestmax(logits, torch.tensor(share * CORNER, dtype=torch.float64))
    (grad,) = torch.autograd.grad((w * torch.tensor([1.0, 2.0, 4.0])).sum(), logits)
    assert grad.abs().max() > 0.1
    assert grad.isfinite().all()


def test_a_pass_before_training_does_not_stop_the_logits_from_learning():
    norm: Any = anynorm.make("ssn", 8)
    norm.set_total_steps(40)
    norm.num_passes.fill_(5)  # as after a few dry runs: the radius has risen, and λ are still equal
    optimizer = torch.optim.SGD(norm.parameters(), 0.1)
    target = anynorm.make("bn", 8)
    for step in range(35):
        x = data(4, 8, 3, 3, seed=step) * torch.linspace(0.2, 3, 4).reshape(4, 1, 1, 1)
        optimizer.zero_grad()
        (norm(x) - target(x)).square().mean().backward()
        optimizer.step()
    assert norm.mixing_weights("var").argmax() == 2
    assert norm.mixing_weights("var").detach().max() == 1


@given(st.lists(NUMBERS, min_size=3, max_size=3))
def test_in_the_end_weights_are_one_hot_to_the_last_bit(logits):
    w = sparsestmax(torch.tensor(logits, dtype=torch.float64), torch.tensor(CORNER, dtype=torch.float64))
    assert sorted((w.float() > 0).tolist()) == [False, False, True]


def test_recomputing_in_inference_uses_the_same_radius():
    from torch.utils.checkpoint import checkpoint

    norm = make("ssn").eval()
    norm.num_passes.fill_(2)
    x = data(4, 16, 3, 3).requires_grad_()
    (plain,) = torch.autograd.grad(norm(x).pow(3).sum(), x)
    (again,) = torch.autograd.grad(checkpoint(norm, x, use_reentrant=False).pow(3).sum(), x)
    same(again, plain)
