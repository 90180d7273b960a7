"""Surgery from the command line: models by name, checkpoints in and out."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.io.checkpoints import call_factory, load_model, read_state_dict
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
    track = run("inspect", "--model", NAME)
    assert track.exit_code == 0
    assert track.stdout.splitlines()[-1] == "6 norms: bn."
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


def test_torch_checkpoints_are_found_inside_and_without_prefix(tmp_path):
    model, path = trained(network()), tmp_path / "model.pt"
    torch.save({"state_dict": {f"module.{key}": value for key, value in model.state_dict().items()}}, path)
    same(load_model(NAME, path).eval()(X), model.eval()(X))


def test_mistakes_are_named(tmp_path):
    for text, said in (
        ("torch.nn", "package.module:factory"),
        ("torch.nowhere:x", "cannot be fetched"),
        ("torch.nn:Nothing", "cannot be fetched"),
    ):
        with pytest.raises(anynorm.DataError, match=said):
            call_factory(text)
    with pytest.raises(anynorm.DataError, match=r"not an nn\.Module"):
        load_model("builtins:dict")
    with pytest.raises(anynorm.DataError, match="There is no file"):
        read_state_dict(tmp_path / "none.pt")
    with pytest.raises(anynorm.DataError, match="There is no file"):
        list(read_batches(str(tmp_path / "none.npz")))
    wrong = tmp_path / "wrong.pt"
    torch.save({"a": torch.zeros(3)}, wrong)
    with pytest.raises(anynorm.DataError, match="does not fit"):
        load_model(NAME, wrong)
    with pytest.raises(anynorm.DataError, match="no tensor"):
        list(read_batches(str(wrong)))
