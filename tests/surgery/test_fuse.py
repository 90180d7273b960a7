"""`fuse` keeps outputs, gradients and statistics, leaves alone what it cannot fuse, and can be undone."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

import anynorm
from anynorm.core.activation import Activation
from anynorm.layers.norm import Norm
from anynorm.surgery import fuse as fuse_module
from anynorm.surgery.block_forward import add_to_norm, fused_forward
from anynorm.surgery.new_norm import set_post_modules
from tests.helpers import data, same
from tests.surgery.fusable_networks import conv, fusable_network
from tests.surgery.networks import BatchNormAct2d, trained

X = data(6, 3, 12, 12)
NORMS = {
    "torch bn": nn.BatchNorm2d,
    "torch gn": lambda channels: nn.GroupNorm(4, channels),
    "bn": anynorm.layer("bn"),
    "hn:4": anynorm.layer("hn:4"),
    "brn": anynorm.layer("brn"),
    "0/bn.nobias": anynorm.layer("0/bn.nobias"),
}


def gradients(model, x):
    """Return the output, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    (y * torch.arange(y.numel()).reshape(y.shape).cos()).sum().backward()
    return [y.detach(), x.grad, *(parameter.grad.clone() for parameter in model.parameters())]


def fused_blocks(model):
    """Return the modules whose forward was replaced."""
    return [module for module in model.modules() if fused_forward(module)]


def activations_seen(model, x, monkeypatch):
    """Return the names of the activations that norms get in a forward pass, and the number of residuals."""
    seen: list[str] = []
    residuals = []
    normalize = Norm.normalize

    def spy(self, x, condition=None, residual=None, activation=None, **options):
        seen.extend([activation.name] if activation else [])
        residuals.extend([residual] if residual is not None else [])
        return normalize(self, x, condition, residual, activation, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Norm, "normalize", spy)
        model(x)
    return seen, len(residuals)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [True, False])
def test_a_fused_network_has_the_outputs_gradients_and_statistics_of_the_original(norm, training):
    model = trained(fusable_network(NORMS[norm])).train(training)
    fused = copy.deepcopy(model)
    state = copy.deepcopy(fused.state_dict())
    report = anynorm.fuse(fused, X)
    assert report.finding.startswith("11 of 11 activations and 4 additions fused; outputs changed by ")
    same(fused.state_dict(), state, rtol=0, atol=0)
    assert list(fused.state_dict()) == list(model.state_dict())
    for mode in (training, not training):
        for actual, expected in zip(gradients(fused.train(mode), X), gradients(model.train(mode), X), strict=True):
            same(actual, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()) + 1e-6)
        same(fused.state_dict(), model.state_dict(), rtol=1e-4, atol=1e-5)


def test_norms_get_the_activations_and_residuals(monkeypatch):
    model = fusable_network()
    assert activations_seen(model, X, monkeypatch) == ([], 0)
    report = anynorm.fuse(model, X)
    expected = ["hardswish", "relu", "relu", "relu", "relu", "relu", "relu", "relu6", "leaky_relu", "gelu_tanh", "silu"]
    # silu after an addition is a separate operation in the layer
    assert activations_seen(model, X, monkeypatch) == (expected, 4)
    assert report["3.bn3"]["fused"] == ["add", "relu"]
    assert report["5.norm"]["fused"] == ["add"]
    assert report["6.norm1"]["fused"] == ["leaky_relu"]
    assert report["7.norm1"]["note"] == "not fused: its output is added to that of another norm, which is fused"
    assert report["7.norm2"] == {"path": "7.norm2", "norm": "BatchNorm2d", "fused": ["add", "silu"], "block": "7"}
    assert report["3.downsample.1"]["note"] == "not fused: no addition or activation follows it"
    assert isinstance(model[3].downsample[1], nn.BatchNorm2d)  # a norm that is not fused is not replaced


