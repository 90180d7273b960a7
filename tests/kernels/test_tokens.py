"""The C++ kernels read and write tensors with channels in the last axis as they are."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import anynorm
from anynorm.core.activation import Activation
from tests.helpers import CHANNELS, make

IN_PLACE = ["bn", "in", "ln", "gn:4", "hn:4", "sn", "pn", "bgn:32", "gn:4/en"]


def copied(run, numel):
    """The names of the operators in a profile that copy a tensor of at least `numel` values."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        run()
    names = ("aten::copy_", "aten::clone", "aten::contiguous", "aten::_to_copy", "aten::cat", "aten::as_strided_scatter")
    sizes = [(event.name, [torch.Size(shape).numel() for shape in event.input_shapes if shape]) for event in profiled.events()]
    return [name for name, numels in sizes if name in names and numels and max(numels) >= numel]


@pytest.mark.parametrize("spec", IN_PLACE)
@pytest.mark.parametrize("shape", [(4, 32, 16), (2, 8, 8, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fused", [False, True])
def test_nothing_of_the_size_of_x_is_copied_forward_or_backward(spec, shape, dtype, fused):
    norm = make(spec, channel_axis=-1)
    x, residual, dy = (torch.randn(shape, generator=torch.Generator().manual_seed(k)).to(dtype) for k in range(3))
    options = {"residual": residual.requires_grad_(), "activation": Activation("relu")} if fused else {}
    x.requires_grad_()

    def run():
        y = norm(x, **options)
        assert y.is_contiguous()
        y.backward(dy)

    run()
    assert x.grad.is_contiguous()
    x.grad = residual.grad = None
    assert copied(run, x.numel()) == []
    assert copied(lambda: norm(x.detach().movedim(1, -1).contiguous().movedim(-1, 1)), x.numel())  # the test sees copies


@pytest.mark.parametrize("spec", [spec for spec in IN_PLACE if spec not in ("pn", "bgn:32")])
def test_tokens_are_normalized_by_the_cpp_kernels(spec):
    with anynorm.kernels.use("cpu"):
        make(spec, channel_axis=-1)(torch.randn(4, 8, CHANNELS))
