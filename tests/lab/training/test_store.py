"""A store: the files of a run are its status, processes share runs, and a damaged record does not hide the others."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
import torch

import anynorm
from anynorm.lab.tasks.run import load_run, run
from anynorm.lab.training import record as record_module
from anynorm.lab.training.config import Config, config_from_dict
from anynorm.lab.training.record import VERSION
from anynorm.lab.training.store import ENDED, Store

QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)


def finished(root, seeds):
    """A store with finished runs, and their configurations."""
    store, configs = Store(root), [Config(seed=seed) for seed in seeds]
    for config in configs:
        assert store.begin(config)
        store.finish(config, {"status": "done", "test_error": 2.5})
    return store, configs


def test_a_run_is_stored_with_everything_needed_to_repeat_it(tmp_path):
    config = replace(QUICK, norm="sn")
    assert run(config, tmp_path)
    assert not run(config, tmp_path)  # it has ended
    store = Store(tmp_path)
    record = store.record(config.id[:5])
    assert record["status"] == "done"
    assert config_from_dict(record["config"]) == config == store.config(config.id[:5])
    assert record["test_error"] == record["curve"][-1]["test_error"]
    assert len(record["shift"]) == len(record["importance"]) == 9
    assert {"commit", "torch", "hardware", "threads"} <= set(record["provenance"])
    assert not (store.folder(config.id) / "checkpoint.pt").exists()
    task = load_run(tmp_path, config.id[:5])
    wrong = torch.cat([task.network(x).argmax(1) != labels for x, labels in task.eval_batches(500)])
    assert 100 * int(wrong.sum()) / len(wrong) == record["test_error"]


def test_runs_that_fail_are_recorded_with_the_reason(tmp_path):
    diverging = replace(QUICK, lr=1e12, norm="gn:4", epochs=4)
    impossible = replace(QUICK, batch_size=128)
    for config, reason in ((diverging, "loss is"), (impossible, "DataError: a step needs 128 samples")):
        run(config, tmp_path)
        record = Store(tmp_path).record(config.id)
        assert record["status"] == "failed"
        assert reason in record["note"]
        assert record.get("test_error") is None
    assert {row["status"] for row in Store(tmp_path).rows()} == {"failed"}
    assert {"failed", "done"} == set(ENDED)


def test_rows_have_the_status_of_every_run_the_newest_last(tmp_path):
    store, (first, second) = finished(tmp_path, range(2))
    running, stopped = Config(seed=2), Config(seed=3)
    store.begin(running)
    store.begin(stopped)
    store.release(stopped)
    for age, config in enumerate((running, second, stopped, first)):
        name = "record.json" if config in (first, second) else "config.json"
        os.utime(store.folder(config.id) / name, (1e9 - age, 1e9 - age))
    (store.folder("0" * 12)).mkdir()  # a process that was killed before it wrote the configuration
    rows = Store(tmp_path).rows()
    assert [row["id"] for row in rows] == [first.id, stopped.id, second.id, running.id]
    assert [row["status"] for row in rows] == ["done", "stopped", "done", "running"]
    assert rows[0] == {
        "id": first.id, "status": "done", "metric": "error %", "value": 2.5, "note": "", "updated": 1e9 - 3,
        "config": asdict(first),
    }  # fmt: skip
    assert rows[1]["config"] == asdict(stopped)
    assert rows[1]["value"] is None


def test_a_run_held_by_another_process_is_left_to_it_and_taken_over_when_that_is_killed(tmp_path):
    code = f"""
