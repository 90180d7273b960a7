"""Code that is written for BatchNorm, on our layers: right numbers, or an error that says what to call."""

import copy
import json
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.optim.swa_utils import AveragedModel, update_bn

import anynorm
from tests.helpers import CHANNELS, ROWS, condition_for, data, make, same

X = data(8, 3, 6, 6)
LOUD = (anynorm.FoldError, AssertionError)  # torch's own error is for norms without running_mean

INFER_AS_BN = ["bn", "bn.none", "bn.nobias", "brn", "brn.none", "en:16", "gbgn:2,16", "hn:1", "hn:16"]


def trained(spec: str, **options) -> Any:
    """A norm whose running statistics are those of a batch."""
    norm = make(spec, **options)
    x = data(8, CHANNELS, 4, 4)
    norm(x, condition_for(norm, x))
    return norm.eval()


@pytest.mark.parametrize("spec", ROWS)
def test_fuse_conv_bn_eval_gives_the_right_output_or_an_error(spec):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, CHANNELS, 3).eval(), trained(spec)
    condition = condition_for(norm, X)
    expected = norm(conv(X), condition)
    try:
        fused = fuse_conv_bn_eval(conv, norm)
    except LOUD:
        assert spec not in INFER_AS_BN
        return
    same(fused(X), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", INFER_AS_BN)
def test_norms_that_infer_as_bn_are_fused(spec):
    torch.manual_seed(0)
    conv, linear, norm = nn.Conv2d(3, CHANNELS, 3).eval(), nn.Linear(3, CHANNELS).eval(), trained(spec)
    same(fuse_conv_bn_eval(conv, norm)(X), norm(conv(X)), rtol=1e-4, atol=1e-5)
    if norm.bias is not None:  # torch requires it for linear layers
        same(fuse_linear_bn_eval(linear, norm)(data(5, 3)), norm(linear(data(5, 3))), rtol=1e-4, atol=1e-5)


def test_a_norm_with_an_activation_or_a_module_after_it_is_not_fused_without_it():
    conv = nn.Conv2d(3, CHANNELS, 1).eval()
    norm = trained("bn", activation="relu")
    with pytest.raises(anynorm.FoldError, match=r"Use anynorm.fold\(model, example\)"):
        fuse_conv_bn_eval(conv, norm)
    norm.activation = None
    fuse_conv_bn_eval(conv, norm)
    norm.post_modules = ("act",)
    with pytest.raises(anynorm.FoldError):
        fuse_conv_bn_eval(conv, norm)


def reparameterized(bn: Any) -> Any:
    """The scale of a batch norm as timm, LeViT and YOLO compute it."""
    return bn.weight / (bn.running_var + bn.eps) ** 0.5


def yolo(bn: Any) -> Any:
    return torch.diag(bn.weight.div(torch.sqrt(bn.eps + bn.running_var)))


@pytest.mark.parametrize("formula", [reparameterized, yolo])
def test_formulas_of_other_packages_take_bn_and_refuse_sn(formula):
    formula(trained("bn"))
    for spec in ("sn", "ibn", "sabn@3", "hn:4", "bgn:32"):
        with pytest.raises(anynorm.FoldError, match=f"^{spec} does not infer as BatchNorm"):
            formula(trained(spec))


def test_eps_stays_a_number():
    norm = trained("sn", eps=1e-3)
    assert norm.eps == 1e-3
    assert isinstance(norm.eps, float)
    assert json.dumps({"eps": norm.eps}) == '{"eps": 0.001}'
    assert type(pickle.loads(pickle.dumps(norm.eps))) is type(copy.deepcopy(norm.eps)) is float
    same(norm.running_var + float(norm.eps), norm.running_var + 1e-3)
    assert type(anynorm.make("sn", 4, eps=norm.eps)._eps) is float
    norm.eps = 0.5
    same(norm(data(2, CHANNELS, 3)), copy.deepcopy(norm)(data(2, CHANNELS, 3)))
    assert anynorm.read_norm(norm).eps == 0.5
    assert "eps=0.5" in repr(norm)
    x = data(3, CHANNELS, 4, 4)
    assert (norm(x) - pickle.loads(pickle.dumps(norm))(x)).abs().max() == 0


def test_a_pickled_layer_of_an_earlier_version_is_read():
    norm = trained("bn")
    state = norm.__getstate__()
    state["eps"] = state.pop("_eps")
    restored = anynorm.BatchNorm.__new__(anynorm.BatchNorm)
    restored.__setstate__(state)
    assert restored.eps == 1e-5
    same(restored(data(2, CHANNELS, 3)), norm(data(2, CHANNELS, 3)))


def network(spec: str) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make(spec, 8), nn.ReLU(), nn.Conv2d(8, 4, 3), anynorm.make(spec, 4))


