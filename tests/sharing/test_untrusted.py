"""A folder may come from anyone: every value is checked, a wrong one is an error that names it, and nothing is executed."""

import copy
import json
import pickle
import resource
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import anynorm
from anynorm.errors import AnynormError, DataError
from anynorm.sharing.model_config import FIELDS, MAX_BYTES
from anynorm.sharing.norm_config import NormConfig

EXECUTED: list[int] = []


def base():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8))


@pytest.fixture
def folder(tmp_path):
    model = base()
    anynorm.convert(model, "sabn@4")
    anynorm.convert(model, "brn", "3")
    return anynorm.save_pretrained(model, tmp_path / "model")


def load(folder):
    return anynorm.load_pretrained(folder, base=base)


def change(folder, *keys, value):
    """Set the value at a place in the config."""
    path = folder / "norms.json"
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content))


NORM = ("norms", 0)


@pytest.mark.parametrize(
    ("keys", "value", "match"),
    [
        (("format",), "onnx", r"must be a JSON object with the format 'anynorm'"),
        (
            ("version",),
            2,
            r"has the version 2 of the format, written by a newer anynorm \(anynorm .*\); this one .* up to 1. Upgrade",
        ),
        (("version",), 10**30, "has the version above 2³¹"),
        (("version",), True, "version must be 1; got True"),
        (("version",), "1", "version must be 1; got '1'"),
        (("version",), 0, "version must be 1; got 0"),
        (("norms",), {"0": {}}, "norms must be a list; got a value of type dict"),
        (("norms",), [3], r"norm 0 must be a JSON object; got int"),
        (("norms",), [{}], r"norm 0 lacks activation affine"),
        ((*NORM, "command"), "rm", r"norm 0 has the unknown key 'command'. Known: activation"),
        (("script",), "x.py", r"has the unknown key 'script'"),
        (("fused_blocks",), [1], "fused_blocks must be a list of texts"),
        (("tied",), {"0.weight": "5.weight"}, r"tied: '0.weight' must be stored as '5.weight', and not by itself"),
        (("tied",), {"9.weight": 3}, "tied must be an object with texts"),
        (("dtypes",), {"a": "object"}, "dtypes must be an object with values among bfloat16 float16 float32 float64"),
        ((*NORM, "paths"), [], "paths must be a list with at least one text"),
        ((*NORM, "paths"), ["9"], r"has a norm at '9' \(sabn@4\); the model of base\(\) has no norm there. Its norms: 1 3"),
        ((*NORM, "paths"), ["0"], "has no norm there"),
        ((*NORM, "paths"), ["../../etc/passwd"], "has no norm there"),
        ((*NORM, "paths"), ["__class__"], "has no norm there"),
        ((*NORM, "paths"), ["1", "3"], r"one norm at 1 3; the model of base\(\) at 1"),
        ((*NORM, "paths"), ["3"], "two norms at one path"),
        ((*NORM, "spec"), "hnn:4", r"'1': 'hnn:4': unknown norm 'hnn'. Did you mean hn"),
        ((*NORM, "spec"), "gn:3", r"'1': gn:3 cuts 8 channels into 3 equal parts"),
        ((*NORM, "spec"), "sabn", r"'1': sabn needs num_classes"),
        (
            (*NORM, "spec"),
            "gn:4",
            "the model lacks 1.class_bias, 1.class_weight, 1.num_batches_tracked, .* and 1 more. base must make",
        ),
        ((*NORM, "spec"), "sabn@5", r"'1.class_weight' has shape \(4, 8\) in the folder, and \(5, 8\)"),
        ((*NORM, "spec"), "sabn@999999999", r"'1.class_weight' has shape \(4, 8\) in the folder, and \(999999999, 8\)"),
        ((*NORM, "spec"), "modenorm:999999999", "the weights do not fit"),
        ((*NORM, "spec"), "sabn@9999999999999999999", "malformed"),
        ((*NORM, "spec"), "in+" * 400, "spec must be a text of at most 1000 characters"),
        ((*NORM, "spec"), ["bn"], "spec must be a text .*; got a value of type list"),
        ((*NORM, "num_features"), 16, r"'1' \(sabn@4\) has 16 channels in norms.json, and 8 in the model of base"),
        ((*NORM, "num_features"), 10**12, "num_features must be an integer of at least 1; got a value of type int"),
        ((*NORM, "num_features"), 8.0, "num_features must be an integer of at least 1; got 8.0"),
        ((*NORM, "eps"), -1.0, r"'1': eps must be"),
        ((*NORM, "eps"), "1e-5", "eps must be a finite number; got '1e-5'"),
        ((*NORM, "eps"), 10**400, "eps must be a finite number"),
        ((*NORM, "update_rule"), "os.system", "update_rule must be one of running cumulative cumulative_biased pooled frozen"),
        ((*NORM, "update_rule"), "frozen", "momentum must be a number for the update rule running, and null for all others"),
        ((*NORM, "momentum"), 7, r"'1': momentum must be in \[0, 1\]"),
        ((*NORM, "affine"), 1, "affine must be true or false; got 1"),
        ((*NORM, "affine"), False, "'1': .*requires affine=True"),
        ((*NORM, "activation"), "exec", "activation must be null or one of relu relu6"),
        ((*NORM, "single_value"), "maybe", "'1': single_value must be 'error' or 'running'"),
        ((*NORM, "channel_axis"), 0, "'1': .*channel_axis"),
        ((*NORM, "hyperparameters"), {"eps": 1}, r"'1': sabn@4 has the hyperparameters \[\]; got \['eps'\]"),
        (("norms", 1, "hyperparameters"), {"r_max": -1, "d_max": 0}, r"'3': r_max"),
        (("norms", 1, "hyperparameters", "r_max"), [1], "hyperparameters must be an object with finite numbers"),
        ((*NORM, "post_modules"), ["__init__"], r"is followed by '__init__' in norms.json"),
    ],
)
def test_a_changed_config_is_an_error_that_names_the_value(keys, value, match, folder):
    load(folder)
    change(folder, *keys, value=value)
    with pytest.raises(DataError, match=match):
        load(folder)


