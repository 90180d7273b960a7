"""Comparisons: what is trained, what is read from the store, and what is refused."""

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.lab.comparison import compare as compare_module
from anynorm.lab.comparison.compare import make_base
from anynorm.lab.comparison.comparison import Comparison
from anynorm.lab.data import load_cached
from anynorm.lab.report.page import write_page
from anynorm.lab.tasks import make_task, timing
from anynorm.lab.tasks.timing import step_times
from anynorm.lab.training.config import Config
from anynorm.lab.training.devices import Hardware
from anynorm.lab.training.executors import RayExecutor
from anynorm.lab.training.store import Store
from tests.distributed import torchrun

QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)


def make_comparison(tmp_path, **options):
    defaults = {"base": QUICK, "norms": ["bn", "gn:4", "hn"], "batch_sizes": [4, 16], "seeds": 2, "root": tmp_path}
    return Comparison(**(defaults | options))


def test_a_comparison_trains_what_is_missing_and_recommends_a_norm(tmp_path):
    comparison = make_comparison(tmp_path)
    records = list(comparison.run((), processes=1))
    assert [(record.seed, record.batch_size, record.norm) for record in records] == [
        (seed, size, norm) for seed in (0, 1) for size in (4, 16) for norm in ("bn", "gn:4", "hn")
    ]
    assert comparison.read() == records
    assert list(comparison.run(records)) == []
    table = comparison.table(records)
    assert [row["norm"] for row in table] == ["bn", "gn:4", "hn"]
    assert table["bn"]["step time, batch 4"] == 1
    assert table["bn"]["memory, batch 16"] == 1
    assert table["bn"]["shift, batch 4"] > 0
    assert table["gn:4"]["shift, batch 4"] is None  # no running statistics
    assert "has the lowest mean (" in table.finding
    assert {row.config["lr"] for row in Store(tmp_path).runs()} == {0.0125, 0.05}


@pytest.mark.parametrize("model", ["vit", "convnext"])
def test_networks_with_layer_norms_are_trained_with_other_norms(tmp_path, model):
    base = replace(QUICK, model=model, width=0.25, optimizer="adamw", lr=1e-3)
    comparison = make_comparison(tmp_path, base=base, norms=["pn", "bn"], batch_sizes=[16], seeds=1)
    records = list(comparison.run((), processes=1))
    assert [record.done for record in records] == [True, True]
    table = comparison.table(records)
    assert table["bn"]["shift, batch 16"] > 0
    assert table["pn"]["shift, batch 16"] is None


def test_a_comparison_trains_damaged_runs_again(tmp_path):
    comparison = make_comparison(tmp_path, norms=["bn"], batch_sizes=[16])
    list(comparison.run((), processes=1))
    before = comparison.table(comparison.read())["bn"]["error %, batch 16"]
    (Store(tmp_path).folder(comparison.config("bn", 16, seed=0).id) / "record.json").write_text("{")
    assert [record.seed for record in comparison.run(comparison.read(), processes=1)] == [0]
    assert comparison.table(comparison.read())["bn"]["error %, batch 16"] == before


@pytest.mark.slow
def test_processes_share_the_runs(tmp_path):
    comparison = make_comparison(tmp_path, batch_sizes=[16], seeds=1)
    assert {record.norm for record in comparison.run((), processes=2)} == {"bn", "gn:4", "hn"}
    store = Store(tmp_path)
    assert all(store.record(row.id).provenance["threads"] == 1 for row in store.runs())


def test_jobs_on_ray_are_on_the_device_of_the_comparison(tmp_path, monkeypatch):
    executors = []

    def record(executor, job, items):
        executors.append(executor)
        return iter([])

    monkeypatch.setattr(RayExecutor, "map_unordered", record)
    list(make_comparison(tmp_path, hardware=Hardware("cpu")).run((), processes=2, executor="ray"))
    list(make_comparison(tmp_path).run((), processes=2, executor="ray"))
    assert executors == [RayExecutor(2, "cpu"), RayExecutor(2, "auto")]


