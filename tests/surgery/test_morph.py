"""`morph` changes the statistics of a layer gradually, and ends with the layer of `convert`."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import anynorm
from anynorm import kernels
from anynorm.layers.morphing import MorphingNorm
from anynorm.surgery.inspect import inspect
from tests import references
from tests.distributed import two_processes
from tests.helpers import CHANNELS, condition_for, data, make, same, same_state
from tests.surgery.networks import X, network, trained

PAIRS = [
    ("bn", "gn:4"),
    ("gn:4", "bn"),
    ("bn", "hn:4"),
    ("sn", "gn:4"),
    ("in+ln", "sn:4"),
    ("sn:2", "sn:4.hard"),
    ("bn", "bgn:32"),
    ("gbgn:2,4", "in"),
    ("pn", "rms"),
    ("rms", "pn"),
    ("0/bn", "bn"),
    ("bn+ln", "0/bn+in"),
    ("0/bn", "rms"),
    ("bn", "gn:4.none"),
    ("bn.none", "gn:4"),
    ("bn", "sabn@3"),
    ("sabn@3", "ccbn@3"),
    ("sabn@3", "gn:4"),
    ("ccbn@3", "gn:4.nobias"),
    ("auxbn@3", "gn:4"),
    ("saauxbn@3", "hn:4.dom@3"),
    ("gn:4", "auxbn@3"),
    ("adain", "saadain"),
]
"""Pairs of every kind: pooled or not, mixed on either side, a mean of 0 on either side, and all changes of the affine."""
BIG = data(8, CHANNELS, 4, 4, dtype=torch.float64)


def pair(old: str, new: str, *, steps: int = 4, **options) -> tuple[Any, Any, anynorm.Morph]:
    """Return a layer that has seen a batch, a model with a copy of it that morphs, and the report."""
    layer = make(old, **{"dtype": torch.float64, **options})
    x = BIG.to(options.get("dtype", torch.float64))
    layer(x + 1, condition_for(layer, x))
    model = nn.Sequential(copy.deepcopy(layer))
    return layer, model, anynorm.morph(model, new, "all", steps=steps)


def run(layer: Any, x, condition=None):
    """Return the output, and the gradients of x and of the parameters by name."""
    x = x.detach().clone().requires_grad_()
    y = layer(x, condition if layer.takes_condition else None)
    layer.zero_grad()
    (y * y.detach().cos()).sum().backward()
    return y.detach(), x.grad, {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_at_t_0_it_is_the_old_layer(old, new):
    expected, model, _ = pair(old, new)
    condition = condition_for(model[0], BIG)
    for mode in (True, False):
        (y, grad, grads), (z, own_grad, own_grads) = (run(m.train(mode), BIG, condition) for m in (expected, model[0]))
        same(z, y)
        same(own_grad, grad)
        for name in {"weight", "bias"} & set(grads) & set(own_grads):
            same(own_grads[name], grads[name])
    for name in {"running_mean", "num_batches_tracked"} & set(expected.state_dict()):
        same(model[0].get_buffer(name), expected.get_buffer(name))


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_at_t_1_it_is_the_new_layer_and_finish_makes_that_layer(old, new):
    layer, model, report = pair(old, new)
    condition = condition_for(model[0], BIG)
    report.advance_to(2)
    run(model[0], BIG, condition)
    report.advance_to(4)
    morphing = copy.deepcopy(model[0])
    result: Any = report.finish()
    assert result is model
    finished = model[0]
    converted: Any = nn.Sequential(layer)
    anynorm.convert(converted, new, "all")
    assert type(finished) is type(converted[0])
    assert finished.spec == converted[0].spec
    assert list(finished.state_dict()) == list(converted[0].state_dict())
    assert [(name, p.requires_grad) for name, p in finished.named_parameters()] == [
        (name, p.requires_grad) for name, p in converted[0].named_parameters()
    ]
    for mode in (True, False):
        (y, grad, grads), (z, own_grad, own_grads) = (run(m.train(mode), BIG, condition) for m in (finished, morphing))
        same(z, y)
        same(own_grad, grad)
        for name in {"weight", "bias", "class_weight"} & set(grads) & set(own_grads):
            same(own_grads[name], grads[name])


def between(x, old: str, new: str, *, t: float, affine):
    """Return what a layer between two norms computes in training, by a naive reference; "0/" is a mean of 0."""
    sides = []
    for name in (old, new):
        mean, var, _ = references.statistics(x, name.removeprefix("0/"), zero_mean=name.startswith("0/"))
        sides.append((mean, var))
    mean, var = ((1 - t) * a + t * b for a, b in zip(*sides, strict=True))
    return references.normalize(x, mean, var, [affine])


@pytest.mark.parametrize(
    ("old", "new", "cuts"),
    [
        ("bn", "gn:4", ("bn", "gn:4")),
        ("in", "bn", ("in", "bn")),
        ("bgn:32", "ln", ("bgn:32", "ln")),
        ("pn", "rms", ("pn", "0/pn")),
        ("0/bn", "bn", ("0/bn", "bn")),
        ("0/in", "0/bn", ("0/in", "0/bn")),
    ],
)
@pytest.mark.parametrize("t", [0.25, 0.75])
def test_in_between_it_is_a_naive_mixture_of_the_statistics(old, new, cuts, t):
    _, model, report = pair(old, new)
    report.advance_to(round(4 * t))
    assert report.t == t
    y, grad, _ = run(model[0], BIG)
    x = BIG.flatten(2).clone().requires_grad_()
    layer = model[0]
    gamma, beta = layer.weight.detach(), torch.zeros(CHANNELS, dtype=torch.float64)
    if layer.bias is not None:
        beta = layer.bias.detach() * ((1 - t) if "bias" in layer.joint.fading else 1)
    z = between(x, *cuts, t=t, affine=(gamma[:, None], beta[:, None]))
    same(y.flatten(2), z)
    (expected,) = torch.autograd.grad((z * z.detach().cos()).sum(), x)
    same(grad.flatten(2), expected)


@pytest.mark.parametrize("name", ["auto", "reference"])
def test_sides_that_mix_cuts_keep_training_their_own_weights(name):
    _, model, report = pair("sn", "in+bn", dtype=torch.float32)
    report.advance_to(1)
    layer: Any = model[0]
    x = BIG.float()
    with kernels.use(name):
        y, _, grads = run(layer, x)
    tables = {cut: references.statistics(x.double().flatten(2), cut)[:2] for cut in ("in", "ln", "bn")}
    logits = {
        n: getattr(layer, n).detach().double().requires_grad_()
        for n in ("old_mean_weight", "old_var_weight", "new_mean_weight", "new_var_weight")
    }
    mixed = []
    for k, side in enumerate(("mean", "var")):
        old = sum(w * tables[cut][k] for w, cut in zip(logits[f"old_{side}_weight"].softmax(0), ("in", "ln", "bn"), strict=True))
        new = sum(w * tables[cut][k] for w, cut in zip(logits[f"new_{side}_weight"].softmax(0), ("in", "bn"), strict=True))
        mixed.append(0.75 * old + 0.25 * new)
    affine = (layer.weight.detach().double()[:, None], layer.bias.detach().double()[:, None])
    z = references.normalize(x.double().flatten(2), mixed[0], mixed[1], [affine])
    same(y.double().flatten(2), z, rtol=1e-4, atol=1e-5)  # float32
    (z * y.double().flatten(2).cos()).sum().backward()
    for n, tensor in logits.items():
        same(grads[n].double(), tensor.grad, rtol=1e-3, atol=1e-4)  # float32, sums of 2048 terms


def test_running_statistics_of_both_sides_are_updated_until_the_end():
    _, model, report = pair("bn", "en:4", momentum=0.5)
    layer, x = model[0], BIG.flatten(2)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers() if name.startswith("running")}
    for step in (1, 3):
        report.advance_to(step)
        layer(BIG)
        for suffix, cut in (("", "bn"), ("_2", "en:4")):
            for name, new in zip(("running_mean", "running_var"), references.kept_average(x, cut), strict=True):
                before[name + suffix] = references.running(before[name + suffix], new[0], 0.5)
                same(layer.get_buffer(name + suffix), before[name + suffix])
    report.finish()
    assert torch.equal(model[0].running_var, layer.running_var_2)


def test_a_fit_moves_the_affine_to_the_fitted_values():
    x = data(16, 3, 8, 8)
    model, fitted = trained(network()).eval(), trained(network()).eval()
    expected = model(x)
    report = anynorm.morph(model, "gn:8", steps=2, fit=x)
    anynorm.convert(fitted, "gn:8", fit=x)
    assert {"error_before", "error_after"} <= set(report.rows[0])
    same(model(x), expected, rtol=1e-4, atol=1e-5)
    report.advance_to(1)
    halfway = model(x)
    report.advance_to(2)
    same(model(x), fitted(x), rtol=1e-4, atol=1e-5)
    assert (halfway - expected).norm() > 0.01 * expected.norm()
    report.finish()
    same_state(model, fitted)


def losses(model, optimizer, report, batches):
    """Train a network on its own mean output, and return the losses; the report is stepped if it has no optimizer."""
    found = []
    for x in batches:
        optimizer.zero_grad()
        loss = (model(x).mean((0, 2)) - torch.linspace(-1, 1, 32)).square().mean()
        loss.backward()
        optimizer.step()
        if report.optimizer is None and not report.is_finished:
            report.step()
        found.append(loss.item())
    return found


BATCHES = [data(4, 3, 8, 8, seed=seed) for seed in range(6)]


def test_a_model_that_is_saved_halfway_continues_bit_for_bit():
    def start():
        torch.manual_seed(0)
        model = trained(network(lambda c: anynorm.make("sn", c)))
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        report = anynorm.morph(model, "gn:8", steps=5, optimizer=optimizer)
        return model, optimizer, report

    model, optimizer, report = start()
    whole = losses(model, optimizer, report, BATCHES)
    assert report.is_finished
    model, optimizer, report = start()
    first = losses(model, optimizer, report, BATCHES[:3])
    saved = pickle.loads(pickle.dumps((model.state_dict(), optimizer.state_dict())))
    resumed, optimizer, report = start()
    with torch.no_grad():
        for parameter in resumed.parameters():
            parameter.zero_()
    resumed.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert (report.num_steps, round(report.t, 3)) == (3, 0.6)
    assert first + losses(resumed, optimizer, report, BATCHES[3:]) == whole
    assert report.is_finished
    assert not any(isinstance(module, MorphingNorm) for module in resumed.modules())


def test_the_optimizer_counts_the_steps_and_loses_the_parameters_that_end():
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 1), anynorm.make("sn", 8), anynorm.make("bn", 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    report = anynorm.morph(model, "gn:4.nobias", "all", steps=2, optimizer=optimizer)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(report.t))
    weight = model[1].weight
    for _ in range(3):
        model(X).square().mean().backward()
        optimizer.step()
    assert calls == [0.5, 1.0, 1.0]
    assert report.is_finished
    assert model[1].weight is weight
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    assert set(optimizer.state) == set(model.parameters())
    assert "momentum_buffer" in optimizer.state[weight]


def hooks(optimizer) -> int:
    return len(optimizer._optimizer_step_post_hooks)


def test_finish_undo_and_a_failure_leave_no_hook():
    model = trained(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for end in ("step", "finish", "undo"):
        before, modules = copy.deepcopy(model.state_dict()), list(model.modules())
        params = [p for group in optimizer.param_groups for p in group["params"]]
        report = anynorm.morph(model, "gn:8", steps=1, optimizer=optimizer)
        assert hooks(optimizer) == 1
        optimizer.step() if end == "step" else getattr(report, end)()
        assert hooks(optimizer) == 0
        report.undo()
        assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
        assert all(a is b for a, b in zip([p for g in optimizer.param_groups for p in g["params"]], params, strict=True))
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with pytest.raises(anynorm.SurgeryError):
        anynorm.morph(model, "modenorm:2", steps=1, optimizer=optimizer)
    assert hooks(optimizer) == 0
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))


def test_activation_residual_mask_and_channel_axis_are_those_of_one_norm():
    model: Any = nn.Sequential(nn.LayerNorm(CHANNELS))
    tokens = data(4, CHANNELS, 6).movedim(1, 2).contiguous()
    expected = model(tokens)
    report = anynorm.morph(model, "rms", steps=2)
    same(model(tokens), expected)
    report.step()
    valid = torch.arange(6) < torch.tensor([6, 2, 4, 3])[:, None]
    with anynorm.mask(model, valid):
        y = model(tokens)
    same(y[valid], model(tokens)[valid])  # each position has its own statistics
    assert not y[~valid].any()
    layer, model, report = pair("bn", "in", dtype=torch.float32)
    report.advance_to(2)
    x, residual = BIG.float(), data(8, CHANNELS, 4, 4, seed=3)
    same(model[0](x, residual=residual, activation="relu"), (copy.deepcopy(model[0])(x) + residual).relu())
    lengths = torch.tensor([3, 4, 2, 4, 4, 3, 4, 4])
    kept = torch.arange(4) < lengths[:, None]
    flat = x[..., 0]
    y = model[0].train()(flat, mask=kept)
    sides = [references.statistics(flat.double(), cut, valid=kept)[:2] for cut in ("bn", "in")]
    mean, var = ((a + b) / 2 for a, b in zip(*sides, strict=True))
    expected = references.normalize(flat.double(), mean, var, [(layer.weight.double()[:, None], layer.bias.double()[:, None])])
    same(y.double()[kept[:, None].expand_as(y)], expected[kept[:, None].expand_as(y)], rtol=1e-4, atol=1e-5)  # float32


def test_a_fold_is_possible_in_between_if_both_sides_are_foldable():
    model: Any = nn.Sequential(nn.Conv2d(3, CHANNELS, 3), make("bn"))
    for _ in range(3):
        model(X)
    report = anynorm.morph(model, "hn:4", steps=2)
    report.step()
    model(X)
    expected = model.eval()(X)
    folded = copy.deepcopy(model)
    anynorm.fold(folded, X)
    assert not any(isinstance(module, anynorm.Norm) for module in folded.modules())
    same(folded(X), expected, rtol=1e-4, atol=1e-5)
    report.undo()
    anynorm.morph(model, "in", steps=2).step()
    assert "come from each input" in anynorm.fold(model, X).rows[0]["note"]


def test_activation_checkpointing_updates_running_statistics_once():
    _, model, report = pair("bn", "en:4", dtype=torch.float32)
    report.advance_to(1)
    plain = copy.deepcopy(model)
    x = BIG.float().requires_grad_()
    checkpoint(model, x, use_reentrant=False).square().sum().backward()
    grad = x.grad
    x.grad = None
    plain(x).square().sum().backward()
    same(grad, x.grad)
    same_state(model, plain)


@pytest.mark.reference_only
def test_compiled_code_is_not_compiled_again_for_another_t():
    _, model, report = pair("sn", "gn:4", dtype=torch.float32)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for step in range(4):
        report.advance_to(step)
        same(compiled(BIG.float()), copy.deepcopy(model)(BIG.float()))
    assert counter.frame_count == 1
    report.finish()
    same(compiled(BIG.float()), model(BIG.float()))
    assert counter.frame_count == 2


def synchronized(rank):
    whole, part = BIG.float(), BIG.float()[:5] if rank == 0 else BIG.float()[5:]
    _, alone, report = pair("bn", "hn:4", dtype=torch.float32)
    _, together, other = pair("bn", "hn:4", dtype=torch.float32)
    anynorm.sync(together)
    parallel = DistributedDataParallel(together)
    for _ in range(4):
        report.step()
        expected = alone(whole)
        other.step()
        x = part.clone().requires_grad_()
        y = parallel(x)
        y.square().sum().backward()
        same(y, expected[:5] if rank == 0 else expected[5:], rtol=1e-4, atol=1e-5)
    same_state(together, alone)
    assert not other.is_finished  # DDP holds references to its tensors
    other.finish()
    report.finish()
    same(parallel.module(whole), alone(whole), rtol=1e-4, atol=1e-5)
    with pytest.raises(anynorm.SurgeryError, match="is wrapped in DistributedDataParallel"):
        anynorm.morph(parallel, "gn:4", steps=2)


@pytest.mark.reference_only
def test_synchronized_statistics_and_ddp_give_what_one_process_gives(tmp_path):
    two_processes(synchronized, tmp_path)


def test_the_norms_of_a_model_are_listed_with_t():
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    report = anynorm.morph(model, "gn:8", steps=5)
    report.advance_to(2)
    assert inspect(model)["1"]["spec"] == "morphing bn -> gn:8 (t = 0.40)"
    assert repr(model[1]) == "MorphingNorm('bn -> gn:8', 8, eps=1e-05, momentum=0.1, t=0.4)"
    report.finish()
    assert inspect(model)["1"]["spec"] == "gn:8"


def test_shared_norms_stay_shared_and_hooks_modes_and_parametrizations_are_kept():
    norm = nn.BatchNorm2d(3)
    model: Any = nn.ModuleDict({"a": norm, "b": nn.Sequential(norm), "c": nn.BatchNorm2d(3).eval()})
    calls: list[str] = []
    norm.register_forward_hook(lambda *_: calls.append("called"))
    report = anynorm.morph(model, "in", steps=2)
    assert model["a"] is model["b"][0]
    assert (model["a"].training, model["c"].training) == (True, False)
    model["a"](X)
    report.finish()
    assert model["a"] is model["b"][0]
    assert (model["a"].training, model["c"].training) == (True, False)
    model["a"](X)
    assert calls == ["called", "called"]
    restored: Any = report.undo()
    assert restored is model
    assert model["a"] is norm


def test_a_model_that_is_a_norm_is_returned_by_the_report():
    norm = nn.BatchNorm2d(3)
    report = anynorm.morph(norm, "in", steps=1)
    assert isinstance(report.model, MorphingNorm)
    report.step()
    assert report.model.spec == "in"
    assert report.undo() is norm


def test_settings_that_change_in_between_are_those_of_the_new_layer():
    _, model, report = pair("bn", "hn:4", dtype=torch.float32)
    model[0].momentum = 0.3
    model[0].activation = "relu"
    model[0].weight.requires_grad_(False)
    model.half().eval()
    report.finish()
    assert (model[0].momentum, model[0].activation.name, model[0].training) == (0.3, "relu", False)
    assert not model[0].weight.requires_grad
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.half, torch.long}


def test_t_follows_the_schedule():
    model: Any = nn.Sequential(nn.BatchNorm2d(4))
    report = anynorm.morph(model, "in", steps=8, schedule=anynorm.Ramp(start=0.25, stop=0.75))
    assert [report.step() for _ in range(8)] == [0, 0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert report.is_finished


BAD: list[tuple[dict[str, Any], str]] = [
    ({"steps": 0}, r"steps must be an integer of at least 1, the number of optimizer steps until t = 1; got 0\."),
    ({"steps": -3}, r"got -3\."),
    ({"steps": 2.5}, r"got 2\.5\."),
    ({"steps": True}, r"got True\."),
    ({"schedule": "linear"}, r"schedule must be a function from the finished fraction of the steps to t; got 'linear'\."),
    ({"schedule": lambda progress: progress / 2}, r"schedule must return t = 1 at the end of the steps; got 0\.5"),
    ({"schedule": lambda progress: progress - 1}, r"schedule must return a number in \[0, 1\]; got -1\.0 at the fraction 0 "),
    ({"optimizer": "sgd"}, r"optimizer must be a torch\.optim\.Optimizer; got a str\."),
    ({"eps": 1e-3}, r"morph takes no option 'eps': both sides of a layer have that of the old layer\."),
    ({"spec": "gn:5"}, r"is not divisible by 5"),
    ({"spec": "bn"}, r"There is nothing to morph: the chosen norms are bn already\. The model is unchanged\."),
    ({"spec": "modenorm:2"}, r"2 layers cannot morph; nothing was changed\.\n  0: modenorm:2 is not defined by cuts, so its"),
    ({"spec": "dyt"}, r"dyt is not defined by cuts"),
    (
        {"spec": "auxbn@2"},
        r"one of bn and auxbn@2 pools the samples of each domain, and the other all samples; a layer cannot do",
    ),
    ({"spec": "adain"}, r"only one of bn and adain takes a style, so they cannot share a condition\. Use convert\."),
    ({"where": "none.*"}, r"matches no norm"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_arguments_are_refused_and_the_model_is_unchanged(options, message):
    model: Any = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4))
    modules = list(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    arguments = {"spec": "gn:4", "steps": 2, "optimizer": optimizer, **options}
    with pytest.raises(anynorm.SurgeryError, match=message):
        anynorm.morph(model, **arguments)
    assert list(model) == modules
    assert hooks(optimizer) == 0


def test_other_classes_of_the_condition_are_refused():
    with pytest.raises(
        anynorm.SurgeryError, match=r"the conditions of ccbn@3 and gn:4\.cc@2 have 3 and 2 values\. Use convert\."
    ):
        anynorm.morph(nn.Sequential(anynorm.make("ccbn@3", 8)), "gn:4.cc@2", "all", steps=2)
    with pytest.raises(anynorm.SurgeryError, match=r"brn is not defined by cuts"):
        anynorm.morph(nn.Sequential(anynorm.make("brn", 8)), "gn:4", steps=2)


def test_norms_that_are_already_new_are_left_alone():
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), anynorm.make("gn:4", 8))
    kept = model[2]
    report = anynorm.morph(model, "gn:4", "all", steps=3)
    assert report.rows[1]["note"] == "not converted: it is gn:4 already"
    assert report.finding == "1 norm morphs over 3 steps."
    report.finish()
    assert model[2] is kept


def test_morphing_twice_a_compiled_model_and_steps_at_the_wrong_time_are_refused():
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    compiled: Any = torch.compile(model, backend="eager")
    with pytest.raises(
        anynorm.SurgeryError, match=r"The model is compiled, by torch\.compile\. Morph the model that was compiled"
    ):
        anynorm.morph(compiled, "gn:4", steps=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    report = anynorm.morph(model, "gn:4", steps=2, optimizer=optimizer)
    with pytest.raises(anynorm.SurgeryError, match=r"'1' is morphing already \(bn -> gn:4\)\. Call finish\(\) or undo\(\)"):
        anynorm.morph(model, "in", steps=2)
    with pytest.raises(
        anynorm.SurgeryError, match=r"Each step of the optimizer that was passed to morph is a step of the morph already"
    ):
        report.step()
    with pytest.raises(anynorm.SurgeryError, match=r"num_steps must be at least 0; got -1"):
        report.advance_to(-1)
    with pytest.raises(anynorm.SpecError, match=r"bn -> gn:4 is morphing: call finish\(\)"):
        model[1].merge()
    report.finish()
    assert report.finish() is model
    assert (report.t, report.step(), report.num_steps) == (1.0, 1.0, 2)
    with pytest.raises(anynorm.SurgeryError, match=r"The morph has finished: its layers were replaced by the new ones"):
        report.advance_to(1)
    report.undo()
    assert report.t == 0
    assert not report.is_finished
    for call in (report.step, report.finish, lambda: report.advance_to(1)):
        with pytest.raises(anynorm.SurgeryError, match=r"\(\) needs morphing layers, and undo\(\) has restored the old ones"):
            call()


def test_a_layer_that_was_replaced_in_between_is_an_error_and_nothing_changes():
    model: Any = nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(8))
    report = anynorm.morph(model, "gn:4", steps=2)
    later = anynorm.convert(model, "in", where="1")
    modules = list(model)
    for call in (report.finish, report.undo):
        with pytest.raises(anynorm.SurgeryError, match=r"'1' has been replaced"):
            call()
    assert list(model) == modules
    later.undo()
    report.finish()
    assert [norm.spec for norm in model] == ["gn:4", "gn:4"]


def test_a_state_dict_from_before_or_after_the_morph_is_an_error_with_the_way_out():
    model: Any = nn.Sequential(nn.BatchNorm2d(8))
    saved = model.state_dict()
    anynorm.morph(model, "gn:4", steps=2)
    with pytest.raises(
        RuntimeError, match=r"'0' \(bn -> gn:4\) is morphing, and the state_dict has no '0\.t': it was saved before"
    ):
        model.load_state_dict(saved)


def test_a_ramp_needs_an_interval():
    with pytest.raises(anynorm.SpecError, match=r"A ramp needs 0 <= start < stop <= 1; got start=0\.5, stop=0\.5\."):
        anynorm.Ramp(0.5, 0.5)


def test_cuts_that_are_equal_for_a_number_of_channels_keep_statistics_of_their_own():
    _, model, report = pair("gn:4", "en:4+bgn:4", dtype=torch.float32, momentum=1.0)
    report.advance_to(4)
    report.finish()
    new = model[0]
    new(BIG.float())
    x = BIG.flatten(2)
    for name in ("running_mean", "running_mean_2"):
        same(new.get_buffer(name).double(), references.kept_average(x, "en:4")[0][0], rtol=1e-5, atol=1e-6)  # float32
    assert new.running_mean.data_ptr() != new.running_mean_2.data_ptr()


def test_a_copy_of_a_morphing_model_computes_the_same():
    _, model, report = pair("sn", "hn:4", dtype=torch.float32)
    report.advance_to(3)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        same(copied.eval()(BIG.float()), model.eval()(BIG.float()))
