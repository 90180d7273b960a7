"""Joint cuts whose parts end inside channels: what the battery, whose sizes they do not fit, shows for other norms."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm import kernels
from tests.distributed import two_processes
from tests.helpers import data, same, same_state

C, SHAPE = 12, (4, 12, 4, 6)
SPECS = ["bgn:9", "bgn:32", "[*,32]", "[*,9]+bgn:18/bn"]  # 12 channels: 9 = 3 · 3, 32 = 4 · 8, 18 = 6 · 3
crossing = pytest.mark.parametrize("spec", SPECS)


def seen(spec, **options):
    """A layer that has seen a batch."""
    norm = anynorm.make(spec, C, **options)
    norm(data(*SHAPE, seed=3).to(next(norm.parameters()).dtype) * 2 + 1)
    return norm


@pytest.mark.parametrize(("spec", "groups", "dims"), [("bgn:9", 9, (0, 2)), ("bgn:32", 32, (0, 2)), ("[*,32]", 32, 2)])
def test_parts_that_cross_channels_are_groups_of_the_flattened_sample(spec, groups, dims):
    norm, x = anynorm.make(spec, C, eps=0.0), data(*SHAPE)
    rows = x.double().reshape(len(x), groups, -1)
    var, mean = torch.var_mean(rows, dims, correction=0, keepdim=True)
    same(norm(x), ((rows - mean) / var.sqrt()).reshape(SHAPE).float(), rtol=1e-5, atol=1e-5)


@crossing
def test_first_and_second_derivatives_agree_with_finite_differences(spec):
    norm = anynorm.make(spec, C, dtype=torch.float64)
    x = data(2, C, 24).double().requires_grad_()
    assert torch.autograd.gradcheck(norm, (x,), nondet_tol=1e-8, fast_mode=True)
    assert torch.autograd.gradgradcheck(norm, (x,), nondet_tol=1e-8, fast_mode=True)


@crossing
@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_layer_gives_the_same_output_and_statistics(spec, training):
    norm = seen(spec).train(training)
    other = copy.deepcopy(norm)
    x = data(*SHAPE)
    same(torch.compile(other, backend="aot_eager", fullgraph=True)(x), norm(x))
    same_state(other, norm)


@crossing
def test_copies_pickles_and_loaded_states_are_equal(spec):
    norm, x = seen(spec).eval(), data(*SHAPE)
    fresh = anynorm.make(spec, C).eval()
    fresh.load_state_dict(norm.state_dict())
    for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm)), fresh):
        same(other(x), norm(x))


@crossing
def test_memory_format_and_dtype_are_preserved(spec):
    norm, x = seen(spec).eval(), data(*SHAPE)
    y = norm(x.to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    same(y, norm(x))
    assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_an_exported_program_gives_the_same_output():
    norm, x = seen("bgn:32").eval(), data(*SHAPE)
    same(torch.export.export(norm, (x,)).module()(x), norm(x))


def test_recalibrated_statistics_are_those_of_all_samples():
    model = nn.Sequential(seen("bgn:9"))
    batches = [data(4, C, 4, 6, seed=seed) for seed in range(3)]
    anynorm.recalibrate(model, batches)
    rows = torch.cat(batches).double().reshape(12, 9, -1)
    norm: Any = model[0]
    same(norm.running_mean, rows.mean((0, 2)).float())
    same(norm.running_var, rows.var((0, 2)).float())


def test_statistics_start_as_those_of_the_channels_that_a_group_has():
    model: Any = nn.Sequential(nn.BatchNorm2d(C))
    model[0].momentum = 1.0
    x = data(16, C, 4, 6) * torch.linspace(0.5, 3, C)[:, None, None] + torch.linspace(-2, 2, C)[:, None, None]
    model(x)
    assert "running statistics" in anynorm.convert(model, "bgn:8")["0"]["transferred"]  # 1.5 channels per group
    mean, unbiased = x.mean((0, 2, 3)), x.transpose(0, 1).flatten(1).var(1)
    same(model[0].running_mean[0], (2 * mean[0] + mean[1]) / 3)
    parts = [(2 / 3, mean[0], unbiased[0]), (1 / 3, mean[1], unbiased[1])]
    same(model[0].running_var[0], sum(w * (v + (m - model[0].running_mean[0]) ** 2) for w, m, v in parts))


def synchronized(rank):
    whole = data(6, C, 4, 6)
    alone, together = anynorm.make("bgn:9", C), anynorm.make("bgn:9", C)
    anynorm.sync(together)
    x = whole[:2] if rank == 0 else whole[2:]
    expected = alone(whole)
    same(together(x), expected[:2] if rank == 0 else expected[2:], rtol=1e-4, atol=1e-5)
    same_state(together, alone)


@pytest.mark.reference_only
def test_synchronized_statistics_are_those_of_the_whole_batch(tmp_path):
    two_processes(synchronized, tmp_path)


def test_the_layer_is_not_folded_and_the_reason_is_given():
    assert "differ between positions" in str(seen("bgn:9").not_foldable_reason())


def test_values_that_cannot_be_divided_are_refused_with_the_layer_and_the_nearest_number():
    with pytest.raises(
        anynorm.ShapeError, match=r"12 channels × 9 positions = 108 values into 32 .*Nearest usable: 36\. Layer 'bgn:32'"
    ):
        anynorm.make("bgn:32", C)(data(2, C, 3, 3))


def test_fast_kernels_that_are_asked_for_say_why_they_cannot_run():
    with kernels.use("cpu"), pytest.raises(anynorm.AnynormError, match="parts of a cut end inside channels"):
        anynorm.make("bgn:9", C)(data(*SHAPE))


def test_the_drawing_shows_groups_across_channels():
    from anynorm.draw.descriptions import draw_cut

    assert draw_cut(anynorm.make("[*,3]", 2).cuts[0], (2, 2, 6)) == [["AAAABB", "BBCCCC"], ["DDDDEE", "EEFFFF"]]
