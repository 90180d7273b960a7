"""The candidates of benchmarks/layers.py: input shapes, our norms, torch's layers, the published SN, and memory traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import anynorm
from anynorm import kernels

SPECS = [
    "bn",
    "in",
    "ln",
    "gn:32",
    "en",
    "en:32",
    "bgn:32",
    "gbgn:2,32",
    "hn",
    "hn:32",
    "sn",
    "sn:2",
    "sn.hard",
    "bn/bn+en",
    "sabn@10",
    "auxbn@2",
]
RESNET50 = [(64, 112), (64, 56), (256, 56), (128, 28), (512, 28), (256, 14), (1024, 14), (512, 7), (2048, 7)]
RESNET20 = [(16, 32), (32, 16), (64, 8)]
MODES = ("inference", "training forward", "forward + backward")


def shapes() -> list[tuple[int, ...]]:
    """Return input shapes of the norms of ResNet-50 (224 px), CIFAR ResNet-20 and a video network, and vectors (n, c)."""
    listed: list[tuple[int, ...]] = [(n, c, s, s) for n in (2, 8, 32) for c, s in RESNET50 if n * c * s * s < 2**24]
    listed += [(n, c, s, s) for n in (4, 128) for c, s in RESNET20]
    return [*listed, (2, 64, 8, 28, 28), (64, 128), (256, 512)]


class ReferenceKernels(nn.Module):
    """A norm that runs on the reference kernels."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, *condition: object) -> Tensor:
        """Normalize x."""
        with kernels.use("reference"):
            y: Tensor = self.norm(x, *condition)
            return y


class PublishedSwitchNorm(nn.Module):
    """SN as published: eqs. 3 and 4 of the paper in tensor operations, with the statistics of IN, LN and BN."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.mean_weight, self.var_weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.running_mean = nn.Buffer(torch.zeros(1, channels, 1))
        self.running_var = nn.Buffer(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x."""
        rows = x.flatten(2) if x.dim() > 2 else x[..., None]
        mean_in, var_in = rows.mean(-1, keepdim=True), rows.var(-1, keepdim=True, correction=0)
        square = var_in + mean_in**2
        mean_ln = mean_in.mean(1, keepdim=True)
        var_ln = square.mean(1, keepdim=True) - mean_ln**2
        if self.training:
            mean_bn = mean_in.mean(0, keepdim=True)
            var_bn = square.mean(0, keepdim=True) - mean_bn**2
            self.running_mean.mul_(0.9).add_(mean_bn.detach(), alpha=0.1)
            self.running_var.mul_(0.9).add_(var_bn.detach(), alpha=0.1)
        else:
            mean_bn, var_bn = self.running_mean, self.running_var
        w, v = self.mean_weight.softmax(0), self.var_weight.softmax(0)
        mean = w[0] * mean_in + w[1] * mean_ln + w[2] * mean_bn
        var = v[0] * var_in + v[1] * var_ln + v[2] * var_bn
        y = (rows - mean) / (var + 1e-5).sqrt()
        return (y * self.weight[None, :, None] + self.bias[None, :, None]).reshape(x.shape)


def candidates(shape: tuple[int, ...], *, compiled: bool = False) -> dict[str, nn.Module]:
    """Return the modules to time at a shape, by name; specs that do not support the shape are left out."""
    c = shape[1]
    batch_norm: dict[int, Any] = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    modules = {
        "nn.BatchNorm": batch_norm[len(shape)](c),
        "nn.GroupNorm": nn.GroupNorm(min(32, c), c),
        "published SN": PublishedSwitchNorm(c),
        "sn by reference": ReferenceKernels(anynorm.make("sn", c)),
    }
    if compiled:
        modules["sn compiled"] = torch.compile(anynorm.make("sn", c))
    for spec in SPECS:
        try:
            norm = anynorm.make(spec, c)
            norm(torch.zeros(2, *shape[1:]), 0)
        except anynorm.AnynormError:
            continue
        norm.reset_running_stats()
        modules[spec] = norm
    return modules


def step(module: nn.Module, x: Tensor, dy: Tensor, mode: str) -> Callable[[], None]:
    """Return a function that runs one pass through a module; `mode` is one of `MODES`."""
    condition = [0] if getattr(module, "takes_condition", False) else []
    inputs = x.detach().clone().requires_grad_(mode == MODES[2])

    def run() -> None:
        module.train(mode != MODES[0])
        if mode == MODES[2]:
            inputs.grad = None
            module(inputs, *condition).backward(dy)
        else:
            with torch.no_grad():
                module(inputs, *condition)

    return run


def traffic(x: Tensor, dy: Tensor, mode: str) -> Callable[[], None]:
    """Return a function that performs only the memory reads and writes that every norm needs."""
    flat_x, flat_dy = x.flatten(), dy.flatten()

    def run() -> None:
        if mode != MODES[0]:
            flat_x.sum()
        torch.empty_like(flat_x).copy_(flat_x)
        if mode == MODES[2]:
            torch.dot(flat_x, flat_dy)
            torch.add(flat_x, flat_dy)

    return run


def copy(x: Tensor) -> Callable[[], None]:
    """Return a function that copies x into a new tensor."""

    def run() -> None:
        torch.empty_like(x).copy_(x)

    return run
