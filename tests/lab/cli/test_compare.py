"""The commands `anynorm compare` and `anynorm report`."""

import inspect
import io
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.lab.cli import live
from anynorm.lab.cli.compare import _parse_settings
from anynorm.lab.cli.compare import compare as compare_command
from anynorm.lab.comparison.comparison import Comparison
from anynorm.lab.training.config import Config
from anynorm.lab.training.record import LayerShift, RunRecord
from anynorm.lab.training.store import Store

OPTIONS = ["--model", "small", "--width", 0.5, "--num-train", 64, "--epochs", 1, "--norms", "bn,gn:4", "--batch-sizes", 16]


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_prints_each_run_the_table_the_recommendation_and_the_page(tmp_path):
    done = command("compare", *OPTIONS, "--seeds", 1, "--set", "flip=true", "--processes", 1, "--runs", tmp_path)
    assert done.exit_code == 0, done.output
    assert re.search(r"\[2/2\] gn:4, batch size 16, seed 0: [\d.]+ % test error \(\d+ s\)", done.stderr)
    *table, legend, blank, recommendation, written = done.stdout.splitlines()
    assert [line.split()[0] for line in table[-2:]] == ["bn", "gn:4"]
    assert not any(line.endswith(" ") for line in table)
    assert legend.startswith("Shift: largest estimation shift of a layer.")
    assert blank == ""
    assert re.match(r"At batch size 16 (bn|gn:4) has the lowest mean \(", recommendation)
    assert written == f"Wrote {tmp_path / 'report.html'} (2 runs)."
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert all(run.config["flip"] for run in Store(tmp_path).runs())
    again = command("compare", *OPTIONS, "--seeds", 1, "--set", "flip=true", "--runs", tmp_path, "--json")
    assert {row["norm"] for row in json.loads(again.stdout)["rows"]} == {"bn", "gn:4"}
    assert again.stderr == f"Wrote {tmp_path / 'report.html'} (2 runs).\n"  # nothing was trained


def test_if_every_run_failed_the_exit_code_is_1_and_the_reason_is_printed(tmp_path):
    options = ["--model", "resnet10", "--width", 0.25, "--num-train", 64, "--epochs", 1, "--batch-sizes", 16, "--seeds", 1]
    done = command("compare", *options, "--norms", "in", "--processes", 1, "--runs", tmp_path)  # its last maps are 1×1
    assert done.exit_code == 1
    assert "Every run failed; the first one: ShapeError: in needs more than one value per statistic" in done.stderr
    assert (tmp_path / "report.html").exists()


def make_record(norm, seed, error, **values):
    return RunRecord("", {"norm": norm, "batch_size": 2, "seed": seed}, "done", metrics={"test_error": error}, **values)


def test_on_a_terminal_the_table_fills_while_runs_finish(monkeypatch):
    comparison = Comparison(Config(), norms=["bn", "sn"], batch_sizes=[2, 32], seeds=2)
    screen = io.StringIO()
    monkeypatch.setattr(live, "Console", lambda **_: Console(file=screen, force_terminal=True, width=80, height=24))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    def new_records():
        yield make_record("sn", 0, 2.0)
        yield make_record("sn", 1, 3.0)

    assert [record.value for record in live.watch(comparison, [], new_records())] == [2.0, 3.0]
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.getvalue())
    assert re.search(r"test error %.*batch 2\b.*batch 32", text, re.S)
    assert "2.0  (1/2)" in text
    assert "2.5 [-3.9, 8.9]" in text
    assert "2/8" in text


def test_the_table_on_a_terminal_has_the_metric_of_the_task_before_the_first_run_ends(monkeypatch):
    comparison = Comparison(Config(task="generation"), norms=["sabn@K"], batch_sizes=[32], seeds=1)
    screen = io.StringIO()
    monkeypatch.setattr(live, "Console", lambda **_: Console(file=screen, force_terminal=True, width=80, height=24))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert live.watch(comparison, [], []) == []
    assert "test FD (ResNet-8)" in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.getvalue())


def test_norms_that_are_not_worse_are_marked_in_the_table(monkeypatch, capsys):
    errors = {"bn": (50.0, 52.0, 51.0), "gn:4": (20.0, 21.0, 22.5), "sn": (21.0, 20.0, 23.0)}
    shift = [LayerShift(1, "bn1", "bn", 0.123, 0.1, 0.123)]
    records = [
        make_record(norm, seed, error, shift=shift, saved_bytes=8)
        for norm, by_seed in errors.items()
        for seed, error in enumerate(by_seed)
    ]
    monkeypatch.setattr(Comparison, "step_seconds", lambda _: {("bn", 2): 0.01, ("sn", 2): 0.02})
    comparison = Comparison(Config(), norms=list(errors), batch_sizes=[2])
    live.print_comparison(comparison.table(records))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:5] == [
        "bn    51.0 [48.5, 53.5]    0.12     1.00       1.00",
        "gn:4  21.2 [18.0, 24.3] *  0.12                1.00",
        "sn    21.3 [17.5, 25.1] *  0.12     2.00       1.00",
    ]
    assert lines[5].startswith("Mean [95 % interval]. * lowest error, or not higher by more than chance and a margin.")