def test_comparisons_without_meaning_are_refused():
    with pytest.raises(anynorm.SpecError, match="lr_scaling must be one of linear sqrt none; got 'cubic'"):
        Comparison(QUICK, lr_scaling="cubic")
    with pytest.raises(anynorm.SpecError, match="at least one norm, one batch size and one seed; got 0 norms"):
        Comparison(QUICK, norms=[])
    with pytest.raises(anynorm.SpecError, match="norms must be a list of specs; got the string 'bn,gn:4'"):
        Comparison(QUICK, norms="bn,gn:4")
    assert len(Comparison(QUICK, norms=["bn", "bn"], batch_sizes=[2, 2], seeds=1).cells) == 1


def test_the_learning_rate_follows_the_batch_size():
    lrs = {scaling: Comparison(QUICK, lr_scaling=scaling).config("bn", 4).lr for scaling in ("linear", "sqrt", "none")}
    assert lrs == {"linear": 0.0125, "sqrt": 0.025, "none": 0.05}


def test_step_times_are_of_runs_that_can_train_and_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    times = step_times([QUICK, replace(QUICK, batch_size=128, norm="hn")])
    assert list(times) == ["bn"]
    assert times["bn"] > 0
    assert torch.get_num_threads() == before


def test_step_times_are_measured_once(tmp_path, monkeypatch):
    comparison = make_comparison(tmp_path, norms=["bn", "hn"], batch_sizes=[16])
    seconds = comparison.step_seconds()
    assert seconds.keys() == {("bn", 16), ("hn", 16)}
    monkeypatch.setattr(timing, "Trainer", None)  # a second measurement would fail
    assert comparison.step_seconds() == seconds
    assert replace(comparison, base=replace(QUICK, epochs=7), seeds=5).step_seconds() == seconds


def test_minutes_become_the_same_number_of_epochs_for_all_runs(tmp_path):
    comparison = make_comparison(tmp_path, batch_sizes=[16], seeds=1)
    short, long = (comparison.fit_budget(minutes, processes=1).base.epochs for minutes in (0.01, 0.1))
    assert 1 <= short < long
    assert 3 < long / short < 30 or short == 1
    with pytest.raises(anynorm.SpecError, match="minutes must be above 0; got 0"):
        comparison.fit_budget(0)


def test_a_model_or_folder_that_has_changed_is_another_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "changing.py"
    module.write_text("def net(): pass\n")
    first = make_base({"model": "changing:net"})
    assert make_base({"model": "changing:net"}).id == first.id
    module.write_text("def net(): return 1\n")
    assert make_base({"model": "changing:net"}).id != first.id
    folder = tmp_path / "images"
    folder.mkdir()
    before = make_base({"data": f"folder:{folder}"}).id
    (folder / "1.png").write_text("x")
    assert make_base({"data": f"folder:{folder}"}).id != before
    assert make_base({}).source_hash == ""


def test_settings_that_are_not_given_are_those_of_the_task(tmp_path):
    given = [{}, {"model": "resnet10"}, {"data": "digits", "model": None}]
    first, *others = (compare_module.make_comparison(settings, tmp_path, Hardware()) for settings in given)
    assert all(other == first for other in others)
    assert (first.norms, first.batch_sizes, first.base.lr) == (["bn", "gn:8", "sn", "hn", "bgn"], [2, 32], 0.05)


def test_k_stands_for_the_classes_of_a_task_that_has_them():
    with pytest.raises(anynorm.SpecError, match=r"@K in sabn@K stands for the number of classes .* Write a number: sabn@10"):
        make_task(replace(QUICK, norm="sabn@K"))


def test_a_folder_that_has_changed_is_read_again(tmp_path):
    from PIL import Image

    def write(name, value):
        for label in ("cat", "dog"):
            (tmp_path / label).mkdir(exist_ok=True)
            Image.new("L", (8, 8), value).save(tmp_path / label / name)

    def load_now():
        base = make_base({"data": f"folder:{tmp_path}", "image_size": 8})
        return load_cached(base.data, base.image_size, base.source_hash)

    write("1.png", 10)
    write("2.png", 20)
    first = load_now()
    assert load_now() is first
    write("3.png", 30)
    second = load_now()
    assert len(second.train[0]) + len(second.test[0]) == 6