def places(value, keys=()):
    """Return the keys of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [keys, *(place for key, each in inner for place in places(each, (*keys, key)))]


STRANGE = [None, True, -1, 0, 2**40, 10**400, 1e308, "", "x", "../../x", "a" * 2000, [], [[]], ["x"], {}, {"x": "x"}, {"x": {}}]


def test_any_value_anywhere_is_read_or_is_an_error_of_ours(folder):
    original = json.loads((folder / "norms.json").read_text())
    tried = errors = 0
    for keys in places(original)[1:]:
        for value in STRANGE:
            content = copy.deepcopy(original)
            inner = content
            for key in keys[:-1]:
                inner = inner[key]
            inner[keys[-1]] = value
            (folder / "norms.json").write_text(json.dumps(content))
            tried += 1
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # any text may be the path of a block that was fused
                    model = load(folder)
            except AnynormError as error:
                errors += 1
                assert len(str(error)) < 1000
            else:
                assert [type(layer) for layer in model][::2] == [nn.Conv2d, nn.ReLU]
    assert tried > 500
    assert errors > 0.8 * tried


def test_every_field_of_a_norm_has_a_check():
    assert list(FIELDS) == list(NormConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"must be JSON; it cannot be parsed \(JSONDecodeError\)"),
        ("[]", "must be a JSON object"),
        ("[" * 100_000, r"cannot be parsed \(RecursionError\)"),
        ('{"format": NaN}', "cannot be parsed"),
        ('{"format": ' + "9" * 10_000 + "}", "cannot be parsed"),
        (" " * (MAX_BYTES + 1), "must have at most 16 MB"),
    ],
)
def test_a_config_that_is_not_json_is_an_error(text, match, folder):
    (folder / "norms.json").write_text(text)
    with pytest.raises(DataError, match=match):
        load(folder)


def test_huge_numbers_allocate_nothing(folder):
    change(folder, *NORM, "spec", value="sabn@999999999")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="999999999"):
        load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB; the tensors would have 64 GB


def execute(value):
    EXECUTED.append(value)


class Exploit:
    def __reduce__(self):
        return execute, (1,)


def test_a_pickle_in_place_of_the_weights_is_not_executed(folder):
    torch.save({"0.weight": Exploit()}, folder / "model.safetensors")
    with pytest.raises(DataError, match="must be a safetensors file"):
        load(folder)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Exploit()))
    with pytest.raises(DataError, match="must be a safetensors file"):
        load(folder)
    assert EXECUTED == []
    pickle.loads(pickle.dumps(Exploit()))
    assert EXECUTED == [1]


def test_a_name_of_a_base_model_is_not_imported(folder):
    (folder.parent / "imported_by_name.py").write_text("raise SystemExit('executed')")
    sys.path.insert(0, str(folder.parent))
    try:
        change(folder, "base", value="imported_by_name:factory")
        load(folder)
    finally:
        sys.path.remove(str(folder.parent))
    assert "imported_by_name" not in sys.modules


def test_only_two_files_of_the_folder_are_read(folder):
    (folder / "__init__.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Exploit()))
    load(folder)


def test_weights_that_do_not_fit_are_an_error(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for changed, match in [
        ({}, "the folder lacks 0.weight, 0.bias"),
        ({**tensors, "extra": torch.ones(2)}, "the model lacks extra"),
        (
            {**tensors, "0.weight": torch.ones(8, 3, 5, 5)},
            r"'0.weight' has shape \(8, 3, 5, 5\) in the folder, and \(8, 3, 3, 3\)",
        ),
        (
            {**tensors, "0.weight": torch.ones(8, 3, 3, 3).int()},
            r"'0.weight' has dtype torch.int32 in the folder, and torch.float32",
        ),
        ({**tensors, "1.weight": torch.full((8,), torch.nan)}, "1.weight.*must not contain NaN"),
    ]:
        save_file(changed, path)
        with pytest.raises(AnynormError, match=match):
            load(folder)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="must be a safetensors file"):
        load(folder)
    path.unlink()
    with pytest.raises(DataError, match="does not exist"):
        load(folder)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nothing/norms.json"):
        load(tmp_path / "nothing")
