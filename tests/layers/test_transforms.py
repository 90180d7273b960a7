"""Transforms of torch.func, batched gradients and compiled autograd: as torch's layers, or an error that says what to do."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, stack_module_state, vmap
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

import anynorm
from anynorm import kernels
from tests.cover import COVER, thorough_except
from tests.helpers import CHANNELS, ROWS, condition_for, data, make, same, same_state

X = data(4, CHANNELS, 2, 3)
TORCH: dict[str, Any] = {
    "bn": lambda **options: nn.BatchNorm2d(CHANNELS, **options),
    "gn:4": lambda **_: nn.GroupNorm(4, CHANNELS),
    "ln": lambda **_: nn.GroupNorm(1, CHANNELS),
    "in": lambda **_: nn.InstanceNorm2d(CHANNELS, affine=True),
}
"""torch's layers of some norms."""
KINDS = ["bn", "gn:4", "hn:4", "sn", "in", "pn", "bgn:32", "sabn@3", "auxbn@3", "saadain", "rms", "brn", "0/bn+ln"]
PER_SAMPLE = [spec for spec in ROWS if not make(spec).pools_samples]
POOLED = ["bn", "hn:4", "sn", "bgn:32", "gbgn:2,4", "auxbn@3", "brn", "modenorm:2"]


def layers(spec, count=3):
    """Layers with different parameters and running statistics."""
    made = [make(spec) for _ in range(count)]
    for k, layer in enumerate(made):
        with torch.no_grad():
            for tensor in [*layer.parameters(), *(b for n, b in layer.named_buffers() if n.startswith("running"))]:
                tensor.mul_(1 + 0.1 * k)
    return made


def pair_with_torch(spec, **options):
    """torch's layer and ours, with the same parameters."""
    ours = make(spec, **(options if spec == "bn" else {}))
    theirs = TORCH[spec](**options)
    theirs.load_state_dict(ours.state_dict())
    return theirs, ours


def state_of(layer):
    return dict(layer.named_parameters()), dict(layer.named_buffers())


