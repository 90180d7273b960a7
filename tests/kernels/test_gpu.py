"""The Triton kernels compute what the reference computes, in Triton's interpreter; compiled, they spill nothing.

`tests/conftest.py` sets TRITON_INTERPRET, so that they run on CPU tensors. No GPU is needed.
"""

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="needs the dev extra")

import anynorm
from anynorm import kernels
from anynorm.core.activation import MODULES, Activation
from anynorm.kernels import gpu, gpu_kernels, gpu_pass, gpu_plan
from anynorm.kernels.interface import UnsupportedError
from tests.distributed import check_parts, two_processes
from tests.helpers import CHANNELS, condition_for, data, make, same
from tests.kernels.common import LIVE, UNFIT_FOR_VECTORS, UNSUPPORTED, results, saved_tensors
from tests.kernels.interpreter import fast_interpreter
from tests.kernels.test_mixtures import check_mixture, mixtures

CPU = torch.device("cpu")
OUTSIDE = {"gw:4", "gwzca:4", "gw:1"}  # norms that do not call the kernels
ROWS = [spec for spec in LIVE if spec not in OUTSIDE]
LAYOUTS = {"rows": (2, 16, 2, 2), "channels_last": (2, 16, 2, 2), "vectors": (4, 16)}
WITHOUT_LAUNCH = ["empty", "empty_like", "empty_strided", "new_empty", "detach", "t", "transpose", "as_strided", "alias"]
CASES = [(spec, list(LAYOUTS)[k % 3], True) for k, spec in enumerate(ROWS)]
CASES += [(spec, list(LAYOUTS)[(k + 1) % 3], False) for k, spec in enumerate(ROWS) if make(spec).pools_samples]
CASES += [(spec, layout, True) for spec in ("sn", "bgn:32.saaux@3") for layout in LAYOUTS if (spec, layout, True) not in CASES]


