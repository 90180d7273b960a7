"""`recalibrate` is what `torch.optim.swa_utils.update_bn` is for torch's BatchNorm."""

from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

import anynorm
from tests.helpers import same

X = torch.randn(24, 3, 6, 6, generator=torch.Generator().manual_seed(0)) * 2 + 1


def averaged(norm) -> Any:
    """The average of two networks of the same shape."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.Conv2d(8, 4, 3), norm(4)) for _ in range(2)]
    average = AveragedModel(models[0])
    for model in models:
        average.update_parameters(model)
    return average


def test_averaged_statistics_are_those_of_update_bn():
    torchs, ours, mixed = averaged(nn.BatchNorm2d), averaged(anynorm.layer("bn")), averaged(nn.BatchNorm2d)
    batches = X.split(8)
    update_bn(batches, torchs)
    for model in (ours, mixed):
        anynorm.recalibrate(model, batches, estimator="averaged")
        for index in (1, 4):
            for name in ("running_mean", "running_var"):
                same(getattr(model.module[index], name), getattr(torchs.module[index], name), rtol=1e-4, atol=1e-5)


def test_update_bn_leaves_anynorm_layers_unchanged():
    """What the guide warns of: it looks for torch's classes."""
    model = averaged(anynorm.layer("bn"))
    update_bn(X.split(8), model)
    same(model.module[1].running_mean, torch.zeros(8))
    assert int(model.module[1].num_batches_tracked) == 0