def test_the_defaults_of_the_command_are_those_of_the_function():
    command_defaults = {name: parameter.default for name, parameter in inspect.signature(compare_command).parameters.items()}
    defaults = {name: parameter.default for name, parameter in inspect.signature(anynorm.compare).parameters.items()}
    shared = command_defaults.keys() & defaults.keys()
    assert shared >= {
        "norms",
        "batch_sizes",
        "data",
        "model",
        "seeds",
        "epochs",
        "minutes",
        "num_train",
        "width",
        "lr",
        "lr_scaling",
        "processes",
    }
    assert {name: command_defaults[name] for name in shared} == {name: defaults[name] for name in shared}
    assert str(command_defaults["root"]) == defaults["runs"]


class ReturnsTuple(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x), 1


def returns_tuple():
    return ReturnsTuple(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10))


def too_narrow():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 10), torch.nn.BatchNorm1d(10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "minst"], "mnist"),
        (["--model", "resnet81"], "resnet18"),
        (["--norms", "bm"], "unknown norm 'bm'"),
        (["--batch-sizes", "a"], "--batch-sizes must be comma-separated integers, such as 2,32; got 'a'"),
        (["--set", "flop=1"], "no setting 'flop'"),
        (["--set", "flip"], "--set must be NAME=VALUE, such as flip=true; got 'flip'"),
        (["--set", "weight_decay=much"], "--set weight_decay must be a number; got 'much'"),
        (["--set", "epsilon=8/0"], "--set epsilon must be a number; got '8/0'"),
        (["--set", "num_train=all"], "--set num_train must be an integer; got 'all'"),
        (["--set", "num_test=all"], "--set num_test must be an integer; got 'all'"),
        (["--set", "flip=maybe"], "--set flip must be true or false; got 'maybe'"),
        (["--set", "seed=3"], "seed differs between the runs of a comparison; use seeds instead"),
        (["--lr-scaling", "cubic"], "lr_scaling must be one of linear sqrt none; got 'cubic'"),
        (["--minutes", "0"], r"minutes must be above 0; got 0\.0"),
        (["--num-train", "128", "--batch-sizes", "500"], r"500 samples.*128 training"),
        (["--num-train", "100000"], "1348"),
        (["--model", "torch.nn:Identity"], r"bn cannot be applied: Identity has no norm to replace"),
        (
            ["--model", "tests.lab.cli.test_compare:returns_tuple"],
            r"must return logits of shape \(2, 10\) for 2 images; got tuple",
        ),
        (["--model", "tests.lab.cli.test_compare:too_narrow"], "fails on images of digits: RuntimeError"),
        (["--set", "label_smoothing=3"], r"label_smoothing must be .*; got 3\.0"),
        (["--executor", "moon"], "executor must be one of local ray; got 'moon'"),
    ],
)
def test_the_command_refuses_what_cannot_be_compared(arguments, message, tmp_path):
    done = command("compare", *arguments, "--processes", 1, "--runs", tmp_path)
    with pytest.raises(anynorm.AnynormError, match=message):
        raise done.exception


def test_misuse_goes_to_stderr_with_exit_code_2(tmp_path):
    for words in (
        ["compare", "--batch-sizes", "a"],
        ["report", str(tmp_path / "none")],
        ["runs", "list", "--runs", str(tmp_path / "none")],
    ):
        done = subprocess.run([sys.executable, "-m", "anynorm", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stdout == ""
        assert re.match(r"(Spec|Data)Error: ", done.stderr)
        assert done.stderr.count("\n") == 1


def test_images_that_cannot_be_read_are_skipped_by_an_argument_not_by_the_environment(tmp_path, monkeypatch):
    received = []

    def load_dataset(name, image_size, **options):
        received.append(options)
        raise anynorm.DataError("stop here")

    monkeypatch.setattr("anynorm.lab.data.datasets.load_dataset", load_dataset)
    (tmp_path / "images").mkdir()
    before = dict(os.environ)
    for flag in ([], ["--skip-unreadable"]):
        done = command("compare", "--data", f"folder:{tmp_path / 'images'}", *flag, "--runs", tmp_path / "runs")
        assert "stop here" in str(done.exception)
    assert received == [{"skip_unreadable": False}, {"skip_unreadable": True}]
    assert os.environ == before


def test_the_help_names_every_option_and_its_unit():
    text = re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", command("compare", "--help").stdout))
    for option in ("--lr ", "--num-train", "--set", "--skip-unreadable", "--lr-scaling", "--minutes"):
        assert option in text


def test_a_setting_may_be_a_fraction():
    assert _parse_settings(["epsilon=8/255", "step_size=0.5"], "classification") == {"epsilon": 8 / 255, "step_size": 0.5}
