"""FSDP2, DDP with its options, DTensor and distributed checkpoints: two processes give what one gives.

All checks run in one pair of processes, since starting them takes longer than the checks.
"""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import anynorm
from tests.distributed import WORLD, two_processes
from tests.helpers import CHANNELS, condition_for, data, make, same

IMAGES = data(8, 3, 4, 4)
SPLIT = 3
FSDP = ["bn", "gn:4", "sn", "sabn@3", "auxbn@2"]
DDP = ["bn", "gn:4"]
DTENSOR = ["hn:4", "sn", "gn:4", "0/bn+ln"]


def network(spec):
    torch.manual_seed(0)
    first, second = make(spec, activation="relu"), make(spec)
    convolutions = nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False), nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False)
    return nn.Sequential(convolutions[0], first, convolutions[1], second, nn.Flatten(), nn.Linear(16 * CHANNELS, 4))


def mine(rank):
    return slice(0, SPLIT) if rank == 0 else slice(SPLIT, len(IMAGES))


def backward(model, x, condition, factor=1.0):
    with nullcontext() if condition is None else anynorm.condition(model, condition):
        y = model(x)
        (factor * (y * y.detach().cos()).sum()).backward()
    return y.detach()


def gathered(tensor: Any) -> Any:
    """Return the whole of a DTensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded(spec):
    model = network(spec)
    anynorm.sync(model)
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    return fully_shard(model)


def check_fsdp(rank, spec, folder):
    """Two steps of sharded training, and a checkpoint of the shards that a whole model and other shards load."""
    whole, model = network(spec), sharded(spec)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    condition = condition_for(whole[1], IMAGES)
    optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (whole, model)]
    for _ in range(2):
        own = None if condition is None else condition[mine(rank)]
        y, z = backward(whole, IMAGES, condition), backward(model, IMAGES[mine(rank)], own, WORLD)  # gradients are averaged
        same(z, y[mine(rank)], rtol=1e-4, atol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for (name, a), b in zip(model.named_parameters(), whole.parameters(), strict=True):
        same(gathered(a), b, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{spec} {name}: {text}")
    for a, b in zip(model.buffers(), whole.buffers(), strict=True):
        same(a, b)

    state_dict_saver.save(get_model_state_dict(model), checkpoint_id=folder / spec.replace("/", "_"))
    alone, again = network(spec), sharded(spec)
    for other in (alone, again):
        with torch.no_grad():
            for tensor in [*other.parameters(), *other.buffers()]:
                tensor.zero_()
        state = get_model_state_dict(other)
        state_dict_loader.load(state, checkpoint_id=folder / spec.replace("/", "_"))
        set_model_state_dict(other, state)
    for key, value in whole.state_dict().items():
        same(alone.state_dict()[key], value, rtol=1e-3, atol=1e-4)
        same(gathered(again.state_dict()[key]), alone.state_dict()[key], rtol=0, atol=0)


class WithUnused(nn.Module):
    """A network with a norm that no output needs."""

    def __init__(self, spec):
        super().__init__()
        self.used, self.unused = network(spec), make(spec)

    def forward(self, x):
        return self.used(x)


def check_ddp(rank, spec, **options):
    model = WithUnused(spec) if "find_unused_parameters" in options else network(spec)
    whole = copy.deepcopy(model)
    anynorm.sync(model)
    pairs = [(DistributedDataParallel(model, **options), IMAGES[mine(rank)], WORLD), (whole, IMAGES, 1)]
    for _ in range(3):
        for each, x, factor in pairs:
            each.zero_grad()
            backward(each, x, None, factor)
            with torch.no_grad():
                for parameter in each.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(0.01 * parameter.grad)
    for a, b in zip(model.parameters(), whole.parameters(), strict=True):
        same(a, b, rtol=1e-3, atol=1e-4)
    for a, b in zip(model.buffers(), whole.buffers(), strict=True):
        same(a, b, rtol=1e-4, atol=1e-5)


def check_dtensor(spec, placement):
    """Parameters, running statistics and x are DTensors: statistics are those of the whole batch, without `sync`."""
    mesh = init_device_mesh("cpu", (WORLD,))
    alone, norm = make(spec), distribute_module(make(spec), mesh)
    values = data(8, CHANNELS, 4, 4)
    leaf, x = values.clone().requires_grad_(), distribute_tensor(values, mesh, [placement]).requires_grad_()
    y, z = alone(leaf), norm(x)
    same(gathered(z), y, rtol=1e-4, atol=1e-5)
    for output in (y, z):
        (output * output.detach().cos()).sum().backward()
    same(gathered(x.grad), leaf.grad, rtol=1e-3, atol=1e-5)
    for a, b in zip(norm.parameters(), alone.parameters(), strict=True):
        same(gathered(a.grad), b.grad, rtol=1e-3, atol=1e-4)
    for tensor, b in zip(norm.buffers(), alone.buffers(), strict=True):
        same(gathered(tensor), b)


def everything(rank, folder):
    for spec in FSDP:
        check_fsdp(rank, spec, folder)
    for spec in DDP:
        check_ddp(rank, spec, static_graph=True)
        check_ddp(rank, spec, find_unused_parameters=True)
    for spec in DTENSOR:
        for placement in (Replicate(), Shard(0), Shard(1)):
            check_dtensor(spec, placement)
    dist.barrier()


class Everything:
    """The checks with their folder, as a scenario that can be sent to the processes."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, rank):
        everything(rank, self.folder)


@pytest.mark.reference_only
def test_fsdp_ddp_dtensors_and_checkpoints_of_two_processes_are_those_of_one(tmp_path):
    two_processes(Everything(tmp_path), tmp_path)
