"""Norms change places: what is carried, what is kept around them, and nothing half done."""

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import anynorm
from anynorm.surgery.adapters import read, register
from anynorm.surgery.find import find_norms
from tests.helpers import ROWS, data, same


class Residual(nn.Module):
    """A block as people write them."""

    def __init__(self, inputs, width, stride=1, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), norm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), norm(width)
        self.downsample = None
        if stride > 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), norm(width))

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


def network(norm=nn.BatchNorm2d) -> Any:
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), norm(16), nn.ReLU()]
    return nn.Sequential(*stem, Residual(16, 16, norm=norm), Residual(16, 32, 2, norm=norm), nn.Flatten(2))


def trained(model):
    """Let statistics and affine be those of no fresh network."""
    torch.manual_seed(1)
    with torch.no_grad():
        for site in find_norms(model):
            for name, parameter in site.module.named_parameters():
                parameter.normal_(1.0 if "weight" in name else 0.0, 0.3)
    for _ in range(4):
        model(data(8, 3, 8, 8, mean=0.3, std=1.5))
    return model


X = data(4, 3, 8, 8)


def test_bn_becomes_bn_with_the_same_outputs_in_both_modes_and_the_same_state_dict():
    model = trained(network())
    twin = copy.deepcopy(model)
    report = anynorm.convert(model, "bn")
    assert report.model is model
    assert len(report) == 6
    assert list(model.state_dict()) == list(twin.state_dict())
    for mode in (True, False):
        same(model.train(mode)(X), twin.train(mode)(X), rtol=1e-4, atol=1e-5)
    for (key, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        same(a, b, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("spec", ["en", "en:4", "hn:4", "bgn:4", "bgn:8", "gbgn:2,4"])
def test_statistics_of_coarser_cuts_are_the_union_of_the_channels(spec):
    model: Any = nn.Sequential(nn.BatchNorm2d(8))
    x = data(16, 8, 6, 6) * torch.linspace(0.5, 3, 8)[:, None, None] + torch.linspace(-2, 2, 8)[:, None, None]
    model[0].momentum = 1.0
    model(x)
    report = anynorm.convert(model, spec)
    assert "statistics" in report["0"]["carried"]
    fresh = anynorm.make(spec.replace("gbgn:2,4", "en:4"), 8, momentum=1.0)
    fresh(x)
    same(model[0].running_var, fresh.running_var, rtol=0.02, atol=0.0)  # Bessel's correction is that of a channel
    same(model[0].running_mean, fresh.running_mean)


@pytest.mark.parametrize("spec", [row for row in ROWS if "@" not in row and "style" not in row and "adain" not in row])
def test_every_norm_goes_into_a_network_and_back(spec):
    model = trained(network())
    twin = copy.deepcopy(model)
    report = anynorm.convert(model, spec, groups="nearest")
    assert model.train()(X[:, :, :8]).isfinite().all()
    assert report.undo() is model
    same(model.eval()(X), twin.eval()(X))


@pytest.mark.parametrize("spec", ["hn", "hn:4", "en:8", "bgn:4", "bgn:16", "gbgn:2,4"])
def test_norms_with_kept_statistics_take_bn_s_place_without_changing_inference(spec):
    model = trained(network()).eval()
    with torch.no_grad():
        model[1].weight[3] = 0.0
    expected = model(X)
    report = anynorm.convert(model, spec, groups="nearest")
    assert "γ, β rescaled" in report["1"]["carried"] or spec == "bgn:16"
    same(model(X), expected, rtol=1e-4, atol=1e-4)


def test_conditional_norms_take_their_class_count_and_start_with_the_old_function():
    model = trained(network()).eval()
    expected = model(X)
    for spec, count in (("ccbn", "num_classes"), ("sabn", "num_classes"), ("auxbn", "num_domains"), ("saauxbn", "num_domains")):
        changed = copy.deepcopy(model)
        options: dict[str, Any] = {count: 3}
        report = anynorm.convert(changed, spec, **options)
        assert report["1"]["is"] == f"{spec}@3"
        with anynorm.condition(changed, torch.tensor([0, 1, 2, 0])):
            same(changed(X), expected, rtol=1e-4, atol=1e-5)


def test_bgn_takes_the_batch_size():
    assert anynorm.convert(network(), "bgn", batch_size=4)["1"]["is"] == "bgn:2"


@pytest.mark.parametrize(
    ("module", "shape", "spec"),
    [
        (nn.BatchNorm1d(8), (4, 8), "bn"),
        (nn.BatchNorm3d(8, eps=1e-3, momentum=None), (4, 8, 2, 3, 3), "bn"),
        (nn.BatchNorm2d(8, affine=False), (4, 8, 3, 3), "bn.none"),
        (nn.BatchNorm2d(8, track_running_stats=False), (4, 8, 3, 3), "bn"),
        (nn.InstanceNorm2d(8), (4, 8, 3, 3), "in.none"),
        (nn.InstanceNorm1d(8, affine=True), (4, 8, 9), "in"),
        (nn.GroupNorm(2, 8), (4, 8, 3, 3), "gn:2"),
        (nn.LayerNorm((8, 3, 3)), (4, 8, 3, 3), "ln"),
    ],
)
def test_torch_s_norms_are_read_as_what_they_are(module, shape, spec):
    if shape[1:] == (8,):
        module(data(6, 8))
    reading: Any = read(module)
    assert reading.spec == spec
    model, x = nn.Sequential(copy.deepcopy(module)), data(*shape)
    anynorm.convert(model, spec)
    for mode in (True, False):
        same(model.train(mode)(x), module.train(mode)(x), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_read_is_left_and_named():
    class Odd(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).tanh()

    model: Any = nn.Sequential(nn.BatchNorm2d(4), Odd(4), nn.LayerNorm(4), nn.InstanceNorm2d(4, track_running_stats=True))
    report = anynorm.convert(model, "gn:2")
    assert [type(module) for module in model[1:]] == [Odd, nn.LayerNorm, nn.InstanceNorm2d]
    assert "would be lost" in report["1"]["lost"][0]
    assert "not channel-first" in report["2"]["lost"][0]
    assert "Not converted: 1, 2, 3" in report.finding


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm writes it: a norm, a dropout and an activation in one."""

    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class FrozenBatchNorm2d(nn.Module):
    """As torchvision and detectron2 write it."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name, start in (("weight", 1.5), ("bias", 0.1), ("running_mean", 0.3), ("running_var", 2.0)):
            self.register_buffer(name, torch.full((channels,), start))

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]


class LayerNorm2d(nn.LayerNorm):
    """As torchvision and timm write it: over the channels of each position."""

    def forward(self, x):
        return nn.functional.layer_norm(x.movedim(1, -1), self.normalized_shape, self.weight, self.bias, self.eps).movedim(-1, 1)


@pytest.mark.parametrize(("module", "spec"), [(BatchNormAct2d(8), "bn"), (FrozenBatchNorm2d(8), "bn"), (LayerNorm2d(8), "pn")])
def test_norms_of_other_packages_keep_their_function_activation_and_frozen_state(module, spec):
    model, x = nn.Sequential(copy.deepcopy(module)), data(4, 8, 5, 5)
    keys = set(model.state_dict())
    anynorm.convert(model, spec)
    for mode in (True, False):
        same(model.train(mode)(x), module.train(mode)(x), rtol=1e-4, atol=1e-5)
    assert keys <= set(model.state_dict())
    assert anynorm.convert(model, "gn:2")["0"]["is"] == "gn:2"
    assert bool((model(x) >= 0).all()) == isinstance(module, BatchNormAct2d)


def test_a_class_of_one_s_own_can_be_taught():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.BatchNorm2d(4)

        def forward(self, x):
            return self.inner(x)

    register("Mine", lambda module: read(module.inner))
    model = nn.Sequential(Mine())
    assert anynorm.convert(model, "gn:2")["0"]["was"] == "Mine"


def test_where_takes_types_patterns_predicates_lists_and_says_what_is_near():
    def paths(where):
        return [row["path"] for row in anynorm.convert(network(), "gn:4", where)]

    assert paths("3.*") == ["3.bn1", "3.bn2"]
    assert paths(["1", "4.bn?"]) == ["1", "4.bn1", "4.bn2"]
    assert paths(lambda path, module: module.num_features == 32) == ["4.bn1", "4.bn2", "4.downsample.1"]
    assert len(paths(nn.BatchNorm2d)) == 6
    with pytest.raises(anynorm.SurgeryError, match=r"where='3\.bn3' finds no norm\. The model has 6, such as 3\.bn"):
        paths("3.bn3")
    with pytest.raises(anynorm.SurgeryError, match="no norm that is known"):
        anynorm.convert(nn.Linear(2, 2), "bn")


def test_groups_that_do_not_divide_are_all_named_before_anything_changes_or_made_to():
    model = network()
    before = [type(module) for module in model.modules()]
    with pytest.raises(
        anynorm.SurgeryError, match=r"(?s)3 layers cannot be converted; nothing was changed\..*nearest.*1 \(16 channels\)"
    ):
        anynorm.convert(model, "gn:32")
    assert [type(module) for module in model.modules()] == before
    report = anynorm.convert(model, "gn:32", groups="nearest")
    assert report["1"]["is"] == "gn:16"
    assert report["4.bn1"]["is"] == "gn:32"


def test_shared_modules_stay_shared_and_the_order_of_parameters_stays():
    norm = nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), norm, nn.Conv2d(4, 4, 1), norm, nn.Linear(3, 3))
    shapes = [p.shape for p in model.parameters()]
    report = anynorm.convert(model, "gn:2")
    assert model[1] is model[3]
    assert len(report) == 1
    assert [p.shape for p in model.parameters()] == shapes
    report.undo()
    assert model[1] is norm
    assert model[3] is norm