SPREAD = ["bn", "in", "gn:4", "ln", "sn", "hn:4", "bgn:2", "sabn@3", "bn.aux@3", "adain", "bn eval", "sn.hard"]
"""Specs for activations and residuals; the word after a space is the mode of the layer."""
PAIRS = [(name, False) for name in MODULES] + [(name, True) for name in (None, "relu", "relu6", "leaky_relu")]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FUSED = [
    pytest.param(spec, *pair, DTYPES[(i + j) % 3], (i + j // 3) % 2 == 0, marks=() if (j - i) % 11 == 0 else pytest.mark.thorough)
    for i, spec in enumerate(SPREAD)
    for j, pair in enumerate(PAIRS)
]


@pytest.fixture(autouse=True)
def checked_device():
    with fast_interpreter():
        yield


def failing(*args, **constants):
    raise RuntimeError("PassManager::run failed\nmore")


def check(norm, x, rtol=1e-4, atol=2e-5, residual=None):
    condition = condition_for(norm, x)
    expected, actual = (results(norm, x, condition, name, residual) for name in ("reference", "gpu"))
    scale = max(1.0, *(float(t.abs().max()) for t in expected[:2]))
    assert actual[0].stride() == x.stride()
    for a, b in zip(expected, actual, strict=True):
        same(b.float(), a.float(), rtol=rtol, atol=atol * scale)


@pytest.mark.parametrize("spec", ["bn", "gn:4", "sn", "pn"])
def test_tokens_with_channels_in_the_last_axis_are_the_reference_and_keep_their_strides(spec):
    check(make(spec, channel_axis=-1), data(4, CHANNELS, 5).movedim(1, -1).contiguous())


@pytest.mark.parametrize(("spec", "layout", "training"), CASES)
def test_every_norm_is_the_reference(spec, layout, training):
    x = data(4 if "gbgn" in spec else LAYOUTS[layout][0], *LAYOUTS[layout][1:])
    x = x.to(memory_format=torch.channels_last) if layout == "channels_last" else x
    norm = make(spec).train(training)
    if layout == "vectors" and spec in UNFIT_FOR_VECTORS[training]:
        with pytest.raises(anynorm.ShapeError, match=r"more than one value per statistic|equal strips"), kernels.use("gpu"):
            norm(x, condition_for(norm, x))
    else:
        alone = layout == "vectors" and spec in ("in", "adain", "saadain", "ilmin", "ilmadain")  # var 0: 1/sqrt(eps), to cancel
        check(norm, x, atol=2e-5 * (norm.eps**-0.5 if alone else 1.0))


@pytest.mark.parametrize(("spec", "activation", "adds", "dtype", "last"), FUSED)
def test_an_activation_and_a_residual_are_those_of_the_reference(spec, activation, adds, dtype, last):
    spec, _, mode = spec.partition(" ")
    x, residual = data(4, 16, 2, 3), data(4, 16, 2, 3, seed=1, mean=0.0)
    x, residual = (t.to(dtype, memory_format=torch.channels_last if last else torch.contiguous_format) for t in (x, residual))
    digits = 2e-5 if dtype == torch.float32 else 2e-2
    norm = make(spec, activation=activation).train(not mode)
    check(norm, x, rtol=10 * digits, atol=digits, residual=residual if adds else None)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy, in the interpreter; 1 / (1 + inf) = 0
@pytest.mark.parametrize("name", MODULES)
def test_values_and_derivatives_at_kinks_and_nan_are_those_of_torch(name):
    x = torch.tensor([-60.0, -3.0, -0.0, 0.0, 1.0, 3.0, 6.0, 60.0]).reshape(1, 1, 8)
    norm = anynorm.make("bn.none", 1, eps=2.0**-10, activation=Activation(name, 0.25)).eval()
    norm.running_var.fill_(1 - 2.0**-10)  # var + eps = 1: z is x
    residuals = [None, torch.zeros_like(x)] if norm.activation.keeps_sign else [None]
    for residual in residuals:
        found = []
        for function in (norm.activation, lambda x, residual=residual: norm(x, residual=residual)):
            leaf = x.clone().requires_grad_()
            with kernels.use("gpu"):
                y = function(leaf)
                missing = function(torch.full_like(x, float("nan")))
            assert missing.isnan().all()
            found.append([y, *torch.autograd.grad(y, leaf, torch.linspace(-1, 2, 8).reshape(x.shape))])
        for expected, actual in zip(*found, strict=True):
            same(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_residual_and_a_gradient_with_other_strides_are_copied():
    x, residual = data(2, 16, 3, 4), data(2, 16, 4, 3, seed=1).transpose(2, 3)
    check(make("gn:4", activation="relu"), x, residual=residual.to(memory_format=torch.channels_last))
    check(make("bn"), x.to(memory_format=torch.channels_last), residual=residual)


@pytest.mark.parametrize("count", [24, pytest.param(100, marks=pytest.mark.thorough)])
def test_random_mixtures_are_the_naive_definition(count):
    for k, spec in enumerate(mixtures(count)):
        check_mixture(spec, "gpu", seed=k % 3)


@settings(max_examples=10)
@given(
    spec=st.sampled_from(
        ["bn", "in", "ln", "gn:2", "hn:2", "sn:2", "bn/bn+en", "gbgn:2,2", "sabn@3", "sn.aux@3", "0/sn:2", "0/in+bn.nobias"]
    ),
    samples=st.integers(1, 3),
    channels=st.sampled_from([2, 6]),
    space=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    last=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_any_shape_format_and_dtype_is_the_reference(spec, samples, channels, space, last, dtype):
    x = data(2 * samples, channels, *space).to(dtype)
    if last and x.dim() > 3:
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    digits = 2e-5 if dtype == torch.float32 else 2e-2
    try:
        check(make(spec, channels=channels), x, rtol=10 * digits, atol=digits)
    except anynorm.ShapeError as error:
        assert math.prod(space) == 1
        assert "more than one value" in str(error)


@pytest.mark.parametrize("spec", ["sn", "sabn@3"])
@pytest.mark.parametrize("last", [False, True])
def test_rows_in_several_tiles_and_splits_and_tables_in_several_blocks_are_the_reference(spec, last, monkeypatch):
    monkeypatch.setattr(gpu_plan, "TILE", 32)
    monkeypatch.setattr(gpu_plan, "TILES", 2)
    monkeypatch.setattr(gpu_plan, "PROGRAMS", 1)
    for module in (gpu_plan, gpu_pass):
        monkeypatch.setattr(module, "COLUMNS", 2)
        monkeypatch.setattr(module, "SAMPLES", 2)
    monkeypatch.setattr(gpu_pass, "BLOCK", 8)
    gpu_plan.make_plan.cache_clear()
    x = data(3, 4, 5, 7)
    check(make(spec, channels=4), x.to(memory_format=torch.channels_last) if last else x)
    gpu_plan.make_plan.cache_clear()


@pytest.mark.parametrize(("spec", "last"), [("gn:4", True), ("bn", False), ("sn.aux@3", True)])
def test_rows_split_to_fill_a_gpu_at_a_small_batch_are_the_reference(spec, last):
    x, norm = data(2, 8, 40, 30), make(spec, channels=8, activation="silu")
    plan = gpu_plan.make_plan(norm._forward_spec(), x.shape, 4, last, 0)
    assert plan.shape.num_splits > 1
    assert plan.shape.length % plan.shape.chunk
    check(norm, x.to(memory_format=torch.channels_last) if last else x)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("last", [False, True])
def test_two_programs_per_multiprocessor_read_x_at_batch_1_and_large_grids_are_as_without_that_minimum(
    last, itemsize, monkeypatch
):
    for shape in ((1, 320, 64, 64), (1, 128, 512, 512)):
        plan = gpu_plan.make_plan(make("gn:32", channels=shape[1])._forward_spec(), torch.Size(shape), itemsize, last, 0)
        assert plan.grid >= 2 * 132
    grids = []
    for _ in range(2):
        spec = make("gn:32", channels=64)._forward_spec()
        grids.append(gpu_plan.make_plan(spec, torch.Size((64, 64, 56, 56)), itemsize, last, 0))
        monkeypatch.setattr(gpu_plan, "PROGRAMS", 1)
    assert grids[0] == grids[1]


def test_at_a_mean_of_ten_thousand_deviations_six_digits_hold():
    x = data(2, 4, 50, 40, mean=1e4, std=1.0)
    exact = x.double().flatten(2)
    norm = anynorm.make("bn", 4, momentum=1.0, dtype=torch.float32)
    with kernels.use("gpu"):
        y = norm(x)
    mean, var = exact.mean((0, 2)), exact.var((0, 2), correction=0)
    same(y.flatten(2).double(), (exact - mean[:, None]) / (var[:, None] + norm.eps).sqrt(), rtol=1e-6, atol=1e-6)
    same(norm.running_var.double(), exact.var((0, 2)), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(("spec", "activation"), [("bn", None), ("sn.hard", None), ("bn", "relu"), ("gn:4", "silu")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_go_where_the_reference_lets_them(spec, activation, value):
    x = data(4, 16, 2, 2)
    x[0, 0, 0, 0] = value
    norm = make(spec, activation=activation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns in the interpreter
        expected, actual = (results(norm, x, None, name) for name in ("reference", "gpu"))
    for a, b in zip(expected, actual, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())


@pytest.mark.parametrize(
    ("spec", "training", "num_forward", "over_x"),
    [
        ("bn", True, 5, 4),
        ("sn", True, 5, 4),
        ("gbgn:2,4", True, 5, 4),
        ("hn.sa@3", True, 5, 4),
        ("ln", True, 4, 4),
        ("bn", False, 3, 3),
    ],
)
def test_a_pass_launches_at_most_five_kernels_and_allocates_nothing_x_sized_but_y_and_dx(
    spec, training, num_forward, over_x, monkeypatch
):
    launched = []
    monkeypatch.setattr(gpu_pass, "_launch", lambda kernel, *args, **constants: launched.append(kernel.__name__))  # nothing runs
    norm, x = make(spec).train(training), data(4, 16, 32, 32).requires_grad_()
    condition, dy = condition_for(norm, x), torch.ones_like(x)
    spec_of_pass = norm._forward_spec()
    with torch.profiler.profile(profile_memory=True) as profile:
        y, _ = gpu.normalize(spec_of_pass, x, norm._params(condition), norm._read_buffers(spec_of_pass, condition))
        assert len(launched) == num_forward
        y.backward(dy)
    assert len(launched) == num_forward + 5
    assert launched.count("row_sums") + launched.count("apply") == over_x
    operators = {event.key for event in profile.key_averages() if event.key.startswith("aten::")}
    assert operators <= {f"aten::{name}" for name in WITHOUT_LAUNCH}
    large = [event for event in profile.events() if event.name == "aten::empty_like" and event.cpu_memory_usage >= 0]
    sizes = [event.self_cpu_memory_usage for event in profile.events() if event.name.startswith("aten::empty")]
    assert len(large) == 2  # y and dx
    assert sum(size >= x.numel() * 4 for size in sizes) <= 2


@pytest.mark.parametrize(
    ("activation", "adds", "num_launched", "num_large"),
    [
        (None, True, 9, 2),  # y and dx; the gradient of the residual is dy
        ("relu", True, 9, 3),  # and the gradient of the residual
        ("silu", False, 10, 2),  # the coefficients of forward once more
    ],
)
def test_an_activation_and_a_residual_launch_at_most_one_more_kernel(activation, adds, num_launched, num_large, monkeypatch):
    launched = []
    monkeypatch.setattr(gpu_pass, "_launch", lambda kernel, *args, **constants: launched.append(kernel.__name__))
    norm, x = make("gn:4", activation=activation), data(4, 16, 32, 32).requires_grad_()
    residual, dy = data(4, 16, 32, 32).requires_grad_() if adds else None, torch.ones_like(x)
    with torch.profiler.profile(profile_memory=True) as profile, kernels.use("gpu"):
        torch.autograd.grad(norm(x, residual=residual), [x, residual] if adds else [x], dy)
    assert len(launched) == num_launched
    operators = {event.key for event in profile.key_averages() if event.key.startswith("aten::")}
    assert operators <= {f"aten::{name}" for name in WITHOUT_LAUNCH}
    sizes = [event.self_cpu_memory_usage for event in profile.events() if event.name == "aten::empty_strided"]
    assert sum(size >= x.numel() * 4 for size in sizes) == num_large


@pytest.mark.parametrize(
    ("activation", "adds", "saves_y"), [("silu", False, 0), ("relu", False, 0), (None, True, 0), ("relu", True, 1)]
)
def test_x_is_saved_and_y_only_with_a_residual_and_an_activation(activation, adds, saves_y):
    norm, x = make("bn", activation=activation), data(4, 16, 16, 16).requires_grad_()
    residual = data(4, 16, 16, 16, seed=1).requires_grad_() if adds else None
    y, saved = saved_tensors(lambda x: norm(x, residual=residual), x, "gpu")
    assert [sum(t.data_ptr() == own.data_ptr() for t in saved) for own in (x, y)] == [1, saves_y]
    assert sum(t.numel() * t.element_size() for t in saved) <= (1.05 + saves_y) * x.numel() * x.element_size()


def test_a_change_of_x_or_of_a_saved_y_in_place_raises_in_backward_and_one_of_the_residual_does_not_matter():
    for changed in ("x", "y", "residual"):
        norm, leaves = make("bn", activation="relu"), [data(4, 16, 3, seed=k).requires_grad_() for k in range(2)]
        x, residual = (leaf.clone() for leaf in leaves)
        with kernels.use("gpu"):
            y = norm(x, residual=residual)
        expected = torch.autograd.grad(y.sum(), leaves, retain_graph=True)
        loss = y.sum()
        {"x": x, "y": y, "residual": residual}[changed].mul_(2)
        if changed == "residual":
            for a, b in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
                assert torch.equal(a, b)
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("activation", [None, "relu6"])
@pytest.mark.parametrize("needs_x", [False, True])
def test_gradients_of_the_residual_alone_and_of_x_alone_are_those_of_the_reference(activation, needs_x):
    found = []
    for name in ("reference", "gpu"):
        norm, x, residual = make("bn", activation=activation).requires_grad_(False), data(4, 16, 3), data(4, 16, 3, seed=1)
        leaf = (x if needs_x else residual).requires_grad_()
        with kernels.use(name):
            y = norm(x, residual=residual)
            (grad,) = torch.autograd.grad((y**3).sum(), leaf, retain_graph=True)
            (again,) = torch.autograd.grad((y**3).sum(), leaf, create_graph=True)
            found.append([y, grad, again, *torch.autograd.grad((again**2).sum(), leaf)])
    for a, b in zip(*found, strict=True):
        same(b, a, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spec", ["bn", "sn", "bgn:32"])
def test_nothing_the_size_of_x_is_saved_but_x(spec):
    norm, x = make(spec), data(4, 16, 16, 16).requires_grad_()
    _, saved = saved_tensors(norm, x, "gpu")
    assert sum(t.data_ptr() == x.data_ptr() for t in saved) == 1
    assert sum(t.numel() * t.element_size() for t in saved) <= 1.05 * x.numel() * x.element_size()


@pytest.mark.parametrize(("activation", "adds"), [(None, False), ("gelu", False), ("leaky_relu", True), (None, True)])
def test_second_derivatives_are_those_of_the_reference(activation, adds):
    found = []
    for name in ("reference", "gpu"):
        norm, x = make("sn", activation=activation), data(4, 16, 2, 2).requires_grad_()
        residual = data(4, 16, 2, 2, seed=1, mean=0.0, std=0.5).requires_grad_()
        inputs = [x, residual] if adds else [x]
        with kernels.use(name):
            y = norm(x, residual=residual if adds else None)
            grads = torch.autograd.grad((y**3).sum(), inputs, create_graph=True)
        loss = torch.stack([(grad**2).sum() for grad in grads]).sum()
        found.append(torch.autograd.grad(loss, [*inputs, *norm.parameters()]))
    for a, b in zip(*found, strict=True):
        same(b, a, rtol=1e-3, atol=1e-3)


def test_one_style_for_all_samples_has_the_gradients_of_the_reference():
    found = []
    for name in ("reference", "gpu"):
        norm, x = make("saadain"), data(3, 16, 2, 2).requires_grad_()
        style = [torch.linspace(0.5, end, 16)[None].requires_grad_() for end in (1, 2)]
        with kernels.use(name):
            y = norm(x, tuple(style))
        found.append([y, *torch.autograd.grad((y * y.detach().cos()).sum(), [x, *style])])
    for a, b in zip(*found, strict=True):
        same(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [(1, 3), (3, 1)])
def test_a_style_with_one_mean_or_one_std_for_all_samples_is_the_reference(rows):
    found = []
    for name in ("reference", "cpu", "gpu"):
        norm, x = make("adain", channels=4), data(3, 4, 5).requires_grad_()
        style = [torch.linspace(0.5, 2, 4 * n).reshape(n, 4).requires_grad_() for n in rows]
        with kernels.use(name):
            y = norm(x, tuple(style))
        found.append([y, *torch.autograd.grad((y * y.detach().cos()).sum(), [x, *style])])
    for expected, *actual in zip(*found, strict=True):
        for tensor in actual:
            same(tensor, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", ["bn.saaux@5", "en:4.saaux@3", "[1,1,3]+[1,2,3]+[1,4,3].dom@3"])
def test_state_does_not_move_if_a_domain_has_a_single_value(spec):
    channels, length = (1, 1) if spec.startswith("bn") else (4, 3 if "[" in spec else 1)
    norm, x, labels = make(spec, channels=channels), data(4, channels, length), torch.tensor([0, 0, 0, 1])
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    with pytest.raises(anynorm.ShapeError, match="more than one value per statistic"), kernels.use("gpu"):
        norm(x, labels)
    for key, value in norm.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("spec", ["bn", "hn:4", "sn", "gbgn:2,4", "bgn:32", "bn.dom@3", "saauxbn@3", "sn.aux@3"])
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy, in the interpreter: inf − inf
def test_statistics_that_are_not_finite_are_skipped_and_counted_as_by_the_reference(spec, value):
    found = []
    x = data(4, 16, 2, 3)
    x[1, 3, 0, 0] = value  # in one domain, and one channel
    for name in ("reference", "gpu"):
        norm, condition = make(spec), condition_for(make(spec), x)
        with kernels.use(name):
            norm(data(4, 16, 2, 3, seed=1), condition)
            norm(x, condition)
        found.append(norm)
    for key, expected in found[0].named_buffers():
        same(found[1].get_buffer(key), expected, rtol=1e-5, atol=1e-6)
        assert expected.isfinite().all()
    skipped = found[1].num_batches_skipped
    assert skipped.sum() == 1
    if norm.norm_spec.num_stat_sets:
        assert skipped.tolist() == [0, 1, 0]
        assert norm.num_batches_tracked.tolist() == [2, 1, 0]


def test_running_statistics_in_float16_do_not_become_infinite():
    norm = anynorm.make("bn", 8)
    norm.running_mean, norm.running_var = norm.running_mean.half(), norm.running_var.half()
    with kernels.use("gpu"):
        norm(400 * torch.randn(16, 8, 4))  # variances of 160000
    assert norm.num_batches_skipped == 1
    same(norm.running_var, torch.ones(8, dtype=torch.float16))


WRONG_SIZES = [
    ("bn", {"weight": torch.ones(7)}, r"weight must have shape \(16,\); got \(7,\)"),
    ("ccbn@3", {"class_bias": torch.ones(2, 16)}, r"class_bias must have shape \(3, 16\); got \(2, 16\)"),
    ("sn", {"var_weight": torch.ones(2)}, r"var_weight must have shape \(1, 3\); got \(2,\)"),
    ("adain", {"style_mean": torch.ones(2, 8), "style_std": torch.ones(2, 8)}, r"style_mean must have shape \(2, 16\)"),
]


@pytest.mark.parametrize(("spec", "changes", "message"), WRONG_SIZES)
def test_a_parameter_of_a_wrong_size_raises_before_a_kernel_is_launched(spec, changes, message, monkeypatch):
    monkeypatch.setattr(gpu_pass, "_launch", failing)
    norm, x = make(spec), data(2, 16, 4)
    condition = (torch.ones(2, 16), torch.ones(2, 16)) if spec == "adain" else condition_for(norm, x)
    params, buffers = norm._params(condition)._replace(**changes), norm._read_buffers(norm._forward_spec(), condition)
    with pytest.raises(anynorm.ShapeError, match=message), kernels.use("gpu"):
        kernels.normalize(norm._forward_spec(), x, params, buffers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"running_stats": ((torch.zeros(16), torch.ones(8)),)},
            r"must be contiguous, \(1, 16, 1\); got \(8,\)",
        ),
        ({"running_stats": ((torch.zeros(1).expand(16), torch.ones(16)),)}, "Running statistics must be contiguous"),
        ({"num_batches": torch.zeros(2, dtype=torch.long)}, "num_batches_tracked must have one entry per domain"),
    ],
)
def test_a_buffer_of_a_wrong_size_raises_before_a_kernel_is_launched(changes, message, monkeypatch):
    monkeypatch.setattr(gpu_pass, "_launch", failing)
    norm, x = make("bn"), data(2, 16, 4)
    spec = norm._forward_spec()
    with pytest.raises(anynorm.ShapeError, match=message), kernels.use("gpu"):
        kernels.normalize(spec, x, norm._params(None), norm._read_buffers(spec, None)._replace(**changes))


def test_state_does_not_move_if_there_is_no_memory_for_the_output(monkeypatch):
    norm, x = make("bn"), data(2, 16, 4)
    monkeypatch.setattr(torch, "empty_like", failing)
    with pytest.raises(RuntimeError, match="PassManager"), kernels.use("gpu"):
        norm(x)
    assert norm.num_batches_tracked == 0
    assert not norm.running_mean.any()


def test_running_statistics_of_an_average_over_all_batches_follow_the_reference():
    norms = [make("sn.aux@3", momentum=None) for _ in range(2)]
    x = data(4, 16, 2, 2)
    for norm, name in zip(norms, ("reference", "gpu"), strict=True):
        with kernels.use(name):
            norm(x, condition_for(norm, x))
            norm(2 * x, condition_for(norm, x))
    for a, b in zip(*(norm.buffers() for norm in norms), strict=True):
        same(b, a)


@pytest.mark.parametrize(("x", "spec", "reason"), UNSUPPORTED)
def test_what_the_kernels_do_not_support_raises_if_they_are_selected(x, spec, reason):
    with pytest.raises(anynorm.AnynormError, match=f"The gpu kernels do not support this pass: .*{reason}"), kernels.use("gpu"):
        make(spec)(x)


def test_cpu_tensors_need_the_interpreter(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "INTERPRETED", False)
    with pytest.raises(anynorm.AnynormError, match="they run on CUDA and ROCm tensors"), kernels.use("gpu"):
        make("bn")(data(2, 16, 4))


def wrong_scale(kernel, grid, *args, **constants):
    if kernel is not gpu_kernels.apply:
        kernel[(grid,)](*args, **constants)


@pytest.mark.parametrize(
    ("launch", "reason"),
    [(wrong_scale, "differs from the reference by"), (failing, "Triton failed: RuntimeError: PassManager::run failed")],
)
def test_kernels_that_differ_or_fail_at_first_use_are_not_used_and_one_warning_has_the_reason(launch, reason, monkeypatch):
    monkeypatch.delitem(gpu.problems, CPU)
    monkeypatch.setattr(gpu_pass, "_launch", launch)
    spec, x = make("bn")._forward_spec(), data(2, 16, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with pytest.raises(UnsupportedError, match=reason):
                gpu.check_supported(spec, x)
    assert len(caught) == 1
    assert str(caught[0].message).startswith("anynorm runs without its Triton kernels on cpu: ")
    assert reason in str(caught[0].message)
    assert reason in gpu.describe()


def test_the_check_at_first_use_passes_and_a_plain_run_needs_no_triton(monkeypatch):
    monkeypatch.delitem(gpu.problems, CPU)
    with torch.inference_mode():
        gpu.check_supported(make("bn")._forward_spec(), data(2, 16, 4))
    assert gpu.problems[CPU] == ""
    assert "no GPU has run them yet" in kernels.describe()["gpu"]
    code = "import sys, torch, anynorm; anynorm.make('bn', 4)(torch.randn(2, 4, 3)); assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def synchronized(rank):
    gpu.problems[CPU] = ""
    for spec, split in (("sn.aux@3", 3), ("hn:4", 0)):
        check_parts(rank, spec, data(4, CHANNELS, 2, 2), split, "gpu")
    for activation, adds_x in (("silu", False), ("relu", True)):
        check_parts(rank, "bn", data(4, CHANNELS, 2, 2), 1, "gpu", activation, adds_x)


def test_ranks_with_parts_of_a_batch_or_none_give_what_one_process_gives(tmp_path):
    two_processes(synchronized, tmp_path)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The lists that `compile_gpu.py` prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(__file__).with_name("compile_gpu.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_kernels_of_three_norms_compile_without_spills_and_load_128_bits_of_aligned_rows(compiled):
    rows, _ = compiled
    assert {row["kernel"] for row in rows} == {
        "row_sums", "pool_rows", "pool_columns", "coefficients", "apply", "gradients", "reduce"
    }  # fmt: skip
    assert {row["target"] for row in rows} == {"80", "90", "gfx942"}
    for row in rows:
        assert row["spilled"] == 0, row
        assert row["max_bits"] == 128 or row["kernel"] not in ("row_sums", "apply"), row


def test_every_load_and_store_of_x_is_of_128_bits_in_both_layouts(compiled):
    _, rows = compiled
    assert len(rows) == 2 * 2 * 4  # layouts, dtypes, two kernels in forward and backward
    for row in rows:
        assert row["vectors"] == row["tiles"], row


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", ["sn", "sabn@3", "saadain"])
def test_parameters_and_running_statistics_in_half_precision_get_gradients_and_updates(spec, dtype):
    norm = make(spec).to(dtype)
    norm.eps = 0.1  # so that rounding of the statistics matters little
    check(norm, data(4, 16, 2, 3).to(dtype), rtol=0.02, atol=0.02)
