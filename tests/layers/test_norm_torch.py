"""Where torch has the norm, ours is interchangeable with it: output, gradients, running statistics, state_dict."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import data, same, same_state

SHAPES: dict[Any, Any] = {
    nn.BatchNorm1d: [(6, 8), (4, 8, 5)],
    nn.BatchNorm2d: [(4, 8, 5, 3), (1, 8, 2, 2)],
    nn.BatchNorm3d: [(2, 8, 2, 3, 4)],
}
BATCH_NORMS = [(kind, shape) for kind, shapes in SHAPES.items() for shape in shapes]


@pytest.mark.parametrize(("kind", "shape"), BATCH_NORMS)
@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 1e-2, "momentum": 0.7}]
)
def test_bn_is_torchs_batch_norm_in_training_and_inference(kind, shape, options):
    theirs, ours = kind(8, **options), anynorm.make("bn", 8, **options)
    if theirs.affine:
        nn.init.uniform_(theirs.weight), nn.init.uniform_(theirs.bias)
    ours.load_state_dict(theirs.state_dict())
    for training in (True, True, False):
        a = data(*shape, seed=int(training)).requires_grad_()
        b = a.detach().clone().requires_grad_()
        y, z = ours.train(training)(a), theirs.train(training)(b)
        same(y, z)
        (y * y.detach().cos()).sum().backward()
        (z * z.detach().cos()).sum().backward()
        same(a.grad, b.grad, rtol=1e-4, atol=1e-5)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            same(p.grad, q.grad, rtol=1e-4, atol=1e-5)
        same_state(ours, theirs)
    copy.deepcopy(theirs).load_state_dict(ours.state_dict())


@pytest.mark.parametrize(
    ("spec", "theirs"), [("gn:4", nn.GroupNorm(4, 8)), ("ln", nn.GroupNorm(1, 8)), ("in", nn.GroupNorm(8, 8))]
)
@pytest.mark.parametrize("shape", [(3, 8, 4), (3, 8, 4, 5), (3, 8, 2, 3, 2)])
def test_gn_ln_and_in_are_torchs_group_norm(spec, theirs, shape):
    ours = anynorm.make(spec, 8)
    nn.init.uniform_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    for training in (True, False):
        a = data(*shape).requires_grad_()
        b = a.detach().clone().requires_grad_()
        y, z = ours.train(training)(a), theirs(b)
        same(y, z)
        (y**3).sum().backward(), (z**3).sum().backward()
        same(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_in_is_torchs_instance_norm():
    x = data(3, 8, 4, 5)
    same(anynorm.make("in", 8)(x), nn.InstanceNorm2d(8)(x))


def test_ln_is_torchs_layer_norm_on_channels_and_on_whole_samples():
    x = data(5, 8)
    same(anynorm.make("ln", 8)(x), nn.LayerNorm(8)(x))
    x = data(5, 8, 3, 4)
    same(anynorm.make("ln", 8)(x), nn.LayerNorm([8, 3, 4])(x))


def test_pn_is_torchs_layer_norm_over_a_last_channel_axis():
    x = data(5, 8, 3, 4)
    same(anynorm.make("pn", 8)(x), nn.LayerNorm(8)(x.movedim(1, -1)).movedim(-1, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_input_with_float32_parameters_is_torchs_mixed_batch_norm(dtype):
    theirs, ours = nn.BatchNorm2d(8), anynorm.make("bn", 8)
    x = data(4, 8, 5, 3, dtype=dtype)
    same(ours(x), theirs(x))
    same_state(ours, theirs)
    same(ours.eval()(x), theirs.eval()(x))


def test_a_checkpoint_from_before_num_batches_tracked_loads_as_torchs_does():
    old = nn.BatchNorm2d(8).state_dict()
    del old["num_batches_tracked"]
    old = dict(old)  # without the metadata that tells the version
    anynorm.make("bn", 8).load_state_dict(old)


def test_auxbn_is_a_batch_norm_for_each_domain():
    ours, theirs = anynorm.make("auxbn@2", 8), [nn.BatchNorm2d(8) for _ in range(2)]
    label = torch.tensor([0, 1, 1, 0, 1])
    for step in range(2):
        x = data(5, 8, 3, 3, seed=step)
        y = ours(x, label)
        for domain, bn in enumerate(theirs):
            same(y[label == domain], bn(x[label == domain]))
    for domain, bn in enumerate(theirs):
        same(ours.running_mean[domain], bn.running_mean)
        same(ours.running_var[domain], bn.running_var)
        assert ours.num_batches_tracked[domain] == bn.num_batches_tracked
        x = data(5, 8, 3, 3, seed=9)
        same(ours.eval()(x, domain), bn.eval()(x))
