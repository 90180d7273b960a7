"""Norms beyond the algebra against naive float64: output, gradients, what is kept, in training and inference."""

import copy
from typing import Any

import pytest
import torch

import anynorm
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from tests.helpers import data, make, same
from tests.layers.baselines import references

SHAPES = [(4, 8, 3, 5), (6, 8), (3, 8, 7)]
shapes = pytest.mark.parametrize("shape", SHAPES)


def affine(norm):
    return norm.weight.double(), norm.bias.double()


def gradients(y, x, norm):
    """Gradients of a fixed function of y."""
    wanted = [x, *(p for p in norm.parameters() if p.requires_grad)]
    return torch.autograd.grad((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum(), wanted)


def agree(norm, x, reference, condition=None):
    """Assert that output and gradients of a layer are those of a float64 reference of x."""
    x = x.clone().requires_grad_()
    double = copy.deepcopy(norm).double()
    wide = x.detach().double().requires_grad_()
    expected = reference(double, wide)
    y = norm(x, condition)
    same(y, expected.float(), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(gradients(y, x, norm), gradients(expected, wide, double), strict=True):
        same(ours, theirs.float(), rtol=1e-3, atol=1e-4)  # float32 sums of both signs


def modes_of(norm, x):
    return references.gates_of(x, norm.gate_weight, norm.gate_bias)


@shapes
@pytest.mark.parametrize("modes", [1, 2, 3])
def test_modenorm_trains_as_the_reference_and_updates_the_statistics_of_each_mode(shape, modes):
    norm = make(f"modenorm:{modes}", channels=8, momentum=0.3)
    kept = [(torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)) for _ in range(modes)]
    for step in range(3):
        x = data(*shape, seed=step)
        wide, gates = x.double(), modes_of(copy.deepcopy(norm).double(), x.double()).detach()
        for k, (mean, var) in enumerate(references.mode_statistics(wide, gates)):
            count = float(gates[:, k].sum()) * x[0, 0].numel()
            new = (mean, var * count / max(count - 1, 1))
            kept[k] = (0.7 * kept[k][0] + 0.3 * new[0], 0.7 * kept[k][1] + 0.3 * new[1])
        agree(
            norm,
            x,
            lambda n, v: references.modenorm(v, modes_of(n, v), references.mode_statistics(v, modes_of(n, v)), affine(n)),
        )
    same(norm.running_mean, torch.stack([mean for mean, _ in kept]).float())
    same(norm.running_var, torch.stack([var for _, var in kept]).float())
    assert norm.num_batches_tracked.tolist() == [3] * modes
    norm.eval()
    agree(norm, data(*shape, seed=9), lambda n, v: references.modenorm(v, modes_of(n, v), kept, affine(n)))


def test_the_state_dict_of_modenorm_has_its_modes():
    norm = make("modenorm:2")
    norm(data(4, 16, 3, 3))
    again = anynorm.make("modenorm:2", 16)
    again.load_state_dict(norm.state_dict())
    assert again.state_dict()["running_mean"].shape == (2, 16)
    same(again.eval()(data(4, 16, 3, 3)), norm.eval()(data(4, 16, 3, 3)))


def saved_bytes(norm, x):
    held = {}

    def pack(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        norm(x.requires_grad_())
    return sum(held.values())


def test_modenorm_saves_numbers_per_sample_channel_and_mode_but_no_copy_of_x():
    x = data(4, 16, 32, 32)
    few, more, most = (saved_bytes(make(f"modenorm:{modes}"), x) for modes in (2, 4, 8))
    assert most - more == pytest.approx(2 * (more - few), rel=0.1)
    assert (most - few) / 6 < 16 * 4 * 16 * 8  # sixteen doubles a sample and channel
    assert most < 6 * x.numel() * 4


@shapes
@pytest.mark.parametrize("spec", ["ilmin", "ilmgn:4"])
def test_ilm_is_the_reference_in_training_and_inference(shape, spec):
    if spec == "ilmin" and len(shape) == 2:
        pytest.skip("IN of vectors raises in training")
    for training in (True, False):
        norm = make(spec, channels=8).train(training)
        groups = 8 if spec == "ilmin" else 4
        agree(norm, data(*shape), lambda n, v: references.ilm(v, groups, key_list(n), ilm_weights(n), affine(n)))  # noqa: B023


def test_ilm_with_a_style_is_the_reference_and_starts_as_adain():
    x, style = data(3, 20, 3, 3), data(3, 20, 4, 5, seed=1)
    norm = make("ilmadain", channels=20)
    torch.testing.assert_close(anynorm.make("ilmadain", 20)(x, style), anynorm.make("adain", 20)(x, style))
    std, mean = style.std((2, 3), unbiased=False).square().add(norm.eps).sqrt(), style.mean((2, 3))
    for sample in range(3):  # the reference has one affine for all samples
        moments = (std[sample].double() - 0.5, mean[sample].double())
        reference = lambda n, v: references.ilm(v, 20, key_list(n), ilm_weights(n), moments)  # noqa: B023, E731
        agree(norm, x[sample : sample + 1], reference, style[sample : sample + 1])


def key_list(norm):
    return norm.key_groups(torch.device("cpu")).tolist()


def ilm_weights(norm):
    return [norm.encoder, norm.scale_decoder, norm.shift_decoder]


@pytest.mark.parametrize("channels", [1, 3, 17, 33, 48, 100])
def test_ilm_takes_any_channel_count_with_key_groups_that_differ_by_one(channels):
    norm = make("ilmin", channels=channels)
    sizes = torch.tensor(key_list(norm)).bincount()
    assert sizes.max() - sizes.min() <= 1
    assert len(sizes) == max(1, channels // 16)
    agree(
        norm,
        data(2, channels, 3, 3),
        lambda n, v: references.ilm(v, channels, key_list(n), ilm_weights(n), affine(n)),
    )


@shapes
@pytest.mark.parametrize(("batches", "share"), [(0, 0.0), (10, 0.0), (20, 0.5), (30, 1.0), (99, 1.0)])
def test_brn_trains_as_the_reference_at_every_point_of_its_ramp(shape, batches, share):
    norm = make("brn", channels=8, r_max=1.2, d_max=0.3)
    norm(data(*shape, seed=5))
    norm.r_ramp.copy_(torch.tensor([10, 30]))
    norm.d_ramp.copy_(torch.tensor([10, 30]))
    norm.num_passes.fill_(batches)
    kept = norm.running_mean.double(), norm.running_var.double()
    limits = (1 + 0.2 * share, 0.3 * share)
    agree(norm, data(*shape), lambda n, v: references.renorm(v, kept, limits, affine(n)))
    assert norm.num_passes == batches + 1


def test_brn_with_wide_limits_computes_in_training_what_it_does_in_inference():
    norm = make("brn", channels=8, r_max=100.0, d_max=100.0)
    for step in range(3):
        norm(data(4, 8, 3, 3, seed=step))
    x = data(4, 8, 3, 3, seed=9)
    same(copy.deepcopy(norm).eval()(x), norm(x), rtol=1e-5, atol=1e-5)


def test_brns_schedule_and_limits_are_in_the_state_dict_and_follow_the_length_of_training():
    norm: Any = anynorm.make("brn", 8)
    assert {"r_max", "d_max", "r_ramp", "d_ramp"} <= set(norm.state_dict())
    assert (norm.r_max.item(), norm.d_max.item()) == (1.5, 0.5)
    assert [float(limit) for limit in norm.limits(norm.num_passes)] == [1.0, 0.0]
    norm.set_total_steps(1600)
    assert (norm.r_ramp.tolist(), norm.d_ramp.tolist()) == ([50, 400], [50, 250])
    assert [float(limit) for limit in norm.limits(torch.tensor(400))] == [1.5, 0.5]
    assert repr(norm) == "BatchRenorm('brn', 8, eps=1e-05, momentum=0.1, r_max=1.5, d_max=0.5)"
    norm.half()
    assert norm.r_ramp.tolist() == [50, 400]


@shapes
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_whitening_is_the_reference_by_newton_and_exactly(shape, groups):
    for spec, steps in ((f"gw:{groups}", 5), (f"gwzca:{groups}", 0)):
        for training in (True, False):
            norm = make(spec, channels=8).train(training)
            if len(shape) == 2 and groups == 4:  # four rows of two values: Σ is singular but for ε, and float32 shows
                norm = norm.double()
                x = data(*shape, dtype=torch.float64)
                same(norm(x), references.whiten(x, groups, affine(norm), steps), rtol=1e-6, atol=1e-6)
            else:
                agree(norm, data(*shape), lambda n, v: references.whiten(v, groups, affine(n), steps))  # noqa: B023


def test_exactly_whitened_groups_are_uncorrelated_and_newtons_nearly():
    x = data(3, 16, 12, 12)
    x = x + 0.7 * x.roll(4, 1)
    for spec, most in (("gwzca:4.none", 1e-4), ("gw:4.none", 0.6)):
        rows = anynorm.make(spec, 16)(x).reshape(3, 4, -1)
        off = rows @ rows.transpose(1, 2) / rows.shape[-1] - torch.eye(4)
        assert off.abs().max() < most, spec
    assert off.abs().max() > 1e-3  # so the two do differ


def test_gradients_of_exact_whitening_are_finite_where_eigenvalues_coincide():
    norm = make("gwzca:4")
    x = torch.full((2, 16, 4, 4), 3.0).requires_grad_()
    y = norm(x)
    same(y, norm.bias.reshape(1, -1, 1, 1).expand_as(y).detach())
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    assert grad.isfinite().all()


def test_whitening_is_an_xbn_norm_whose_groups_are_clipped_to_the_channels():
    model = build_model("resnet18", DataShape(3, 16, 16, 10), 0.25)
    report = anynorm.xbn(model, norm="gw:64")
    assert all(row["new_norm"].startswith("gw:") for row in report.rows)
    assert model(data(2, 3, 16, 16)).isfinite().all()


def test_ibn_is_in_and_bn_side_by_side():
    for training in (True, False):
        norm = make("ibn", momentum=0.3)
        halves = torch.nn.InstanceNorm2d(8, affine=True), torch.nn.BatchNorm2d(8, momentum=0.3)
        with torch.no_grad():
            for half, part in zip(halves, (slice(0, 8), slice(8, 16)), strict=True):
                half.weight.copy_(norm.weight[part])
                half.bias.copy_(norm.bias[part])
        x = data(4, 16, 3, 5)
        for module in (norm, *halves):
            module(x if module is norm else x[:, 8:])
            module.train(training)
        same(norm(x), torch.cat([halves[0](x[:, :8]), halves[1](x[:, 8:])], 1), rtol=1e-4, atol=1e-5)
        same(norm.running_mean[8:], halves[1].running_mean)
        same(norm.running_var[8:], halves[1].running_var)


def test_ibn_with_an_odd_number_of_channels_raises():
    with pytest.raises(anynorm.SpecError, match=r"num_features of ibn must be even; got 15\. Use in or bn for this layer"):
        anynorm.make("ibn", 15)


@pytest.mark.parametrize("shape", [(2, 64, 4, 4), (4, 64)])
@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
def test_exact_whitening_of_fewer_values_than_groups_is_the_reference(shape, scale):
    norm = anynorm.make("gwzca:32", 64)
    x = scale * data(*shape)
    expected = references.whiten(x.double(), 32, (norm.weight.double(), norm.bias.double()))
    same(norm(x), expected.detach().float(), rtol=1e-4, atol=1e-4)  # the root of ε is 300 times what x is multiplied with else
    (grad,) = torch.autograd.grad(norm(x.requires_grad_()).square().sum(), x)
    assert grad.isfinite().all()


def test_a_mode_without_samples_keeps_its_statistics():
    norm: Any = anynorm.make("modenorm:2", 4)
    with torch.no_grad():
        norm.gate_weight.copy_(torch.tensor([[10.0] * 4, [-10.0] * 4]))
        norm.gate_bias.zero_()
    both = torch.cat([data(4, 4, 3, 3, mean=5.0, std=0.3), data(4, 4, 3, 3, mean=-5.0, std=0.3)])
    for _ in range(60):
        norm(both)
    before = norm.running_mean.clone(), norm.running_var.clone()
    for _ in range(60):
        norm(both[:4] * 1.1)
    assert norm.num_batches_tracked.tolist() == [120, 60]
    same(norm.running_mean[1], before[0][1])
    same(norm.running_var[1], before[1][1])
    assert not torch.allclose(norm.running_mean[0], before[0][0])


def test_modenorm_without_eps_is_finite_where_bn_is():
    norm = anynorm.make("modenorm:2", 8, eps=0.0)
    for given in (data(6, 8), torch.cat([torch.ones(1, 8, 3), data(5, 8, 3)])):
        x = given.requires_grad_()
        y = norm(x)
        y.square().sum().backward()
        assert y.isfinite().all()
        assert x.grad.isfinite().all()
