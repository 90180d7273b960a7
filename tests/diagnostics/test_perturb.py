"""Perturbed running statistics: range, restoring, curves, and errors."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.diagnostics import perturb, perturbation_curve
from tests.helpers import same
from tests.surgery.networks import X, network, trained


def test_statistics_are_scaled_within_delta_and_restored():
    model = trained(network())
    before = copy.deepcopy(model.state_dict())
    with perturb(model, 0.3, per="channel", seeds=4) as draws:
        ratios = []
        for _ in draws:
            ratio = model[1].running_var / before["1.running_var"] - 1
            assert float(ratio.abs().max()) <= 0.3 + 1e-6
            ratios.append(ratio)
    assert float(torch.stack(ratios).std(0).min()) > 0
    assert len(set(ratios[0].tolist())) == 16
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with perturb(model, 0.3, layers="3.*") as draws:
        ratio = model[3].bn1.running_mean / before["3.bn1.running_mean"]
        assert float(ratio.std()) == pytest.approx(0, abs=1e-5)  # one δ per layer
        assert abs(float(ratio.mean()) - 1) > 1e-3
        assert torch.equal(model[1].running_mean, before["1.running_mean"])


def test_the_same_seed_draws_the_same_direction_for_every_delta():
    model: Any = nn.Sequential(nn.BatchNorm1d(3))
    directions = []
    for delta in (0.1, 0.4):
        with perturb(model, delta, per="channel"):
            directions.append((model[0].running_var - 1) / delta)
    same(directions[0], directions[1])


def test_statistics_are_restored_after_an_error():
    model: Any = nn.Sequential(nn.BatchNorm1d(3))

    def interrupted():
        with perturb(model, 0.5):
            assert not torch.equal(model[0].running_var, torch.ones(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with perturb(model, 0.5) as draws:
        pass
    with pytest.raises(anynorm.DiagnosticError, match="has ended"):
        list(draws)
    assert torch.equal(model[0].running_var, torch.ones(3))


def test_a_curve_reports_the_drop_of_the_score():
    model = trained(network())
    with torch.no_grad():
        unperturbed = copy.deepcopy(model).eval()(X)
    report = perturbation_curve(model, lambda net: 100 / (1 + float((net(X) - unperturbed).norm())), [0.0, 0.2, 0.6], seeds=3)
    assert model.training  # scored in eval mode, and restored
    assert [row["delta"] for row in report] == [0.0, 0.2, 0.6]
    assert report.rows[0]["score"] == pytest.approx(100)
    assert report.rows[0]["score"] > report.rows[1]["score"] > report.rows[2]["score"]
    assert len(report.rows[2]["scores"]) == 3
    assert report.worst(1).rows[0]["delta"] == 0.6
    assert "6 norms perturbed per layer, 3 draws: score 100 unperturbed" in report.finding


def test_unusable_perturbations_raise():
    model = nn.Sequential(nn.BatchNorm1d(3))
    with pytest.raises(anynorm.DiagnosticError, match="deltas must have at least one entry"):
        perturbation_curve(model, lambda _: 1.0, [])
    with pytest.raises(anynorm.DiagnosticError, match=r"in \[0, 1\]; got delta=2"):
        perturbation_curve(model, lambda _: pytest.fail("scored before the arguments were checked"), [0.1, 2])
    with pytest.raises(anynorm.DiagnosticError, match="unperturbed model must be finite; got nan"):
        perturbation_curve(model, lambda _: float("nan"))
    assert "-1 at Δ = 0.1" in perturbation_curve(model, lambda _: -1.0, [0.1]).finding
    for options, message in (
        ({"delta": 1.5}, r"in \[0, 1\]; got delta=1\.5"),
        ({"delta": 0.1, "per": "net"}, "one of layer channel; got per='net'"),
        ({"delta": 0.1, "seeds": 0}, "seeds=0"),
    ):
        with pytest.raises(anynorm.DiagnosticError, match=message), perturb(model, **options):
            pass
    with pytest.raises(anynorm.DiagnosticError, match="has running statistics"), perturb(nn.Sequential(nn.GroupNorm(1, 3)), 0.1):
        pass