@pytest.mark.parametrize("spec", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_vmap_over_models_is_a_loop_and_updates_the_statistics_of_each(spec, training):
    models = [layer.train(training) for layer in layers(spec)]
    condition = condition_for(models[0], X)
    params, buffers = stack_module_state(models)

    def call(params, buffers, x):
        return functional_call(models[0], (params, buffers), (x,) if condition is None else (x, condition))

    before = copy.deepcopy(models[0])
    y = vmap(call, (0, 0, None))(params, buffers, X)
    same_state(models[0], before)
    same(y, torch.stack([layer(X, condition) for layer in models]), rtol=1e-4, atol=1e-5)
    for name, stacked in buffers.items():
        same(stacked, torch.stack([layer.get_buffer(name) for layer in models]))


def test_an_ensemble_of_the_buffers_of_state_dicts_updates_them():
    models = layers("bn")
    names = [name for name, _ in models[0].named_parameters()]
    states = {key: torch.stack([layer.state_dict()[key] for layer in models]) for key in models[0].state_dict()}
    params = {key: states.pop(key) for key in names}
    vmap(lambda p, b: functional_call(models[0], (p, b), (X,)))(params, states)
    for layer in models[1:]:
        layer(X)
    same(states["running_var"][1:], torch.stack([layer.running_var for layer in models[1:]]))
    assert int(models[0].num_batches_skipped) == 0


@pytest.mark.parametrize("spec", TORCH)
def test_an_ensemble_in_training_is_that_of_torch(spec):
    results = []
    for layer in pair_with_torch(spec):
        models = [copy.deepcopy(layer) for _ in range(2)]
        with torch.no_grad():
            models[1].weight.mul_(2)
        params, buffers = stack_module_state(models)

        def loss(params, buffers, x, layer=layer):
            return functional_call(layer, (params, buffers), (x,)).square().sum()

        grads = vmap(grad(loss), (0, 0, None))(params, buffers, X)
        results.append((grads, {name: buffer for name, buffer in buffers.items() if name != "num_batches_skipped"}))
    same(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", TORCH)
@pytest.mark.parametrize("mode", ["eval", "untracked"])
def test_jacobians_and_hessians_are_those_of_torch(spec, mode):
    theirs, ours = pair_with_torch(spec, **({"track_running_stats": False} if mode == "untracked" else {}))
    theirs.train(mode != "eval")
    ours.train(mode != "eval")
    x = X[:, :, :, :2].double()
    for layer in (theirs, ours):
        layer.double()
    for transform in (jacrev, jacfwd):
        same(*(transform(lambda x, layer=layer: layer(x).sum((2, 3)))(x) for layer in (ours, theirs)))
    small = x[:2]
    same(*(hessian(lambda x, layer=layer: layer(x).square().sum())(small) for layer in (ours, theirs)))


def test_gradients_with_buffers_as_arguments_work_in_training():
    theirs, ours = pair_with_torch("bn")
    results = []
    for layer in (theirs, ours):
        params, buffers = (({name: t.detach().clone() for name, t in each.items()}) for each in state_of(layer))
        grads = grad(lambda p, b, x, layer=layer: functional_call(layer, (p, b), (x,)).square().sum())(params, buffers, X)
        results.append((grads, buffers["running_mean"], buffers["num_batches_tracked"]))
    same(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", POOLED)
@pytest.mark.parametrize("name", ["vmap", "grad", "jacrev", "jacfwd", "vmap of grad"])
def test_running_statistics_that_a_transform_cannot_update_raise_an_error_and_stay(spec, name):
    layer = make(spec)
    before, condition = copy.deepcopy(layer), condition_for(layer, X)

    def call(x):
        return layer(x, condition).square().sum()

    transforms: dict[str, Any] = {
        "vmap": lambda: vmap(call)(torch.stack([X, X])),
        "grad": lambda: grad(call)(X),
        "jacrev": lambda: jacrev(call)(X),
        "jacfwd": lambda: jacfwd(call)(X),
        "vmap of grad": lambda: vmap(grad(call))(torch.stack([X, X])),
    }
    with pytest.raises(anynorm.AnynormError, match=r"Pass them: torch.func.functional_call.*Layer .* with 16 channels"):
        transforms[name]()
    same_state(layer, before)
    layer.eval()
    if name != "jacfwd":
        transforms[name]()


@pytest.mark.parametrize("spec", PER_SAMPLE)
def test_gradients_of_each_sample_are_those_of_a_loop(spec):
    layer = make(spec)
    condition = condition_for(layer, X)
    params = {name: p.detach() for name, p in layer.named_parameters() if p.requires_grad}

    def loss(params, x, *condition):
        return functional_call(layer, params, (x[None], *(c[None] for c in condition))).square().sum()

    given = () if condition is None else (condition,)
    found = vmap(grad(loss), (None, 0, *(0 for _ in given)))(params, X, *given)
    expected = [grad(loss)(params, x, *(c[k] for c in given)) for k, x in enumerate(X)]
    for name, each in found.items():
        same(each, torch.stack([one[name] for one in expected]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", ["gn:4", "ln", "in"])
def test_gradients_of_each_sample_are_those_of_expanded_weights_of_torchs_layers(spec):
    theirs, ours = pair_with_torch(spec)
    call_for_per_sample_grads(theirs, loss_reduction="sum")(X).square().sum().backward()
    params = {name: p.detach() for name, p in ours.named_parameters()}
    found = vmap(grad(lambda p, x: functional_call(ours, p, (x[None],)).square().sum()), (None, 0))(params, X)
    for name, p in theirs.named_parameters():
        same(found[name], p.grad_sample, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", ["gn:4", "bn", "sn", "pn", "dyt", "gw:4", "sabn@3"])
def test_expanded_weights_raise_an_error_that_names_vmap(spec):
    layer = make(spec)
    condition = condition_for(layer, X)
    with pytest.raises(anynorm.AnynormError, match=r"expanded weights.*torch.func.vmap"):
        call_for_per_sample_grads(layer, batch_size=len(X))(X, *([] if condition is None else [condition]))


@pytest.mark.parametrize("spec", thorough_except(COVER, ROWS))
@pytest.mark.parametrize("training", [True, False])
def test_batched_gradients_are_a_loop(spec, training):
    layer = make(spec).train(training)
    x = data(4, CHANNELS, 4, 4).requires_grad_()
    y = layer(x, condition_for(layer, x))
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
    dy = data(3, *y.shape, seed=3)
    batched = torch.autograd.grad(y, wanted, dy, is_grads_batched=True, retain_graph=True, allow_unused=True)
    for k in range(3):
        one = torch.autograd.grad(y, wanted, dy[k], retain_graph=True, allow_unused=True)
        for a, b in zip(batched, one, strict=True):
            same(None if a is None else a[k], b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["residual", "mask", "points", "bfloat16", "channels_last"])
def test_batched_gradients_are_a_loop_for_all_forms_of_a_pass(form):
    layer, x, keywords = make("sn", activation="relu"), data(4, CHANNELS, 4, 4), {}
    if form == "residual":
        keywords["residual"] = data(4, CHANNELS, 4, 4, seed=1).requires_grad_()
    elif form == "mask":
        keywords["mask"] = data(4, 1, 4, 4)[:, 0] > 0
    elif form == "points":
        layer, x = make("gn:4", activation="relu"), data(12, CHANNELS)
        keywords["batch_index"] = torch.arange(12) % 4
    elif form == "bfloat16":
        x = x.bfloat16()
    else:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    y = layer(x, **keywords)
    wanted = [x, *layer.parameters(), *([keywords["residual"]] if form == "residual" else [])]
    dy = data(3, *y.shape, seed=3).to(y.dtype)
    batched = torch.autograd.grad(y, wanted, dy, is_grads_batched=True, retain_graph=True)
    loop = [torch.autograd.grad(y, wanted, each, retain_graph=True) for each in dy]
    tolerance = {"rtol": 0.02, "atol": 0.1} if form == "bfloat16" else {"rtol": 1e-4, "atol": 1e-4}
    for index, each in enumerate(batched):
        same(each, torch.stack([one[index] for one in loop]), **tolerance)


@pytest.mark.parametrize("spec", TORCH)
def test_vectorized_jacobians_are_those_of_torch(spec):
    theirs, ours = pair_with_torch(spec)
    for vectorize in (True, False):
        jacobians = [
            torch.autograd.functional.jacobian(lambda x, layer=layer: layer(x).sum((0, 2, 3)), X, vectorize=vectorize)
            for layer in (ours, theirs)
        ]
        same(jacobians[0], jacobians[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spec", ["bn", "gn:4", "sabn@3"])
def test_batched_and_second_derivatives_pass_the_check_of_torch(spec):
    layer = make(spec).eval().double()
    x = data(2, CHANNELS, 2, 1, dtype=torch.float64).requires_grad_()
    condition = condition_for(layer, x)
    assert torch.autograd.gradcheck(lambda x: layer(x, condition), (x,), check_batched_grad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x, condition), (x,), check_batched_grad=True, fast_mode=True)


def compiled_backward(layer, x, **keywords):
    """Gradients by compiled autograd, whose graph runs as it was traced."""
    from torch._dynamo import compiled_autograd

    y = layer(x, **keywords)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        y.square().sum().backward()
    return [each.grad for each in (x, *layer.parameters(), *(t for t in keywords.values() if t.requires_grad))]


@pytest.mark.reference_only
@pytest.mark.parametrize(("spec", "dtype"), [("bn", torch.float32), ("sn", torch.float32), ("gn:4", torch.bfloat16)])
@pytest.mark.parametrize("form", ["plain", "residual"])
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch itself, about the tensors of its trace
def test_compiled_autograd_gives_the_gradients_of_eager_code(spec, dtype, form):
    torch._dynamo.reset()
    for n in (4, 6):  # the graph of another shape, or a recompilation
        results = []
        for compiled in (False, True):
            layer, x = make(spec, activation="relu"), data(n, CHANNELS, 3, 3).to(dtype).requires_grad_()
            keywords = {"residual": data(n, CHANNELS, 3, 3, seed=1).to(dtype).requires_grad_()} if form == "residual" else {}
            if compiled:
                results.append(compiled_backward(layer, x, **keywords))
            else:
                layer(x, **keywords).square().sum().backward()
                results.append([each.grad for each in (x, *layer.parameters(), *keywords.values())])
        for a, b in zip(*results, strict=True):
            same(b, a, rtol=0, atol=0)


@pytest.mark.reference_only
def test_compiled_autograd_with_a_mask_raises_an_error_that_says_so():
    x = X.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="compiled autograd does not support a mask or batch_index"):
        compiled_backward(make("bn"), x, mask=torch.ones(4, 2, 3, dtype=torch.bool))


@pytest.mark.reference_only
def test_batched_gradients_of_the_triton_kernels_are_a_loop():
    pytest.importorskip("triton", reason="needs the dev extra")
    from tests.kernels.interpreter import fast_interpreter

    layer, x = make("hn:4", activation="relu"), X.clone().requires_grad_()
    with fast_interpreter(), kernels.use("gpu"):
        y = layer(x)
        dy = data(2, *y.shape, seed=3)
        (batched,) = torch.autograd.grad(y, x, dy, is_grads_batched=True, retain_graph=True)
        same(batched, torch.stack([torch.autograd.grad(y, x, each, retain_graph=True)[0] for each in dy]), rtol=1e-4, atol=1e-5)
