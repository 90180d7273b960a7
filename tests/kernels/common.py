"""What the tests of the C++ and of the Triton kernels share."""

import copy

import torch

from anynorm import kernels
from tests.helpers import ROWS

LIVE = [spec for spec in ROWS if "pn/" not in spec]
STRIPS = {spec for spec in LIVE if "bgn:32" in spec or "bgn:64" in spec}
ONE_VALUE = {"in", "adain", "saadain", "ilmin", "ilmadain", "ibn"}
UNFIT_FOR_VECTORS = {True: STRIPS | ONE_VALUE, False: STRIPS}
"""The specs that have no meaning for inputs (n, c), in training and in inference."""
UNSUPPORTED = [
    (torch.zeros(2, 16, 4, dtype=torch.float64), "bn", "the input has dtype torch.float64"),
    (torch.zeros(2, 16, 4), "pn/bn", "a cut keeps every position separate"),
    (torch.zeros(2, 16, 8)[..., ::2], "bn", "rows are not dense"),
    (torch.zeros(0, 16, 8), "gn:4", "the input is empty"),
    (torch.zeros(2, 16, 4, device="meta"), "bn", "another device"),
]
"""Inputs and specs that neither kind of kernels supports, with the reason."""


def results(norm, x, condition, name, residual=None):
    """Output, gradients and state of a copy of the layer, by the kernels of that name."""
    layer, x = copy.deepcopy(norm), x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    residual = None if residual is None else residual.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    with kernels.use(name):
        y = layer(x, condition, residual=residual)
    (y.float() * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    grads = [p.grad for p in layer.parameters() if p.grad is not None] + ([] if residual is None else [residual.grad])
    return [y.detach(), x.grad, *grads, *layer.buffers()]


def saved_tensors(norm, x, name):
    """The output, and the tensors that are saved for backward, by the kernels of that name."""
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), kernels.use(name):
        y = norm(x)
    return y, saved
