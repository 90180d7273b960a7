"""Runs are kept whole, shared between processes, and a damaged one is named."""

import sqlite3
import subprocess
import sys

import pytest

import anynorm
from anynorm.data import load
from anynorm.training.config import Config, config_from_dict
from anynorm.training.run import run
from anynorm.training.store import Store

DATA = load("digits")
QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)


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
