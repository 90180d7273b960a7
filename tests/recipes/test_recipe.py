"""Recipes measure every cell once, whatever stops them, and claims are judged by their numbers."""

import json
import subprocess

import pytest

import anynorm
from anynorm.recipes.support.claims import Claim, pick, probability, spread, verdict
from anynorm.recipes.support.recipe import Recipe, grid, load_recipe
from anynorm.recipes.support.record import Record, read_record
from anynorm.training.executors import LocalExecutor
from anynorm.training.provenance import _commit, provenance

CALLS: list[dict[str, object]] = []


def cells(settings):
    return grid(settings["seeds"], norm=["bn", "gn"])


def measure(settings, cell):
    CALLS.append(cell)
    if len(CALLS) == settings.get("stop"):
        raise KeyboardInterrupt
    return {"error": {"bn": 30.0, "gn": 20.0}[cell["norm"]] + cell["seed"] * settings["step"]}


def claims(settings):
    return [
        Claim(
            "bn errs more", "73 and 58", lambda rows: pick(rows, "error", norm="bn"), lambda rows: pick(rows, "error", norm="gn")
        )
    ]


def draw(record, path):
    return []


PRESETS = {"desk": {"seeds": 3, "step": 1.0}}
RECIPE = Recipe("toy", PRESETS, cells, measure, claims, draw)


@pytest.fixture(autouse=True)
def _forget():
    CALLS.clear()


@pytest.mark.parametrize("processes", [1, 2])
def test_every_cell_is_measured_and_kept_in_order(processes, tmp_path):
    record = RECIPE.run("desk", tmp_path, LocalExecutor(processes))
    assert [(row["norm"], row["seed"]) for row in record.rows] == [(norm, seed) for norm in ("bn", "gn") for seed in range(3)]
    again = read_record(tmp_path / "toy.desk.json")
    assert again == record
    assert again.provenance["processes"] == processes
    assert {"commit", "torch", "hardware", "threads"} <= set(again.provenance)
    judged = RECIPE.judge(again)
    assert judged.rows[0]["verdict"] == "holds"
    assert judged.rows[0]["larger"] == "31 ± 1"
    assert "1 of 1 claims hold" in judged.finding


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path):
    stopped = Recipe("toy", {"desk": PRESETS["desk"] | {"stop": 4}}, cells, measure, claims, draw)
    with pytest.raises(KeyboardInterrupt):
        stopped.run("desk", tmp_path)
    assert len(read_record(tmp_path / "toy.desk.json").rows) == 3
    record = stopped.run("desk", tmp_path)
    assert len(CALLS) == 4 + 3
    assert len(record.rows) == 6


def test_runs_that_failed_are_told_with_their_reasons():
    rows = [{"failed": f"the loss is nan in step {step}"} for step in (3, 14)] + [
        {"failed": ""},
        {"failed": "SpecError: no. Because."},
    ]
    record = Record("toy", "desk", PRESETS["desk"], rows)
    assert record.failures == "2 of 4 runs failed: the loss is nan. 1 of 4 runs failed: SpecError: no."
    assert Record("toy", "desk", {}, [{"failed": ""}, {}]).failures == ""


def test_a_record_names_every_commit_that_measured_it(tmp_path):
    """Runs that were there already are those of the code that made them."""
    stored = Recipe("toy", PRESETS, cells, lambda settings, cell: measure(settings, cell) | {"commit": "abc"}, claims, draw)
    assert stored.run("desk", tmp_path).provenance["commit"] == "abc"
    path = tmp_path / "toy.desk.json"
    record = read_record(path)
    record.rows.pop()
    record.write(path)
    assert RECIPE.run("desk", tmp_path).provenance["commit"].split() == sorted(["abc", provenance()["commit"]])


def test_a_record_of_other_settings_is_not_added_to(tmp_path):
    RECIPE.run("desk", tmp_path)
    other = Recipe("toy", {"desk": {"seeds": 4, "step": 1.0}}, cells, measure, claims, draw)
    with pytest.raises(anynorm.DataError, match="other settings"):
        other.run("desk", tmp_path)


def test_names_that_are_not_there_are_told(tmp_path):
    with pytest.raises(anynorm.DataError, match=r"has no preset 'paper'\. It has: desk"):
        RECIPE.run("paper", tmp_path)
    (tmp_path / "xbn_mlp.py").write_text("")
    with pytest.raises(anynorm.DataError, match=r"no recipe 'xbn_mpl' in .* Near: xbn_mlp"):
        load_recipe("xbn_mpl")


def test_a_broken_record_is_named(tmp_path):
    path = tmp_path / "toy.desk.json"
    path.write_text(json.dumps({"recipe": "toy"})[:-4])
    with pytest.raises(anynorm.DataError, match=r"toy\.desk\.json is no record"):
        RECIPE.run("desk", tmp_path)
    with pytest.raises(anynorm.DataError, match="There is no record"):
        read_record(tmp_path / "none.json")


def test_a_write_that_fails_leaves_the_old_record(tmp_path):
    path = tmp_path / "toy.json"
    Record("toy", "desk", {}, [{"seed": 0}]).write(path)
    with pytest.raises(TypeError):
        Record("toy", "desk", {}, [{"seed": object()}]).write(path)
    assert read_record(path).rows == [{"seed": 0}]


def test_verdicts_are_those_of_students_test():
    stats = pytest.importorskip("scipy.stats")
    a, b = [3.1, 2.9, 3.4, 3.0], [2.0, 2.8, 2.1, 2.4]
    differences = [x - y for x, y in zip(a, b, strict=True)]
    assert probability(differences) == pytest.approx(stats.ttest_rel(a, b, alternative="greater").pvalue)
    assert verdict(differences) == "holds"
    assert verdict([-value for value in differences]) == "does not hold"
    assert verdict([1.0, -1.0, 0.5]) == "not significant"
    assert verdict([1.0]) == "not significant"
    assert verdict([float("nan"), 1.0]) == "not significant"
    assert verdict([0.0, 0.0]) == "not significant"
    assert spread([1.0]) == "1"
    with pytest.raises(anynorm.DataError, match="compares 1 numbers with 0"):
        Claim("x", "", lambda rows: [1.0], lambda rows: []).judge([])


def test_provenance_tells_changed_files(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x", *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr("anynorm.training.provenance.__file__", str(tmp_path / "record.py"))
    clean = provenance()["commit"]
    (tmp_path / "file").write_text("2")
    assert provenance()["commit"] == clean  # the code that is loaded is the old one
    _commit.cache_clear()
    assert provenance()["commit"] == clean + "+"
    monkeypatch.setattr("anynorm.training.provenance.__file__", str(tmp_path.parent / "record.py"))
    assert provenance()["commit"] == "unknown"
