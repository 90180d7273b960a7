"""Runs are kept whole, shared between processes, and a damaged one is named."""

import inspect
import json
import sqlite3
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
from anynorm.data import load_dataset
from anynorm.recipes.support.claims import probability
from anynorm.training.config import Config, config_from_dict
from anynorm.training.norm_layout import split_norms
from anynorm.training.run import run
from anynorm.training.store import Store
from anynorm.training.timing import step_times

DATA = load_dataset("digits")
QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_run_is_kept_with_all_it_takes_to_do_it_again(tmp_path):
    config = config_from_dict({**vars(QUICK), "norm": "sn"})
    assert run(config, tmp_path, data=DATA)
    assert not run(config, tmp_path, data=DATA)  # it is done
    record = Store(tmp_path).record(config.id[:5])
    assert record["status"] == "done"
    assert config_from_dict(record["config"]) == config
    assert record["test_error"] == record["curve"][-1]["test_error"]
    assert len(record["shift"]) == len(record["importance"]) == 9
    assert {"commit", "torch", "hardware", "threads"} <= set(record["provenance"])
    assert not (Store(tmp_path).folder(config.id) / "checkpoint.pt").exists()


def test_runs_that_fail_are_recorded_with_the_reason(tmp_path):
    diverging = config_from_dict({**vars(QUICK), "lr": 1e12, "norm": "gn:4", "epochs": 4})
    impossible = config_from_dict({**vars(QUICK), "batch_size": 128})
    for config, said in ((diverging, "loss is"), (impossible, "DataError: A step takes 128 images")):
        run(config, tmp_path, data=DATA)
        record = Store(tmp_path).record(config.id)
        assert record["status"] == "failed"
        assert said in record["note"]
        assert record.get("test_error") is None


def test_a_run_that_another_process_has_is_left_to_it_and_taken_over_when_that_dies(tmp_path):
    code = f"""
import sys
from pathlib import Path
from anynorm.training.config import Config
from anynorm.training.store import Store
assert Store(Path({str(tmp_path)!r})).begin({QUICK!r})
print("mine", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "mine\n"
        store = Store(tmp_path)
        assert not store.begin(QUICK)
        assert store.rows()[0]["status"] == "running"
        with pytest.raises(anynorm.DataError, match="is being worked on"):
            store.remove(QUICK.id)
        other.kill()
    assert store.rows()[0]["status"] == "stopped"
    assert store.begin(QUICK)


def test_many_processes_may_write_at_once(tmp_path):
    code = f"""
from pathlib import Path
from anynorm.training.config import Config, config_from_dict
from anynorm.training.store import Store
import sys
store = Store(Path({str(tmp_path)!r}))
for seed in range(10):
    config = Config(seed=int(sys.argv[1]) * 100 + seed)
    assert store.begin(config)
    store.finish(config, {{"status": "done", "test_error": 1.0}})
