"""`anynorm diagnose`, the data it reads, and the pictures it draws."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import anynorm
from anynorm import plot
from anynorm.cli import app
from anynorm.diagnostics import estimation_shift, fluctuation, gradient_balance, importance, perturbation_curve
from anynorm.io.inputs import ImageTransform, read_batches, read_first_input
from tests.helpers import data, same
from tests.surgery.test_convert import network, trained

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
def labelled(tmp_path):
    path = tmp_path / "labelled.npz"
    np.savez(path, x=data(60, 3, 8, 8).numpy(), y=np.arange(60) % 3)
    return path


def test_shift_is_the_first_question_and_labels_make_a_score(labelled, tmp_path):
    picture = tmp_path / "shift.png"
    done = run("diagnose", MODEL, "--data", labelled, "--plot", picture)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["path", "norm", "channels", "esm_mean"]
    assert "score" in lines[0]
    assert f"Drawn in {picture}." in lines[-1]
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 500
    rows = json.loads(run("diagnose", MODEL, "--data", labelled, "--json", "--where", "3.*").stdout)["rows"]
    assert [row["path"] for row in rows] == ["3.bn1", "3.bn2"]


@pytest.mark.parametrize(
    ("what", "model", "said"),
    [
        ("importance", MIXED, "Average weights of 6 norms: mean in 0.33"),
        ("perturb", MODEL, "The score is accuracy in percent"),
        ("fluctuation", MODEL, "at fixed parameters"),
        ("gradients", MODEL, "3 classes, 2 draws"),
    ],
)
def test_every_question_is_answered_and_drawn(what, model, said, labelled, tmp_path):
    options = ["--data", labelled, "--batch-size", 16, "--seeds", 2, "--deltas", "0.2,0.4", "--plot", tmp_path / "answer.svg"]
    done = run("diagnose", model, "--what", what, *options)
    assert done.exit_code == 0, done.output
    assert said in done.stdout.splitlines()[-1]
    assert "<svg" in (tmp_path / "answer.svg").read_text()


def test_without_labels_perturbed_outputs_are_compared_with_the_undisturbed(tmp_path):
    torch.save(data(16, 3, 8, 8), tmp_path / "x.pt")
    done = run("diagnose", MODEL, "--what", "perturb", "--data", tmp_path / "x.pt", "--deltas", "0.2", "--seeds", "1")
    assert "agreement with the undisturbed model" in done.stdout
    asked = run("diagnose", MODEL, "--what", "gradients", "--data", tmp_path / "x.pt")
    assert isinstance(asked.exception, anynorm.DiagnosticError)
    assert "must hold labels" in str(asked.exception)


def test_misuse_is_told(labelled, tmp_path):
    (tmp_path / "junk.pt").write_text("junk")
    (tmp_path / "junk.npz").write_text("junk")
    torch.save(data(4, 5, 8, 8), tmp_path / "shape.pt")
    for arguments, said in (
        (["--data", tmp_path / "junk.pt"], r"cannot read .*junk\.pt"),
        (["--data", tmp_path / "junk.npz"], r"cannot read .*junk\.npz"),
        (["--data", labelled, "--checkpoint", tmp_path / "junk.pt"], r"cannot read .*junk\.pt"),
        (["--data", tmp_path / "shape.pt"], "The model cannot be run on this data: RuntimeError"),
        (["--data", labelled, "--plot", tmp_path / "nowhere" / "x.png"], "There is no folder"),
        (["--data", labelled, "--mean", "0.5", "--std", "1,1,1"], "mean and std must have one value each .*; got 1 and 3"),
        (["--data", "builtins:int"], "must return a tensor, .* or an iterable of batches; got int"),
        (["--what", "shfit"], r"There is no question 'shfit'\. .*Did you mean shift\?"),
        ([], "give --data"),
        (["--data", "nowhere"], "expected a folder, a file .* or package.module:factory; got 'nowhere'"),
        (["--data", labelled, "--deltas", "a"], "--deltas 'a' are no numbers"),
        (["--data", labelled, "--plot", tmp_path / "x.doc"], "no ending of a picture"),
    ):
        done = run("diagnose", MODEL, *arguments)
        with pytest.raises(anynorm.AnynormError, match=said):
            raise done.exception
    for arguments in (["--batches", "0"], ["--batch-size", "-1"], ["--side", "0"], ["--seeds", "0"]):
        assert run("diagnose", MODEL, "--data", labelled, *arguments).exit_code == 2
    command = [sys.executable, "-m", "anynorm", "diagnose", "torch.nn:Identity", "--data", str(labelled)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("DiagnosticError: This Identity has no norm")


def pair():
    return data(20, 3, 8, 8), torch.arange(20) % 3


SHARED = iter([(data(8, 3, 8, 8), torch.arange(8) % 3)] * 3)


def test_factories_may_give_a_pair_or_an_iterator_that_runs_out():
    assert "20 samples" in run("diagnose", MODEL, "--data", "tests.diagnostics.test_command:pair").stdout
    assert "24 samples" in run("diagnose", MODEL, "--data", "tests.diagnostics.test_command:SHARED.__iter__").stdout


# data


def test_a_folder_of_images_is_read_with_its_classes(tmp_path):
    for name, colour in (("cats/1.png", (255, 0, 0)), ("cats/2.JPG", (255, 0, 0)), ("dogs/1.png", (0, 0, 255))):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 12), colour).save(path)
    images = ImageTransform(8, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    (x, labels), (rest, last) = read_batches(str(tmp_path), 2, images)
    assert x.shape == (2, 3, 8, 8)
    assert labels.tolist() == [0, 0]
    assert last.tolist() == [1]
    same(rest[0, :, 0, 0], torch.tensor([-2.0, -2.0, 2.0]))
    assert read_first_input(str(tmp_path)).shape == (2, 3, 224, 224)
    grey = next(iter(read_batches(str(tmp_path / "cats"), 2, ImageTransform(8, (0.0,), (1.0,)))))
    assert grey.shape == (2, 1, 8, 8)
    (tmp_path / "cats" / "3.png").write_text("no image")
    with pytest.raises(anynorm.DataError, match=r"cannot read .*3\.png as an image"):
        list(read_batches(str(tmp_path)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(anynorm.DataError, match="must contain images .*; got none"):
        list(read_batches(str(tmp_path / "empty")))


def test_files_give_labels_where_there_are_some(tmp_path):
    x, labels = data(5, 3), torch.arange(5)
    torch.save({"x": x, "y": labels}, tmp_path / "both.pt")
    torch.save((x, labels.float()), tmp_path / "floats.pt")
    np.save(tmp_path / "x.npy", x.numpy())
    (first, found), (second, _) = read_batches(str(tmp_path / "both.pt"), 3)
    same(torch.cat([first, second]), x)
    assert found.tolist() == [0, 1, 2]
    for name in ("floats.pt", "x.npy"):
        same(torch.cat(list(read_batches(str(tmp_path / name), 3))), x)


# pictures


def reports():
    model, x = trained(classifier()), data(30, 3, 8, 8)
    yield estimation_shift(model, [x])
    yield importance(switchable())
    yield perturbation_curve(model, lambda net: float(net(x).detach().norm()), [0.0, 0.5], seeds=2)
    with fluctuation(model, last=5) as recorder:
        for batch in x.split(10):
            model(batch)
    yield recorder.report()

    def loss(net, batch, label):
        return nn.functional.cross_entropy(net(batch), torch.full((len(batch),), label))

    yield gradient_balance(model, {label: x[label::3] for label in range(3)}, loss)


@pytest.mark.parametrize("index", range(5))
def test_each_report_has_a_picture_in_the_axes_it_is_given(index):
    report = list(reports())[index]
    fig, ax = getattr(plot, report.what)(report)
    assert isinstance(fig, Figure)
    assert ax.get_ylabel()
    mine = Figure().subplots()
    assert getattr(plot, report.what)(report, mine) == (mine.figure, mine)
    assert mine.has_data()


def test_bars_are_as_high_as_the_numbers():
    report = next(reports())
    _, ax = plot.estimation_shift(report)
    assert [bar.get_height() for bar in ax.patches] == [row["shift"] for row in report]


def test_series_profiles_and_heat_draw_what_they_are_given():
    report = list(reports())[3]
    _, ax = plot.series(report, "3.bn1", 2)
    same(torch.from_numpy(ax.lines[0].get_ydata()), report.details["3.bn1"]["bn_mean"][:, 2])
    with pytest.raises(anynorm.DiagnosticError, match="no neuron 99; it has 0 to 15"):
        plot.series(report, "3.bn1", 99)
    with pytest.raises(anynorm.DiagnosticError, match="no series of 'x'"):
        plot.series(report, "x")
    _, ax = plot.profiles({"a": [{"esm_std": 1.0}, {"esm_std": 3.0}], "b": [{"esm_std": 2.0, "layer": 7}]})
    assert [list(line.get_xdata()) for line in ax.lines] == [[1, 2], [7]]
    _, ax = plot.heat(torch.eye(3), xlabel="step", label="size")
    same(torch.from_numpy(np.asarray(ax.images[0].get_array())), torch.eye(3))
