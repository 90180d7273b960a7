"""torch.fx and what is built on it takes our layers as it takes torch's: traced, quantized, trained, copied and retraced."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import anynorm
from tests.helpers import CHANNELS, condition_for, data, make, same

X = data(4, 3, 8, 8)


class Block(nn.Module):
    """Convolutions, two norms and a shortcut."""

    def __init__(self, norm: Any):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), norm(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), norm(8)

    def forward(self, x):
        y = self.norm1(self.conv1(x)).relu()
        return self.norm2(self.conv2(y)) + y


def network(spec: str) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(Block(anynorm.layer(spec)), nn.Conv2d(8, 4, 1))


class TracesAll(fx.Tracer):
    """A tracer of a user, without any leaf."""

    def is_leaf_module(self, m, module_qualified_name):
        return False


class TakesConvolutions(fx.Tracer):
    """A tracer of a user that names its leaves."""

    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, nn.Conv2d)


class Takes(fx.Tracer):
    """A tracer of a user with all norms as leaves."""

    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, anynorm.Norm | nn.Conv2d)


TRACERS = [fx.Tracer, TracesAll, TakesConvolutions, Takes]


@pytest.mark.parametrize("tracer", TRACERS)
def test_every_tracer_records_a_norm_as_one_call_of_a_module(tracer):
    model = network("hn:4")
    graph = tracer().trace(model)
    calls = [node.target for node in graph.nodes if node.op == "call_module" and "norm" in node.target]
    assert calls == ["0.norm1", "0.norm2"]
    assert all(list(node.kwargs) == [] and len(node.args) == 1 for node in graph.nodes if node.target in calls)
    same(fx.GraphModule(model, graph)(X), copy.deepcopy(model)(X))


@pytest.mark.parametrize("spec", ["bn", "hn:4", "gn:4", "in+ln+bn", "ibn", "brn", "gw:4"])
def test_a_traced_network_trains_as_the_network_itself(spec):
    model = network(spec)
    traced = fx.symbolic_trace(copy.deepcopy(model))
    for training in (True, True, False):
        losses = []
        for each in (model.train(training), traced.train(training)):
            each.zero_grad()
            loss = each(X).square().mean()
            loss.backward()
            losses.append(loss)
        same(losses[1], losses[0], rtol=0, atol=0)
        for ours, theirs in zip(traced.parameters(), model.parameters(), strict=True):
            same(ours.grad, theirs.grad, rtol=0, atol=0)
    assert {key: value.tolist() for key, value in traced.state_dict().items()} == {
        key: value.tolist() for key, value in model.state_dict().items()
    }


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, fx.symbolic_trace, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["copy", "trace", "pickle"],
)
def test_a_traced_network_can_be_copied_traced_again_and_pickled(copied):
    traced = fx.symbolic_trace(network("sn")).eval()
    restored = copied(traced)
    assert isinstance(restored, fx.GraphModule)
    same(restored(X), traced(X), rtol=0, atol=0)
    assert [node.op for node in restored.graph.nodes].count("call_module") == 5


class Conditional(nn.Module):
    """A network that passes a condition, a residual, an activation and a mask to its norms."""

    def __init__(self):
        super().__init__()
        self.labelled, self.plain = make("sabn@3"), make("gn:4")

    def forward(self, x, labels, mask):
        y = self.labelled(x, labels, residual=x, activation="relu")
        return self.plain(input=y, mask=mask, activation=nn.GELU())


def test_conditions_residuals_activations_and_masks_become_arguments_of_the_call():
    model = Conditional().eval()
    traced = fx.symbolic_trace(copy.deepcopy(model))
    x = data(4, CHANNELS, 6)
    labels, mask = condition_for(model.labelled, x), torch.arange(6) < torch.tensor([[6], [3], [2], [5]])
    same(traced(x, labels, mask), model(x, labels, mask), rtol=0, atol=0)
    first = next(node for node in traced.graph.nodes if node.target == "labelled")
    assert [str(each) for each in first.args] == ["x", "labels"]
    assert {name: str(value) for name, value in first.kwargs.items()} == {"residual": "x", "activation": "relu"}


class SetsCondition(nn.Module):
    """A network that sets the condition of its norms in its forward."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(make("sabn@3"), nn.ReLU())

    def forward(self, x, labels):
        with anynorm.condition(self, labels):
            return self.body(x)


def test_a_condition_that_is_set_in_the_traced_code_becomes_an_argument():
    model = SetsCondition().eval()
    traced = fx.symbolic_trace(copy.deepcopy(model))
    x = data(4, CHANNELS, 6)
    labels = torch.tensor([0, 2, 1, 0])
    same(traced(x, labels), model(x, labels), rtol=0, atol=0)
    assert model.body[0]._condition is None


class Steep(nn.Module):
    """A network with an activation that its name does not define."""

    def __init__(self):
        super().__init__()
        self.norm = make("gn:4")

    def forward(self, x):
        return self.norm(x, activation=nn.LeakyReLU(0.3))


def test_a_norm_that_is_traced_itself_and_an_activation_without_a_name_are_refused():
    with pytest.raises(anynorm.SpecError, match=r"must be inside of another one; got bn itself. Trace nn.Sequential\(norm\)"):
        fx.symbolic_trace(anynorm.make("bn", 8))
    with pytest.raises(anynorm.SpecError, match="records an activation by its name"):
        fx.symbolic_trace(Steep())


@pytest.mark.parametrize("training", [True, False])
def test_make_fx_traces_through_the_reference(training):
    model = network("bn").train(training)
    plain = copy.deepcopy(model)
    graph: Any = make_fx(copy.deepcopy(model))(X)
    same(graph(X), plain(X), rtol=1e-4, atol=1e-5)
    assert not [node for node in graph.graph.nodes if "anynorm" in str(node.target)]
    assert [node for node in graph.graph.nodes if "rsqrt" in str(node.target)]


def test_fx_fusion_leaves_our_norms_and_keeps_the_output():
    from torch.fx.experimental.optimization import fuse, remove_dropout

    for spec in ("bn", "sn"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make(spec, 8), nn.Dropout(0.5), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
        model(X)
        expected = copy.deepcopy(model).eval()(X)
        fused = remove_dropout(fuse(model.eval()))
        same(fused(X), expected, rtol=1e-4, atol=1e-5)
        assert [type(module) for module in fused.modules() if isinstance(module, anynorm.Norm | nn.BatchNorm2d)] == [
            type(model[1])
        ]


def test_a_folded_network_is_traced():
    model = network("bn").eval()
    expected = model(X)
    anynorm.fold(model, X)
    same(fx.symbolic_trace(model)(X), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("spec", ["bn", "gn:4"])
def test_fx_quantization_keeps_our_norms_in_floating_point(spec):
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    model = network(spec)
    for _ in range(3):
        model(X)
    model.eval()
    prepared = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping("x86"), (X,))
    prepared(X)
    quantized = convert_fx(prepared)
    assert isinstance(quantized.get_submodule("0.norm1"), anynorm.Norm)
    change = (quantized(X) - model(X)).norm() / model(X).norm()
    assert 0 < change < 0.1, change  # 0.04 for int8, one batch of calibration and weights that are not trained
