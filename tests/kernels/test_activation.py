"""Activation and residual in the C++ kernels: the numbers of torch's functions, and nothing x-sized is saved but x and y."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anynorm
from anynorm import kernels
from anynorm.core.activation import MODULES, Activation, read_activation
from tests.distributed import two_processes
from tests.helpers import condition_for, data, make, same
from tests.kernels.common import saved_tensors

KEEPS_SIGN = ["relu", "leaky_relu", "relu6"]
activations = pytest.mark.parametrize("activation", list(MODULES))


def identity_norm(activation, *, channels=4):
    """A norm whose y is the activation of x: in eval mode, with mean 0, variance 1 and eps 0."""
    return anynorm.make("bn", channels, eps=0.0, activation=activation).eval()


@activations
def test_values_and_derivatives_are_those_of_torch_from_minus_20_to_20_and_at_the_kinks(activation):
    kinks = torch.tensor([-3.0, 0.0, 3.0, 6.0]).repeat(4)
    x = torch.cat([torch.linspace(-20, 20, 4 * 4096 - 16), kinks]).reshape(1, 4, -1)
    exact = x.double().requires_grad_()
    expected = Activation(activation)(exact)
    expected.sum().backward()
    for layout in (x, x[0].t().contiguous()):  # rows, and vectors
        y_exact, grad_exact = (t.reshape(x.shape).squeeze(0) for t in (expected.detach(), exact.grad))
        leaf = layout.clone().requires_grad_()
        with kernels.use("cpu"):
            y = identity_norm(activation)(leaf)
        y.sum().backward()
        for actual, wanted in ((y, y_exact), (leaf.grad, grad_exact)):
            same(actual.detach().double(), wanted.t() if layout.dim() == 2 else wanted[None], rtol=1e-6, atol=1e-6)


@activations
def test_nan_stays_nan_and_infinity_has_the_limit(activation):
    x = torch.tensor([math.nan, math.inf, 100.0, -100.0]).repeat(1, 4, 4)
    limits = {"relu6": (6.0, 6.0, 0.0), "leaky_relu": (math.inf, 100.0, -1.0)}.get(activation, (math.inf, 100.0, 0.0))
    expected = torch.tensor([math.nan, *limits]).repeat(1, 4, 4)  # torch's gelu of infinity is NaN
    torch.testing.assert_close(identity_norm(activation)(x), expected, equal_nan=True, rtol=0.0, atol=1e-30)


CASES = ("bn", "in", "gn:4", "sn", "hn:4", "bgn:64", "pn", "auxbn@2", "sabn@3", "adain", "sn.hard", "brn")


@given(
    spec=st.sampled_from(CASES),
    activation=st.sampled_from([None, *MODULES]),
    has_residual=st.booleans(),
    n=st.integers(2, 5),
    space=st.sampled_from([(8,), (4, 8), (7, 8), (2, 4, 4), (16, 36)]),
    last=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    training=st.booleans(),
)
def test_every_norm_with_activation_and_residual_is_the_norm_followed_by_torchs_operations(
    spec, activation, has_residual, n, space, last, dtype, training
):
    norm = make(spec, channels=16).train(training)
    x, residual = data(n, 16, *space).to(dtype), data(n, 16, *space, seed=7).to(dtype)
    if last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    condition, found = condition_for(norm, x), []
    phi = read_activation(activation)
    for kind in ("fused", "separate"):
        layer = make(spec, channels=16).train(training)
        layer.load_state_dict(norm.state_dict())
        leaf, added = x.clone().requires_grad_(), residual.clone().requires_grad_()
        if kind == "fused":
            y = layer(leaf, condition, residual=added if has_residual else None, activation=phi)
        else:
            z = layer.double()(leaf.double(), condition) + (added if has_residual else 0)
            y = z if phi is None else phi(z)
            # a derivative that jumps is not compared where rounding decides on which side z is
            near = torch.stack([(z - kink).abs() for kink in (-3, 0, 3, 6)]).amin(0) < (1e-4 if dtype is torch.float32 else 0.05)
        found.append((y, leaf, added, layer))
    dy = torch.where(near, 0.0, data(*x.shape, seed=9).double())
    for y, *_ in found:
        y.backward(dy.to(y.dtype))
    tolerance = 2e-4 if dtype is torch.float32 else 0.06
    (y, leaf, added, layer), (y2, leaf2, added2, layer2) = found
    assert y.dtype == dtype
    assert y.stride() == x.stride()
    pairs = [(y.detach(), y2.detach()), (leaf.grad, leaf2.grad), *([(added.grad, added2.grad)] if has_residual else [])]
    pairs += [(p.grad, q.grad) for p, q in zip(layer.parameters(), layer2.parameters(), strict=True) if q.grad is not None]
    pairs += list(zip(layer.buffers(), layer2.buffers(), strict=True))
    for actual, wanted in pairs:
        same(actual.double(), wanted.double(), rtol=tolerance, atol=tolerance * max(1.0, float(wanted.abs().max())))


@activations
@pytest.mark.parametrize("spec", ["bn", "sn", "gn:4"])
def test_only_x_is_saved_of_its_size_and_y_with_a_residual(spec, activation):
    x = data(4, 16, 32, 32).requires_grad_()
    norm = make(spec)
    norm.activation = Activation(activation)
    y, saved = saved_tensors(norm, x, "cpu")
    assert [t.data_ptr() for t in saved if t.numel() >= x.numel()] == [x.data_ptr()]
    assert sum(t.numel() * t.element_size() for t in saved) <= 1.05 * x.numel() * x.element_size()
    if activation in KEEPS_SIGN:
        residual = data(4, 16, 32, 32, seed=3).requires_grad_()
        y, saved = saved_tensors(lambda x: norm(x, residual=residual), x, "cpu")
        assert sorted(t.data_ptr() for t in saved if t.numel() >= x.numel()) == sorted([x.data_ptr(), y.data_ptr()])


def test_state_dict_is_that_of_the_norm_without_activation():
    assert list(make("sn").state_dict()) == list(anynorm.make("sn", 16, activation="silu").state_dict())


@pytest.mark.parametrize("changed", ["x", "y"])
def test_a_change_in_place_between_forward_and_backward_raises_as_in_torch(changed):
    leaf, residual = data(4, 16, 5).requires_grad_(), data(4, 16, 5, seed=1).requires_grad_()
    x = leaf * 1
    y = anynorm.make("gn:4", 16, activation="relu")(x, residual=residual)
    with torch.no_grad():
        {"x": x, "y": y}[changed].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_residual_that_changes_after_forward_does_not_matter_as_in_torch():
    found = []
    for changed in (False, True):
        x, leaf = data(4, 16, 5).requires_grad_(), data(4, 16, 5, seed=1).requires_grad_()
        residual = leaf * 1
        y = anynorm.make("gn:4", 16, activation="relu")(x, residual=residual)
        with torch.no_grad():
            residual.add_(float(changed))
        y.square().sum().backward()
        found.append((x.grad, leaf.grad))
    same(*found, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("residual", [None, *KEEPS_SIGN])
def test_second_derivatives_include_activation_and_residual(residual):
    activation = residual or "silu"
    norm = anynorm.make("sn", 4, activation=activation)
    found = []
    for name in ("cpu", "reference"):
        x, added = data(3, 4, 6).requires_grad_(), data(3, 4, 6, seed=2).requires_grad_()
        with kernels.use(name):
            y = norm(x, residual=added if residual else None)
        inputs = [x, norm.weight, *([added] if residual else [])]
        grads = torch.autograd.grad((y**2).sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(torch.cat([grad.flatten() for grad in grads]).square().sum(), inputs))
    same(*found, rtol=1e-3, atol=1e-3)


def test_a_residual_with_other_strides_gives_the_same_output_and_gradient():
    x, residual = data(4, 16, 6, 6), data(4, 16, 6, 6, seed=1)
    norm, grads, outputs = anynorm.make("hn:4", 16, activation="relu"), [], []
    for added in (residual, residual.to(memory_format=torch.channels_last), residual.repeat_interleave(2, 3)[..., ::2]):
        leaf = added.detach().requires_grad_()
        outputs.append(norm(x, residual=leaf))
        (outputs[-1] ** 2).sum().backward()
        grads.append(leaf.grad)
    for y, grad in zip(outputs[1:], grads[1:], strict=True):
        same(y, outputs[0], rtol=0.0, atol=0.0)
        same(grad, grads[0], rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("residual", "message"),
    [
        (torch.ones(4, 1, 6), r"torch\.float32 on cpu; got \(4, 1, 6\)"),
        (torch.ones(6), r"It is not broadcast: use expand_as"),
        (torch.ones(4, 16, 6, dtype=torch.bfloat16), r"got \(4, 16, 6\) torch\.bfloat16"),
        (torch.ones(4, 16, 6, device="meta"), r"on meta"),
        (1.0, r"residual must be a tensor; got a float"),
    ],
)
@pytest.mark.parametrize("spec", ["bn", "brn"])
def test_a_residual_that_does_not_fit_is_refused_and_changes_no_statistics(spec, residual, message):
    norm = make(spec)
    with pytest.raises(anynorm.ShapeError, match=message):
        norm(data(4, 16, 6), residual=residual)
    assert norm.num_batches_tracked == 0


def test_a_layer_and_a_call_take_names_and_modules_of_activations():
    x, norm = data(4, 16, 6), make("gn:4")
    expected = norm(x).relu()
    for value in ("relu", nn.ReLU(), Activation("relu")):
        same(norm(x, activation=value), expected)
    for value in ("relu", Activation("relu")):
        norm.activation = value
        assert norm.activation == Activation("relu")
        same(norm(x), expected)
        norm.activation = None
    with pytest.raises(anynorm.SpecError, match="activation must be one of relu"):
        norm.activation = "tanh"
    with pytest.raises(anynorm.SpecError, match="activation must be one of relu"):
        norm(x, activation="tanh")
    norm.activation = nn.ReLU()
    with pytest.raises(anynorm.SpecError, match="activation of gn:4 must be assigned by its name, such as 'relu'; got a module"):
        norm(x)


def test_a_pickled_layer_of_an_earlier_version_has_no_activation():
    norm = make("bn")
    del norm.__dict__["_activation"]
    assert norm(data(4, 16, 6)).min() < 0
    assert "activation" not in repr(norm)


def test_the_gradient_of_a_residual_is_zero_where_relu_is_even_for_an_infinite_gradient():
    for training in (True, False):
        residual = torch.full((2, 4, 3), -50.0).requires_grad_()
        y = anynorm.make("in", 4, activation="relu").train(training)(data(2, 4, 3), residual=residual)
        for create_graph in (False, True):
            (grad,) = torch.autograd.grad(y, residual, torch.full_like(y, math.inf), create_graph=create_graph, retain_graph=True)
            same(grad, torch.zeros_like(grad))


@pytest.mark.parametrize(
    ("spec", "activation"), [*[("sn", activation) for activation in MODULES], ("auxbn@2", "relu"), ("pn", "silu")]
)
def test_gradcheck_with_activation_and_residual(spec, activation):
    norm = make(spec, channels=4, dtype=torch.float64)
    x, residual = (data(3, 4, 5, seed=seed).double().requires_grad_() for seed in (0, 1))
    condition = condition_for(norm, x)

    def run(x, residual, weight):
        y = torch.func.functional_call(
            norm,
            {"weight": weight} if norm.weight is not None else {},
            (x, condition),
            {"residual": residual, "activation": activation},
        )
        return y

    weight = norm.weight if norm.weight is not None else torch.ones(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (x, residual, weight), fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("value", ["tanh", "ReLU", 3, nn.Tanh()])
def test_an_unknown_activation_is_refused_with_the_list(value):
    with pytest.raises(anynorm.SpecError, match=r"activation must be one of relu relu6 leaky_relu silu gelu gelu_tanh hardswish"):
        anynorm.make("bn", 4, activation=value)


def test_a_negative_slope_is_refused():
    with pytest.raises(anynorm.SpecError, match=r"negative_slope must be at least 0; got -0\.1"):
        Activation("leaky_relu", -0.1)


@activations
def test_the_module_of_an_activation_reads_as_the_same_activation(activation):
    assert read_activation(Activation(activation, 0.2).module()) in (Activation(activation, 0.2), Activation(activation))


def synchronized(rank, *, is_compiled=False):
    x, residual = data(6, 16, 5, 5), data(6, 16, 5, 5, seed=1)
    part = slice(0, 2) if rank == 0 else slice(2, 6)
    whole, local = make("sn"), make("sn")
    anynorm.sync(local)
    function = torch.compile(local, fullgraph=True, backend="aot_eager") if is_compiled else local
    grads = []
    for norm, rows in ((whole, slice(0, 6)), (function, part)):
        leaf, added = x[rows].clone().requires_grad_(), residual[rows].clone().requires_grad_()
        y = norm(leaf, residual=added, activation=Activation("relu"))
        (y**2).sum().backward()
        grads.append((y.detach(), leaf.grad, added.grad))
    for alone, shared in zip(*grads, strict=True):
        same(shared, alone[part], rtol=1e-4, atol=1e-4)
    same(local.running_mean, whole.running_mean)
    assert local.num_batches_tracked == 1


def test_a_compiled_synchronized_norm_with_activation_and_residual_is_that_of_one_process(tmp_path):
    two_processes(partial(synchronized, is_compiled=True), tmp_path)


def test_a_synchronized_norm_with_activation_and_residual_is_that_of_one_process(tmp_path):
    two_processes(synchronized, tmp_path)
