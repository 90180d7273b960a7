"""Functions of other packages that look for BatchNorm, on models with layers of anynorm: which work, and which do nothing.

Those that look for its class, such as `update_bn`, are in tests/peers/test_batch_norm_code.py.
"""

from typing import Any

import torch
from torch import nn
from torch.func import replace_all_batch_norm_modules_
from torch.optim.swa_utils import AveragedModel, update_bn

import anynorm
from tests.distributed import two_processes
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


def test_no_layer_is_an_instance_of_torchs_batch_norm():
    """What the guide's table rests on: SyncBatchNorm.convert_sync_batchnorm would make BN of sn, hn or ibn without a message."""
    for entry in anynorm.zoo():
        assert not issubclass(entry.norm, nn.modules.batchnorm._BatchNorm)  # type: ignore[unreachable]


def test_replace_all_batch_norm_modules_leaves_anynorm_layers_alone():
    for spec in ("bn", "sn"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make(spec, 8)).eval()
        norm = model[1]
        replace_all_batch_norm_modules_(model)
        assert norm.running_mean is not None


def timm_distribute_bn(model, world_size, reduce=False):
    """Copy of `timm.utils.distribute_bn` (timm 1.0.31); tests/interop runs with timm."""
    for bn_name, bn_buf in model.named_buffers(recurse=True):
        if ("running_mean" in bn_name) or ("running_var" in bn_name):
            if reduce:
                torch.distributed.all_reduce(bn_buf, op=torch.distributed.ReduceOp.SUM)
                bn_buf.div_(float(world_size))
            else:
                torch.distributed.broadcast(bn_buf, 0)


def distributed_statistics(rank):
    for reduce in (False, True):
        for spec in ("bn", "hn:4", "bn/bn+en", "auxbn@2"):
            model = nn.Sequential(anynorm.make(spec, 8))
            for _, buffer in model.named_buffers():
                buffer.add_(rank)
            timm_distribute_bn(model, 2, reduce)
            means = [buffer for name, buffer in model[0].state_dict().items() if name.startswith("running_mean")]
            variances = [buffer for name, buffer in model[0].state_dict().items() if name.startswith("running_var")]
            for buffer, initial in [*((each, 0) for each in means), *((each, 1) for each in variances)]:
                same(buffer, torch.full_like(buffer, initial + reduce / 2))
            assert len(variances) == (2 if "+" in spec else 1)


def test_distribute_bn_of_timm_finds_the_running_statistics_of_every_cut(tmp_path):
    two_processes(distributed_statistics, tmp_path)
