"""The mixing weights of switchable norms."""

from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.diagnostics import importance


def test_importance_is_the_softmax_of_the_mixing_weights_of_each_side():
    model: Any = nn.Sequential(anynorm.make("sn", 8), anynorm.make("bn/bn+en", 8), nn.BatchNorm2d(8), anynorm.make("sn:2", 8))
    with torch.no_grad():
        model[0].mean_weight.copy_(torch.tensor([2.0, 0.0, -1.0]))
        model[3].var_weight[0].copy_(torch.tensor([9.0, 0.0, 0.0]))
    report = importance(model)
    assert [row["path"] for row in report] == ["0", "1", "3"]
    weights = torch.tensor([2.0, 0.0, -1.0]).softmax(0)
    assert [report["0"][f"mean_{cut}"] for cut in ("in", "ln", "bn")] == pytest.approx(weights.tolist())
    assert report["1"]["var_en"] == pytest.approx(0.5)
    assert "mean_bn" not in report["1"]
    assert report.worst(1).rows[0]["path"] == "0"  # has the largest weight of one cut
    grouped = (torch.tensor([9.0, 0.0, 0.0]).softmax(0) + 1 / 3) / 2
    assert report["3"]["var_in"] == pytest.approx(float(grouped[0]))
    average = (weights[0] + 1 / 3) / 2
    assert f"mean in {float(average):.2f}" in report.finding
    with pytest.raises(anynorm.DiagnosticError, match=r"None of the 1 norms mixes cuts \(BatchNorm2d\)"):
        importance(nn.Sequential(nn.BatchNorm2d(8)))
