"""Surgery from the command line: models by name, checkpoints in and out."""

import json

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.io.checkpoints import call_factory, load_model, read_state_dict, save_model
from anynorm.io.inputs import read_batches
from tests.helpers import data, same
from tests.surgery.networks import X, network, trained

NAME = "tests.surgery.networks:network"


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(trained(network()).state_dict(), path)
    return path


def test_inspect_lists_the_norms_of_a_model():
    shown = run("inspect", "--model", NAME)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1] == "6 norms: bn."
    rows = json.loads(run("inspect", "--model", NAME, "--json").stdout)["rows"]
    assert rows[0] == {"path": "1", "class": "BatchNorm2d", "spec": "bn", "channels": 16, "running_stats": "yes", "eps": 1e-5}


def test_convert_fits_and_writes_a_checkpoint_that_loads_again(checkpoint, tmp_path):
    inputs, out = tmp_path / "x.npz", tmp_path / "out.safetensors"
    np.savez(inputs, x=data(32, 3, 8, 8).numpy())
    done = run("convert", "gn:4", "--model", NAME, "--checkpoint", checkpoint, "--fit", inputs, "--out", out)
    assert done.exit_code == 0, done.output
    assert "error_after" in done.stdout
    assert "Wrote" in done.stdout.splitlines()[-1]
    model = network()
    anynorm.convert(model, "gn:4")
    model.load_state_dict(load_file(out))


def test_xbn_fold_and_recalibrate_run(checkpoint, tmp_path):
    inputs = tmp_path / "x.pt"
    torch.save(data(32, 3, 8, 8), inputs)
    assert "2 of 2 residual blocks" in run("xbn", "--model", NAME, "--norm", "gn:4").stdout
    folded = tmp_path / "folded.safetensors"
    done = run("fold", "--model", NAME, "--checkpoint", checkpoint, "--data", inputs, "--out", folded)
    assert "6 of 6 norms folded" in done.stdout
    assert "1.weight" not in load_file(folded)
    done = run("recalibrate", "--model", NAME, "--checkpoint", checkpoint, "--data", inputs, "--batch-size", 8)
    assert "on 32 samples (pooled)" in done.stdout
    assert run("fold", "--model", NAME).exit_code == 2


def test_torch_checkpoints_are_unwrapped_and_their_prefix_removed(tmp_path):
    model, path = trained(network()), tmp_path / "model.pt"
    torch.save({"state_dict": {f"module.{key}": value for key, value in model.state_dict().items()}}, path)
    same(load_model(NAME, path).eval()(X), model.eval()(X))


def test_wrong_names_and_files_are_refused(tmp_path):
    for name, message in (
        ("torch.nn", "expected package.module:factory; got 'torch.nn'"),
        ("torch.nowhere:x", "cannot import 'torch.nowhere:x'"),
        ("torch.nn:Nothing", "cannot import 'torch.nn:Nothing'"),
    ):
        with pytest.raises(anynorm.DataError, match=message):
            call_factory(name)
    with pytest.raises(anynorm.DataError, match=r"must return an nn\.Module; got dict"):
        load_model("builtins:dict")
    with pytest.raises(anynorm.DataError, match="checkpoint not found"):
        read_state_dict(tmp_path / "none.pt")
    with pytest.raises(anynorm.DataError, match="file not found"):
        list(read_batches(str(tmp_path / "none.npz")))
    wrong = tmp_path / "wrong.pt"
    torch.save({"a": torch.zeros(3)}, wrong)
    with pytest.raises(anynorm.DataError, match="does not fit"):
        load_model(NAME, wrong)
    with pytest.raises(anynorm.DataError, match=r"first entry .* must be a tensor \(n, c, …\)"):
        list(read_batches(str(wrong)))


def test_a_model_that_cannot_be_written_leaves_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_model(network(), path)
    before = path.read_bytes()
    monkeypatch.setattr("anynorm.io.checkpoints.save_file", fail_to_save)
    with pytest.raises(anynorm.DiskError, match=r"cannot write .* No space left .* The previous file is intact"):
        save_model(network(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def fail_to_save(_, path):
    path.write_text("half")
    raise SafetensorError("No space left on device")


def test_checkpoints_are_written_as_safetensors_only(tmp_path):
    path = tmp_path / "model.pt"
    path.write_text("mine")
    with pytest.raises(anynorm.DataError, match=r"the path must end in \.safetensors; got .*model\.pt"):
        save_model(torch.nn.Linear(2, 2), path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["torch.nn:Linear", "math:pi"])
def test_what_cannot_be_called_without_arguments_raises(name):
    with pytest.raises(anynorm.DataError, match=f"'{name}' must be a factory that can be called without arguments"):
        call_factory(name)