def test_device_dtype_mode_gradients_hooks_and_parametrizations_are_kept():
    model: Any = nn.Sequential(nn.BatchNorm2d(4).double().eval(), nn.BatchNorm2d(4))
    model[0].weight.requires_grad_(False)
    called = []
    model[0].register_forward_hook(lambda *_: called.append(1))
    parametrizations.weight_norm(model[1], "weight", dim=0)
    expected = model[1].weight.clone()
    anynorm.convert(model, "bn")
    assert model[0].weight.dtype == torch.float64
    assert not model[0].training
    assert model[1].training
    assert not model[0].weight.requires_grad
    assert model[0].bias.requires_grad
    model[0](data(2, 4, 3, 3).double())
    assert called == [1]
    assert parametrize.is_parametrized(model[1], "weight")
    same(model[1].weight, expected)


def test_the_root_itself_may_be_a_norm():
    root = nn.BatchNorm2d(4)
    report = anynorm.convert(root, "gn:2")
    assert report.model.spec == "gn:2"
    assert report.undo() is root


def test_an_optimizer_goes_on_with_groups_and_state():
    model = network()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() == 1]},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    model(X).sum().backward()
    optimizer.step()
    old = model[1].weight
    momentum = optimizer.state[old]["momentum_buffer"]
    report = anynorm.convert(model, "sn", optimizer=optimizer)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    assert optimizer.state[model[1].weight]["momentum_buffer"] is momentum
    assert any(model[1].mean_weight is p for p in optimizer.param_groups[1]["params"])
    optimizer.zero_grad()
    model(X).sum().backward()
    optimizer.step()
    report.undo()
    assert optimizer.state[old]["momentum_buffer"] is momentum
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_wrapped_and_scripted_models_are_refused_with_the_reason():
    class DistributedDataParallel(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    with pytest.raises(anynorm.SurgeryError, match=r"wrapped in DistributedDataParallel.*wrap it afterwards"):
        anynorm.convert(DistributedDataParallel(network()), "bn")
    with pytest.raises(anynorm.SurgeryError, match="TorchScript"):
        anynorm.convert(torch.jit.trace(network().eval(), X), "bn")
    with pytest.raises(anynorm.SurgeryError, match="not a str"):
        anynorm.convert("resnet", "bn")  # type: ignore[arg-type]


def test_a_failure_half_way_leaves_the_model_as_it_was(monkeypatch):
    from anynorm.surgery import convert as module

    model = network()
    before = list(model.modules())

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(module, "move_optimizer", fails)
    with pytest.raises(MemoryError):
        anynorm.convert(model, "gn:4", optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(a is b for a, b in zip(model.modules(), before, strict=True))


def test_a_report_is_a_table_and_data():
    report = anynorm.convert(network(), "gn:4")
    assert report.table().splitlines()[0].split() == ["path", "was", "is", "channels", "carried", "lost"]
    assert report.table().splitlines()[-1] == "6 of 6 norms are now gn:4."
    assert json.loads(report.json())["rows"][0]["path"] == "1"
