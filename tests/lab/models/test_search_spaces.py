"""Search spaces: cells as texts, supernets and their paths, networks of fixed cells, and what is refused."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.models.search import build_supernet
from anynorm.lab.models.search.nasbench201.cells import encode_operations
from anynorm.lab.models.search.nasbench201.network import NasBench201
from anynorm.lab.models.search.nasbench201.notation import EDGES, OP_NAMES, format_cell, is_connected, parse_cell
from anynorm.lab.models.search.nasbench201.operations import ConvNorm
from anynorm.lab.models.search.supernet import MultinomialDraw, Supernet, first_operations
from anynorm.lab.tasks.search.norms import set_supernet_norms
from anynorm.lab.training.config import Config, hash_sources
from tests.helpers import data as float_data
from tests.helpers import same

DIGITS = DataShape(1, 8, 8, 10)
CELL = [3, 2, 1, 4, 3, 0]


def data(*shape):
    return float_data(*shape, dtype=torch.float64)


def tiny(norm="bn"):
    torch.manual_seed(0)
    supernet = NasBench201(DIGITS, 0.5, 1)
    set_supernet_norms(supernet, Config(norm=norm, batch_size=4))
    return supernet.double()


# Cells ----------------------------------------------------------------------------------------------------------------------


def test_a_cell_is_read_in_both_notations():
    for ops in ([0] * 6, [4, 3, 2, 1, 0, 4], CELL):
        assert parse_cell(format_cell(ops)) == ops
        assert parse_cell(",".join(map(str, ops))) == ops


@pytest.mark.parametrize(
    "text", ["", "3,3,3", "3,3,3,3,3,5", "|none~0|", format_cell(CELL).replace("~2", "~1"), format_cell(CELL) + "x"]
)
def test_a_text_that_is_not_a_cell_is_refused(text):
    with pytest.raises(anynorm.DataError, match=r"a cell must be in the form \|none~0\|.* or six of their numbers .*; got"):
        parse_cell(text)


def test_a_cell_is_connected_if_a_path_has_no_none():
    paths = [[(3, 0)], [(1, 0), (3, 1)], [(2, 0), (3, 2)], [(1, 0), (2, 1), (3, 2)]]
    for ops in itertools.product((0, 3), repeat=6):
        present = {edge for edge, op in zip(EDGES, ops, strict=True) if op}
        assert is_connected(ops) == any(set(path) <= present for path in paths)


def test_a_cell_that_is_not_connected_is_refused():
    with pytest.raises(anynorm.DataError, match=r"the output of a cell must depend on its input; every path of \|nor_conv_3x3~0"):
        build_model("nasbench201:3,3,3,0,0,0", DIGITS)


# Networks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cell", "count"), [("3,3,3,3,3,3", 1_531_546), ("1,1,1,1,1,1", 73_306)])
def test_a_network_has_the_benchmarks_number_of_parameters(cell, count):
    with torch.device("meta"):
        network = build_model(f"nasbench201:{cell}", DataShape(3, 32, 32, 10))
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def naive_cell(cell, x, weights):
    """Return the last node of a mixed cell, by loops over its edges and operations; batch norm without affine by hand."""

    def convolve(op, x):
        y = nn.functional.conv2d(x.relu(), op.conv.weight, padding=op.conv.weight.shape[-1] // 2)
        return (y - y.mean((0, 2, 3), keepdim=True)) / (y.var((0, 2, 3), keepdim=True, correction=0) + 1e-5).sqrt()

    def pool(x):
        counts = nn.functional.conv2d(torch.ones_like(x[:1, :1]), x.new_ones(1, 1, 3, 3), padding=1)
        kernel = x.new_ones(x.shape[1], 1, 3, 3)
        return nn.functional.conv2d(x, kernel, padding=1, groups=x.shape[1]) / counts

    nodes = [x, 0, 0, 0]
    for e, (i, j) in enumerate(EDGES):
        _, _, conv1, conv3, _ = cell.edges[e]
        outputs = [0 * nodes[j], nodes[j], convolve(conv1, nodes[j]), convolve(conv3, nodes[j]), pool(nodes[j])]
        nodes[i] = nodes[i] + sum(weights[e, o] * outputs[o] for o in range(5))
    return nodes[3]


def test_a_mixed_cell_is_the_sum_of_all_operations_weighted_by_softmax():
    supernet = tiny("bn.none")
    with torch.no_grad():
        supernet.alphas["cell"].normal_()
    alpha = supernet.alphas["cell"].detach()
    weights = alpha.exp() / alpha.exp().sum(1, keepdim=True)
    cell, x = supernet.network.cells[0], data(4, 8, 6, 6)
    same(cell(x, supernet.selection("cell"), [0] * 4), naive_cell(cell, x, weights))
    with supernet.path({"cell": CELL}):
        same(cell(x, supernet.selection("cell"), [0] * 4), naive_cell(cell, x, nn.functional.one_hot(torch.tensor(CELL), 5)))


def test_a_path_is_the_network_of_its_cell():
    supernet, x = tiny(), data(4, 1, 8, 8)
    network = supernet.build(format_cell(CELL)).double()
    own = {name.replace("network.", "", 1): value for name, value in supernet.state_dict().items()}
    names = {name: name.split(".") for name in network.state_dict()}
    for parts in names.values():
        if parts[0] == "cells":  # cells.0.edges.2.conv.weight is cells.0.edges.2.OP.conv.weight of the supernet
            parts.insert(4, str(CELL[int(parts[3])]))
    network.load_state_dict({name: own[".".join(parts)] for name, parts in names.items()})
    with supernet.path({"cell": torch.tensor(CELL)}):
        same(supernet(x), network(x))
    assert not torch.allclose(supernet(x), network(x))


def test_weights_and_alphas_are_all_parameters():
    supernet = tiny()
    assert len(supernet.weight_parameters()) + 1 == len(list(supernet.parameters()))
    assert [tuple(alpha.shape) for alpha in supernet.alpha_parameters()] == [(6, 5)]
    same(supernet.probabilities("cell").sum(1), torch.ones(6, dtype=torch.float64))
    with torch.no_grad():
        supernet.alphas["cell"][range(6), CELL] = 1
    assert supernet.architecture() == format_cell(CELL)
    assert supernet.choice()["cell"].tolist() == CELL


# Conditions -----------------------------------------------------------------------------------------------------------------


def test_the_code_of_a_node_has_the_operations_into_it_as_digits():
    for ops in ([1, 2, 3, 4, 0, 2], CELL, [4] * 6):
        first, second = (int(digits, 5) for digits in (f"{ops[0]}", f"{ops[1]}{ops[2]}"))
        assert encode_operations(ops)[:3] == [0, first, second]


def test_a_norm_out_of_node_j_has_five_to_the_j_classes():
    supernet = tiny("sabn@K")
    modules = dict(supernet.named_modules())
    for path, count in supernet.num_conditions().items():
        edge = int(path.split("edges.")[1].split(".")[0])
        assert modules[path].norm_spec.num_classes == count == 5 ** EDGES[edge][1]
    others = [m for p, m in modules.items() if isinstance(m, anynorm.Norm) and p not in supernet.num_conditions()]
    assert [str(module.norm_spec) for module in others] == ["bn"] * 6


def conditions_of(supernet, x):
    """Return the conditions that norms get in a forward pass, by cell and source node."""
    seen: dict[tuple[str, int], set[int]] = {}
    handles = []
    for name, module in supernet.named_modules():
        if isinstance(module, ConvNorm) and ".edges." in name:
            _, _, cell, _, edge, _ = name.split(".")
            key = cell, EDGES[int(edge)][1]
            handles.append(
                module.norm.register_forward_pre_hook(lambda _, args, key=key: seen.setdefault(key, set()).add(int(args[1])))
            )
    supernet(x)
    for handle in handles:
        handle.remove()
    return seen


def test_norms_get_one_drawn_code_per_node_cell_and_pass():
    supernet, x = tiny("ccbn@K"), data(4, 1, 8, 8)
    generator = torch.Generator().manual_seed(3)
    with supernet.set_condition_sampler(MultinomialDraw(generator)):
        passes = [conditions_of(supernet, x) for _ in range(4)]
    again = torch.Generator().manual_seed(3)
    for seen in passes:
        ops = torch.multinomial(supernet.probabilities("cell").detach().float(), 3, replacement=True, generator=again).T
        expected = [encode_operations(row) for row in ops.tolist()]
        assert seen == {(str(cell), node): {expected[cell][node]} for cell in range(3) for node in range(3)}
    assert len({str(seen) for seen in passes}) == 4


def test_codes_are_zero_without_sampling_those_of_a_path_or_of_the_likeliest_operations():
    supernet, x = tiny("ccbn@K"), data(4, 1, 8, 8)
    with supernet.set_condition_sampler(first_operations):
        assert set().union(*conditions_of(supernet, x).values()) == {0}
    with supernet.path({"cell": CELL}):
        codes = conditions_of(supernet, x)
    assert codes["0", 1] == {3}  # edge 4 is a convolution
    codes = conditions_of(supernet, x)
    assert all(codes["2", node] == {encode_operations(supernet.choice()["cell"].tolist())[node]} for node in range(3))


def test_draws_have_the_frequencies_of_the_probabilities():
    probabilities = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    drawn = MultinomialDraw(torch.Generator().manual_seed(0))(probabilities, 20_000)
    for edge in range(2):
        counts = torch.bincount(drawn[:, edge], minlength=3)
        same(counts / 20_000, probabilities[edge], atol=0.02, rtol=0)  # 5 standard deviations of a frequency


# What is refused, and what a failure leaves behind ----------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [[0] * 5, [5] * 6, [-1] * 6, [0.0] * 6])
def test_a_path_that_is_not_one_of_the_space_is_refused(choice):
    supernet = tiny()
    refused = pytest.raises(anynorm.DataError, match=r"a path must have 6 operation indices in \[0, 5\); got")
    with refused, supernet.path({"cell": choice}):
        pass
    assert supernet._choice == {}


def test_a_path_needs_every_kind_of_cell():
    with (
        pytest.raises(anynorm.DataError, match="a path must have operations for cell; got normal"),
        tiny().path({"normal": CELL}),
    ):
        pass


def fail():
    raise ZeroDivisionError


def test_path_and_draw_end_with_their_block_even_if_it_fails():
    supernet = tiny()
    draw = supernet._draw
    with pytest.raises(ZeroDivisionError), supernet.path({"cell": CELL}), supernet.set_condition_sampler(first_operations):
        fail()
    assert supernet._choice == {}
    assert supernet._draw is draw


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (
            "sabn@5",
            "sabn@5 has 5 classes; the operations before 'network.cells.0.edges.5.2.norm' have 25 combinations. Usable: @25",
        ),
        ("adain", "must take operations as classes or no condition; got adain, which takes a style"),
        ("xbn=gn:4", "norms of a supernet must be a spec, or several that alternate; got xbn=gn:4"),
    ],
)
def test_norms_that_do_not_fit_a_supernet_are_refused(norm, message):
    with pytest.raises(anynorm.SpecError, match=message):
        tiny(norm)


def test_classes_need_norms_that_are_conditioned_on_operations(monkeypatch):
    monkeypatch.setattr(NasBench201, "num_conditions", Supernet.num_conditions)
    with pytest.raises(anynorm.SpecError, match="ccbn@10 takes classes, and this supernet has no norms that are conditioned"):
        tiny("ccbn@10")


def test_a_larger_number_of_classes_than_codes_is_accepted_and_layouts_alternate():
    specs = [str(m.norm_spec) for m in tiny("gn:4~ccbn@30").modules() if isinstance(m, anynorm.Norm)]
    assert specs[:4] == ["gn:4", "ccbn@30", "gn:4", "ccbn@30"]


def make_linear():
    return nn.Linear(1, 1)


def make_own(shape):
    return NasBench201(shape, 0.5, 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18", "a search needs a space; got the model 'resnet18'. Usable: nasbench201"),
        ("nasbench201:3,3,3,3,3,3", "a search needs a space; got the model 'nasbench201:3,3,3,3,3,3'"),
        (f"{__name__}:make_linear", "must return an anynorm.lab.models.search.Supernet; got Linear"),
    ],
)
def test_a_model_that_is_not_a_supernet_is_refused(name, message):
    with pytest.raises(anynorm.DataError, match=message):
        build_supernet(name, DIGITS)


def test_a_supernet_of_ones_own_has_a_name():
    assert build_supernet(f"{__name__}:make_own", DIGITS).num_cells == 1


def test_a_supernet_is_not_a_model_and_an_architecture_is():
    with pytest.raises(anynorm.DataError, match=r"a network needs an architecture; got the model .nasbench201\.n1"):
        build_model("nasbench201.n1", DIGITS)
    network: Any = build_model("nasbench201.n2:" + format_cell(CELL), DIGITS, 0.5)
    assert network(float_data(2, 1, 8, 8)).shape == (2, 10)
    assert len(network.cells) == 6
    assert hash_sources(replace(Config(), model="nasbench201.n2:3,2,1,4,3,0")) == ""


def test_operations_are_those_of_the_benchmark():
    assert OP_NAMES == ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
    assert [f"{node}<-{source}" for node, source in EDGES] == ["1<-0", "2<-0", "2<-1", "3<-0", "3<-1", "3<-2"]
