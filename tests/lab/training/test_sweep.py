"""A sweep measures each missing cell once; a run in a store is trained once."""

import subprocess
import sys
import threading

import pytest

from anynorm.lab.tasks.run import get_or_train
from anynorm.lab.training.config import Config
from anynorm.lab.training.executors import LocalExecutor
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Sweep, grid

QUICK = Config(model="small", width=0.5, num_train=32, batch_size=16, epochs=1, lr=0.05)


def area(cell):
    return {"area": cell["height"] * cell["width"], "seed of the area": cell["seed"]}


def test_a_grid_has_every_combination_with_the_seed_varying_fastest():
    cells = grid(2, norm=["bn", "gn:8"], size=iter([2, 4]))
    assert len(cells) == 8
    assert cells[:3] == [
        {"norm": "bn", "size": 2, "seed": 0},
        {"norm": "bn", "size": 2, "seed": 1},
        {"norm": "bn", "size": 4, "seed": 0},
    ]
    assert cells[-1] == {"norm": "gn:8", "size": 4, "seed": 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_measures_only_missing_cells_and_orders_its_rows(workers):
    cells = grid(1, height=[3, 1], width=[2, 5])
    plan = Sweep(cells, area)
    first = {**cells[1], "area": -1}
    assert plan.missing([]) == cells
    assert plan.missing([first]) == [cells[0], *cells[2:]]
    rows = list(plan.run(LocalExecutor(workers), [first]))
    assert {row["area"] for row in rows} == {6, 2, 5}
    assert [row["area"] for row in plan.in_order([*rows, first])] == [6, -1, 2, 5]
    assert plan.missing([*rows, first]) == []
    assert list(plan.run(LocalExecutor(workers), [*rows, first])) == []


def test_a_run_is_trained_once_and_its_record_returned(tmp_path, monkeypatch):
    record = get_or_train(QUICK, tmp_path)
    assert record == Store(tmp_path).record(QUICK.id)
    assert record.status == "done"
    monkeypatch.setattr("anynorm.lab.tasks.run.run", None)  # a second training would raise
    assert get_or_train(QUICK, tmp_path) == record


def test_a_damaged_record_is_trained_again(tmp_path):
    record = get_or_train(QUICK, tmp_path)
    (Store(tmp_path).folder(QUICK.id) / "record.json").write_text("{")
    assert get_or_train(QUICK, tmp_path).curve == record.curve


def test_a_run_held_by_another_process_is_waited_for_and_taken_over_when_that_is_killed(tmp_path):
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
    records = []
    waiting = threading.Thread(target=lambda: records.append(get_or_train(QUICK, tmp_path)))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "mine\n"
        waiting.start()
        waiting.join(3)
        assert waiting.is_alive()
        assert not records
        other.kill()
    waiting.join(60)
    assert records[0].status == "done"
