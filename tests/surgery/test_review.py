"""What a review broke once: each stays mended."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import anynorm
from tests.helpers import data, same
from tests.surgery.test_convert import BatchNormAct2d, X, network, trained


@pytest.mark.parametrize(("spec", "operation"), [("sn", anynorm.harden), ("sabn@3", anynorm.merge)])
def test_settled_norms_keep_their_activation_and_their_optimizer(spec, operation):
    model: Any = trained(nn.Sequential(nn.Conv2d(3, 8, 3), BatchNormAct2d(8)))
    anynorm.convert(model, spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    operation(model, optimizer=optimizer)
    with anynorm.condition(model, 1) if "@" in spec else torch.no_grad():
        assert bool((model.eval()(X) >= 0).all())
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}


class Auxiliary(nn.Module):
    """A head that training alone uses."""

    def __init__(self):
        super().__init__()
        self.main, self.aux = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        return (self.main(x), self.aux(x)) if self.training else self.main(x)


def test_norms_and_domains_that_no_sample_reaches_keep_their_statistics():
    model: Any = trained(Auxiliary())
    before = model.aux.running_mean.clone()
    report = anynorm.recalibrate(model, [X])
    same(model.aux.running_mean, before)
    assert "left as it was" in report["aux"]["note"]
    assert "1 of 2 norms" in report.finding
    domains: Any = nn.Sequential(anynorm.make("auxbn@3", 3))
    with anynorm.condition(domains, torch.tensor([0, 1, 2, 2])):
        domains(X)
    kept = domains[0].running_mean.clone()
    with anynorm.condition(domains, torch.tensor([0, 0, 1, 1])):
        anynorm.recalibrate(domains, [X])
    same(domains[0].running_mean[2], kept[2])
    assert not torch.allclose(domains[0].running_mean[0], kept[0])


def test_what_fits_exactly_is_not_touched_by_fitting():
    model = trained(network()).eval()
    expected = model(X)
    for row in anynorm.convert(model, "bn", fit=data(32, 3, 8, 8)):
        assert row["error_before"] < 1e-5
    same(model(X), expected, rtol=1e-4, atol=1e-5)


def test_fitting_refuses_models_that_move_samples_about():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, batch):
            return self.bn(self.conv(torch.cat([batch["a"], batch["b"]])))

    with pytest.raises(anynorm.SurgeryError, match="moves the samples about"):
        anynorm.convert(Siamese(), "ln", fit={"a": X, "b": X + 1})


def test_fitting_takes_a_forward_of_one_s_own_with_conditions():
    model = trained(network())
    anynorm.convert(model, "sabn@3")
    with torch.no_grad():
        model[1].class_weight.normal_(1, 0.3)
    expected = copy.deepcopy(model).eval()

    def forward(model, batch):
        with anynorm.condition(model, batch[1]):
            return model(batch[0])

    labels = torch.tensor([0, 1, 2, 0])
    report = anynorm.convert(model, "gn:4.sa@3", fit=[(X, labels)], forward=forward)
    assert all(row["error_after"] < row["error_before"] for row in report)
    assert relative(forward(model.eval(), (X, labels)), forward(expected, (X, labels))) < 0.9


def relative(a, b):
    return float(((a - b).norm() / b.norm()).detach())


@dataclass
class Outputs:
    features: torch.Tensor
    y: torch.Tensor


def test_folding_sees_uses_in_objects_and_is_not_blinded_by_infinity():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x):
            h = self.conv(x)
            return Outputs(h, self.bn(h))

    assert "to others too" in anynorm.fold(trained_outputs(Both()), X)["bn"]["left"]

    class Standardised(nn.Conv2d):
        def forward(self, x):
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            return nn.functional.conv2d(x, weight / weight.std((1, 2, 3), keepdim=True), self.bias)

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = Standardised(3, 8, 3), nn.BatchNorm2d(8)
            self.last, self.bn2 = nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.bn2(self.last(self.bn(self.conv(x)).relu())).mean((2, 3))
            return {"logits": y.masked_fill(torch.arange(4) == 2, -torch.inf), "mask": y > 0}

    model = trained(Masked()).eval()
    expected = model(X)["logits"]
    report = anynorm.fold(model, X)
    assert "would change the output" in report["bn"]["left"]
    assert report["bn2"]["into"] == "last"
    same(model(X)["logits"], expected, rtol=1e-4, atol=1e-4)


def trained_outputs(model):
    for _ in range(3):
        model(data(8, 3, 8, 8, mean=0.3))
    return model.eval()


def test_folding_leaves_odd_weights_takes_bfloat16_and_conditions_given_to_the_norm():
    model: Any = nn.Sequential(parametrize_conv(), nn.BatchNorm2d(8))
    assert "computed from others" in anynorm.fold(model.eval(), X)["1"]["left"]
    half = trained(network()).to(torch.bfloat16).eval()
    assert "6 of 6" in anynorm.fold(half, X.to(torch.bfloat16)).finding

    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 8, 3), anynorm.make("sabn@3", 8)

        def forward(self, x, y):
            return self.bn(self.conv(x), y)

    told: Any = Told().eval()
    called = []
    told.bn.register_forward_hook(lambda *_: called.append(1))
    expected = told(X, 2)
    anynorm.fold(told, (X, 2), condition=2)
    called.clear()
    same(told(X, 2), expected, rtol=1e-4, atol=1e-5)
    assert called == [1]


def parametrize_conv():
    conv = nn.Conv2d(3, 8, 3)
    parametrize.register_parametrization(conv, "weight", nn.Identity())
    return conv


def test_affine_that_was_not_there_is_said_rescaled_and_trained():
    model: Any = trained(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False))).eval()
    expected = model(X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = anynorm.convert(model, "hn", optimizer=optimizer)
    assert report["1"]["carried"][0] == "new γ, β rescaled"
    same(model(X), expected, rtol=1e-4, atol=1e-4)
    assert any(model[1].weight is p for p in optimizer.param_groups[0]["params"])


def test_a_fused_child_is_believed_only_where_it_does_what_it_seems():
    class Odd(BatchNormAct2d):
        def forward(self, x):
            return x + self.act(nn.BatchNorm2d.forward(self, x))

    assert "would be lost" in anynorm.convert(nn.Sequential(nn.BatchNorm2d(3), Odd(3)), "ln")["1"]["lost"][0]


def test_frozen_and_synchronised_norms_own_the_same_parameters():
    for operation in (anynorm.sync, lambda model: anynorm.freeze(model, affine=False)):
        model = trained(network())
        weights = [model[1].weight, model[3].bn1.bias]
        operation(model)
        assert model[1].weight is weights[0]
        assert model[3].bn1.bias is weights[1]


def test_norms_that_are_not_known_have_a_row():
    model = nn.Sequential(nn.BatchNorm2d(4), nn.RMSNorm(4))
    assert "is not known" in anynorm.convert(model, "ln")["1"]["lost"][0]
    assert "is not known" in anynorm.freeze(model)["1"]["left"]


def test_pre_activation_blocks_are_found_and_u_nets_are_none():
    class PreAct(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn1, self.bn2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
            self.conv1, self.conv2, self.short = (nn.Conv2d(8, 8, 1) for _ in range(3))

        def forward(self, x):
            h = self.bn1(x).relu()
            return self.conv2(self.bn2(self.conv1(h)).relu()) + self.short(h)

    report = anynorm.xbn(nn.Sequential(nn.Conv2d(3, 8, 1), PreAct()), "ln", position=3)
    assert [row["path"] for row in report] == ["1.bn2"]

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.mid = (nn.Sequential(nn.Conv2d(c, 8, 3, padding=1), nn.BatchNorm2d(8)) for c in (3, 8))

        def forward(self, x):
            h = self.down(x)
            return torch.cat([h, self.mid(h)], 1)

    with pytest.raises(anynorm.SurgeryError, match="no residual blocks"):
        anynorm.xbn(UNet())


def test_undoing_goes_in_order_and_keeps_the_mode_dtype_and_state_of_now():
    model = trained(network())
    optimizer = torch.optim.Adam(model.parameters())
    first = anynorm.convert(model, "gn:4", optimizer=optimizer)
    model(X).sum().backward()
    optimizer.step()
    second = anynorm.convert(model, "ln")
    with pytest.raises(anynorm.SurgeryError, match="undo the later operation first"):
        first.undo()
    second.undo()
    model.eval().double()
    first.undo()
    assert not model[1].training
    assert model[1].weight.dtype == torch.float64
    assert optimizer.state[model[0].weight]["step"] == 1
    root = nn.BatchNorm2d(3)
    assert anynorm.freeze(root).undo() is root
    assert anynorm.sync(root).undo() is root
