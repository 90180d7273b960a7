"""A failed forward or load says what to do, and leaves everything as it was."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import anynorm
from anynorm.core.update_rules import Frozen
from anynorm.errors import StateError
from anynorm.kernels import reference
from anynorm.kernels._numba import whole
from tests.helpers import ROWS, condition_for, data, make, same_state


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.zeros(8),
            r"takes \(n, c\), \(n, c, length\).*1 axes came\. Layer 'sn' of 8 channels, input torch.float32 \(8,\)\.",
        ),
        (torch.tensor(1.0), r"0 axes came"),
        (torch.zeros(2, 4, 3, 3), r"Axis 1 holds 4 channels, not 8\. Make the norm with 4 channels\."),
        (torch.zeros(2, 3, 3, 8), r"Axis 1 holds 3 channels, not 8\. The last axis fits: move it to axis 1\."),
        (torch.zeros(2, 8, 3, dtype=torch.int64), r"takes floating-point values, not torch.int64\. Call \.float\(\)"),
        (torch.zeros(2, 8, 3, dtype=torch.bool), r"not torch.bool"),
        (torch.zeros(2, 8, 3, dtype=torch.complex64), r"not torch.complex64"),
        (torch.zeros(2, 8, 0, 3), r"in takes statistics over positions, and there are none"),
        ([[1.0]], r"A norm takes a tensor \(n, c, …\), not a list\. Layer 'sn'"),
        (
            torch.zeros(1, 8),
            r"bn would take a statistic from one value in training.*Give more samples or positions, call \.eval\(\)",
        ),
    ],
)
def test_an_input_that_does_not_fit_is_refused_and_nothing_is_kept(x, message):
    norm = make("sn", channels=8)
    before = copy.deepcopy(norm)
    with pytest.raises(anynorm.ShapeError, match=message) as caught:
        norm(x)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, anynorm.AnynormError)
    same_state(norm, before)


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("in", (4, 8), "in would take a statistic from one value"),
        ("in", (4, 8, 1, 1), "in would take"),
        ("bn/in", (4, 8, 1, 1), "in would take"),
        ("in/bn", (4, 8, 1, 1), "in would take"),
        ("bn", (1, 8), "bn would take"),
        ("sn", (1, 8, 1, 1), "bn would take"),
        ("gn:8", (4, 8), "gn:8 would take"),
        ("gbgn:2,4", (3, 8, 2), r"gbgn:2,4 puts 2 samples in each part; 3 samples came"),
        (
            "bgn:32",
            (3, 8, 6),
            r"cuts the 6 positions of each of 8 channels into 4 equal strips; 6 is not divisible by 4",
        ),
        ("bgn:32", (3, 8, 3, 3), r"Nearest usable: bgn:24"),
    ],
)
def test_shapes_that_leave_a_statistic_without_meaning_are_refused(spec, shape, message):
    norm = make(spec, channels=8)
    before = copy.deepcopy(norm)
    with pytest.raises(anynorm.ShapeError, match=message):
        norm(data(*shape))
    same_state(norm, before)


@pytest.mark.parametrize(
    ("spec", "shape"), [("in", (4, 8)), ("bn", (1, 8)), ("gn:8", (4, 8)), ("gbgn:2,4", (3, 8, 2)), ("sn", (1, 8))]
)
def test_the_same_shapes_pass_in_inference(spec, shape):
    assert make(spec, channels=8).eval()(data(*shape)).isfinite().all()


@pytest.mark.parametrize("spec", [spec for spec in ROWS if not spec.startswith("gw")])  # which keeps nothing, and scales itself
def test_a_pass_that_fails_at_its_very_end_moves_no_statistic(spec, monkeypatch):
    norm, x = make(spec), data(4, 16, 4, 4)
    before = copy.deepcopy(norm)
    copy.deepcopy(norm)(x, condition_for(norm, x))  # the kernels are there

    def out_of_memory(*_):
        raise MemoryError

    for module, name in ((reference, "scale"), (whole, "forward")):
        monkeypatch.setattr(module, name, out_of_memory)
    with pytest.raises(MemoryError):
        norm(x, condition_for(norm, x))
    same_state(norm, before)


def test_a_state_dict_of_the_wrong_shape_names_the_key_and_both_shapes():
    model = torch.nn.Sequential(torch.nn.Identity(), make("hn:4", channels=8))
    state = torch.nn.Sequential(torch.nn.Identity(), make("hn:2", channels=8)).state_dict()
    with pytest.raises(
        anynorm.ShapeError, match=r"'1\.running_var' of shape \(2,\); hn:4 of 8 channels keeps \(4,\)\. Make the layer with"
    ):
        model.load_state_dict(state)
    broken = make("hn:4", channels=8).state_dict()
    broken["weight"] = torch.full((5,), float("nan"))
    with pytest.raises(anynorm.ShapeError, match=r"'weight' of shape \(5,\)"):
        make("hn:4", channels=8).load_state_dict(broken)


def test_nan_in_a_state_dict_names_the_key_and_how_many():
    state = make("sn", channels=8).state_dict()
    state["weight"][2:4] = float("nan")
    norm = make("sn", channels=8)
    before = copy.deepcopy(norm)
    with pytest.raises(StateError, match=r"2 NaN of 8 values in 'weight' \(sn\): the run that wrote it had diverged"):
        norm.load_state_dict(state)
    same_state(norm, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update_rule": "frozen"}, r"'frozen' is no policy of anynorm.core.update_rules: Running\(0\.1\)"),
        ({"update_rule": Frozen}, r"is no policy"),
        ({"momentum": "a"}, r"momentum='a' is no weight of the newest batch; it is a number from 0 to 1, or None"),
        ({"momentum": float("nan")}, r"momentum=nan is no weight"),
        ({"momentum": 2}, r"momentum=2 is no weight"),
        ({"eps": None}, r"eps=None is no small number"),
    ],
)
def test_options_without_meaning_are_refused(options, message):
    with pytest.raises(anynorm.SpecError, match=message):
        anynorm.make("bn", 8, **options)


def test_a_norm_made_from_a_string_is_told_of_make():
    with pytest.raises(
        anynorm.SpecError, match=r"Norm is made from parts, not from 'bn'; anynorm.make\(spec, num_features\) makes"
    ):
        anynorm.Norm("bn", 8)  # type: ignore[arg-type]


def test_a_style_without_positions_is_refused():
    with pytest.raises(anynorm.ConditionError, match=r"style has shape \(4, 8, 0\)"):
        anynorm.make("adain", 8)(data(4, 8, 3), torch.zeros(4, 8, 0))


def test_inputs_without_positions_pass_where_only_kept_statistics_are_used():
    assert make("bn", channels=8).eval()(torch.zeros(2, 8, 0)).shape == (2, 8, 0)


def test_tallies_of_old_checkpoints_load():
    state = make("bn", channels=8).state_dict()
    state["num_batches_tracked"] = torch.tensor([7])
    norm = make("bn", channels=8)
    norm.load_state_dict(state)
    assert norm.num_batches_tracked == 7


def test_variances_past_float16_are_kept_as_infinite_as_torch_keeps_them():
    ours, theirs = anynorm.make("bn", 8).half(), torch.nn.BatchNorm2d(8).half()
    for _ in range(2):
        x = data(4, 8, 4, 4, std=2000.0, dtype=torch.float16)
        ours(x), theirs(x)
        assert torch.equal(ours.running_var.isinf(), theirs.running_var.isinf())
        assert not ours.running_var.isnan().any()


def test_missing_and_unexpected_keys_are_torchs_to_report():
    with pytest.raises(RuntimeError, match="Missing key"):
        make("bn", channels=8).load_state_dict({})
    make("bn", channels=8).load_state_dict({}, strict=False)


def test_meta_tensors_load_by_assignment():
    with torch.device("meta"):
        norm = anynorm.make("sn", 8)
    norm.load_state_dict(make("sn", channels=8).state_dict(), assign=True)
    assert norm(data(2, 8, 3)).isfinite().all()
    with torch.device("meta"):
        norm = anynorm.make("bn", 8)
    old = {key: value for key, value in make("bn", channels=8).state_dict().items() if key != "num_batches_tracked"}
    norm.load_state_dict(old, assign=True)
    assert norm(data(2, 8, 3)).isfinite().all()


def test_layers_on_meta_and_fake_tensors_give_shapes():
    for spec in ("bn", "sn", "hn:2", "gn:2", "auxbn@2", "sabn@2"):
        norm = anynorm.make(spec, 8, device="meta")
        assert norm(torch.empty(4, 8, 3, device="meta"), torch.zeros(4, dtype=torch.long, device="meta")).shape == (4, 8, 3)
        with FakeTensorMode() as mode:
            fake = anynorm.make(spec, 8)
            assert fake(mode.from_tensor(data(4, 8, 3)), mode.from_tensor(torch.zeros(4, dtype=torch.long))).shape == (4, 8, 3)