def test_every_argument_of_compare_is_in_its_signature():
    parameters = inspect.signature(anynorm.compare).parameters
    assert list(parameters)[:3] == ["norms", "batch_sizes", "seeds"]
    assert {"data", "model", "epochs", "minutes", "num_train", "width", "lr", "lr_scaling", "config"} <= set(parameters)
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def test_the_function_compares_and_takes_other_settings_as_a_mapping(tmp_path):
    options = {"model": "small", "width": 0.5, "num_train": 64, "epochs": 1, "runs": tmp_path, "processes": 1}
    table = anynorm.compare(["bn"], [16], 1, **options, config={"weight_decay": 0.0})
    assert table["bn"]["step time, batch 16"] == 1
    (run,) = Store(tmp_path).runs()
    assert run.config["weight_decay"] == 0
    with pytest.raises(anynorm.SpecError, match="no setting 'epoch'"):
        anynorm.compare(["bn"], [16], 1, runs=tmp_path, config={"epoch": 3})
    with pytest.raises(anynorm.SpecError, match="seed differs between the runs of a comparison; use seeds instead"):
        anynorm.compare(["bn"], [16], 1, runs=tmp_path, config={"seed": 3})


@pytest.mark.slow
def test_processes_of_torchrun_compare_as_one(tmp_path):
    output = torchrun(
        tmp_path / "two.py",
        f"""
import torch
torch.set_num_threads(1)
if __name__ == "__main__":
    import anynorm
    options = dict(model="small", width=0.5, num_train=64, epochs=1, config=dict(devices=2))
    print(anynorm.compare(["bn", "hn"], [8], 1, runs={str(tmp_path / "compared")!r}, **options))
""",
    )
    assert "At batch size 8 " in output


def test_a_task_of_ones_own_is_compared_resumed_diagnosed_and_reported(tmp_path):
    task = "examples.frequency:Frequency"
    options: dict[str, Any] = {
        "task": task,
        "epochs": 1,
        "lr": 0.01,
        "config": {"channels": 8, "noise": 0.3, "num_evals": 1},
        "runs": tmp_path,
    }
    table = anynorm.compare(["bn", "gn:4"], [100], 1, **options, processes=1)
    assert set(table["bn"]) == {f"{name}, batch 100" for name in ("deviation periods", "shift", "step time", "memory")} | {"norm"}
    assert re.search(r"At batch size 100 (bn|gn:4) has the lowest mean \(deviation [\d.]+ periods\); at least 3", table.finding)
    runs = Store(tmp_path).runs()
    assert [run.config["options"] for run in runs] == [{"channels": 8}] * 2  # noise has its default value
    assert anynorm.compare(["bn", "gn:4"], [100], 1, **options).finding == table.finding
    assert [run.updated for run in Store(tmp_path).runs()] == [run.updated for run in runs]
    shown = CliRunner().invoke(app, ["diagnose", f"run:{runs[0].id}", "--runs", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "model" not in shown.stdout.splitlines()[0]
    write_page(tmp_path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f'"title": "{task}", ' in page
    assert '"label": "test deviation periods"' in page


def test_a_streamed_folder_is_compared(tmp_path):
    from PIL import Image

    for label, level in (("cat", 40), ("dog", 200)):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(16):
            Image.new("RGB", (20, 16), (level, number, 0)).save(tmp_path / "images" / label / f"{number}.jpg")
    settings = {"image_size": 8, "min_area": 0.5}
    options: dict[str, Any] = {
        "data": f"stream:{tmp_path / 'images'}",
        "model": "small",
        "width": 0.25,
        "epochs": 1,
        "config": settings,
    }
    table = anynorm.compare(["bn"], [4], 1, **options, runs=tmp_path / "runs", processes=1, num_workers=0)
    assert "At batch size 4 use bn (" in table.finding