@pytest.mark.parametrize("spec", ["bn", "hn:2", "sn", "bgn:8", "in+bn"])
def test_update_bn_computes_what_recalibrate_computes(spec):
    model = network(spec)
    model(X)
    average = AveragedModel(model)
    recalibrated = copy.deepcopy(average)
    update_bn(X.split(2), average)
    anynorm.recalibrate(recalibrated, X.split(2), estimator="averaged")
    assert any("running_mean" in name for name in average.state_dict())
    for ours, theirs in zip(average.state_dict().values(), recalibrated.state_dict().values(), strict=True):
        same(ours, theirs, rtol=1e-4, atol=1e-5)
    assert [module.momentum for module in average.modules() if isinstance(module, anynorm.Norm)] == [0.1, 0.1]
    assert average.training


def test_update_bn_equals_torchs_on_a_mixed_model_and_restores_every_rule():
    torch.manual_seed(0)
    theirs: Any = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8))
    ours: Any = copy.deepcopy(theirs)
    anynorm.convert(ours, "bn", where="2")
    anynorm.convert(ours, "gn:2", where="3")
    rule = anynorm.Running(0.3)
    ours[2].update_rule = rule
    for model in (theirs, ours):
        model.eval()
        update_bn([(batch, None) for batch in X.split(2)], model)
        assert not model.training
    for name, value in theirs.state_dict().items():
        same(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert ours[2].update_rule is rule


def test_update_bn_pools_with_the_exact_rule():
    model = nn.Sequential(anynorm.make("bn", 3, update_rule=anynorm.Pooled()))
    update_bn([X[:1], X[1:]], model)
    same(model[0].running_mean, X.mean((0, 2, 3)))
    same(model[0].running_var, X.var((0, 2, 3)))


def fvcore_get_bn_modules(model):
    """Copy of `fvcore.nn.precise_bn.get_bn_modules` (fvcore 0.1.5)."""
    types = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return [m for m in model.modules() if m.training and isinstance(m, types)]


def timm_freeze_batch_norm_2d(module):
    """The part of `timm.layers.freeze_batch_norm_2d` (timm 1.0.31) that goes through the modules."""
    if not isinstance(module, nn.BatchNorm2d):
        for _, child in module.named_children():
            freeze_batch_norm_2d(child)
    return module


def named(function: Any, package: str, name: str) -> Any:
    """A copy of a function that seems to be one of another package."""
    scope = {**function.__globals__, "__name__": f"{package}.module"}
    copied = type(function)(function.__code__.replace(co_name=name), scope, name)
    scope[name] = copied
    return copied


get_bn_modules = named(fvcore_get_bn_modules, "fvcore", "get_bn_modules")
freeze_batch_norm_2d = named(timm_freeze_batch_norm_2d, "timm", "freeze_batch_norm_2d")
REFUSED = [
    (nn.SyncBatchNorm.convert_sync_batchnorm, r"anynorm\.sync\(model\)"),
    (get_bn_modules, r"anynorm\.recalibrate\(model, loader, batches=200\)"),
    (freeze_batch_norm_2d, r"anynorm\.freeze\(model\)"),
]


@pytest.mark.parametrize(("function", "instead"), REFUSED, ids=["sync", "precise", "freeze"])
@pytest.mark.parametrize("spec", ["bn", "sn", "hn:2"])
def test_functions_that_would_do_nothing_say_what_to_call(spec, function, instead):
    model = network(spec)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(anynorm.SurgeryError, match=f"would leave {spec} as it is. Use {instead}"):
        function(model)
    for name, value in model.state_dict().items():
        same(value, before[name], rtol=0, atol=0)
    function(network("gn:2"))  # has no running statistics, and nothing to synchronize
    function(nn.Sequential(nn.BatchNorm2d(3)))


def test_a_synchronized_model_passes_convert_sync_batchnorm():
    model = network("hn:2")
    for norm in (model[1], model[4]):
        norm.sync_group = anynorm.kernels.sync.AllReduce()
    assert nn.SyncBatchNorm.convert_sync_batchnorm(model)[1] is model[1]


def test_all_other_code_sees_the_modules_and_children_of_a_norm():
    model = network("sn")
    assert len(list(model.modules())) == 6
    assert [name for name, _ in model.named_modules()] == ["", "0", "1", "2", "3", "4"]
    assert [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)] == []
    assert list(model[1].named_children()) == list(model[1].children()) == []
    assert len(list(model.parameters())) == 12


def test_freezing_by_class_changes_nothing_and_anynorm_freeze_does():
    model = network("bn")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    assert model[1].training
    anynorm.freeze(model)
    model(X)
    assert int(model[1].num_batches_tracked) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fuse_modules_raises():
    from torch.ao.quantization import fuse_modules

    with pytest.raises(AssertionError, match="did not find fuser method"):
        fuse_modules(network("bn").eval(), [["0", "1"]])
