"""Compiled code on the CPU calls the C++ kernels, and equals eager code bit for bit."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anynorm
from anynorm.core.activation import Activation
from anynorm.kernels import cpu
from tests.helpers import condition_for, data, make, same, same_state

SPECS = ("bn", "sn", "auxbn@2", "adain", "pn", "bgn:64", "rms", "0/bn+ln")


def run(function, layer, x, condition, residual, activation):
    """Output and gradients."""
    layer.zero_grad()
    leaf = x.clone().requires_grad_()
    added = None if residual is None else residual.clone().requires_grad_()
    y = function(leaf, condition, residual=added, activation=activation)
    y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape))
    grads = [p.grad for p in layer.parameters() if p.grad is not None]
    return [y.detach(), leaf.grad, *([] if added is None else [added.grad]), *grads]


def graphs_of(function, *args):
    """The names of all operators of the graphs that are compiled while a function runs."""
    names: list[str] = []

    def backend(graph, _inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, fullgraph=True, backend=backend)(*args)
    return names


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("activation", [None, Activation("relu"), Activation("silu")])
def test_compiled_code_is_eager_code_bit_for_bit_for_every_batch_size(spec, activation):
    eager = make(spec)
    other = copy.deepcopy(eager)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for n in (4, 6, 10):
        x, residual = data(n, 16, 8, 8, seed=n), data(n, 16, 8, 8, seed=1) if activation else None
        condition = condition_for(eager, x)
        for a, b in zip(
            run(eager, eager, x, condition, residual, activation),
            run(compiled, other, x, condition, residual, activation),
            strict=True,
        ):
            assert torch.equal(a, b)
        same_state(other, eager)
    num_graphs = (
        3 if eager.takes_condition else 2
    )  # one for n = 4, one for all other batch sizes; labels have a size of their own
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= num_graphs


@pytest.mark.parametrize("spec", ["bn", "gn:4", "sn"])
def test_the_graph_has_the_operator_and_none_of_the_plain_operations(spec):
    names = graphs_of(make(spec), data(4, 16, 5, 5))
    assert "anynorm_native.forward" in names
    assert not [name for name in names if "var_mean" in name]


def test_inference_and_bfloat16_and_channels_last_are_eager_code_bit_for_bit():
    norm = make("hn:4").eval()
    torch._dynamo.reset()
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    x = data(4, 16, 6, 6)
    for value in (x, x.bfloat16(), x.to(memory_format=torch.channels_last)):
        y, expected = compiled(value), norm(value)
        assert torch.equal(y, expected)
        assert y.stride() == expected.stride()
    sparse = x.repeat_interleave(2, 3)[..., ::2]
    same(compiled(sparse), norm(sparse))  # eager code leaves rows that are not dense to the reference


@pytest.mark.parametrize("spec", ["bn", "in", "bgn:64", "gbgn:2,4", "sn", "0/in+ln", "0/bn.nobias"])
@pytest.mark.parametrize("shape", [(4, 16, 8), (4, 16)])
def test_the_declared_shapes_gradients_and_mutations_of_the_operators_are_true(spec, shape):
    if len(shape) == 2 and spec in ("in", "bgn:64"):
        pytest.skip("no meaning for vectors")
    norm, x = make(spec), data(*shape).requires_grad_()
    definition = norm._forward_spec(Activation("relu"))
    params = norm._params(None, data(*shape, seed=1).requires_grad_())
    buffers = [buffer for pair in norm._read_buffers(definition, None).running_stats for buffer in pair if buffer is not None]
    slots = [2 * index + side for index in norm.tracked_cuts for side in (0, 1) if norm.running_stats(index)[side] is not None]
    assert cpu.is_available()
    arguments = (x, *params, buffers, slots, None, definition.encoded, 1e-5, 0.0, "")
    operators = torch.ops.anynorm_native
    torch.library.opcheck(operators.forward.default, arguments)
    _, stats = operators.forward(*arguments)
    mutable = [buffer.clone() for buffer in buffers]
    counter = None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone()
    plain = (x.detach(), stats.detach(), mutable, slots, counter, definition.encoded, 1e-5, "", 0.1)
    torch.library.opcheck(operators.update_running.default, plain)


def test_checkpointing_around_and_inside_compiled_code_updates_statistics_once():
    x = data(4, 16, 5, 5)
    expected = make("bn")
    expected(x)
    for kind in ("inside", "around"):
        norm = make("bn")
        torch._dynamo.reset()
        if kind == "inside":
            function = torch.compile(partial(checkpoint, norm, use_reentrant=False), backend="aot_eager")
        else:
            function = partial(checkpoint, torch.compile(norm, fullgraph=True, backend="aot_eager"), use_reentrant=False)
        function(x.clone().requires_grad_()).sum().backward()
        same_state(norm, expected)


class Block(nn.Module):
    """A residual block whose two norms are followed by ReLU, fused or as torch's operations."""

    def __init__(self, *, fused):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(anynorm.make(spec, 8) for spec in ("bn", "sn"))
        self.fused = fused

    def forward(self, x):
        first, second = self.norms
        if self.fused:
            h = first(self.convs[0](x), activation=Activation("relu"))
            return second(self.convs[1](h), residual=x, activation=Activation("relu"))
        return functional.relu(second(self.convs[1](functional.relu(first(self.convs[0](x))))) + x)


def losses_of(model, parameters, steps):
    """Losses of a regression by SGD."""
    optimizer, losses = torch.optim.SGD(parameters, lr=0.02, momentum=0.9), []
    for step in range(steps):
        x = data(8, 8, 8, 8, seed=step)
        loss = (model(x).mean((1, 2, 3)) - x.amax((1, 2, 3)) / 4).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_network_learns_the_same_fused_unfused_and_compiled():
    torch.manual_seed(0)
    fused = Block(fused=True)
    unfused, compiled = Block(fused=False), copy.deepcopy(fused)
    unfused.load_state_dict(fused.state_dict())
    torch._dynamo.reset()
    function = torch.compile(compiled, fullgraph=True)  # inductor
    curves = [
        losses_of(run, model.parameters(), 200) for run, model in ((fused, fused), (unfused, unfused), (function, compiled))
    ]
    assert curves[0][-1] < 0.1 * curves[0][0]
    same(torch.tensor(curves[1]), torch.tensor(curves[0]), rtol=0.02, atol=1e-4)  # rounding grows over 200 steps
    same(torch.tensor(curves[2]), torch.tensor(curves[0]), rtol=0.02, atol=1e-4)