def test_undo_restores_modules_forward_and_outputs():
    model = trained(fusable_network())
    modules, state = list(model.modules()), copy.deepcopy(model.state_dict())
    expected = model.eval()(X)
    report = anynorm.fuse(model, X)
    assert fused_blocks(model)
    assert report.undo() is model
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert not fused_blocks(model)
    same(model.state_dict(), state, rtol=0, atol=0)
    same(model(X), expected, rtol=0, atol=0)


def test_training_a_fused_network_also_trains_the_norms_that_undo_restores():
    model = trained(fusable_network())
    old = model[1]
    report = anynorm.fuse(model, X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients(model, X)
    optimizer.step()
    weight, mean = model[1].weight.clone(), model[1].running_mean.clone()
    report.undo()
    assert model[1] is old
    same(old.weight, weight, rtol=0, atol=0)
    same(old.running_mean, mean, rtol=0, atol=0)


def train_in_float64(model, optimizer):
    """Convert a network to float64 and train it for a step."""
    model.double()
    gradients(model, X.double())
    optimizer.step()


NEW_TENSORS = {
    "double": train_in_float64,
    "load_state_dict": lambda model, _: model.load_state_dict(
        {name: tensor + 1 for name, tensor in model.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("change", NEW_TENSORS)
def test_undo_keeps_the_current_tensors_where_they_have_been_replaced(change):
    model = trained(fusable_network())
    old = model[1]
    report = anynorm.fuse(model, X)
    NEW_TENSORS[change](model, torch.optim.SGD(model.parameters(), lr=0.1))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report.undo()
    assert model[1] is old
    same(model.state_dict(), state, rtol=0, atol=0)
    assert all(model.state_dict()[name].dtype == tensor.dtype for name, tensor in state.items())


def test_a_copy_of_a_fused_network_uses_its_own_modules():
    model = fusable_network().eval()
    anynorm.fuse(model, X)
    expected = model(X)
    other = copy.deepcopy(model)
    assert len(fused_blocks(other)) == len(fused_blocks(model))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    same(model(X), expected, rtol=0, atol=0)
    assert not other(X).any()


def test_a_fused_network_can_be_saved_and_loaded(monkeypatch):
    model = fusable_network().eval()
    anynorm.fuse(model, X)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    same(loaded(X), model(X), rtol=0, atol=0)
    assert activations_seen(loaded, X, monkeypatch) == activations_seen(model, X, monkeypatch)
    assert activations_seen(loaded, X, monkeypatch)[1] == 4


@pytest.mark.slow
def test_a_fused_network_can_be_compiled():
    model = trained(fusable_network()).eval()
    anynorm.fuse(model, X)
    expected = model(X)
    torch.compiler.reset()
    same(torch.compile(model, backend="eager", fullgraph=True)(X), expected, rtol=1e-4, atol=1e-5)


def test_a_fused_network_trains_like_the_original():
    model = fusable_network()
    fused = copy.deepcopy(model)
    anynorm.fuse(fused, X)
    images, labels = data(32, 3, 12, 12, seed=3), torch.arange(32) % 4
    losses = []
    for network in (model, fused):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        for _ in range(30):
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    same(losses[30:], losses[:30], rtol=2e-2, atol=2e-3)  # rounding errors grow from step to step
    assert losses[-1] < 0.5 * losses[30]


def test_activations_of_timm_norms_become_those_of_the_layer(monkeypatch):
    model: Any = nn.Sequential(conv(3, 8), BatchNormAct2d(8), conv(8, 8), BatchNormAct2d(8), conv(8, 8), BatchNormAct2d(8))
    model[3].act, model[5].act = nn.Identity(), nn.Softplus()
    model = nn.Sequential(nn.Sequential(*model[:4]), nn.ReLU6(), *model[4:])
    expected = gradients(model, X)
    model.load_state_dict(state := copy.deepcopy(model.state_dict()))
    report = anynorm.fuse(model, X)
    assert [row["fused"] for row in report] == [["relu"], [], []]
    assert model[0][1].activation == Activation("relu")
    assert not list(model[0][1].children())
    assert report["3"]["note"] == "not fused: it applies Softplus, which cannot be fused"
    for actual, value in zip(gradients(model, X), expected, strict=True):
        same(actual, value, rtol=1e-3, atol=1e-4)
    assert list(model.state_dict()) == list(state)
    report.undo()
    assert [name for name, _ in model[0][1].named_children()] == ["drop", "act"]


def test_an_identity_of_a_timm_norm_is_removed_where_an_addition_is_fused():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv(8, 8)
            self.bn: Any = BatchNormAct2d(8)
            setattr(self.bn, "act", nn.Identity())  # noqa: B010

        def forward(self, x):
            return self.bn(self.conv(x)) + x

    model: Any = nn.Sequential(conv(3, 8), Block())
    report = anynorm.fuse(model, X)
    assert report["1.bn"]["fused"] == ["add"]
    assert model[1].bn.post_modules == ()
    report.undo()
    assert [name for name, _ in model[1].bn.named_children()] == ["drop", "act"]


def block(forward, **children) -> Any:
    """Return a network with one block of 8 channels that has a convolution, a norm, an activation and a given forward."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.act, self.flag = conv(8, 8), nn.BatchNorm2d(8), nn.ReLU(), False
            for name, child in children.items():
                setattr(self, name, child)

    Block.forward = forward
    torch.manual_seed(0)
    return nn.Sequential(conv(3, 8), Block(), conv(8, 2))


def output_used_twice(self, x):
    y = self.norm(self.conv(x))
    return self.act(y) + y


def sum_used_twice(self, x):
    y = self.norm(self.conv(x)) + x
    return self.act(y) * y


def broadcast(self, x):
    return self.act(self.norm(self.conv(x)) + x.mean((2, 3), keepdim=True))


def scaled(self, x):
    return self.act(torch.add(self.norm(self.conv(x)), x, alpha=2))


def a_number(self, x):
    return self.act(self.norm(self.conv(x)) + 1)


def writes_argument(self, x):
    x += self.norm(self.conv(x))
    return x


def writes_alias(self, x):
    y = self.norm(self.conv(x))
    z = self.identity(x)
    z += y
    return z


def writes_view(self, x):
    y = x * 2
    z = y.flatten(1).reshape(y.shape)
    z += self.norm(self.conv(x))
    return z + y


def changes_input(self, x):
    h = self.conv(x)
    y = self.norm(h)
    r = h.mul_(2)
    return y + r


def by_mode(self, x):
    return self.act(self.norm(x)) if self.training else self.norm(x)


def functional_dropout(self, x):
    return functional.dropout(self.act(self.norm(x)), 0.5, self.training)


def by_value(self, x):
    return self.act(self.norm(x)) if x.sum() > 0 else self.norm(x)


def random_depth(self, x):
    return self.act(self.norm(x)) if torch.rand(()) < 2 else x


def sets_attribute(self, x):
    self.last = self.act(self.norm(x))
    return self.last


def without_autocast(self, x):
    with torch.autocast("cpu", enabled=False):
        return self.act(self.norm(x))


def without_gradient(self, x):
    with torch.no_grad():
        return self.act(self.norm(x))


def constant_tensor(self, x):
    return self.act(self.norm(x)) * torch.ones(8, 1, 1)


def any_arguments(self, *inputs):
    return self.act(self.norm(inputs[0]))


def norm_called_twice(self, x):
    y = self.norm(x)
    z = self.act(self.norm(3 * self.conv(x) + 2))
    return self.act(y + x) + z


def nothing(self, x):
    return self.conv(self.norm(x))


def unsupported_activation(self, x):
    return torch.tanh(self.norm(x))


def negative_slope(self, x):
    return functional.leaky_relu(self.norm(x), -0.1)


def dropout_before(self, x):
    return self.act(self.drop(self.norm(x)))


def users_dropout(self, x):
    return self.act(self.doubled(self.norm(x)))


def another_type(self, x):
    return self.norm(x) if isinstance(x, torch.Tensor) else self.act(self.norm(x))


class Dropout(nn.Dropout):
    """A class of a user with the name of an identity."""

    def forward(self, x):
        return x + x if self.training else x


ADDED = "the tensor that is added has another shape, dtype or device than the input of the norm"
WRITES = "the addition writes into a tensor that other operations may read"
REFUSED = {
    output_used_twice: "other operations use its output too",
    broadcast: ADDED,
    scaled: "the addition is not the sum of two tensors",
    a_number: "the addition is not the sum of two tensors",
    writes_argument: WRITES,
    writes_alias: WRITES,
    writes_view: WRITES,
    changes_input: "its input is changed before the addition",
    by_mode: "block '1': its forward differs between train and eval mode",
    functional_dropout: "block '1': its forward differs between train and eval mode",
    by_value: "block '1': torch.fx cannot trace it: symbolically traced variables cannot be used as inputs to control flow",
    random_depth: "block '1': its forward draws random numbers",
    sets_attribute: "block '1': its forward sets the attribute last",
    without_autocast: "block '1': its forward changes the gradient or autocast mode",
    without_gradient: "block '1': its forward changes the gradient or autocast mode",
    constant_tensor: "block '1': its forward computes a tensor that does not depend on its input",
    any_arguments: "block '1': its forward has no argument without a default",
    norm_called_twice: "the block calls it more than once",
    nothing: "no addition or activation follows it",
    unsupported_activation: "no addition or activation follows it",
    negative_slope: "no addition or activation follows it",
    users_dropout: "no addition or activation follows it",
    dropout_before: "no addition or activation follows it",
    another_type: "fusion in block '1' would change outputs, gradients or running statistics",
}


@pytest.mark.parametrize("forward", [*REFUSED, sum_used_twice], ids=lambda forward: forward.__name__)
def test_what_cannot_be_fused_stays_with_the_reason(forward):
    model = block(forward, drop=nn.Dropout(0.5), doubled=Dropout(0.0), identity=nn.Identity())
    expected = model.eval()(X)
    modules, attributes = list(model.modules()), set(vars(model[1]))
    state = torch.get_rng_state()
    report = anynorm.fuse(model, X)
    if forward is sum_used_twice:  # the addition is fused, the activation stays
        assert report["1.norm"]["fused"] == ["add"]
        same(model(X), expected, rtol=1e-4, atol=1e-5)
        return
    assert report["1.norm"]["note"] == f"not fused: {REFUSED[forward]}"
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert set(vars(model[1])) == attributes
    assert torch.equal(torch.get_rng_state(), state)
    same(model(X), expected, rtol=0, atol=0)


class Shared(nn.Module):
    """A block that calls a norm, then a block that calls the same norm, and adds the outputs."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.norm, self.act = inner, inner.norm, nn.ReLU()

    def forward(self, x):
        y = self.norm(x)
        z = self.inner(3 * x + 2)
        return self.act(y + z)


def test_a_norm_that_blocks_share_is_not_fused():
    model = nn.Sequential(conv(3, 8), Shared(block(simple)[1]))
    expected = copy.deepcopy(model)
    assert anynorm.fuse(model, X)["1.inner.norm"]["note"] == "not fused: several blocks share it"
    assert not fused_blocks(model)
    for network in (model, expected):
        network(X)
    same(model.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_change_of_running_statistics_is_an_error(monkeypatch):
    def call_twice(norm, x, residual, **options):
        norm(2 * x.detach() + 1)
        return add_to_norm(norm, x, residual, **options)

    model = fusable_network()
    monkeypatch.setattr(fuse_module, "_is_unchanging", lambda *_: True)
    monkeypatch.setattr(fuse_module, "add_to_norm", call_twice)
    with pytest.raises(anynorm.SurgeryError, match=r"running statistics by inf; nothing was changed"):
        anynorm.fuse(model, X)
    assert not fused_blocks(model)


def writes_new_tensor(self, x):
    y = self.identity(self.conv(x))
    y += self.norm(x)
    return self.act(y)


def test_an_addition_that_writes_into_a_tensor_which_nothing_else_reads_is_fused():
    model = block(writes_new_tensor, identity=nn.Identity())
    expected = model.eval()(X)
    assert anynorm.fuse(model, X)["1.norm"]["fused"] == ["add", "relu"]
    same(model(X), expected, rtol=1e-4, atol=1e-5)


def simple(self, x, shortcut=None, *, scale=1.0):
    y = self.norm(self.conv(x))
    y = y if shortcut is None else y + shortcut
    return self.act(y) * scale if self.flag else self.act(y)


def test_norms_and_activations_with_hooks_are_left_alone():
    model = block(simple)
    model[1].act.register_forward_hook(lambda *_: None)
    assert anynorm.fuse(model, X)["1.norm"]["note"] == "not fused: the activation 'act' has hooks"
    model = block(simple)
    model[1].norm.register_forward_hook(lambda *_: None)
    assert anynorm.fuse(model, X)["1.norm"]["note"] == "not fused: it has hooks or parametrizations"


CHANGES = {
    "an optional argument": lambda block, x: block(x, x),
    "an optional keyword": lambda block, x: block(x, scale=2.0),
    "an attribute": lambda block, x: with_attribute(block, "flag", True)(x, scale=3.0),
    "a hook on the activation": lambda block, x: [block.act.register_forward_hook(lambda *_: torch.ones(1)), block(x)][1],
    "a hook on the norm": lambda block, x: [block.norm.register_forward_hook(lambda *a: a[2] - 1), block(x)][1],
    "another activation": lambda block, x: with_attribute(block, "act", nn.SiLU())(x),
    "another norm": lambda block, x: with_attribute(block, "norm", nn.GroupNorm(2, 8))(x),
    "an activation of the norm": lambda block, x: with_attribute(block, "norm", anynorm.make("bn", 8, activation="silu"))(x),
    "a post module of the norm": lambda block, x: with_attribute(block, "norm", with_softplus(anynorm.make("bn", 8).eval()))(x),
    "a keyword": lambda block, x: block(x=x),
}


def with_softplus(norm):
    set_post_modules(norm, {"act": nn.Softplus()})
    return norm


def with_attribute(block, name, value):
    setattr(block, name, value)
    return block


@pytest.mark.parametrize("change", CHANGES)
def test_a_fused_block_has_the_output_of_its_own_forward_after_any_change(change):
    plain = block(simple).eval()
    fused = copy.deepcopy(plain)
    anynorm.fuse(fused, X)
    assert len(fused_blocks(fused)) == 1
    x = data(2, 8, 5, 5)
    same(CHANGES[change](fused[1], x), CHANGES[change](plain[1], x), rtol=1e-4, atol=1e-5)


def test_a_residual_of_another_dtype_is_added_separately():
    model = block(lambda self, x: self.act(self.norm(self.conv(x)) + x)).eval()
    expected = copy.deepcopy(model)
    anynorm.fuse(model, X)
    assert len(fused_blocks(model)) == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = data(2, 8, 5, 5)
        same(model[1](x), expected[1](x), rtol=1e-2, atol=1e-2)


class Mixed(nn.Module):
    """Activations after a norm, inside a norm, after a linear layer, and of a norm and a sum that are used twice."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([conv(8, 8) for _ in range(4)])
        self.norms: Any = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.GroupNorm(2, 8), BatchNormAct2d(8)])
        self.linear, self.act = nn.Linear(8, 8), nn.ReLU()

    def forward(self, x):
        x = self.act(self.norms[0](self.convs[0](x)))
        y = self.norms[1](self.convs[1](x))
        x = self.act(y) + y
        y = self.norms[2](self.convs[2](x)) + x
        x = functional.silu(y) * y
        x = self.norms[3](self.convs[3](x))
        return functional.gelu(self.linear(x.mean((2, 3))))


def test_every_activation_is_fused_or_has_a_reason():
    model = nn.Sequential(conv(3, 8), nn.ReLU6(), Mixed(), nn.SiLU())
    report = anynorm.fuse(model, X)
    assert report.finding.startswith("2 of 7 activations and 1 addition fused; ")
    reasons = {
        "no norm before it: conv2d": 1,
        "no norm before it: linear": 1,
        "no norm before it: gelu": 1,
        "other operations use its output too": 1,
        "other operations use the sum too": 1,
    }
    assert report.not_fused == reasons
    assert report.finding.endswith(
        " Activations not fused: 1 (no norm before it: conv2d), 1 (other operations use its output too), "
        "1 (other operations use the sum too), 2 others."
    )
    report.undo()
    assert anynorm.fuse(model, X, where="*.norms.3").not_fused["its norm is not chosen, or its block has other arguments"] == 3
    assert anynorm.fuse(block(by_mode)[1], data(6, 8, 4, 4)).not_fused == {
        "its block: its forward differs between train and eval mode": 1
    }
    assert anynorm.fuse(block(by_mode), X).not_fused == {"its block: its forward differs between train and eval mode": 1}


@pytest.mark.parametrize("network", ["optional argument", "not called"])
def test_the_reason_of_a_block_without_a_call_that_fits(network):
    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner: Any = block(simple)[1]

        def forward(self, x):
            y = self.inner.conv(x) if network == "not called" else self.inner(x, x)
            return torch.sigmoid(y)

    reasons = {"optional argument": "its calls have optional arguments", "not called": "it does not run on the example"}
    report = anynorm.fuse(nn.Sequential(conv(3, 8), Parent()), X, forward=lambda model, x: model(x))
    assert report["1.inner.norm"]["note"] == f"not fused: block '1.inner': {reasons[network]}"


def test_activations_of_a_graph_that_raises_are_counted_once(monkeypatch):
    model = block(simple)
    monkeypatch.setattr(fx.Interpreter, "run", raise_after_an_activation)
    report = anynorm.fuse(model, X)
    assert report.not_fused == {"its block: its graph raises KeyError": 1}


class ChangesList(nn.Module):
    """A block that writes into a list, which torch.fx does not allow in the values of a graph."""

    def forward(self, values):
        values[0] = torch.sigmoid(values[0])
        return values[0]


class CallsWithList(nn.Module):
    """Two blocks with fusable norms before a call whose argument is a list, and one after it, as in the HRNet of timm."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(8), block(simple)[1]
        self.first = nn.Sequential(block(simple)[1], BatchNormAct2d(8))
        self.change = ChangesList()

    def forward(self, x):
        return self.last(self.change([self.first(self.norm(x).relu())]))


def test_activations_of_blocks_inside_a_graph_that_raises_are_counted_once():
    report = anynorm.fuse(nn.Sequential(conv(3, 8), CallsWithList()), X)
    assert report.finding.startswith("3 of 4 activations and 0 additions fused; ")
    assert report.not_fused == {"its block: its graph raises TypeError": 1}


def raise_after_an_activation(self, x):
    functional.relu(x)
    raise KeyError


def test_a_layer_appended_to_a_fused_sequential_runs():
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU())
    anynorm.fuse(model, X)
    expected = model(X)
    model.append(nn.Flatten())
    same(model(X), expected.flatten(1))


def test_fused_blocks_are_not_fused_again():
    model = fusable_network()
    first = anynorm.fuse(model, X)
    again = anynorm.fuse(model, X)
    assert again.finding.startswith("0 of ")
    assert again["3.bn1"]["note"] == "not fused: block '3': its forward has been replaced"
    again.undo()
    first.undo()
    assert not fused_blocks(model)


def test_other_operations_work_on_a_fused_network():
    model = trained(fusable_network()).eval()
    expected = model(X)
    anynorm.fuse(model, X)
    assert anynorm.fold(model, X).finding.startswith("13 of 14 norms folded")
    same(model(X), expected, rtol=1e-3, atol=1e-4)
    model = trained(fusable_network()).eval()
    anynorm.fuse(model, X)
    report = anynorm.convert(model, "hn:4", fit=X)
    same(model(X), expected, rtol=1e-3, atol=1e-3)
    anynorm.recalibrate(model, [X])
    assert len(report) == 14
    assert len(fused_blocks(model)) == 7


def infer(model, x):
    with torch.inference_mode():
        return model(x)


def test_a_model_is_fused_in_inference_mode_and_on_inference_tensors():
    model = fusable_network().eval()
    expected = model(X)
    with torch.inference_mode():
        x = X.clone()
        report = anynorm.fuse(model, x)
    assert report.finding.startswith("11 of 11 activations and 4 additions fused; outputs changed by ")
    assert "gradients by" in report.finding
    assert torch.equal(x, X)
    same(model(X), expected, rtol=1e-4, atol=1e-5)
    report.undo()
    assert anynorm.fuse(model, x).finding.startswith("11 of 11 activations and 4 additions fused")
    model = fusable_network().eval()
    assert anynorm.fuse(model, X, forward=infer).finding.startswith("11 of 11 activations and 4 additions fused")


def test_a_model_made_in_inference_mode_is_refused():
    with torch.inference_mode():
        model = fusable_network()
    with pytest.raises(
        anynorm.SurgeryError, match=r"The tensors of this Sequential were made in torch.inference_mode\(\), .* Make"
    ):
        anynorm.fuse(model, X)


def test_only_chosen_norms_are_fused():
    model = fusable_network()
    report = anynorm.fuse(model, X, where="3.*")
    assert len(report) == 4
    assert fused_blocks(model) == [model[3]]


@pytest.mark.parametrize("training", [True, False])
def test_a_change_of_the_output_is_an_error_and_the_model_is_unchanged(monkeypatch, training):
    model = trained(fusable_network()).train(training)
    modules, state = list(model.modules()), copy.deepcopy(model.state_dict())
    rng = torch.get_rng_state()
    monkeypatch.setattr(fuse_module, "_is_unchanging", lambda *_: True)
    monkeypatch.setattr(fuse_module, "add_to_norm", lambda norm, x, residual, **_: norm(x))
    with pytest.raises(
        anynorm.SurgeryError, match=r"Fusion changed outputs by .*, gradients by .* and running .*; nothing was changed"
    ):
        anynorm.fuse(model, X)
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert not fused_blocks(model)
    same(model.state_dict(), state, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), rng)


def test_a_model_that_raises_after_fusion_is_unchanged(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    model = fusable_network()
    modules = list(model.modules())
    monkeypatch.setattr(fuse_module, "add_to_norm", interrupt)
    with pytest.raises(KeyboardInterrupt):
        anynorm.fuse(model, X)
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert not fused_blocks(model)


def test_convert_fuses_the_new_norms_and_undoes_both():
    model = trained(fusable_network())
    modules = list(model.modules())
    report = anynorm.convert(model, "gn:4", fuse=True, example=X)
    assert report["3.bn3"]["fused"] == ["add", "relu"]
    assert "14 of 14 norms are now gn:4. 11 of 11 activations and 4 additions fused" in report.finding
    assert model[1].spec == "gn:4"
    report.undo()
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert not fused_blocks(model)


def test_convert_without_an_example_does_not_fuse(monkeypatch):
    model = fusable_network()
    with pytest.raises(anynorm.SurgeryError, match="fuse=True needs an input of the model, example=…; got None"):
        anynorm.convert(model, "gn:4", fuse=True)
    assert isinstance(model[1], nn.BatchNorm2d)
    monkeypatch.setattr(fuse_module, "_is_unchanging", lambda *_: True)
    monkeypatch.setattr(fuse_module, "add_to_norm", lambda norm, x, residual, **_: norm(x))
    with pytest.raises(anynorm.SurgeryError, match="Fusion changed outputs"):
        anynorm.convert(model, "gn:4", fuse=True, example=X)
    assert isinstance(model[1], nn.BatchNorm2d)


def test_a_model_without_norms_is_refused():
    with pytest.raises(
        anynorm.SurgeryError, match="This Sequential has no norm that anynorm recognizes: there is nothing to fuse"
    ):
        anynorm.fuse(nn.Sequential(nn.ReLU()), X)