"""
    workers = [subprocess.Popen([sys.executable, "-c", code, str(k)]) for k in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    rows = Store(tmp_path).rows()
    assert len(rows) == 30
    assert all(Store(tmp_path).record(row["id"])["status"] == "done" for row in rows)


def test_an_older_store_gets_the_journal_that_works_across_machines(tmp_path):
    Store(tmp_path).begin(QUICK)
    connection = sqlite3.connect(tmp_path / "index.sqlite")
    assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    connection.close()
    assert [row["id"] for row in Store(tmp_path).rows()] == [QUICK.id]
    connection = sqlite3.connect(tmp_path / "index.sqlite")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()


def test_a_run_that_cannot_be_noted_or_locked_is_not_held(tmp_path, monkeypatch):
    def busy(*_):
        raise anynorm.DataError("index.sqlite is busy")

    def no_locks(*_):
        raise OSError(37, "No locks available")

    store = Store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_noted", busy)
        with pytest.raises(anynorm.DataError, match="is busy"):
            store.begin(QUICK)
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", no_locks)
        with pytest.raises(anynorm.DataError, match=r"lock cannot be locked: .*No locks available.* a disk that can lock files"):
            store.begin(QUICK)
    assert Store(tmp_path).begin(QUICK)


def test_damaged_records_are_named_and_do_not_hide_the_others(tmp_path):
    store = Store(tmp_path)
    configs = [Config(seed=seed) for seed in range(3)]
    for config in configs:
        store.begin(config)
        store.finish(config, {"status": "done", "test_error": 2.5})
    path = store.folder(configs[1].id) / "record.json"
    whole = path.read_text()
    for broken in (whole[:-20], whole.replace("2.5", "3.5"), "", "{}"):
        path.write_text(broken)
        with pytest.raises(anynorm.DataError, match=r"record\.json is damaged"):
            store.record(configs[1].id)
    assert store.record(configs[2].id)["test_error"] == 2.5
    path.unlink()
    with pytest.raises(anynorm.DataError, match=r"has no record: it has not ended, or .* was deleted"):
        store.record(configs[1].id)


def test_a_damaged_index_is_written_anew_from_the_records(tmp_path, capsys):
    run(QUICK, tmp_path, data=DATA)
    before = Store(tmp_path).rows()
    path = tmp_path / "index.sqlite"
    path.write_bytes(b"no database at all" * 100)
    again = Store(tmp_path).rows()
    assert [{**row, "updated": 0} for row in again] == [{**row, "updated": 0} for row in before]
    assert "was damaged" in capsys.readouterr().err
    assert (tmp_path / "index.damaged").exists()


def test_a_comparison_runs_damaged_runs_again(tmp_path):
    asked = plan(tmp_path, norms=["bn"], batch_sizes=[16], seeds=2)
    list(run_all(asked, processes=1))
    whole = summary(asked).rows[0]["error %, batch 16"]
    (Store(tmp_path).folder(asked.configs()[0].id) / "record.json").write_text("{")
    assert [config.seed for config in run_all(asked, processes=1)] == [0]
    assert summary(asked).rows[0]["error %, batch 16"] == whole


def test_stores_of_another_version_and_things_that_are_none_are_refused(tmp_path):
    Store(tmp_path)
    with sqlite3.connect(tmp_path / "index.sqlite") as index:
        index.execute("PRAGMA user_version = 7")
    index.close()
    with pytest.raises(anynorm.DataError, match="store of version 7; this anynorm reads version 1"):
        Store(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(anynorm.DataError, match="cannot be used as a store"):
        Store(tmp_path / "file")
    with pytest.raises(anynorm.DataError, match=r"names 0 runs of .*, which has no runs"):
        Store(tmp_path / "new").find("abc")


# comparison


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
        (["--model", "tests.lab.test_store:tuples"], "gave tuple for 4 images of 10 classes"),
        (["--model", "tests.lab.test_store:narrow"], "cannot be run on digits: RuntimeError"),
        (["--set", "smoothing=3"], "smoothing=3.0 has no meaning"),
    ):
        done = command("compare", *arguments, "--processes", 1, "--runs", tmp_path)
        with pytest.raises(anynorm.AnynormError, match=said):
            raise done.exception


def test_a_disk_that_is_full_ends_the_run_and_leaves_the_store_whole(tmp_path, monkeypatch):
    store, whole = Store(tmp_path), config_from_dict({**vars(QUICK), "seed": 1})
    run(whole, tmp_path, data=DATA)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("torch.save", full)
        with pytest.raises(anynorm.DiskError, match=r"model\.pt cannot be written: .*No space left.* make room"):
            run(QUICK, tmp_path, data=DATA)
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_text", full)
        with pytest.raises(anynorm.DiskError, match=r"record\.json cannot be written"):
            run(QUICK, tmp_path, data=DATA)
    assert store.record(whole.id)["status"] == "done"
    assert not list(store.folder(QUICK.id).glob("*.part"))
    assert run(QUICK, tmp_path, data=DATA)  # it goes on when there is room
    assert store.record(QUICK.id)["status"] == "done"


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
def test_processes_of_torchrun_train_one_network_and_synchronised_they_are_one_batch(tmp_path):
    code = f"""
import sys, torch
from dataclasses import replace
from pathlib import Path
torch.set_num_threads(1)
from anynorm.training.norm_layout import split_norms
from anynorm.training.run import run
from anynorm.training.config import Config
base = {QUICK!r}
run(replace(base, batch_size=8, devices=2, sync=True), Path({str(tmp_path)!r}))
run(replace(base, batch_size=8, devices=2), Path({str(tmp_path)!r}))
if __name__ == "__main__":
    import anynorm
    options = dict(model="small", width=0.5, num_train=64, epochs=1, devices=2)
    print(anynorm.compare(["bn", "hn"], [8], 1, root={str(tmp_path / "compared")!r}, **options))
"""
    script = tmp_path / "two.py"
    script.write_text(code)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(launcher, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "At batch 8: " in done.stdout
    assert "requires_grad" not in done.stderr
    run(QUICK, tmp_path, data=DATA)
    store = Store(tmp_path)
    synced, apart = (config_from_dict({**vars(QUICK), "batch_size": 8, "devices": 2, "sync": sync}) for sync in (True, False))
    weights = [torch.load(store.folder(config.id) / "model.pt")["0.0.weight"] for config in (QUICK, synced, apart)]
    together, on_their_own = (float((weights[0] - found).abs().max() / weights[0].abs().max()) for found in weights[1:])
    assert together < 1e-4
    assert on_their_own > 10 * together
    assert store.record(synced.id)["curve"][-1]["test_loss"] == pytest.approx(
        store.record(QUICK.id)["curve"][-1]["test_loss"], rel=1e-3
    )
    with pytest.raises(anynorm.DataError, match="torchrun --nproc-per-node 2"):
        run(synced, tmp_path / "other", data=DATA)
