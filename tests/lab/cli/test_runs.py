"""The commands `anynorm runs list`, `show`, `diff` and `rm`."""

import json

import pytest

import anynorm
from anynorm.lab.comparison.comparison import Comparison
from anynorm.lab.training.config import Config
from anynorm.lab.training.store import Store
from tests.lab.cli.test_compare import command


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    base = Config(model="small", width=0.5, num_train=64, epochs=1, lr=0.05, flip=True)
    list(Comparison(base, ["bn", "gn:4"], [16], seeds=1, root=root).run((), processes=1))
    return root


def test_runs_are_listed_with_the_settings_that_are_not_default(root):
    rows = json.loads(command("runs", "list", "--runs", root, "--json").stdout)
    assert {row["config"]["norm"] for row in rows} == {"bn", "gn:4"}
    listed = command("runs", "list", "--runs", root).stdout
    assert "flip=True" in listed
    assert "test value" in listed.splitlines()[0]
    assert listed.splitlines()[-1] == f"2 runs in {root}."


def test_a_run_is_shown_and_two_are_compared(root):
    first, second = (run.id for run in Store(root).runs())
    assert json.loads(command("runs", "show", first[:6], "--runs", root).stdout)["status"] == "done"
    differences = json.loads(command("runs", "diff", first, second, "--runs", root, "--json").stdout)
    assert {"name": "norm", first: "bn", second: "gn:4"} in differences["rows"]
    assert differences["finding"] == f"{len(differences['rows'])} differences."


def test_a_run_can_be_diagnosed_by_its_id(root):
    run = Store(root).runs()[0].id
    done = command("diagnose", f"run:{run}", "--runs", root)
    assert done.exit_code == 0, done.output
    assert "449 samples" in done.stdout
    assert "score" in done.stdout.splitlines()[0]


def test_runs_are_deleted_all_or_none(root, tmp_path):
    base = Config(model="small", width=0.5, num_train=64, epochs=1, lr=0.05)
    list(Comparison(base, ["bn", "gn:4"], [16], seeds=1, root=tmp_path).run((), processes=1))
    first = Store(tmp_path).runs()[0].id
    assert isinstance(command("runs", "rm", first, "nothing", "--runs", tmp_path).exception, anynorm.DataError)
    assert len(Store(tmp_path).runs()) == 2
    assert command("runs", "rm", first, "--runs", tmp_path).stdout == f"Deleted run {first}.\n"
    assert len(Store(tmp_path).runs()) == 1


@pytest.mark.parametrize("words", [("list",), ("show", "abc"), ("diff", "abc", "def"), ("rm", "abc")])
def test_a_folder_that_does_not_exist_is_refused_and_not_created(words, tmp_path):
    missing = tmp_path / "missing"
    error = command("runs", *words, "--runs", missing).exception
    assert isinstance(error, anynorm.DataError)
    assert f"--runs must be a folder of runs; {missing} does not exist" in str(error)
    assert not list(tmp_path.iterdir())
