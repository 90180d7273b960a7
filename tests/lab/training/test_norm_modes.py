"""The metrics of a network with batch statistics and with recalibrated ones."""

import torch
from torch import nn

from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.norm_modes import evaluate_norm_modes
from tests.helpers import same


def make_case():
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Dropout(0.5)).eval()
    return network, 5 + 2 * torch.randn(64, 3), 7 + torch.randn(8, 3)


def evaluate(network, test):
    values = network(test).mean(1)
    return Evaluation({"mean": float(values.mean())}, {"mean": values.tolist()})


def test_metrics_are_those_of_train_mode_norms_and_of_statistics_of_the_training_samples():
    network, train, test = make_case()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    evaluation = evaluate_norm_modes(network, lambda: evaluate(network, test), train.split(16))
    metrics = evaluation.metrics
    expected = ((test - train.mean(0)) / (train.var(0, unbiased=False) * 64 / 63 + 1e-5).sqrt()).mean()
    assert metrics.keys() == {"mean, batch statistics", "mean, recalibrated"}
    assert abs(metrics["mean, batch statistics"]) < 1e-6
    same(torch.tensor(metrics["mean, recalibrated"]), expected)
    for name, value in metrics.items():
        same(torch.tensor(evaluation.items[name]).mean(), torch.tensor(value))
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not any(module.training for module in network.modules())


def test_a_network_without_running_statistics_has_one_mode():
    assert evaluate_norm_modes(nn.GroupNorm(1, 3), lambda: Evaluation({"mean": 0.0}), []) == Evaluation()
