"""`anynorm diagnose`, and the data it reads."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.lab.training.config import Config
from tests.helpers import data
from tests.surgery.networks import network

MODEL = "tests.diagnostics.test_command:classifier"
MIXED = "tests.diagnostics.test_command:switchable"


def classifier(norm=nn.BatchNorm2d):
    features = network(norm)
    features[-1] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))
    return features


def switchable():
    return classifier(lambda channels: anynorm.make("sn", channels))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def labeled(tmp_path):
    path = tmp_path / "labeled.npz"
    np.savez(path, x=data(60, 3, 8, 8).numpy(), y=np.arange(60) % 3)
    return path


def test_shift_is_the_default_and_labels_give_a_score(labeled, tmp_path):
    image_files = pytest.importorskip("PIL.Image", reason="needs the lab extra")
    picture = tmp_path / "shift.png"
    done = run("diagnose", MODEL, "--data", labeled, "--plot", picture)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["path", "norm", "channels", "esm_mean"]
    assert "score" in lines[0]
    assert f"Wrote {picture}." in lines[-1]
    with image_files.open(picture) as image:
        assert image.size[0] > 500
    rows = json.loads(run("diagnose", MODEL, "--data", labeled, "--json", "--where", "3.*").stdout)["rows"]
    assert [row["path"] for row in rows] == ["3.bn1", "3.bn2"]


def test_without_trial_samples_no_norm_is_corrected(labeled):
    rows, short = (
        json.loads(run("diagnose", MODEL, "--data", labeled, "--json", *options).stdout)["rows"]
        for options in ([], ["--trial-samples", 0])
    )
    added = {"output_error", "shift_removed", "max_remaining", "score"}
    assert all(row.keys() >= added for row in rows)
    assert short == [{name: value for name, value in row.items() if name not in added} for row in rows]


@pytest.mark.parametrize(
    ("what", "model", "message"),
    [
        ("importance", MIXED, "Average weights of 6 norms: mean in 0.33"),
        ("perturb", MODEL, "The score is accuracy in percent"),
        ("fluctuation", MODEL, "at fixed parameters"),
        ("gradients", MODEL, "3 classes, 2 draws"),
    ],
)
def test_every_diagnostic_prints_a_finding_and_writes_a_plot(what, model, message, labeled, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the lab extra")
    options = ["--data", labeled, "--batch-size", 16, "--seeds", 2, "--deltas", "0.2,0.4", "--plot", tmp_path / "answer.svg"]
    done = run("diagnose", model, "--what", what, *options)
    assert done.exit_code == 0, done.output
    assert message in done.stdout.splitlines()[-1]
    assert "<svg" in (tmp_path / "answer.svg").read_text()


def test_importance_needs_no_data():
    done = run("diagnose", MIXED, "--what", "importance")
    assert done.exit_code == 0, done.output
    assert "6 norms" in done.stdout.splitlines()[-1]


def test_without_labels_perturbed_outputs_are_compared_with_the_unperturbed(tmp_path):
    torch.save(data(16, 3, 8, 8), tmp_path / "x.pt")
    done = run("diagnose", MODEL, "--what", "perturb", "--data", tmp_path / "x.pt", "--deltas", "0.2", "--seeds", "1")
    assert "agreement with the unperturbed model" in done.stdout
    failed = run("diagnose", MODEL, "--what", "gradients", "--data", tmp_path / "x.pt")
    assert isinstance(failed.exception, anynorm.DiagnosticError)
    assert "must have integer labels" in str(failed.exception)


def test_misuse_raises_with_the_reason(labeled, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the lab extra")
    (tmp_path / "junk.pt").write_text("junk")
    (tmp_path / "junk.npz").write_text("junk")
    torch.save(data(4, 5, 8, 8), tmp_path / "shape.pt")
    for arguments, message in (
        (["--data", tmp_path / "junk.pt"], r"cannot read .*junk\.pt"),
        (["--data", tmp_path / "junk.npz"], r"cannot read .*junk\.npz"),
        (["--data", labeled, "--checkpoint", tmp_path / "junk.pt"], r"cannot read .*junk\.pt"),
        (["--data", tmp_path / "shape.pt"], "The model cannot be run on this data: RuntimeError"),
        (["--data", labeled, "--plot", tmp_path / "nowhere" / "x.png"], "nowhere of x.png does not exist"),
        (["--data", labeled, "--mean", "0.5", "--std", "1,1,1"], "mean and std must have one value each .*; got 1 and 3"),
        (["--data", "builtins:int"], "must return a tensor, .* or an iterable of batches; got int"),
        (["--what", "shfit"], r"--what must be one of shift .*; got 'shfit'\. Did you mean shift\?"),
        ([], "pass --data"),
        (["--data", "nowhere"], "expected a folder, a file .* or package.module:factory; got 'nowhere'"),
        (["--data", labeled, "--deltas", "a"], "--deltas must be comma-separated numbers, such as 0.1,0.2; got 'a'"),
        (["--data", labeled, "--plot", tmp_path / "x.doc"], "must have the suffix of a picture"),
    ):
        done = run("diagnose", MODEL, *arguments)
        with pytest.raises(anynorm.AnynormError, match=message):
            raise done.exception
    for arguments in (
        ["--batches", "0"],
        ["--batch-size", "-1"],
        ["--image-size", "0"],
        ["--seeds", "0"],
        ["--trial-samples", "-1"],
    ):
        assert run("diagnose", MODEL, "--data", labeled, *arguments).exit_code == 2
    command = [sys.executable, "-m", "anynorm", "diagnose", "torch.nn:Identity", "--data", str(labeled)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("DiagnosticError: This Identity has no norm")


def pair():
    return data(20, 3, 8, 8), torch.arange(20) % 3


SHARED = iter([(data(8, 3, 8, 8), torch.arange(8) % 3)] * 3)


def test_factories_may_return_a_pair_or_an_exhaustible_iterator():
    assert "20 samples" in run("diagnose", MODEL, "--data", "tests.diagnostics.test_command:pair").stdout
    assert "24 samples" in run("diagnose", MODEL, "--data", "tests.diagnostics.test_command:SHARED.__iter__").stdout


@pytest.fixture
def pixels(tmp_path):
    """Images in [0, 1] with labels, and others without."""
    values = torch.rand(90, 3, 8, 8, generator=torch.Generator().manual_seed(0)).numpy()
    np.savez(tmp_path / "test.npz", x=values[:60], y=np.arange(60) % 3)
    np.savez(tmp_path / "new.npz", x=values[60:])
    return tmp_path / "test.npz", tmp_path / "new.npz"


def test_adaptation_compares_statistics_on_new_data(pixels, tmp_path):
    image_files = pytest.importorskip("PIL.Image", reason="needs the lab extra")
    test, new = pixels
    picture = tmp_path / "adaptation.png"
    common = ("diagnose", MODEL, "--what", "adaptation", "--data", test, "--batch-size", 20)
    done = run(*common, "--unlabeled", new, "--source-weight", 0.25, "--plot", picture)
    assert done.exit_code == 0, done.output
    header, row, finding = done.stdout.splitlines()
    assert header.split() == ["data", "samples", "shift", "source", "recalibrated", "mixed", "per_batch"]
    assert row.split()[:2] == ["--data", "30"]
    assert "mixed (source weight 0.25)" in finding
    assert "test images themselves" not in finding
    with image_files.open(picture) as image:
        assert image.size[0] > 500
    done = run(*common, "--corruptions", "gaussian_noise,contrast", "--severities", "1,5", "--mean", "0", "--std", "1", "--json")
    report = json.loads(done.stdout)
    names = ["uncorrupted", "gaussian_noise 1", "gaussian_noise 5", "contrast 1", "contrast 5"]
    assert [row["data"] for row in report["rows"]] == names
    assert "estimated from the test images themselves (without labels): pass --unlabeled" in report["finding"]


def test_adaptation_of_a_run_corrupts_its_test_images_before_they_are_standardized(tmp_path):
    pytest.importorskip("torchmetrics", reason="needs the lab extra")
    from anynorm.lab.recipes.support.runs import train_run

    config = Config(data="digits", num_train=64, num_test=64, epochs=1, num_evals=1)
    train_run(config, tmp_path)
    arguments = ("--what", "adaptation", "--corruptions", "brightness", "--severities", "5", "--runs", tmp_path, "--json")
    done = run("diagnose", f"run:{config.id}", *arguments)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [row["data"] for row in rows] == ["uncorrupted", "brightness 5"]
    assert rows[1]["shift"] != rows[0]["shift"]  # with another mean and std, corruption_targets would raise


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--data", "new.npz"],
            "Accuracy needs labels: --data must have integer labels beside x. --unlabeled takes data without",
        ),
        (["--data", "test.npz", "--source-weight", "2"], "source_weight must be in"),
        (
            ["--data", "test.npz", "--severities", "1.5"],
            "--severities must be comma-separated integers, such as 1,3,5; got '1.5'",
        ),
        (["--data", "test.npz", "--corruptions", "fog"], "unknown corruption 'fog'"),
        (["--data", "test.npz", "--corruptions", "contrast", "--severities", "7"], "severity must be one of 1 2 3 4 5; got 7"),
        (
            ["--data", "test.npz", "--corruptions", "contrast", "--mean", "9", "--std", "1"],
            r"x · std \+ mean must be in \[0, 1\]",
        ),
    ],
)
def test_adaptation_refuses_wrong_data_and_options(options, message, pixels, monkeypatch):
    monkeypatch.chdir(pixels[0].parent)
    done = run("diagnose", MODEL, "--what", "adaptation", *options)
    with pytest.raises(anynorm.AnynormError, match=message):
        raise done.exception


def with_overflow():
    """A network that was trained on batches of which two in five had an overflow in the second norm."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make("bn", 8), nn.Conv2d(8, 8, 3), anynorm.make("hn:2", 8))
    handle = None
    for step in range(5):
        if step == 3:
            handle = model[2].register_forward_hook(lambda _module, _inputs, output: output * float("inf"))
        model(data(8, 3, 8, 8, seed=step))
    handle.remove()
    return model


def test_batches_that_norms_skipped_are_reported(labeled):
    done = run("diagnose", "tests.diagnostics.test_command:with_overflow", "--data", labeled)
    assert done.exit_code == 0, done.output
    assert "1 norm skipped batches whose statistics were infinite or NaN; the first of them, '3', 2 batches" in done.stdout
    report = json.loads(run("diagnose", "tests.diagnostics.test_command:with_overflow", "--data", labeled, "--json").stdout)
    assert [row["skipped"] for row in report["rows"]] == [0, 2]
    assert "skipped" not in json.loads(run("diagnose", MODEL, "--data", labeled, "--json").stdout)["rows"][0]
