"""What torch's layers accept, ours accept: arguments, options, shapes and states; the rest is refused in our words."""

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from tests.helpers import data, same, same_state

X = data(4, 8, 6, 5)


def converted(module: nn.Module, spec: str, **options) -> Any:
    """The norm that replaces a module."""
    return anynorm.convert(nn.Sequential(copy.deepcopy(module)), spec, **options).model[0]  # type: ignore[index]


def test_the_input_can_be_passed_by_torchs_name():
    for spec in ("bn", "gn:4", "in", "brn", "ibn", "dyt", "gw:4"):
        norm = anynorm.make(spec, 8).eval()
        same(norm(input=X), norm(X), rtol=0, atol=0)
    assert list(inspect.signature(anynorm.Norm.forward).parameters)[1] == "input"


@pytest.mark.parametrize("momentum", [1.5, -0.1, 2])
def test_a_converted_layer_keeps_a_momentum_outside_of_0_and_1(momentum):
    theirs = nn.BatchNorm2d(8, momentum=momentum)
    ours = converted(theirs, "bn")
    for step in range(3):
        theirs(data(4, 8, 3, 3, seed=step))
        ours(data(4, 8, 3, 3, seed=step))
    same_state(ours, theirs)
    assert ours.momentum == momentum
    assert converted(ours, "hn:4").momentum == momentum
    assert converted(theirs, "bn", momentum=0.3).momentum == 0.3
    with pytest.raises(anynorm.SpecError, match=r"momentum must be in \[0, 1\]"):
        anynorm.make("bn", 8, momentum=momentum)


@pytest.mark.parametrize("eps", [0, 1, 4.0, 100.0])
def test_eps_may_be_any_number_from_0_on(eps):
    theirs, ours = nn.BatchNorm2d(8, eps=eps), anynorm.make("bn", 8, eps=eps)
    if eps:  # torch requires it in training
        same(ours(X), theirs(X))
    same(converted(theirs, "bn").eval()(X), theirs.eval()(X))
    same(anynorm.make("gn:4", 8, eps=eps)(X), nn.GroupNorm(4, 8, eps=eps)(X))


WITHOUT_BIAS: list[Any] = [
    nn.BatchNorm2d(8, bias=False),
    nn.InstanceNorm2d(8, affine=True, bias=False),
    nn.GroupNorm(4, 8, bias=False),
    nn.LayerNorm(5, bias=False),
]


@pytest.mark.parametrize("theirs", WITHOUT_BIAS, ids=lambda module: type(module).__name__)
@pytest.mark.parametrize("spec", ["bn", "gn:1", "hn:1", "in", "ln"])
def test_a_layer_without_bias_is_replaced_by_one_without_bias(theirs, spec):
    assert not [key for key in converted(theirs, spec).state_dict() if "bias" in key]
    assert "bias" in converted(theirs, spec, bias=True).state_dict()
    assert "class_bias" in converted(theirs, "sabn@2", bias=True).state_dict()


def test_hn_without_bias_infers_as_the_bn_without_bias_that_it_replaces():
    theirs = nn.BatchNorm2d(8, bias=False)
    nn.init.uniform_(theirs.weight)
    theirs(X)
    for spec in ("bn", "hn:2"):
        same(converted(theirs.eval(), spec)(X), theirs(X), rtol=1e-4, atol=1e-5)


DIMS: list[Any] = [
    (nn.BatchNorm1d(8), {2, 3}),
    (nn.BatchNorm2d(8), {4}),
    (nn.BatchNorm3d(8), {5}),
    (nn.InstanceNorm1d(8, affine=True), {2, 3}),
    (nn.InstanceNorm2d(8, affine=True), {3, 4}),
    (nn.InstanceNorm3d(8, affine=True), {4, 5}),
    (nn.GroupNorm(4, 8), {3, 4, 5}),
]


@pytest.mark.parametrize(("theirs", "dims"), DIMS, ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "")
@pytest.mark.parametrize("dim", [2, 3, 4, 5])
def test_a_converted_layer_takes_the_inputs_of_the_layer_that_it_replaced(theirs, dims, dim):
    """With 8 samples and 8 channels, so that an input can be read with and without an axis of samples."""
    x = data(*(8 for _ in range(dim)))
    spec = anynorm.read_norm(theirs).spec
    same_norm, other = converted(theirs, spec, where="all"), converted(theirs, "gn:2", where="all")
    again = converted(same_norm, spec, where="all")
    if dim in dims:
        for norm in (same_norm, again, copy.deepcopy(same_norm)):
            same(norm(x), copy.deepcopy(theirs)(x), rtol=1e-4, atol=1e-5)
        assert other(x).shape == x.shape
    elif not isinstance(theirs, nn.GroupNorm):
        with pytest.raises(ValueError, match="expected"):
            theirs(x)
        for norm in (same_norm, other, again):
            with pytest.raises(anynorm.ShapeError, match=f"dimensions, as for the layer that this norm replaced; got {dim}"):
                norm(x)
        same_norm.input_dims = ()
        assert same_norm.eval()(x).shape == x.shape


