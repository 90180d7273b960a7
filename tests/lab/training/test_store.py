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
from anynorm.lab.training.config import Config, config_from_dict
from anynorm.lab.training.record import VERSION, LayerShift, RunRecord
from anynorm.lab.training.store import Store, StoredRun
from anynorm.lab.training.task import Metric

QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)


def finished(root, seeds):
    """A store with finished runs, and their configurations."""
    store, configs = Store(root), [Config(seed=seed) for seed in seeds]
    for config in configs:
        assert store.begin(config)
        store.finish(RunRecord(config.id, asdict(config), "done", metrics={"test_error": 2.5}))
    return store, configs


def test_a_run_is_stored_with_everything_needed_to_repeat_it(tmp_path):
    config = replace(QUICK, norm="sn")
    assert run(config, tmp_path)
    assert not run(config, tmp_path)  # it has ended
    store = Store(tmp_path)
    record = store.record(config.id[:5])
    assert record.status == "done"
    assert config_from_dict(dict(record.config)) == config == store.config(config.id[:5])
    assert record.metrics["test_error"] == record.curve[-1]["test_error"]
    assert len(record.shift) == len(record.importance) == 9
    assert {"commit", "torch", "hardware", "threads"} <= set(record.provenance)
    assert not (store.folder(config.id) / "checkpoint.pt").exists()
    task = load_run(tmp_path, config.id[:5])
    wrong = torch.cat([task.network(x).argmax(1) != labels for x, labels in task.eval_batches(500)])
    assert 100 * int(wrong.sum()) / len(wrong) == record.metrics["test_error"]


def test_runs_that_fail_are_recorded_with_the_reason(tmp_path):
    diverging = replace(QUICK, lr=1e12, norm="gn:4", epochs=4)
    impossible = replace(QUICK, batch_size=128)
    for config, reason in ((diverging, "loss is"), (impossible, "DataError: a step needs 128 samples")):
        run(config, tmp_path)
        record = Store(tmp_path).record(config.id)
        assert record.status == "failed"
        assert reason in record.note
        assert record.metrics.get("test_error") is None
    assert {row.status for row in Store(tmp_path).runs()} == {"failed"}


def test_runs_have_the_status_of_every_run_the_newest_last(tmp_path):
    store, (first, second) = finished(tmp_path, range(2))
    running, stopped = Config(seed=2), Config(seed=3)
    store.begin(running)
    store.begin(stopped)
    store.release(stopped)
    for age, config in enumerate((running, second, stopped, first)):
        name = "record.json" if config in (first, second) else "config.json"
        os.utime(store.folder(config.id) / name, (1e9 - age, 1e9 - age))
    (store.folder("0" * 12)).mkdir()  # a process that was killed before it wrote the configuration
    runs = Store(tmp_path).runs()
    assert [each.id for each in runs] == [first.id, stopped.id, second.id, running.id]
    assert [each.status for each in runs] == ["done", "stopped", "done", "running"]
    assert runs[0] == StoredRun(first.id, "done", "", asdict(first), 1e9 - 3, store.record(first.id))
    assert (runs[0].metric, runs[0].value) == ("error %", 2.5)
    assert runs[1] == StoredRun(stopped.id, "stopped", "", asdict(stopped), 1e9 - 2)
    assert (runs[1].metric, runs[1].value) == ("", None)


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
        assert store.runs()[0].status == "running"
        with pytest.raises(anynorm.DataError, match=f"run {QUICK.id} is running; stop it first"):
            store.remove(QUICK.id)
        other.kill()
    assert store.runs()[0].status == "stopped"
    assert store.begin(QUICK)
    assert store.begin(QUICK)  # it is ours already
    assert not Store(tmp_path).begin(QUICK)  # another object of the same process is another holder


def test_many_processes_may_write_at_once(tmp_path):
    code = f"""
from pathlib import Path
from dataclasses import asdict
from anynorm.lab.training.config import Config
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.store import Store
import sys
store = Store(Path({str(tmp_path)!r}))
for seed in range(10):
    config = Config(seed=int(sys.argv[1]) * 100 + seed)
    assert store.begin(config)
    store.finish(RunRecord(config.id, asdict(config), "done"))
"""
    workers = [subprocess.Popen([sys.executable, "-c", code, str(k)]) for k in range(3)]
    while any(worker.poll() is None for worker in workers):
        Store(tmp_path).runs()  # takes the lock of every run for a moment
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert [each.status for each in Store(tmp_path).runs()] == ["done"] * 30


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
    assert store.record(configs[2].id).metrics["test_error"] == 2.5
    assert {row.id: row.status for row in store.runs()} == {
        configs[0].id: "done",
        configs[1].id: "unreadable",
        configs[2].id: "done",
    }
    (damaged,) = (row for row in store.runs() if row.id == configs[1].id)
    assert "record.json is damaged" in damaged.note
    assert damaged.config == asdict(configs[1])
    path.unlink()
    with pytest.raises(anynorm.DataError, match=r"has no record: it has not ended, or .* was deleted"):
        store.record(configs[1].id)


