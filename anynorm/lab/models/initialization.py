"""Initialization of convolutions (sn App. C.1: "initialized by following (He et al., 2016)").

    default    torch: uniform with standard deviation 1 / √(3 n_in)
    he         normal with standard deviation √(2 / n_out), for networks with ReLU

n_in and n_out are the numbers of inputs and outputs of a convolution: channels × kernel positions. He et al. (2015) allow either
of them; n_out is that of their later code and of torchvision.
"""

from __future__ import annotations

from torch import nn


def initialize_he(model: nn.Module) -> nn.Module:
    """Initialize all convolutions of a model in place, as He et al. do; return the model.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> round(float(initialize_he(nn.Conv2d(64, 256, 1)).weight.detach().std()), 3)
    0.088
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