def test_an_unbatched_input_has_the_gradients_and_the_residual_of_a_batch_of_one():
    theirs = nn.InstanceNorm2d(8, affine=True)
    ours = converted(theirs, "in", where="all")
    x, residual = data(8, 8, 5).requires_grad_(), data(8, 8, 5, seed=1)
    y = ours(x, residual=residual, activation="relu")
    z = (theirs(x) + residual).relu()
    same(y, z)
    weights = torch.linspace(0, 1, y.numel()).reshape(y.shape)
    same(*(torch.autograd.grad((each * weights).sum(), x)[0] for each in (y, z)), rtol=1e-4, atol=1e-5)
    assert anynorm.make("in", 8).input_dims == ()


def test_a_counter_of_floating_point_dtype_counts():
    norms = [anynorm.make("bn", 8, momentum=momentum) for momentum in (0.1, None)]
    theirs: list[Any] = [nn.BatchNorm2d(8, momentum=momentum) for momentum in (0.1, None)]
    for norm in (*norms, *theirs):
        norm.num_batches_tracked = torch.tensor(0.0)
        norm(X), norm(2 * X)
    for ours, expected in zip(norms, theirs, strict=True):
        same_state(ours, expected)


def test_a_state_without_the_counter_keeps_it():
    counts = []
    for norm in (nn.BatchNorm2d(8), anynorm.make("bn", 8)):
        norm(X), norm(X)
        state: Any = dict(norm.state_dict())
        del state["num_batches_tracked"]
        norm.load_state_dict(state)
        counts.append(int(norm.num_batches_tracked))
    assert counts == [2, 2]


def test_nan_in_a_state_is_refused_and_the_message_is_the_way_around():
    model: Any = nn.Sequential(anynorm.make("bn", 8))
    state_dict: Any = copy.deepcopy(model.state_dict())
    state_dict["0.running_var"][2] = torch.nan
    with pytest.raises(anynorm.StateError, match="Load an earlier checkpoint, or replace them: ") as error:
        model.load_state_dict(state_dict)
    exec(str(error.value).partition("replace them: ")[2].rstrip("."), {"state_dict": state_dict})
    model.load_state_dict(state_dict)
    assert float(model[0].running_var[2]) == 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_inputs_that_are_not_dense_are_refused():
    inputs = {
        "sparse_coo": X.to_sparse(),
        "mkldnn": X.to_mkldnn(),
        "nested": torch.nested.nested_tensor([torch.randn(8, 5, 5), torch.randn(8, 4, 4)]),
        "nested one": torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(4, 8)], layout=torch.jagged),
    }
    for spec in ("bn", "gn:4", "dyt"):
        norm = anynorm.make(spec, 8)
        norm(X)  # an input of the same shape and dtype has been checked
        for name, x in inputs.items():
            with pytest.raises(anynorm.ShapeError, match=f"The input must be a dense tensor; got a {name}"):
                norm(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torchscript_is_refused_with_what_to_use():
    model = nn.Sequential(nn.Conv2d(8, 8, 1), anynorm.make("bn", 8)).eval()
    with pytest.raises(
        anynorm.SpecError, match=r"TorchScript cannot compile bn: .* Use torch.export.export, torch.compile or torch"
    ):
        torch.jit.script(model)
    same(torch.jit.trace(model, X)(X), model(X))
    relu = nn.Sequential(nn.Conv2d(8, 8, 1), anynorm.make("bn", 8, activation="relu")).eval()
    for each in (model, relu):
        anynorm.fold(each, X)
        same(torch.jit.script(each)(X), each(X))


@pytest.mark.parametrize("spec", ["bn", "gn:4", "hn:4"])
def test_undefined_gradients_of_the_output_give_no_gradient(spec):
    norm = anynorm.make(spec, 8, dtype=torch.float64)
    x = data(3, 8, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(norm, x, check_undefined_grad=True)
