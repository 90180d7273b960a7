"""`convert` replaces the right norms, keeps everything else, and changes all of them or none."""

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import anynorm
from anynorm.registry import parse
from tests.helpers import ROWS, data, same
from tests.surgery.networks import X, network, trained

__all__ = ["X", "network", "trained"]  # tests of other packages import them from this file


def hybrid() -> Any:
    """A network with norms that pool over samples, others that do not, and one that cannot be read."""
    return nn.Sequential(
        nn.LayerNorm((3, 8, 8)),
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        anynorm.make("sn", 16),
        anynorm.make("gn:4", 16),
        nn.LocalResponseNorm(2),
    )


def test_by_default_only_norms_that_pool_over_samples_are_converted_and_the_others_are_listed():
    model = hybrid()
    report = anynorm.convert(model, "gn:8")
    assert [type(module).__name__ for module in model] == [
        "LayerNorm",
        "Conv2d",
        "GroupNorm",
        "GroupNorm",
        "GroupNorm",
        "LocalResponseNorm",
    ]
    assert [getattr(module, "spec", None) for module in model] == [None, None, "gn:8", "gn:8", "gn:4", None]
    assert [row["path"] for row in report] == ["0", "2", "3", "4", "5"]
    assert [row["new_norm"] for row in report] == [None, "gn:8", "gn:8", None, None]
    assert report["0"]["note"] == report["4"]["note"] == "not converted: does not pool over samples"
    assert "the class LocalResponseNorm is unknown" in report["5"]["note"]
    assert report.finding == (
        "2 of 5 norms are now gn:8. Not converted: 0, 4, 5 (reasons in the column note). where='all' converts every norm."
    )
    assert model(data(4, 3, 8, 8)).isfinite().all()
    report.undo()
    assert isinstance(model[2], nn.BatchNorm2d)


def test_where_all_converts_every_supported_norm():
    model = hybrid()
    report = anynorm.convert(model, "in", where="all")
    assert [getattr(module, "spec", None) for module in model] == ["in", None, "in", "in", "in", None]
    assert "4 of 5 norms are now in. Not converted: 5" in report.finding
    assert "where='all'" not in report.finding


def test_every_norm_is_converted_by_default_if_none_pools_over_samples():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8), nn.LocalResponseNorm(2))
    report = anynorm.convert(model, "ln")
    assert [row["new_norm"] for row in report] == ["ln", "ln.none", None]
    assert report.finding == "2 of 3 norms are now ln, ln.none. Not converted: 3 (reasons in the column note)."


def test_a_model_without_a_supported_norm_is_refused_with_the_reasons():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.LocalResponseNorm(2), nn.InstanceNorm2d(8, track_running_stats=True))
    before = list(model.modules())
    with pytest.raises(
        anynorm.SurgeryError,
        match=r"can be converted; nothing was changed:\n  1 \(LocalResponseNorm\): the class .*\n  2 \(InstanceNorm2d",
    ):
        anynorm.convert(model, "ln")
    assert all(a is b for a, b in zip(model.modules(), before, strict=True))


def test_fitting_with_the_default_choice_fits_the_converted_norms_only():
    model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8)))
    report = anynorm.convert(model, "ln", fit=data(32, 3, 8, 8))
    assert report["1"]["error_after"] < report["1"]["error_before"]
    assert "error_after" not in report["2"]


def test_a_model_without_norms_is_refused():
    with pytest.raises(anynorm.SurgeryError, match="no norm that anynorm recognizes"):
        anynorm.convert(nn.Linear(2, 2), "bn")
    with pytest.raises(anynorm.SurgeryError, match="groups must be 'exact' or 'nearest'; got 'close'"):
        anynorm.convert(network(), "bn", groups="close")


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


@pytest.mark.parametrize("spec", [row for row in ROWS if "@" not in row and "style" not in row and "adain" not in row])
def test_every_norm_can_be_put_into_a_network_and_undone(spec):
    model = trained(network())
    twin = copy.deepcopy(model)
    report = anynorm.convert(model, spec, groups="nearest")
    assert model.train()(X[:, :, :8]).isfinite().all()
    assert report.undo() is model
    same(model.eval()(X), twin.eval()(X))


def test_bgn_takes_the_batch_size():
    assert anynorm.convert(network(), "bgn", batch_size=4)["1"]["new_norm"] == "bgn:2"


def test_the_error_for_one_layer_is_in_the_singular():
    with pytest.raises(anynorm.SurgeryError, match=r"^1 layer cannot be converted; nothing was changed\."):
        anynorm.convert(nn.Sequential(nn.BatchNorm2d(8)), "gn:3")


def test_a_definition_is_converted_to_and_an_invalid_spec_changes_nothing():
    model = network()
    report = anynorm.convert(model, parse("gn:4"), eps=1e-3)
    assert report["1"]["new_norm"] == "gn:4"
    with pytest.raises(anynorm.SpecError, match="unknown norm 'gm'"):
        anynorm.convert(model, "gm:4", where="all")


def test_group_numbers_that_do_not_divide_are_all_listed_before_anything_changes_or_replaced_by_the_nearest():
    model = network()
    before = [type(module) for module in model.modules()]
    with pytest.raises(
        anynorm.SurgeryError, match=r"(?s)3 layers cannot be converted; nothing was changed\..*nearest.*1 \(16 channels\)"
    ):
        anynorm.convert(model, "gn:32")
    assert [type(module) for module in model.modules()] == before
    report = anynorm.convert(model, "gn:32", groups="nearest")
    assert report["1"]["new_norm"] == "gn:16"
    assert report["4.bn1"]["new_norm"] == "gn:32"


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


def test_an_optimizer_keeps_its_groups_and_state():
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
    in_optimizer = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert in_optimizer == {id(p) for p in model.parameters()}
    assert optimizer.state[model[1].weight]["momentum_buffer"] is momentum
    assert any(model[1].mean_weight is p for p in optimizer.param_groups[1]["params"])
    optimizer.zero_grad()
    model(X).sum().backward()
    optimizer.step()
    report.undo()
    assert optimizer.state[old]["momentum_buffer"] is momentum
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    with pytest.raises(anynorm.SurgeryError, match=r"optimizer must be a torch\.optim\.Optimizer; got a list"):
        anynorm.convert(model, "sn", optimizer=[])  # type: ignore[arg-type]


def test_a_failure_half_way_leaves_the_model_unchanged(monkeypatch):
    from anynorm.surgery import replace as module

    model = network()
    before = list(model.modules())

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(module, "replace_in_optimizer", fails)
    with pytest.raises(MemoryError):
        anynorm.convert(model, "gn:4", optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(a is b for a, b in zip(model.modules(), before, strict=True))


def test_a_report_is_a_table_and_json():
    report = anynorm.convert(network(), "gn:4")
    columns = ["path", "norm", "new_norm", "channels", "transferred", "not_transferred"]
    assert report.text().splitlines()[0].split() == columns
    assert report.text().splitlines()[-1] == "6 of 6 norms are now gn:4."
    assert json.loads(report.json())["rows"][0]["path"] == "1"
