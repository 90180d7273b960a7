"""The LSTM cell with norms: torch's cell without norms, a naive layer-normalized LSTM, and norms that pool over samples."""

from functools import partial

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.tasks.search.lstm import NormLSTMCell
from tests.helpers import same

F64 = partial(torch.tensor, dtype=torch.float64)
PLACES = ("input_norm", "hidden_norm", "cell_norm")


def inputs(steps=4, n=5, size=6, seed=0):
    return torch.randn(steps, n, size, generator=torch.Generator().manual_seed(seed))


def unroll(cell, x):
    state, outputs = None, []
    for step in x:
        state = cell(step, state)
        outputs.append(state[0])
    return torch.stack(outputs), state[1]


def cell_with(spec, places=PLACES, size=6, hidden=8, seed=0):
    torch.manual_seed(seed)
    cell = NormLSTMCell(size, hidden, **dict.fromkeys(places, spec))
    for name, parameter in cell.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, 1.0, 0.5)
    return cell


@pytest.mark.parametrize("bias", [True, False])
def test_without_norms_it_is_torchs_cell(bias):
    torch.manual_seed(0)
    ours, torchs = NormLSTMCell(6, 8, bias=bias), nn.LSTMCell(6, 8, bias=bias)
    torchs.load_state_dict(ours.state_dict())
    x = inputs().requires_grad_()
    results = []
    for cell in (ours, torchs):
        h, c = unroll(cell, x)
        (h.square().sum() + c.sum()).backward()
        results.append([h, c, x.grad.clone(), *(parameter.grad for parameter in cell.parameters())])
        x.grad = None
    for a, b in zip(*results, strict=True):
        same(a, b)


def test_a_new_cell_is_initialized_as_torchs():
    torch.manual_seed(0)
    ours = NormLSTMCell(6, 8)
    torch.manual_seed(0)
    torchs = nn.LSTMCell(6, 8)
    for name, parameter in torchs.named_parameters():
        same(ours.get_parameter(name), parameter)


def naive_norm(values, groups, gamma, beta):
    """Normalize each of `groups` equal parts of a list by a loop."""
    size, result = len(values) // groups, []
    for k in range(groups):
        part = values[k * size : (k + 1) * size]
        mean = sum(part) / size
        var = sum((v - mean) ** 2 for v in part) / size
        result += [(v - mean) / (var + 1e-5) ** 0.5 for v in part]
    return [g * v + b for g, v, b in zip(gamma, result, beta, strict=True)]


@pytest.mark.parametrize(("spec", "groups"), [("ln", (1, 1, 1)), ("gn:4", (4, 4, 4)), ("gn:2", (2, 2, 2))])
def test_with_norms_it_is_a_naive_loop(spec, groups):
    cell = cell_with(spec).double()
    x = inputs().double()
    expected = []
    for sample in range(x.shape[1]):
        h, c = [0.0] * 8, [0.0] * 8
        for step in range(x.shape[0]):
            products = [(cell.weight_ih @ x[step, sample]).tolist(), (cell.weight_hh @ F64(h)).tolist()]
            norms = (cell.input_norm, cell.hidden_norm)
            a, b = (
                naive_norm(product, group, norm.weight.tolist(), norm.bias.tolist())
                for product, group, norm in zip(products, groups, norms, strict=False)
            )
            gates = F64(a) + F64(b) + cell.bias_ih + cell.bias_hh
            i, f, g, o = gates.view(4, 8)
            c = (f.sigmoid() * F64(c) + i.sigmoid() * g.tanh()).tolist()
            normalized = naive_norm(c, groups[2], cell.cell_norm.weight.tolist(), cell.cell_norm.bias.tolist())
            h = (o.sigmoid() * F64(normalized).tanh()).tolist()
        expected.append(h)
    same(unroll(cell, x)[0][-1], F64(expected))


@pytest.mark.parametrize("place", PLACES)
def test_each_norm_is_at_its_place(place):
    cell, plain = cell_with("ln", [place]), cell_with("ln", [])
    assert [name for name, child in cell.named_children() if not isinstance(child, nn.Identity)] == [place]
    assert not torch.allclose(unroll(cell, inputs())[0], unroll(plain, inputs())[0])


def test_gn_with_one_group_per_gate_is_a_layer_norm_per_gate_and_not_ln_or_gn_32():
    x = inputs(size=16)[0]
    torch.manual_seed(0)
    cells = {spec: NormLSTMCell(16, 64, input_norm=spec) for spec in ("gn:4", "ln", "gn:32")}
    for cell in cells.values():
        cell.load_state_dict(cells["gn:4"].state_dict())
    gates = (x @ cells["gn:4"].weight_ih.T).view(5, 4, 64)
    per_gate = nn.functional.layer_norm(gates, [64]).view(5, 256)
    same(cells["gn:4"].input_norm(gates.view(5, 256)), per_gate)
    outputs = {spec: cell(x)[0] for spec, cell in cells.items()}
    assert not torch.allclose(outputs["gn:4"], outputs["gn:32"], atol=1e-2)
    assert not torch.allclose(outputs["gn:4"], outputs["ln"], atol=1e-4)


def test_norms_that_keep_samples_separate_do_not_depend_on_the_batch():
    for spec in ("ln", "gn:4", "ln+gn:4"):
        cell, x = cell_with(spec).double(), inputs().double()  # float32 products of 2 and 4 rows round differently
        same(unroll(cell, x)[0][:, :2], unroll(cell, x[:, :2])[0])


def test_bn_has_running_statistics_of_all_steps_for_inference():
    cell, x = cell_with("bn"), inputs()
    unroll(cell, x)
    assert int(cell.input_norm.num_batches_tracked) == len(x)
    cell.eval()
    same(unroll(cell, x)[0][:, :1], unroll(cell, x[:, :1])[0])


def test_unusable_arguments_are_refused():
    with pytest.raises(anynorm.SpecError, match="input_size and hidden_size must be at least 1; got 0 and 4"):
        NormLSTMCell(0, 4)
    with pytest.raises(anynorm.SpecError, match="must not take a class or style; got ccbn@3"):
        NormLSTMCell(4, 4, cell_norm="ccbn@3")
    with pytest.raises(anynorm.SpecError, match=r"gn:32 .*16"):
        NormLSTMCell(4, 4, input_norm="gn:32")
    with pytest.raises(anynorm.ShapeError, match=r"x must be of shape \(n, 4\); got \(2, 5\)"):
        NormLSTMCell(4, 4)(torch.zeros(2, 5))
