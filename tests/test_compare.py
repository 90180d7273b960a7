"""Comparisons, their cost and their commands."""

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.cli.lab import compare as compare_command
from anynorm.compare import BATCH_SIZES, DEFAULT, NORMS, Plan, base_of, fit_budget, outcomes, recommend, run_all, summary, told
from anynorm.data import load
from anynorm.recipes.support.claims import probability
from anynorm.training.config import Config, config_from_dict
from anynorm.training.norm_layout import split_norms
from anynorm.training.store import Store
from anynorm.training.timing import step_times

DATA = load("digits")
QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_comparison_runs_damaged_runs_again(tmp_path):
    asked = plan(tmp_path, norms=["bn"], batch_sizes=[16], seeds=2)
    list(run_all(asked, processes=1))
    whole = summary(asked).rows[0]["error %, batch 16"]
    (Store(tmp_path).folder(asked.configs()[0].id) / "record.json").write_text("{")
    assert [config.seed for config in run_all(asked, processes=1)] == [0]
    assert summary(asked).rows[0]["error %, batch 16"] == whole


def plan(tmp_path, **options):
    defaults = {"base": QUICK, "norms": ["bn", "gn:4", "hn"], "batch_sizes": [4, 16], "seeds": 2, "root": tmp_path}
    return Plan(**(defaults | options))


def test_a_comparison_runs_what_is_missing_and_tells_the_winner(tmp_path):
    asked = plan(tmp_path)
    assert len(list(run_all(asked, processes=1))) == 12
    assert list(run_all(asked)) == []
    report = summary(asked)
    assert [row["norm"] for row in report] == ["bn", "gn:4", "hn"]
    assert report["bn"]["step, batch 4"] == 1
    assert report["bn"]["memory, batch 16"] == 1
    assert "At batch 4: " in report.finding
    assert {config.lr for config in asked.configs()} == {0.0125, 0.05}


@pytest.mark.slow
def test_processes_share_the_runs(tmp_path):
    asked = plan(tmp_path, batch_sizes=[16], seeds=1)
    assert {config.norm for config in run_all(asked, processes=2)} == {"bn", "gn:4", "hn"}
    assert all(records[0]["provenance"]["threads"] == 1 for records in outcomes(asked).values())


def test_winners_are_tested_and_failures_told():
    def records(*errors):
        return [{"status": "failed" if error is None else "done", "test_error": error} for error in errors]

    assert told(records(10.0, 12.0)) == "11.0 ± 1.4"
    assert told(records(10.0, None)) == "10.0, 1 of 2 failed"
    assert told(records(None)) == "failed"
    asked = Plan(base=QUICK, norms=["bn", "gn:4", "sn"], batch_sizes=[2], seeds=3)
    found = {("bn", 2): records(50.0, 52.0, 51.0), ("gn:4", 2): records(20.0, 21.0, 22.5), ("sn", 2): records(21.0, 20.0, 23.0)}
    assert recommend(asked, found, 2) == (
        "At batch 2: gn:4 (21.2 %), better than 1 of 2 others beyond chance (p < 0.05); sn may be as good."
    )
    found[("sn", 2)] = records(1.0, None, 1.0)  # a norm that fails is not recommended
    assert recommend(asked, found, 2).startswith("At batch 2: gn:4 (21.2 %), better than 1 of 1 others")
    assert recommend(asked, {}, 2) == "At batch 2 no run has ended."
    assert recommend(asked, {("bn", 2): records(None)}, 2) == "At batch 2 every norm failed."
    two = {("bn", 2): records(50.0, 52.0), ("gn:4", 2): records(20.0, 22.0)}
    assert "fewer than three seeds say nothing" in recommend(asked, two, 2)
    many = {(f"gn:{2**k}", 2): records(21.0, 22.0, 22.2) for k in range(4)} | {("bn", 2): records(20.0, 20.5, 21.5)}
    wide = Plan(base=QUICK, norms=["bn", "gn:1", "gn:2", "gn:4", "gn:8"], batch_sizes=[2], seeds=3)
    assert probability([1.0, 1.5, 0.7]) < 0.05
    assert "better than 0 of 4 others" in recommend(wide, many, 2)  # one alone would be told apart; of four, chance
    with pytest.raises(anynorm.SpecError, match="none of linear"):
        Plan(base=QUICK, scaling="cubic")
    with pytest.raises(anynorm.SpecError, match="at least one norm"):
        Plan(base=QUICK, norms=[])
    with pytest.raises(anynorm.SpecError, match="is one text"):
        Plan(base=QUICK, norms="bn,gn:4")
    assert len(Plan(base=QUICK, norms=["bn", "bn"], batch_sizes=[2, 2], seeds=1).configs()) == 1


def test_costs_are_of_steps_and_threads_are_put_back():
    before = torch.get_num_threads()
    found = step_times([QUICK, config_from_dict({**vars(QUICK), "batch_size": 128, "norm": "hn"})], DATA)
    assert list(found) == ["bn"]
    assert found["bn"] > 0
    assert torch.get_num_threads() == before


