"""Surgery on models that accelerate has prepared."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anynorm
from tests.helpers import same

ROOT = Path(__file__).parents[3]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())


X = torch.randn(16, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def test_the_example_of_the_guide():
    model, loader = network(), DataLoader(TensorDataset(X), batch_size=4)

    accelerator = Accelerator(cpu=True)
    anynorm.convert(model, "hn:4")  # before prepare, so that the optimizer has the new parameters
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (x,) in loader:
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    anynorm.recalibrate(accelerator.unwrap_model(model), loader)

    plain = accelerator.unwrap_model(model)
    with torch.no_grad():
        same(plain[1].running_mean, plain[0](X).transpose(0, 1).flatten(1).mean(1), rtol=1e-4, atol=1e-5)


DISTRIBUTED = """
import torch
from accelerate import Accelerator
from torch import nn

import anynorm
from tests.helpers import same
from tests.interop.integrations.test_accelerate import X, network

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(network())
assert type(model) is nn.parallel.DistributedDataParallel, type(model)
for operation in (lambda: anynorm.convert(model, "gn:4"), lambda: anynorm.sync(model), lambda: anynorm.recalibrate(model, [X])):
    try:
        operation()
    except anynorm.SurgeryError as error:
        assert "accelerator.unwrap_model(model)" in str(error), error
    else:
        raise AssertionError("a wrapped model must be refused")
plain = accelerator.unwrap_model(model)
anynorm.recalibrate(plain, X.split(4))
with torch.no_grad():
    same(plain[1].running_mean, plain[0](X).transpose(0, 1).flatten(1).mean(1), rtol=1e-4, atol=1e-5)
model(X).sum().backward()
accelerator.end_training()
"""


def test_a_wrapped_model_is_refused_with_the_way_out_and_can_be_recalibrated_unwrapped():
    env = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    env |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", DISTRIBUTED], env=os.environ | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