def test_a_damaged_run_is_trained_again(tmp_path):
    run(QUICK, tmp_path)
    store = Store(tmp_path)
    curve = store.record(QUICK.id).curve
    (store.folder(QUICK.id) / "record.json").write_text("{")
    assert run(QUICK, tmp_path)
    assert store.record(QUICK.id).curve == curve


def test_records_are_read_once_and_again_when_they_change(tmp_path, monkeypatch):
    store, configs = finished(tmp_path, range(300))
    reads = []
    from_dict = RunRecord.from_dict

    def counted(run, values):
        reads.append(run)
        return from_dict(run, values)

    monkeypatch.setattr(RunRecord, "from_dict", counted)
    assert len(store.runs()) == len(Store(tmp_path).runs()) == 300
    assert len(reads) == 300
    start = time.perf_counter()
    assert all(store.is_valid(config.id) for config in configs)
    assert time.perf_counter() - start < 1
    store.finish(RunRecord(configs[7].id, asdict(configs[7]), "failed", "later"))
    assert [row.note for row in store.runs() if row.status == "failed"] == ["later"]
    assert len(reads) == 301


def test_runs_cannot_change_what_is_cached(tmp_path):
    store, _ = finished(tmp_path, range(1))
    store.runs()[0].config["lr"] = 7
    assert store.runs()[0].config["lr"] == 0.1


def test_a_record_of_a_run_is_the_same_after_it_was_written_and_read(tmp_path):
    store, (config,) = finished(tmp_path, [0])
    shift = [LayerShift(1, "bn1", "bn", 0.1, 0.2, 0.2), LayerShift(2, "bn2", "gn:4", None, None, None)]
    metrics = {"train_loss": 0.5, "test_error": 2.5, "test_robust_error_pgd4": None}
    record = RunRecord(
        config.id, asdict(config), "done", "", 8, [{"step": 8, "epoch": 1.0, "test_error": 2.5}], Metric("error", "%"), metrics,
        12, 34, shift, [{"path": "bn1", "mean_bn": 1.0}], {"error": "3:oA==", "AP": [0.5, 2.0]}, 1.5, {"commit": "abc"},
    )  # fmt: skip
    store.finish(record)
    assert store.record(config.id) == record
    assert (record.norm, record.batch_size, record.seed, record.value, record.max_shift) == ("bn", 32, 0, 2.5, 0.2)
    content = json.loads((store.folder(config.id) / "record.json").read_text())["record"]
    assert content["test_error"] == 2.5  # metrics stand among the other entries, as in records of earlier versions
    assert content["shift"][0] == {"place": 1, "path": "bn1", "norm": "bn", "esm_mean": 0.1, "esm_std": 0.2, "shift": 0.2}
    assert content["metric"] == {"name": "error", "unit": "%", "higher_is_better": False}


def test_records_without_the_newer_entries_are_read():
    record = RunRecord.from_dict("abc", {"config": {"norm": "bn"}, "status": "failed", "curve": [], "note": "no data"})
    assert record == RunRecord("abc", {"norm": "bn"}, "failed", "no data", curve=[])
    assert record.value is record.max_shift is record.seconds is None
    assert record.metric == Metric("error", "%")


def test_records_of_another_version_are_refused_and_not_overwritten(tmp_path):
    store, (config, other) = finished(tmp_path, range(2))
    path = store.folder(config.id) / "record.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"version": VERSION + 5}))
    message = rf"record\.json is of version {VERSION + 5}; this anynorm reads version {VERSION}\. Use another folder"
    for call in (lambda: store.record(config.id), lambda: store.begin(config), lambda: store.is_valid(config.id)):
        with pytest.raises(anynorm.DataError, match=message):
            call()
    assert store.record(other.id).status == "done"
    assert sorted(row.status for row in store.runs()) == ["done", "unreadable"]
    assert Store(tmp_path).begin(Config(seed=5))


def test_names_of_an_older_configuration_are_explained(tmp_path):
    store = Store(tmp_path)
    store.begin(QUICK)
    (store.folder(QUICK.id) / "config.json").write_text(json.dumps({"rate": 0.1}))
    message = rf"run {QUICK.id} was configured by another version of anynorm: A run has no setting 'rate'"
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
    assert [row.id for row in store.runs()] == [second.id]
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
    assert store.record(other.id).status == "done"
    assert not list(store.folder(QUICK.id).glob("*.part"))
    assert run(QUICK, tmp_path)  # it resumes when there is space
    assert store.record(QUICK.id).status == "done"


def test_parts_of_files_that_a_killed_process_left_are_deleted(tmp_path):
    part = Store(tmp_path).folder(QUICK.id) / "checkpoint.pt.0a1b2c3d.part"
    part.parent.mkdir(parents=True)
    part.write_text("half")
    store = Store(tmp_path)
    assert store.begin(QUICK)
    assert not part.exists()
