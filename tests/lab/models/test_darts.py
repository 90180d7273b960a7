"""The DARTS space: published sizes, genotypes as texts, shapes, drop-path, gradients of α, and norms without an affine."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from anynorm.errors import DataError, SpecError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.models.search import build_supernet
from anynorm.lab.models.search.darts.cells import DropPath
from anynorm.lab.models.search.darts.evaluation_network import EvaluationNetwork, evaluation_network
from anynorm.lab.models.search.darts.genotype import GENOTYPES, NUM_EDGES, log_odds, parse_genotype, strongest_edges
from anynorm.lab.models.search.darts.layout import layout_cells
from anynorm.lab.models.search.darts.operations import OPERATIONS, FactorizedReduce, make_operation
from anynorm.lab.models.search.darts.search_network import Darts
from anynorm.lab.training.config import Config, hash_sources
from anynorm.lab.training.norm_layout import Layout
from tests.helpers import data, same

CIFAR, DIGITS = DataShape(3, 32, 32, 10), DataShape(1, 8, 8, 10)
PUBLISHED = {"v1": 3_169_414, "v2": 3_349_342}
"""Parameters of the evaluation networks on CIFAR-10 without auxiliary head: 3.2 and 3.3 million in the DARTS paper."""


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture
def supernet():
    torch.manual_seed(0)
    return Darts(DIGITS, width=0.25, num_cells=3)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_evaluation_network_has_the_published_size(name):
    with torch.device("meta"):
        network = evaluation_network(name, CIFAR, auxiliary=True)
    assert count(network) - count(network.auxiliary) == PUBLISHED[name]


def test_the_search_network_has_the_published_size():
    with torch.device("meta"):
        supernet = Darts(CIFAR)
    assert sum(parameter.numel() for parameter in supernet.weight_parameters()) == 1_930_618  # 1.93 million
    assert [tuple(alpha.shape) for alpha in supernet.alphas.values()] == [(14, 8), (14, 8)]


def test_cells_number_n_3_and_2n_3_reduce_and_double_the_channels():
    layouts = layout_cells(8, 16)
    assert [layout.reduces for layout in layouts] == [False, False, True, False, False, True, False, False]
    assert [layout.channels for layout in layouts] == [16, 16, 32, 32, 32, 64, 64, 64]
    assert [layout.in_channels for layout in layouts[:4]] == [(48, 48), (48, 64), (64, 64), (64, 128)]
    with pytest.raises(SpecError, match="must have at least 3 cells; got 2"):
        layout_cells(2, 16)


@pytest.mark.parametrize(("name", "stride", "search"), list(itertools.product(OPERATIONS, (1, 2), (False, True))))
def test_every_operation_keeps_the_channels_and_divides_the_size_by_the_stride(name, stride, search):
    operation = make_operation(name, 4, stride, search=search)
    for size in (8, 7):
        assert operation(data(2, 4, size, size)).shape == (2, 4, -(-size // stride), -(-size // stride))
    norms = [module for module in operation.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(norm.affine is not search for norm in norms)
    expected = {"none": 0, "skip_connect": int(stride == 2), "sep_conv_3x3": 2, "sep_conv_5x5": 2}
    expected |= dict.fromkeys(("max_pool_3x3", "avg_pool_3x3"), int(search))
    assert len(norms) == expected.get(name, 1)


def test_a_dilated_convolution_reads_every_second_pixel():
    operation: Any = make_operation("dil_conv_3x3", 1, 1, search=True).eval()
    x = torch.zeros(1, 1, 9, 9, requires_grad=True)
    (gradient,) = torch.autograd.grad(operation[1](x)[0, 0, 4, 4], x)
    assert gradient.nonzero()[:, 2:].tolist() == [[a, b] for a in (2, 4, 6) for b in (2, 4, 6)]


def test_a_factorized_reduction_reads_even_and_odd_pixels():
    reduce = FactorizedReduce(1, 2, affine=True).eval()
    reduce.even.weight.data.fill_(1)
    reduce.odd.weight.data.fill_(1)
    x = data(1, 1, 4, 4).abs()
    y = reduce(x) * (1 + reduce.norm.eps) ** 0.5
    same(y[0, 0], x[0, 0, ::2, ::2])
    same(y[0, 1], x[0, 0, 1::2, 1::2])


@pytest.mark.parametrize("name", GENOTYPES)
def test_a_genotype_as_a_text_is_read_back(name):
    genotype = parse_genotype(name)
    assert str(genotype) == GENOTYPES[name]
    assert parse_genotype(str(genotype)) == genotype


def test_a_genotype_has_the_two_edges_of_each_node_with_the_strongest_operation_except_none():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(NUM_EDGES, len(OPERATIONS), generator=generator)
    scores[:, 0] = 2  # none is the strongest everywhere
    cell = strongest_edges(scores)
    first = 0
    for number, node in enumerate(cell):
        rows = scores[first : first + number + 2, 1:].tolist()
        strength = {k: max(row) for k, row in enumerate(rows)}
        weakest_chosen = min(strength[k] for _, k in node)
        assert all(strength[k] <= weakest_chosen for k in strength if k not in {k for _, k in node})
        assert [name for name, _ in node] == [OPERATIONS[1 + rows[k].index(max(rows[k]))] for _, k in node]
        first += number + 2


BAD = {
    "v3": "must be one of v1 v2 or NORMAL//REDUCTION",
    "|a~0|a~1|//|a~0|a~1|": "a cell must have 4 nodes, separated by '\\+'; got 1",
    GENOTYPES["v2"].replace(
        "dil_conv_3x3~2", "dil_conv_7x7~2"
    ): "an operation of a genotype must be one of .*; got 'dil_conv_7x7'",
    GENOTYPES["v2"].replace("dil_conv_3x3~2", "none~2"): "an operation of a genotype must be one of .*; got 'none'",
    GENOTYPES["v2"].replace("dil_conv_3x3~2", "dil_conv_3x3~5"): "inputs of node 3 must be in 0 to 4; got 5",
    GENOTYPES["v2"].replace("dil_conv_3x3~2", "dil_conv_3x3~0"): "node 3 must have 2 edges from different inputs",
}


@pytest.mark.parametrize(("text", "message"), BAD.items(), ids=range(len(BAD)))
def test_a_text_that_is_no_genotype_is_an_error(text, message):
    with pytest.raises(DataError, match=message):
        parse_genotype(text)


def test_an_unknown_operation_is_an_error():
    with pytest.raises(SpecError, match=r"must be one of none .*; got 'conv'"):
        make_operation("conv", 4, 1, search=True)


def test_gradients_reach_every_alpha_and_every_weight(supernet):
    supernet(data(4, 1, 8, 8)).square().sum().backward()
    assert all((alpha.grad != 0).all() for alpha in supernet.alphas.values())
    assert all(parameter.grad is not None for parameter in supernet.weight_parameters())


def test_the_gradient_of_alpha_agrees_with_finite_differences(supernet):
    supernet.double().train()
    x = data(4, 1, 8, 8).double()
    for alpha in supernet.alphas.values():
        direction = torch.randn(alpha.shape, dtype=torch.double, generator=torch.Generator().manual_seed(1))
        (gradient,) = torch.autograd.grad(supernet(x).square().mean(), alpha)
        with torch.no_grad():
            losses = []
            for sign in (1e-5, -1e-5):
                alpha.add_(direction, alpha=sign)
                losses.append(supernet(x).square().mean())
                alpha.sub_(direction, alpha=sign)
        assert float((losses[0] - losses[1]) / 2e-5) == pytest.approx(float((gradient * direction).sum()), rel=1e-5)


def test_the_soft_mixture_at_a_one_hot_alpha_is_the_path(supernet):
    choice = {kind: torch.randint(0, 8, (14,), generator=torch.Generator().manual_seed(2)) for kind in supernet.alphas}
    with torch.no_grad():
        for kind, ops in choice.items():
            supernet.alphas[kind].copy_(200.0 * nn.functional.one_hot(ops, 8))
    x = data(4, 1, 8, 8)
    with supernet.path(choice):
        path = supernet(x)
    same(supernet(x), path)


def test_the_architecture_of_a_supernet_is_built_with_its_size(supernet):
    network = supernet.build(supernet.architecture())
    assert isinstance(network, EvaluationNetwork)
    assert len(network.cells) == 3
    assert network.stem[0].out_channels == supernet.stem[0].out_channels
    assert network(data(2, 1, 8, 8)).shape == (2, 10)


def test_norms_of_the_search_network_have_no_affine_except_the_stem(supernet):
    affine = [name for name, module in supernet.named_modules() if isinstance(module, nn.BatchNorm2d) and module.affine]
    assert affine == ["stem.1"]


def test_drop_path_keeps_the_expectation_and_drops_whole_samples():
    drop = DropPath()
    x = data(3, 2, 2, 2)
    assert drop(x) is x
    drop.p = 0.3
    torch.manual_seed(0)
    draws = torch.stack([drop(x) for _ in range(4000)])
    kept = (draws != 0).flatten(2)
    assert (kept.all(2) | ~kept.any(2)).all()
    frequency = kept.all(2).float().mean(0)
    assert (frequency - 0.7).abs().max() < 4 * (0.21 / 4000) ** 0.5  # four standard errors
    same(draws.mean(0), x * (frequency / 0.7)[:, None, None, None], rtol=1e-4, atol=1e-4)
    assert drop.eval()(x) is x


def test_the_auxiliary_head_is_used_in_training_alone():
    network = evaluation_network("v2", DIGITS, 0.12, 3, auxiliary=True)
    logits, auxiliary = network.forward_both(data(4, 1, 8, 8))
    assert logits.shape == auxiliary.shape == (4, 10)
    assert network.eval().forward_both(data(4, 1, 8, 8))[1] is None


def test_networks_of_the_space_are_models_by_name():
    model = build_model("darts.n3:v2", DIGITS, 0.12)
    same_model = build_model(f"darts.n3:{GENOTYPES['v2']}", DIGITS, 0.12)
    assert count(model) == count(same_model)
    assert isinstance(build_supernet("darts.n3", DIGITS, 0.25), Darts)
    assert hash_sources(Config(model=f"darts:{GENOTYPES['v2']}")) == ""


@pytest.mark.parametrize("norm", ["in", "ln", "gn:8", "pn", "bgn", "sn"])
def test_the_evaluation_network_takes_every_norm(norm):
    model = Layout.parse(norm, 4).apply(build_model("darts.n3:v2", DIGITS, 0.12))
    assert model(data(4, 1, 8, 8)).isfinite().all()


def test_edges_are_ranked_beyond_the_precision_of_a_softmax():
    alpha = torch.zeros(14, 8)
    alpha[:, 3] = 100 + torch.arange(14.0)
    assert float(alpha.softmax(1)[:, 3].min()) == 1.0
    assert [[k for _, k in node] for node in strongest_edges(log_odds(alpha))] == [[0, 1], [1, 2], [2, 3], [3, 4]]


def test_log_odds_rank_as_probabilities_where_these_differ():
    alpha = torch.randn(14, 8, generator=torch.Generator().manual_seed(0))
    assert strongest_edges(log_odds(alpha)) == strongest_edges(alpha.softmax(1))