import sys
from pathlib import Path
from anynorm.lab.training.config import Config
from anynorm.lab.training.store import Store
store = Store(Path({str(tmp_path)!r}))
assert store.begin({QUICK!r})
print("mine", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "mine\n"
        store = Store(tmp_path)
        assert not store.begin(QUICK)
        assert store.rows()[0]["status"] == "running"
        with pytest.raises(anynorm.DataError, match=f"run {QUICK.id} is running; stop it first"):
            store.remove(QUICK.id)
        other.kill()
    assert store.rows()[0]["status"] == "stopped"
    assert store.begin(QUICK)
    assert store.begin(QUICK)  # it is ours already
    assert not Store(tmp_path).begin(QUICK)  # another object of the same process is another holder


def test_many_processes_may_write_at_once(tmp_path):
    code = f"""
from pathlib import Path
from anynorm.lab.training.config import Config, config_from_dict
from anynorm.lab.training.store import Store
import sys
store = Store(Path({str(tmp_path)!r}))
for seed in range(10):
    config = Config(seed=int(sys.argv[1]) * 100 + seed)
    assert store.begin(config)
    store.finish(config, {{"status": "done", "test_error": 1.0}})
"""
    workers = [subprocess.Popen([sys.executable, "-c", code, str(k)]) for k in range(3)]
    while any(worker.poll() is None for worker in workers):
        Store(tmp_path).rows()  # takes the lock of every run for a moment
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    rows = Store(tmp_path).rows()
    assert len(rows) == 30
    assert all(Store(tmp_path).record(row["id"])["status"] == "done" for row in rows)


def test_a_run_that_cannot_be_marked_or_locked_is_not_held(tmp_path, monkeypatch):
    def fail(*_):
        raise anynorm.DiskError("cannot write config.json")

    def no_locks(*_):
        raise OSError(37, "No locks available")

    def not_implemented(*_):
        raise OSError(38, "Function not implemented")

    store = Store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_mark_running", fail)
        with pytest.raises(anynorm.DiskError, match="cannot write"):
            store.begin(QUICK)
    message = r"lock cannot be locked: .*{}.* Keep runs on a disk that can lock files"
    for flock, reason in ((no_locks, "No locks available"), (not_implemented, "flock is not implemented")):
        with monkeypatch.context() as patch:
            patch.setattr("fcntl.flock", flock)
            patch.setattr("warnings.warn", lambda *_, **__: None)  # filelock announces its substitute
            with pytest.raises(anynorm.DataError, match=message.format(reason)):
                store.begin(QUICK)
    assert Store(tmp_path).begin(QUICK)


def test_damaged_records_are_named_and_do_not_hide_the_others(tmp_path):
    store, configs = finished(tmp_path, range(3))
    path = store.folder(configs[1].id) / "record.json"
    content = path.read_text()
    for broken in (content[:-20], content.replace("2.5", "3.5"), "", "{}", "[1]", "3"):
        path.write_text(broken)
        with pytest.raises(anynorm.DataError, match=r"record\.json is damaged: .* train it again"):
            store.record(configs[1].id)
    assert not store.is_valid(configs[1].id)
    assert store.record(configs[2].id)["test_error"] == 2.5
    assert {row["id"]: row["status"] for row in store.rows()} == {
        configs[0].id: "done",
        configs[1].id: "unreadable",
        configs[2].id: "done",
    }
    (damaged,) = (row for row in store.rows() if row["id"] == configs[1].id)
    assert "record.json is damaged" in damaged["note"]
    assert damaged["config"] == asdict(configs[1])
    path.unlink()
    with pytest.raises(anynorm.DataError, match=r"has no record: it has not ended, or .* was deleted"):
        store.record(configs[1].id)


def test_a_damaged_run_is_trained_again(tmp_path):
    run(QUICK, tmp_path)
    store = Store(tmp_path)
    curve = store.record(QUICK.id)["curve"]
    (store.folder(QUICK.id) / "record.json").write_text("{")
    assert run(QUICK, tmp_path)
    assert store.record(QUICK.id)["curve"] == curve


def test_records_are_read_once_and_again_when_they_change(tmp_path, monkeypatch):
    store, configs = finished(tmp_path, range(300))
    reads = []
    read = record_module.read_record

    def counted(path):
        reads.append(path)
        return read(path)

    monkeypatch.setattr(record_module, "read_record", counted)
    assert len(store.rows()) == len(Store(tmp_path).rows()) == 300
    assert len(reads) == 300
    start = time.perf_counter()
    assert all(store.is_valid(config.id) for config in configs)
    assert time.perf_counter() - start < 1
    store.finish(configs[7], {"status": "failed", "note": "later"})
    assert [row["note"] for row in store.rows() if row["status"] == "failed"] == ["later"]
    assert len(reads) == 301


def test_rows_cannot_change_what_is_cached(tmp_path):
    store, _ = finished(tmp_path, range(1))
    store.rows()[0]["config"]["lr"] = 7
    assert store.rows()[0]["config"]["lr"] == 0.1


def test_a_store_of_anynorm_01_is_refused(tmp_path):
    (tmp_path / "index.sqlite").write_bytes(b"SQLite format 3\0")
    message = (
        r"is a store of anynorm 0\.1 .*; anynorm 0\.2 cannot read or resume its runs\. Use another folder \(--runs\), or delete"
    )
    with pytest.raises(anynorm.DataError, match=message):
        Store(tmp_path)


def test_records_of_another_version_are_refused_and_not_overwritten(tmp_path):
    store, (config, other) = finished(tmp_path, range(2))
    path = store.folder(config.id) / "record.json"
    content = json.loads(path.read_text())
    for version in (VERSION + 5, None):  # records of anynorm 0.1 have no version
        path.write_text(json.dumps({key: value for key, value in (content | {"version": version}).items() if value is not None}))
        message = rf"record\.json is of version {version or 1}; this anynorm reads version {VERSION}\. Use another folder"
        for call in (lambda: store.record(config.id), lambda: store.begin(config), lambda: store.is_valid(config.id)):
            with pytest.raises(anynorm.DataError, match=message):
                call()
    assert store.record(other.id)["status"] == "done"
    assert sorted(row["status"] for row in store.rows()) == ["done", "unreadable"]
    assert Store(tmp_path).begin(Config(seed=5))


def test_names_of_an_older_configuration_are_explained(tmp_path):
    store = Store(tmp_path)
    store.begin(QUICK)
    (store.folder(QUICK.id) / "config.json").write_text(json.dumps({"rate": 0.1}))
    message = rf"run {QUICK.id} was configured by another version of anynorm: .*'rate': anynorm 0\.2 renamed it to 'lr'"
    with pytest.raises(anynorm.DataError, match=message):
        store.config(QUICK.id)


def test_a_path_that_cannot_be_a_store_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(anynorm.DataError, match=r"cannot be used as a store: .* Use another folder"):
        Store(tmp_path / "file")


def test_a_run_is_found_by_the_beginning_of_its_id(tmp_path):
    store, configs = finished(tmp_path, range(3))
    assert [store.find(config.id[:6]) for config in configs] == [config.id for config in configs]
    with pytest.raises(
        anynorm.DataError, match=r"'' must be the beginning of one id; it matches 3 in .*, which has 3 runs, such as"
    ):
        store.find("")
    with pytest.raises(anynorm.DataError, match=r"'abc' must be .* matches 0 in .*, which has no runs"):
        Store(tmp_path / "new").find("abc")


def test_a_removed_run_is_gone_and_nothing_outside_the_store_can_be_removed(tmp_path):
    store, (first, second) = finished(tmp_path, range(2))
    assert store.remove(first.id[:6]) == first.id
    assert [row["id"] for row in store.rows()] == [second.id]
    for name in ("..", ".", first.id, f"../runs/{second.id}"):
        with pytest.raises(anynorm.DataError, match="matches 0 in"):
            store.remove(name)
    assert store.is_valid(second.id)


def test_a_full_disk_ends_the_run_and_leaves_the_store_intact(tmp_path, monkeypatch):
    store, other = Store(tmp_path), replace(QUICK, seed=1)
    run(other, tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("torch.save", full)
        with pytest.raises(anynorm.DiskError, match=r"cannot write .*model\.pt: .*No space left.* free disk space and run again"):
            run(QUICK, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_text", full)
        with pytest.raises(anynorm.DiskError, match=r"cannot write .*record\.json"):
            run(QUICK, tmp_path)
    assert store.record(other.id)["status"] == "done"
    assert not list(store.folder(QUICK.id).glob("*.part"))
    assert run(QUICK, tmp_path)  # it resumes when there is space
    assert store.record(QUICK.id)["status"] == "done"


def test_parts_of_files_that_a_killed_process_left_are_deleted(tmp_path):
    part = Store(tmp_path).folder(QUICK.id) / "checkpoint.pt.0a1b2c3d.part"
    part.parent.mkdir(parents=True)
    part.write_text("half")
    store = Store(tmp_path)
    assert store.begin(QUICK)
    assert not part.exists()
