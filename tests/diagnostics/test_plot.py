"""Plots show the numbers of reports, in the axes they are given."""

import numpy as np
import pytest
import torch
from torch import nn

import anynorm
from anynorm import draw
from anynorm.diagnostics import (
    Target,
    adaptation,
    estimation_shift,
    fluctuation,
    gradient_balance,
    importance,
    perturbation_curve,
)
from tests.diagnostics.test_command import classifier, switchable
from tests.helpers import data, same
from tests.surgery.networks import trained

Figure = pytest.importorskip("matplotlib.figure", reason="needs the lab extra").Figure


def reports():
    model, x = trained(classifier()), data(30, 3, 8, 8)
    yield estimation_shift(model, [x])
    yield importance(switchable())
    yield perturbation_curve(model, lambda net: float(net(x).detach().norm()), [0.0, 0.5], seeds=2)
    with fluctuation(model, last=5) as recorder:
        for batch in x.split(10):
            model(batch)
    yield recorder.report()

    def loss(net, batch, label):
        return nn.functional.cross_entropy(net(batch), torch.full((len(batch),), label))

    yield gradient_balance(model, {label: x[label::3] for label in range(3)}, loss)
    yield adaptation(model, [Target("new", x, [(x, torch.arange(30) % 3)])])


@pytest.mark.parametrize("index", range(6))
def test_each_report_is_plotted_into_the_given_axes(index):
    report = list(reports())[index]
    fig, ax = getattr(draw, report.kind)(report)
    assert isinstance(fig, Figure)
    assert ax.get_ylabel()
    ax = Figure().subplots()
    assert getattr(draw, report.kind)(report, ax) == (ax.figure, ax)
    assert ax.has_data()


def test_bars_have_the_height_of_the_numbers():
    report = next(reports())
    _, ax = draw.estimation_shift(report)
    assert [bar.get_height() for bar in ax.patches] == [row["shift"] for row in report]


def test_series_profiles_and_heat_plot_their_values():
    report = list(reports())[3]
    _, ax = draw.series(report, "3.bn1", 2)
    same(torch.from_numpy(ax.lines[0].get_ydata()), report.details["3.bn1"]["bn_mean"][:, 2])
    with pytest.raises(anynorm.DiagnosticError, match=r"a channel of '3\.bn1', 0 to 15; got 99"):
        draw.series(report, "3.bn1", 99)
    with pytest.raises(anynorm.DiagnosticError, match="no series of 'x'"):
        draw.series(report, "x")
    _, ax = draw.profiles({"a": [{"esm_std": 1.0}, {"esm_std": 3.0}], "b": [{"esm_std": 2.0, "layer": 7}]})
    assert [list(line.get_xdata()) for line in ax.lines] == [[1, 2], [7]]
    _, ax = draw.heatmap(torch.eye(3), xlabel="step", label="size")
    same(torch.from_numpy(np.asarray(ax.images[0].get_array())), torch.eye(3))
