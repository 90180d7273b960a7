"""A failed forward or load raises a message with a way out, and leaves the layer unchanged."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import anynorm
from anynorm.core.update_rules import Frozen
from anynorm.errors import StateError
from anynorm.kernels import cpu, reference
from tests.helpers import ROWS, condition_for, data, make, same_state


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.zeros(8),
            r"at least 2 dimensions: \(n, c\),.*got 1 dimensions\. Layer 'sn' with 8 channels, input torch.float32",
        ),
        (torch.tensor(1.0), r"got 0 dimensions"),
        (torch.zeros(2, 4, 3, 3), r"Axis 1 must hold 8 channels; got 4\. Construct the norm with 4 channels\."),
        (torch.zeros(2, 3, 3, 8), r"Axis 1 must hold 8 channels; got 3\. The last axis fits: pass channel_axis=-1\."),
        (torch.zeros(2, 8, 3, dtype=torch.int64), r"must have a floating-point dtype; got torch.int64\. Call \.float\(\)"),
        (torch.zeros(2, 8, 3, dtype=torch.bool), r"got torch.bool"),
        (torch.zeros(2, 8, 3, dtype=torch.complex64), r"got torch.complex64"),
        (torch.zeros(2, 8, 0, 3), r"in takes statistics over positions; got an input without any"),
        ([[1.0]], r"must be a tensor \(n, c, …\); got a list\. Layer 'sn'"),
        (
            torch.zeros(1, 8),
            r"bn needs more than one value per statistic in training; got 1.*Use more samples or positions, call \.eval\(\)",
        ),
    ],
)
def test_an_unfit_input_raises_and_leaves_the_layer_unchanged(x, message):
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
        ("in", (4, 8), "in needs more than one value per statistic"),
        ("in", (4, 8, 1, 1), "in needs more than one value"),
        ("bn/in", (4, 8, 1, 1), "in needs more than one value"),
        ("in/bn", (4, 8, 1, 1), "in needs more than one value"),
        ("bn", (1, 8), "bn needs more than one value"),
        ("sn", (1, 8, 1, 1), "bn needs more than one value"),
        ("gn:8", (4, 8), "gn:8 needs more than one value"),
        ("gbgn:2,4", (3, 8, 2), r"gbgn:2,4 takes statistics over 2 samples each; the batch size must be a multiple of 2; got 3"),
        (
            "bgn:32",
            (3, 8, 6),
            r"cuts the 6 positions of each of 8 channels into 4 equal strips; 6 is not divisible by 4",
        ),
        ("bgn:32", (3, 8, 3, 3), r"Nearest usable: bgn:24"),
    ],
)
def test_shapes_without_meaningful_statistics_raise(spec, shape, message):
    norm = make(spec, channels=8)
    before = copy.deepcopy(norm)
    with pytest.raises(anynorm.ShapeError, match=message):
        norm(data(*shape))
    same_state(norm, before)


@pytest.mark.parametrize(
    ("spec", "shape"), [("in", (4, 8)), ("bn", (1, 8)), ("gn:8", (4, 8)), ("gbgn:2,4", (3, 8, 2)), ("sn", (1, 8))]
)
def test_the_same_shapes_work_in_inference(spec, shape):
    assert make(spec, channels=8).eval()(data(*shape)).isfinite().all()


@pytest.mark.parametrize(
    "spec", [spec for spec in ROWS if not spec.startswith(("gw", "dyt", "derf"))]
)  # have no running statistics and no kernel pass
def test_a_forward_that_fails_at_its_end_updates_no_statistic(spec, monkeypatch):
    norm, x = make(spec), data(4, 16, 4, 4)
    before = copy.deepcopy(norm)
    copy.deepcopy(norm)(x, condition_for(norm, x))  # loads the kernels

    def out_of_memory(*_):
        raise MemoryError

    for module, name in ((reference, "scale"), (cpu.library, "normalize")):
        monkeypatch.setattr(module, name, out_of_memory)
    with pytest.raises(MemoryError):
        norm(x, condition_for(norm, x))
    same_state(norm, before)


def test_entries_of_the_wrong_shape_are_in_torchs_list_of_all_layers():
    errors = []
    for norm in (torch.nn.BatchNorm1d, anynorm.layer("bn")):
        model = torch.nn.Sequential(norm(8), torch.nn.Linear(8, 3), norm(3))
        with pytest.raises(RuntimeError) as error:
            model.load_state_dict(torch.nn.Sequential(norm(4), torch.nn.Linear(8, 2), norm(3)).state_dict())
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert errors[1].count("size mismatch for") == 6
    broken = make("hn:4", channels=8).state_dict()
    broken["weight"] = torch.full((5,), float("nan"))
    with pytest.raises(RuntimeError, match=r"size mismatch for weight: copying a param with shape torch.Size\(\[5\]\)"):
        make("hn:4", channels=8).load_state_dict(broken)


def test_nan_in_a_state_dict_names_the_key_and_how_many():
    state = make("sn", channels=8).state_dict()
    state["weight"][2:4] = float("nan")
    norm = make("sn", channels=8)
    before = copy.deepcopy(norm)
    with pytest.raises(
        StateError,
        match=r"'weight' \(sn\) must not contain NaN; the state_dict has 2 NaN of 8 values, so its training had diverged",
    ):
        norm.load_state_dict(state)
    same_state(norm, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update_rule": "frozen"}, r"update_rule must be Running\(0\.1\), .* of anynorm; got 'frozen'"),
        ({"update_rule": Frozen}, r"update_rule must be .*got <class"),
        ({"momentum": "a"}, r"momentum must be in \[0, 1\] or None; got 'a'"),
        ({"momentum": float("nan")}, r"momentum must be in \[0, 1\] or None; got nan"),
        ({"momentum": 2}, r"momentum must be in \[0, 1\] or None; got 2"),
        ({"eps": None}, r"eps must be at least 0; got None"),
        ({"eps": -1e-5}, r"eps must be at least 0; got -1e-05"),
        ({"eps": float("inf")}, r"eps must be at least 0; got inf"),
    ],
)
def test_options_out_of_range_raise(options, message):
    with pytest.raises(anynorm.SpecError, match=message):
        anynorm.make("bn", 8, **options)


def test_constructing_norm_from_a_string_points_to_make():
    with pytest.raises(anynorm.SpecError, match=r"Norm takes a NormSpec; got 'bn'\. Use anynorm.make\(spec, num_features\)"):
        anynorm.Norm("bn", 8)  # type: ignore[arg-type]


def test_a_style_without_positions_raises():
    with pytest.raises(anynorm.ConditionError, match=r"style does not fit the input; got shape \(4, 8, 0\)"):
        anynorm.make("adain", 8)(data(4, 8, 3), torch.zeros(4, 8, 0))


def test_inputs_without_positions_work_with_running_statistics():
    assert make("bn", channels=8).eval()(torch.zeros(2, 8, 0)).shape == (2, 8, 0)


def test_num_batches_tracked_of_old_checkpoints_loads():
    state = make("bn", channels=8).state_dict()
    state["num_batches_tracked"] = torch.tensor([7])
    norm = make("bn", channels=8)
    norm.load_state_dict(state)
    assert norm.num_batches_tracked == 7


def test_variances_beyond_float16_which_become_infinite_in_torch_are_skipped_and_counted():
    ours, theirs = anynorm.make("bn", 8).half(), torch.nn.BatchNorm2d(8).half()
    for count in (1, 2):
        x = data(4, 8, 4, 4, std=2000.0, dtype=torch.float16)
        ours(x), theirs(x)
        assert theirs.running_var.isinf().any()
        assert torch.equal(ours.running_var, torch.ones(8, dtype=torch.float16))
        assert torch.equal(ours.running_mean, torch.zeros(8, dtype=torch.float16))
        assert ours.num_batches_skipped == count
        assert ours.num_batches_tracked == 0


def test_missing_keys_are_reported_by_torch():
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


def test_layers_on_meta_and_fake_tensors_return_shapes():
    for spec in ("bn", "sn", "hn:2", "gn:2", "auxbn@2", "sabn@2"):
        norm = anynorm.make(spec, 8, device="meta")
        assert norm(torch.empty(4, 8, 3, device="meta"), torch.zeros(4, dtype=torch.long, device="meta")).shape == (4, 8, 3)
        with FakeTensorMode() as mode:
            fake = anynorm.make(spec, 8)
            assert fake(mode.from_tensor(data(4, 8, 3)), mode.from_tensor(torch.zeros(4, dtype=torch.long))).shape == (4, 8, 3)


def test_a_ghost_norm_checks_its_strips_in_inference_too():
    norm = make("[/2,4,2]").eval()
    norm(data(3, 16, 4))  # running statistics: any batch size
    with pytest.raises(anynorm.ShapeError, match="into 2 equal strips; 5 is not divisible by 2"):
        norm(data(3, 16, 5))


def test_layers_remember_a_limited_number_of_shapes():
    norm = make("gn:4")
    for length in range(1, 200):
        norm(torch.ones(1, 16, length))
    assert 0 < len(norm._forward_spec().validated_shapes) <= 64
    with pytest.raises(anynorm.ShapeError, match="must hold 16 channels"):
        norm(torch.ones(1, 8, 5))