def test_the_command_compares_and_runs_are_listed(tmp_path):
    root = tmp_path / "runs"
    options = [
        "--model",
        "small",
        "--width",
        0.5,
        "--images",
        64,
        "--epochs",
        1,
        "--norms",
        "bn,gn:4",
        "--batch-sizes",
        16,
        "--seeds",
        1,
    ]
    done = command("compare", *options, "--set", "flip=true", "--processes", 1, "--runs", root)
    assert done.exit_code == 0, done.output
    assert "At batch 16: " in done.output
    rows = json.loads(command("runs", "list", "--runs", root, "--json").stdout)
    assert {row["config"]["norm"] for row in rows} == {"bn", "gn:4"}
    assert all(row["config"]["flip"] for row in rows)
    listed = command("runs", "list", "--runs", root).stdout
    assert "flip=True" in listed
    assert listed.splitlines()[-1] == f"2 runs in {root}."
    first, second = (row["id"] for row in rows)
    asked = command("diagnose", f"run:{first}", "--runs", root)
    assert asked.exit_code == 0, asked.output
    assert "449 samples" in asked.stdout
    assert "score" in asked.stdout.splitlines()[0]
    assert "norm" in command("runs", "diff", first, second, "--runs", root).stdout
    assert json.loads(command("runs", "show", first, "--runs", root).stdout)["status"] == "done"
    assert isinstance(command("runs", "rm", first, "nothing", "--runs", root).exception, anynorm.DataError)
    assert len(Store(root).rows()) == 2  # all or nothing
    assert "is forgotten" in command("runs", "rm", first, "--runs", root).stdout
    assert len(Store(root).rows()) == 1


class Tuples(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x), 1


def tuples():
    return Tuples(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10))


def narrow():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 10), torch.nn.BatchNorm1d(10))


def test_the_commands_defaults_are_the_functions():
    written = inspect.signature(compare_command).parameters
    assert split_norms(written["norms"].default) == list(NORMS)
    assert [int(size) for size in written["batch_sizes"].default.split(",")] == list(BATCH_SIZES)
    assert written["seeds"].default == Plan().seeds == inspect.signature(anynorm.compare).parameters["seeds"].default
    assert (written["data"].default, written["model"].default) == (DEFAULT.data, DEFAULT.model)


def test_the_command_tells_what_it_does_not_know(tmp_path):
    for arguments, said in (
        (["--data", "minst"], "Near: mnist"),
        (["--model", "resnet81"], "Near: resnet18"),
        (["--norms", "bm"], "no norm called"),
        (["--batch-sizes", "a"], "no whole numbers"),
        (["--set", "flop=1"], "no setting 'flop'"),
        (["--set", "flip"], "sets nothing"),
        (["--set", "weight_decay=much"], "is not a number"),
        (["--set", "num_train=all"], "is not a whole number"),
        (["--set", "test_images=all"], "is not a whole number"),
        (["--set", "flip=maybe"], "is not true or false"),
        (["--set", "seed=3"], "seed is what a comparison varies"),
        (["--lr-scaling", "cubic"], "none of linear"),
        (["--batch-sizes", "500"], "A step takes 500 images, and there are 128"),
        (["--images", "100000"], "there are 1348"),
        (["--model", "torch.nn:Identity"], "has no norm among its modules"),
        (["--model", "tests.test_compare:tuples"], "gave tuple for 4 images of 10 classes"),
        (["--model", "tests.test_compare:narrow"], "cannot be run on digits: RuntimeError"),
        (["--set", "smoothing=3"], "smoothing=3.0 has no meaning"),
    ):
        done = command("compare", *arguments, "--processes", 1, "--runs", tmp_path)
        with pytest.raises(anynorm.AnynormError, match=said):
            raise done.exception


def test_a_budget_in_minutes_becomes_epochs_for_all(tmp_path):
    asked = plan(tmp_path, batch_sizes=[16], seeds=1)
    short, long = (fit_budget(asked, minutes, processes=1).base.epochs for minutes in (0.01, 0.1))
    assert 1 <= short < long
    assert 3 < long / short < 30 or short == 1
    with pytest.raises(anynorm.SpecError, match="no time to compare in"):
        fit_budget(asked, 0)


def test_a_model_or_folder_that_has_changed_is_another_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "changing.py"
    module.write_text("def net(): pass\n")
    first = base_of({"model": "changing:net"})
    assert base_of({"model": "changing:net"}).id == first.id
    module.write_text("def net(): return 1\n")
    assert base_of({"model": "changing:net"}).id != first.id
    folder = tmp_path / "images"
    folder.mkdir()
    before = base_of({"data": f"folder:{folder}"}).id
    (folder / "1.png").write_text("x")
    assert base_of({"data": f"folder:{folder}"}).id != before
    assert base_of({}).source_hash == ""
    assert base_of({"model": "mlp"}) == base_of({"data": "digits"}) == base_of({})
    assert base_of({"model": "small"}).num_train is None


def test_the_function_compares_as_the_command_does(tmp_path):
    options: dict[str, Any] = {"model": "small", "width": 0.5, "num_train": 64, "epochs": 1}
    report = anynorm.compare(["bn"], [16], 1, root=tmp_path, processes=1, **options)
    assert report["bn"]["step, batch 16"] == 1
    assert len(Store(tmp_path).rows()) == 1
    with pytest.raises(anynorm.SpecError, match="no setting 'epoch'"):
        anynorm.compare(["bn"], [16], 1, root=tmp_path, epoch=3)


@pytest.mark.slow
def test_processes_of_torchrun_compare_as_one(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(f"""
import torch
torch.set_num_threads(1)
if __name__ == "__main__":
    import anynorm
    options = dict(model="small", width=0.5, num_train=64, epochs=1, devices=2)
    print(anynorm.compare(["bn", "hn"], [8], 1, root={str(tmp_path / "compared")!r}, **options))
""")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(launcher, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "At batch 8: " in done.stdout
    assert "requires_grad" not in done.stderr
