"""Norm classes of torch and other packages are read as the right spec, or refused with the reason."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.surgery.adapters import UnsupportedNormError, read_norm, register
from anynorm.surgery.find import find_norms
from tests.helpers import data, same
from tests.surgery.networks import BatchNormAct2d, FrozenBatchNorm2d, LayerNorm2d


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
        (nn.BatchNorm2d(8, bias=False), (4, 8, 3, 3), "bn.nobias"),
        (nn.GroupNorm(2, 8, bias=False), (4, 8, 3, 3), "gn:2.nobias"),
        (nn.LayerNorm((8, 3, 3), bias=False), (4, 8, 3, 3), "ln.nobias"),
    ],
)
def test_norms_of_torch_are_read_as_their_spec_and_converting_to_it_keeps_the_output(module, shape, spec):
    if shape[1:] == (8,):
        module(data(6, 8))
    info: Any = read_norm(module)
    assert info.spec == spec
    model, x = nn.Sequential(copy.deepcopy(module)), data(*shape)
    anynorm.convert(model, spec, where="all")
    for mode in (True, False):
        same(model.train(mode)(x), module.train(mode)(x), rtol=1e-4, atol=1e-5)


def test_unsupported_norms_stay_and_the_report_has_the_reason():
    class Odd(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).tanh()

    layer_norm = nn.LayerNorm((4, 3, 3))
    nn.init.normal_(layer_norm.weight)
    model: Any = nn.Sequential(nn.BatchNorm2d(4), Odd(4), layer_norm, nn.InstanceNorm2d(4, track_running_stats=True))
    report = anynorm.convert(model, "gn:2", where="all")
    assert [type(module) for module in model[1:]] == [Odd, nn.LayerNorm, nn.InstanceNorm2d]
    assert "may do more than normalize" in report["1"]["note"]
    assert "its affine differs between positions" in report["2"]["note"]
    assert "normalizes by them in eval mode" in report["3"]["note"]
    assert "Not converted: 1, 2, 3" in report.finding


def test_unknown_norm_classes_have_a_row_in_the_report():
    model = nn.Sequential(nn.BatchNorm2d(4), nn.LocalResponseNorm(2))
    assert "the class LocalResponseNorm is unknown" in anynorm.convert(model, "ln")["1"]["note"]
    assert "the class LocalResponseNorm is unknown" in anynorm.freeze(model)["1"]["note"]


def test_reading_an_unsupported_norm_raises_and_its_site_has_the_reason():
    with pytest.raises(UnsupportedNormError, match="the class LocalResponseNorm is unknown"):
        read_norm(nn.LocalResponseNorm(2))
    assert read_norm(nn.ReLU()) is None
    site = find_norms(nn.Sequential(nn.LocalResponseNorm(2)))[0]
    assert "the class LocalResponseNorm is unknown" in site.unsupported
    with pytest.raises(
        anynorm.SurgeryError, match=r"'0' \(LocalResponseNorm\) cannot be read: the class LocalResponseNorm is unknown"
    ):
        _ = site.info
    assert find_norms(nn.Sequential(nn.BatchNorm2d(4)))[0].unsupported == ""


def test_lazy_norms_are_refused_until_the_model_has_run():
    with pytest.raises(UnsupportedNormError, match="unknown before the first forward pass; run the model once"):
        read_norm(nn.LazyBatchNorm2d())


@pytest.mark.parametrize(("module", "spec"), [(BatchNormAct2d(8), "bn"), (FrozenBatchNorm2d(8), "bn"), (LayerNorm2d(8), "pn")])
def test_norms_of_other_packages_keep_their_output_activation_and_frozen_state(module, spec):
    model, x = nn.Sequential(copy.deepcopy(module)), data(4, 8, 5, 5)
    keys = set(model.state_dict())
    anynorm.convert(model, spec, where="all")
    for mode in (True, False):
        same(model.train(mode)(x), module.train(mode)(x), rtol=1e-4, atol=1e-5)
    assert keys <= set(model.state_dict())
    assert anynorm.convert(model, "gn:2", where="all")["0"]["new_norm"] == "gn:2"
    assert bool((model(x) >= 0).all()) == isinstance(module, BatchNormAct2d)


def test_a_subclass_with_an_activation_is_refused_if_it_does_something_else():
    class Odd(BatchNormAct2d):
        def forward(self, x):
            return x + self.act(nn.BatchNorm2d.forward(self, x))

    report = anynorm.convert(nn.Sequential(nn.BatchNorm2d(3), Odd(3)), "ln")
    assert "may do more than normalize" in report["1"]["note"]


def test_a_subclass_with_an_activation_is_read_whatever_its_name():
    class NormRelu(nn.BatchNorm1d):
        def __init__(self, channels):
            super().__init__(channels)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(super().forward(x))

    info: Any = read_norm(NormRelu(4))
    assert list(info.post_modules) == ["act"]


def test_a_reader_for_a_new_class_can_be_registered():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.BatchNorm2d(4)

        def forward(self, x):
            return self.inner(x)

    register("Mine", lambda module: read_norm(module.inner))
    model = nn.Sequential(Mine())
    assert anynorm.convert(model, "gn:2")["0"]["norm"] == "Mine"


class ForeignConditionalNorm(nn.Module):
    """Conditional batch norm as public code writes it, called with labels."""

    def __init__(self, affine):
        super().__init__()
        self.bn = nn.BatchNorm2d(4, affine=affine)
        self.gain, self.bias = nn.Embedding(3, 4), nn.Embedding(3, 4)

    def forward(self, x, labels):
        return self.gain(labels)[..., None, None] * self.bn(x) + self.bias(labels)[..., None, None]


register("ForeignConditionalNorm", lambda module: read_norm(module.bn).with_class_affine(module.gain.weight, module.bias.weight))


@pytest.mark.parametrize(("affine", "spec"), [(False, "bn.cc@3"), (True, "bn.sa@3")])
@pytest.mark.parametrize("new", ["ccbn@3", "sabn@3"])
def test_a_conditional_norm_of_another_package_keeps_its_output_and_is_called_as_before(affine, spec, new):
    x, labels = torch.randn(6, 4, 3, 3), torch.tensor([0, 1, 2, 2, 1, 0])
    old: Any = ForeignConditionalNorm(affine)
    if affine:
        nn.init.normal_(old.bn.weight), nn.init.normal_(old.bn.bias)
    old(x, labels)
    assert read_norm(old).spec == spec
    for training in (True, False):
        expected = copy.deepcopy(old).train(training)(x, labels)
        norm = anynorm.convert(copy.deepcopy(old), new).model.train(training)
        same(norm(x, labels), expected)


def test_a_class_affine_of_another_shape_is_refused():
    info: Any = read_norm(nn.BatchNorm2d(4))
    with pytest.raises(UnsupportedNormError, match=r"must have shape \(number of classes, 4\); got \(4, 3\)"):
        info.with_class_affine(torch.ones(4, 3), torch.ones(4, 3))
