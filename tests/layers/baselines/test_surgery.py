"""Norms beyond the algebra in models: surgery, diagnosis, several of them side by side."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.diagnostics import estimation_shift
from anynorm.errors import StateError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from tests.helpers import data, make, same, same_state

BEYOND = ["modenorm:2", "ilmin", "ilmgn:4", "brn", "gw:4", "gwzca:4", "ssn", "ibn", "bkn"]
beyond = pytest.mark.parametrize("spec", BEYOND)


def network(**options):
    torch.manual_seed(0)
    bn = nn.BatchNorm2d(16, **options)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), bn, nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4))
    with torch.no_grad():
        bn.weight.normal_(1, 0.2)
        bn.bias.normal_(0, 0.2)
        for step in range(3):
            model(data(8, 3, 8, 8, seed=step))
    return model


@beyond
def test_convert_transfers_gamma_and_beta_and_can_be_undone(spec):
    model = network()
    before = copy.deepcopy(model)
    report = anynorm.convert(model, spec)
    assert report.rows[0]["new_norm"] == spec
    same(model[1].weight, before[1].weight)
    model(data(8, 3, 8, 8)).square().sum().backward()
    report.undo()
    same_state(model, before)
    same(model.eval()(data(2, 3, 8, 8)), before.eval()(data(2, 3, 8, 8)))


@pytest.mark.parametrize("spec", ["modenorm:2", "brn", "bkn"])
def test_a_pretrained_bn_converted_to_it_computes_the_same_in_inference(spec):
    model = network().eval()
    x = data(4, 3, 8, 8, seed=9)
    expected = model(x)
    anynorm.convert(model, spec)
    same(model(x), expected, rtol=1e-4, atol=1e-5)


@beyond
def test_converting_to_the_same_norm_keeps_everything(spec):
    model: Any = nn.Sequential(make(spec))
    model(data(4, 16, 3, 3))
    before = copy.deepcopy(model)
    report = anynorm.convert(model, spec, where="all")
    assert not report.rows[0]["not_transferred"]
    same_state(model, before)


def test_converting_to_another_norm_reports_what_is_not_transferred():
    model: Any = nn.Sequential(make("modenorm:2"))
    assert anynorm.convert(model, "bn").rows[0]["not_transferred"] == [
        "running statistics (recalibrate)",
        "gate_weight, gate_bias",
    ]
    model = nn.Sequential(make("brn"))
    model(data(4, 16, 3, 3))
    row = anynorm.convert(model, "bn").rows[0]
    assert "running statistics" in row["transferred"]
    assert row["not_transferred"] == ["r_max, d_max, r_ramp, d_ramp, num_passes"]


def test_a_fused_activation_still_runs():
    class BatchNormAct2d(nn.BatchNorm2d):
        def __init__(self, channels):
            super().__init__(channels)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(super().forward(x))

    model = nn.Sequential(BatchNormAct2d(16)).eval()
    expected = model(data(4, 16, 3, 3))
    anynorm.convert(model, "modenorm:2")
    assert type(model[0]).__name__ == "ModeNorm"
    same(model(data(4, 16, 3, 3)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("modenorm:2", "its gate depends on each input"),
        ("gw:4", "the statistics of gw:4 come from each input"),
        ("ilmin", "the statistics of in come from each input"),
        ("ibn", "the statistics of in come from each input"),
        ("ssn", "the statistics of in come from each input"),
    ],
)
def test_folding_reports_why_it_is_not_possible(spec, reason):
    model = network().eval()
    anynorm.convert(model, spec)
    assert reason in anynorm.fold(model, data(2, 3, 8, 8)).rows[0]["note"]


def test_brn_and_a_one_hot_ssn_fold():
    for spec in ("brn", "ssn"):
        model = network().eval()
        anynorm.convert(model, spec)
        if spec == "ssn":
            model[1].num_passes.fill_(10**6)
            with torch.no_grad():
                model[1].mean_weight.copy_(torch.tensor([1.0, 1.1, 1.23]))
                model[1].var_weight.copy_(torch.tensor([1.0, 1.07, 1.11]))
        expected = model(data(2, 3, 8, 8))
        assert anynorm.fold(model, data(2, 3, 8, 8)).rows[0]["into"] == "0"
        same(model(data(2, 3, 8, 8)), expected, rtol=1e-4, atol=1e-5)


def deep_network(spec) -> Any:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (3, 16, 16):
        layers += [nn.Conv2d(inputs, 16, 3), nn.BatchNorm2d(16), nn.ReLU()]
    model: Any = nn.Sequential(*layers)
    anynorm.convert(model, spec)
    for norm in model[1::3]:
        norm.set_total_steps(10)
    for step in range(5):
        model(data(8, 3, 12, 12, seed=step))
    return model.eval()


@pytest.mark.parametrize("spec", ["bn", "modenorm:2", "brn", "ssn", "ibn"])  # connected layers of bkn are refused: test_kalman.py
def test_recalibrating_a_deep_network_keeps_schedules_and_leaves_no_shift(spec):
    model: Any = deep_network(spec)
    before = [dict(norm.named_buffers()) for norm in copy.deepcopy(model)[1::3]]
    loader = [3 + 2 * data(64, 3, 12, 12, seed=50)]
    anynorm.recalibrate(model, loader)
    for row in estimation_shift(model, loader, trial_samples=0):
        assert row["shift"] < 2e-3, row  # the population's variance is unbiased, the batch's is not
    for norm, old in zip(model[1::3], before, strict=True):
        for name in ("num_passes", "ramp", "r_max"):
            assert name not in old or torch.equal(old[name], norm.get_buffer(name))


@pytest.mark.parametrize("spec", ["brn", "modenorm:2", "bkn"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_two_checkpointed_passes_and_one_backward_are_the_plain_gradients(spec, reentrant):
    from torch.utils.checkpoint import checkpoint

    grads = []
    for run in (lambda norm, x: norm(x), lambda norm, x: checkpoint(norm, x, use_reentrant=reentrant)):
        norm = make(spec)
        norm(data(4, 16, 3, 3, seed=7))
        xs = [data(4, 16, 3, 3, seed=seed).requires_grad_() for seed in (1, 2)]
        sum(run(norm, x).pow(3).sum() for x in xs).backward()
        grads.append([*(x.grad for x in xs), *(p.grad for p in norm.parameters())])
    same(grads[1], grads[0])


def test_converting_again_with_other_limits_sets_them():
    model: Any = nn.Sequential(make("brn"))
    anynorm.convert(model, "brn", r_max=3.0, d_max=5.0)
    assert (model[0].r_max.item(), model[0].d_max.item()) == (3.0, 5.0)


def test_modes_are_not_domains():
    model: Any = nn.Sequential(make("modenorm:2"))
    model(data(4, 16, 3, 3))
    assert "running statistics (recalibrate)" in anynorm.convert(model, "auxbn@2").rows[0]["not_transferred"]


def test_fitting_does_not_advance_a_schedule():
    model = network().eval()
    anynorm.convert(model, "ssn", fit=data(16, 3, 8, 8))
    assert model[1].num_passes == 0
    assert model[1].schedule_enabled


@pytest.mark.parametrize("spec", BEYOND)
def test_an_empty_batch_and_meta_tensors_work(spec):
    norm = make(spec).eval()
    assert norm(torch.zeros(0, 16, 3, 3)).shape == (0, 16, 3, 3)
    assert anynorm.make(spec, 16, device="meta")(torch.empty(4, 16, 3, 3, device="meta")).shape == (4, 16, 3, 3)


@pytest.mark.parametrize("spec", BEYOND)
def test_a_layer_constructed_on_meta_and_reset_is_a_new_one(spec):
    with torch.device("meta"):
        norm = anynorm.make(spec, 16)
    norm.to_empty(device="cpu")
    for tensor in [*norm.parameters(), *norm.buffers()]:
        with torch.no_grad():
            tensor.fill_(9)
    torch.manual_seed(3)
    norm.reset_parameters()
    torch.manual_seed(3)
    same_state(norm, anynorm.make(spec, 16))
    norm(data(4, 16, 3, 3))


@pytest.mark.parametrize("spec", ["modenorm:2", "brn", "ssn", "ibn", "bkn"])
def test_recalibration_removes_the_shift_on_its_data(spec):
    model = network().eval()
    anynorm.convert(model, spec)
    if spec == "modenorm:2":
        with torch.no_grad():
            model[1].gate_weight.mul_(5)
    loader = [3 + 2 * data(32, 3, 8, 8, seed=k) for k in range(3)]
    assert estimation_shift(model, loader, trial_samples=0).rows[0]["shift"] > 0.1
    anynorm.recalibrate(model, loader)
    assert estimation_shift(model, loader, trial_samples=0).rows[0]["shift"] < 1e-3
    assert not model[1].training


def test_the_norms_of_sabns_comparison_run_in_one_model():
    model = nn.Sequential()
    for spec in ("bn", "modenorm:2", "auxbn@2", "saauxbn@2"):
        model.append(nn.Conv2d(3 if not len(model) else 16, 16, 3, padding=1))
        model.append(anynorm.make(spec, 16))
        model.append(nn.ReLU())
    x, domain = data(8, 3, 8, 8), torch.tensor([0, 1] * 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        with anynorm.condition(model, domain):
            model(x).square().mean().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    with anynorm.condition(model.eval(), 1):
        assert model(x).isfinite().all()


@pytest.mark.parametrize("spec", ["bn", "modenorm:2", "auxbn@2", "saauxbn@2"])
def test_each_baseline_fits_the_same_network(spec):
    torch.manual_seed(0)
    model = build_model("resnet18", DataShape(3, 16, 16, 10), 0.125)
    anynorm.convert(model, spec)
    with anynorm.condition(model, torch.tensor([0, 1, 0, 1])) if "@" in spec else torch.enable_grad():
        model(data(4, 3, 16, 16)).square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@beyond
def test_invalid_inputs_raise_as_for_every_norm(spec):
    norm = make(spec)
    before = copy.deepcopy(norm)
    for x, message in [
        (torch.zeros(2, 8, 3, 3), r"Axis 1 must hold 16 channels; got 8"),
        (torch.zeros(2, 16, 3, dtype=torch.int64), r"must have a floating-point dtype; got torch.int64"),
        (torch.zeros(16), r"got 1 dimensions"),
        (torch.zeros(2, 16, 0), r"got an input without any|no positions"),
    ]:
        with pytest.raises(anynorm.ShapeError, match=message):
            norm(x)
    same_state(norm, before)
    state = norm.state_dict()
    state["weight"] = torch.full((16,), float("nan"))
    with pytest.raises(StateError, match=r"'weight' .* has 16 NaN of 16 values"):
        norm.load_state_dict(state)


@pytest.mark.parametrize("spec", ["modenorm:2", "brn", "bkn"])
def test_one_value_per_statistic_raises_in_training(spec):
    with pytest.raises(anynorm.ShapeError, match="bn needs more than one value per statistic in training"):
        make(spec)(data(1, 16))


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("bkn", {"gain": 0.0}, r"gain of bkn must be in \(0, 1\]; got 0\.0\. It is the weight of the batch statistics"),
        ("bkn", {"gain": 1.5}, r"gain of bkn must be in \(0, 1\]; got 1\.5"),
        ("gw:5", {}, r"gw:5 cuts 16 channels into 5 equal parts; 16 is not divisible by 5\. Usable: 1 2 4 8 16"),
        ("gw:4+bn", {}, r"gw:4 cannot be combined with other terms; it is not made of cuts"),
        ("bn/modenorm:2", {}, r"modenorm:2 cannot be combined"),
        ("modenorm:2.sa@3", {}, r"modenorm:2 takes no suffix except \.none; got \.sa@3"),
        ("ssn.hard", {}, r"ssn takes no suffix except \.none; got \.hard"),
        ("modenorm:0", {}, r"num_modes of modenorm must be an integer of at least 1; got 0"),
        ("modenorm@2", {}, r"modenorm@2 has too many numbers: write modenorm or modenorm:NUM_MODES"),
        ("brn", {"r_max": -1}, r"r_max of brn must be a finite number of at least 0; got -1"),
        ("brn", {"r_max": 0.5}, r"r_max of brn must be at least 1, .*; got 0\.5"),
        ("brn", {"d_max": float("inf")}, r"d_max of brn must be a finite number of at least 0; got inf"),
        ("brn", {"r_min": 1}, r"brn takes no argument 'r_min'\. Usable: batch_size d_max r_max"),
        ("bn", {"r_max": 2.0}, r"bn takes no argument 'r_max'"),
    ],
)
def test_invalid_specs_and_options_raise(spec, options, message):
    with pytest.raises(anynorm.SpecError, match=message):
        anynorm.make(spec, 16, **options)


def test_the_definition_of_a_custom_norm_cannot_construct_a_plain_one():
    with pytest.raises(anynorm.SpecError, match=r"gw:4 has a class of its own; got Norm\. Use anynorm\.make\('gw:4', 16\)"):
        anynorm.Norm(anynorm.registry.parse("gw:4"), 16)


def test_freezing_stops_a_schedule_without_statistics_too():
    model: Any = nn.Sequential(make("ssn", track_running_stats=False))
    anynorm.freeze(model)
    for _ in range(3):
        model(data(4, 16, 3, 3))
    assert model[0].num_passes == 0
    anynorm.unfreeze(model)
    model(data(4, 16, 3, 3))
    assert model[0].num_passes == 1


def test_freezing_and_a_frozen_schedule():
    for spec in ("brn", "ssn", "modenorm:2"):
        model: Any = nn.Sequential(make(spec))
        model(data(4, 16, 3, 3))
        anynorm.freeze(model)
        before = copy.deepcopy(model)
        y = model.train()(data(4, 16, 3, 3, seed=3))
        same_state(model, before)
        same(y, model.eval()(data(4, 16, 3, 3, seed=3)), rtol=1e-5, atol=1e-5)


def test_hyperparameters_are_set_all_or_none_and_restored_by_a_reset():
    norm: Any = anynorm.make("brn", 8, r_max=3.0)
    for values, message in (
        ({"d_max": 2.0, "r_max": 0.5}, "r_max of brn must be at least 1"),
        ({"d_max": 2.0, "running_mean": 1.0}, "brn has no hyperparameter 'running_mean'. Usable: r_max d_max"),
        ({"d_max": 2.0, "r_max": float("nan")}, "r_max of brn must be a finite number of at least 0; got nan"),
    ):
        with pytest.raises(anynorm.SpecError, match=message):
            norm.set_hyperparameters(**values)
        assert [float(norm.get_buffer(name)) for name in ("r_max", "d_max")] == [3.0, 0.5]
    norm.reset_parameters()
    assert float(norm.get_buffer("r_max")) == 3.0
    assert "r_max=3, d_max=0.5" in repr(anynorm.make("brn", 8, r_max=3.0, device="meta"))
