"""A recipe measures every cell once, resumes after an interruption, and tests its claims with the measured numbers."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import anynorm
from anynorm.lab import recipes
from anynorm.lab.recipes.support.catalog import load_recipe, recipe_file, recipe_names
from anynorm.lab.recipes.support.claims import Claim, verdict
from anynorm.lab.recipes.support.recipe import RUNS, Recipe
from anynorm.lab.recipes.support.record import VERSION, RecipeRecord, read_record
from anynorm.lab.recipes.support.rows import select
from anynorm.lab.recipes.support.settings import Settings
from anynorm.lab.training.executors import LocalExecutor
from anynorm.lab.training.provenance import _commit, provenance
from anynorm.lab.training.sweep import grid


@dataclass(frozen=True, kw_only=True)
class ToySettings(Settings):
    step: float = 1.0
    stop: int | None = None


CALLS: list[dict[str, object]] = []


def cells(settings):
    return grid(settings.seeds, norm=["bn", "gn"])


def measure(settings, cell, runs):
    CALLS.append(cell)
    if len(CALLS) == settings.stop:
        raise KeyboardInterrupt
    return {"error": {"bn": 30.0, "gn": 20.0}[cell["norm"]] + cell["seed"] * settings.step, "runs": str(runs)}


def claims(settings):
    bn, gn = (lambda rows, norm=norm: select(rows, "error", norm=norm) for norm in ("bn", "gn"))
    return [Claim("the error is larger with bn", "73 and 58", bn, gn)]


def plot(record, path):
    return []


PRESETS = {"desk": ToySettings(seeds=3)}
RECIPE = Recipe("toy", PRESETS, cells, measure, claims, plot)


@pytest.fixture(autouse=True)
def _clear_calls():
    CALLS.clear()


@pytest.mark.parametrize("processes", [1, 2])
def test_every_cell_is_measured_and_the_record_has_the_order_of_the_cells(processes, tmp_path):
    record = RECIPE.run("desk", tmp_path, LocalExecutor(processes))
    assert [(row["norm"], row["seed"]) for row in record.rows] == [(norm, seed) for norm in ("bn", "gn") for seed in range(3)]
    reread = RECIPE.read(tmp_path / "toy.desk.json")
    assert reread == record
    assert reread.provenance["processes"] == processes
    assert {"commit", "torch", "hardware", "threads"} <= set(reread.provenance)
    table = RECIPE.judge(reread)
    assert table.rows[0]["verdict"] == "holds"
    assert str(table.rows[0]["larger"]) == "31 ± 1"
    assert "1 of 1 claims hold" in table.finding


@pytest.mark.parametrize("processes", [1, 2])
def test_the_folder_of_the_run_store_reaches_every_worker_as_an_argument(processes, tmp_path):
    record = RECIPE.run("desk", tmp_path, LocalExecutor(processes), tmp_path / "store")
    assert {row["runs"] for row in record.rows} == {str(tmp_path / "store")}
    assert {row["runs"] for row in RECIPE.run("desk", tmp_path / "other").rows} == {str(RUNS)}


def test_an_interrupted_run_resumes_and_measures_no_cell_twice(tmp_path):
    interrupted = Recipe("toy", {"desk": replace(PRESETS["desk"], stop=4)}, cells, measure, claims, plot)
    with pytest.raises(KeyboardInterrupt):
        interrupted.run("desk", tmp_path)
    assert len(RECIPE.read(tmp_path / "toy.desk.json").rows) == 3
    record = interrupted.run("desk", tmp_path)
    assert len(CALLS) == 4 + 3
    assert len(record.rows) == 6


def test_failed_runs_are_summarized_by_reason():
    failures = ["the loss is nan in step 3", "the loss is nan in step 14", "", "SpecError: no. Because."]
    record = RecipeRecord("toy", "desk", PRESETS["desk"], [{"failure": failure} for failure in failures])
    assert record.failure_summary == "2 of 4 runs failed: the loss is nan. 1 of 4 runs failed: SpecError: no."
    assert RecipeRecord("toy", "desk", PRESETS["desk"], [{"failure": ""}, {}]).failure_summary == ""


def test_a_record_names_every_commit_that_measured_it(tmp_path):
    """Runs taken from the store keep the commit that trained them."""

    def measure_stored(settings, cell, runs):
        return measure(settings, cell, runs) | {"commit": "abc"}

    stored = Recipe("toy", PRESETS, cells, measure_stored, claims, plot)
    assert stored.run("desk", tmp_path).provenance["commit"] == "abc"
    path = tmp_path / "toy.desk.json"
    record = RECIPE.read(path)
    record.rows.pop()
    record.write(path)
    assert RECIPE.run("desk", tmp_path).provenance["commit"].split() == sorted(["abc", provenance()["commit"]])


def test_a_record_with_other_settings_is_refused(tmp_path):
    RECIPE.run("desk", tmp_path)
    other = Recipe("toy", {"desk": ToySettings(seeds=4)}, cells, measure, claims, plot)
    with pytest.raises(
        anynorm.DataError, match=r"other settings than preset 'desk' has now \(seeds\)\. Delete it to measure again"
    ):
        other.run("desk", tmp_path)


def test_an_unknown_preset_or_recipe_is_refused_with_the_usable_names(tmp_path):
    with pytest.raises(anynorm.DataError, match=r"recipe 'toy' has no preset 'paper'\. Usable: desk"):
        RECIPE.run("paper", tmp_path)
    with pytest.raises(anynorm.DataError, match=r"unknown recipe 'xbn_mpl'\. Did you mean xbn_mlp"):
        load_recipe("xbn_mpl")
    with pytest.raises(anynorm.DataError, match=r"unknown recipe '\?'\. Usable: bgn_adaptation bgn_adversarial bgn_batch_size"):
        load_recipe("?")


def test_a_recipe_is_named_by_its_paper_and_its_file():
    assert {"hn_groups", "hn_with_sn", "shift_adaptation"} <= set(recipe_names())
    folders = {name.partition("_")[0] for name in recipe_names()}
    assert folders == {"bgn", "hn", "sabn", "shift", "sn", "xbn"}
    assert not {"bgn_search_results", "sabn_cifar_clusters", "hn_pair_grid"} & set(recipe_names())
    for name in recipe_names():
        assert load_recipe(name).name == name
        assert (Path(recipes.__file__).parent / recipe_file(name)).exists()


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "anynorm.lab.recipes.sn.average", raising=False)
    with pytest.raises(anynorm.DataError, match=r"recipe 'sn_average' needs matplotlib\.figure: pip install 'anynorm\[lab\]'"):
        load_recipe("sn_average")


def test_a_file_that_is_not_a_record_is_named(tmp_path):
    path = tmp_path / "toy.desk.json"
    for text in (json.dumps({"recipe": "toy"})[:-4], "[]", "{}", json.dumps({"version": VERSION, "recipe": "toy", "x": 1})):
        path.write_text(text)
        with pytest.raises(anynorm.DataError, match=r"toy\.desk\.json is not a record: .*Delete it to measure again\."):
            RECIPE.run("desk", tmp_path)
    with pytest.raises(anynorm.DataError, match=r"record not found: .*none\.json"):
        read_record(tmp_path / "none.json", ToySettings)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            None,
            r"was written by anynorm 0\.1, whose settings had other names; this anynorm reads records of versions 2 and 3\.",
        ),
        (4, r"has version 4; this anynorm reads records of versions 2 and 3\. Delete it to measure again"),
        ("2", r"has version '2'; this anynorm reads records of versions 2 and 3"),
    ],
)
def test_a_record_of_another_version_is_refused(version, message, tmp_path):
    path = tmp_path / "hn_sn.desk.json"
    values = json.loads((Path(__file__).parents[3] / "records" / path.name).read_text())
    assert values.pop("version") == VERSION - 1
    path.write_text(json.dumps(values if version is None else {"version": version, **values}))
    with pytest.raises(anynorm.DataError, match=re.escape(str(path)) + " " + message):
        load_recipe("hn_sn").run("desk", tmp_path)


def test_a_write_that_fails_leaves_the_previous_record(tmp_path):
    path = tmp_path / "toy.json"
    RecipeRecord("toy", "desk", PRESETS["desk"], [{"seed": 0}]).write(path)
    with pytest.raises(TypeError):
        RecipeRecord("toy", "desk", PRESETS["desk"], [{"seed": object()}]).write(path)
    assert RECIPE.read(path).rows == [{"seed": 0}]
    assert [file.name for file in tmp_path.iterdir()] == ["toy.json"]


def test_verdicts_are_those_of_the_paired_t_test_in_both_directions():
    a, b = [3.1, 2.9, 3.4, 3.0], [2.0, 2.8, 2.1, 2.4]
    assert verdict(a, b) == "holds"
    assert verdict(b, a) == "does not hold"
    assert verdict([1.0, -1.0, 0.5], [0.0, 0.0, 0.0]) == "not significant"
    assert verdict([1.0], [0.0]) == "not significant"
    assert verdict([float("nan"), 1.0], [0.0, 0.0]) == "not significant"
    assert verdict([0.0, 0.0], [0.0, 0.0]) == "not significant"


def test_a_claim_with_a_failed_run_is_not_decided():
    claim = Claim("x", "", lambda rows: [1.0, None], lambda rows: [None, 0.5])
    row = claim.judge([])
    assert (row["verdict"], row["p"]) == ("failed", 1.0)
    assert (str(row["larger"]), str(row["smaller"])) == ("1, 1 of 2 failed", "0.5, 1 of 2 failed")
    with pytest.raises(anynorm.DataError, match="must have the same number of values on both sides; got 1 and 0"):
        Claim("x", "", lambda rows: [1.0], lambda rows: []).judge([])


def test_provenance_marks_changed_files(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x", *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr("anynorm.lab.training.provenance.__file__", str(tmp_path / "record.py"))
    clean = provenance()["commit"]
    (tmp_path / "file").write_text("2")
    assert provenance()["commit"] == clean  # the code that is loaded is the old one
    _commit.cache_clear()
    assert provenance()["commit"] == clean + "+"
    monkeypatch.setattr("anynorm.lab.training.provenance.__file__", str(tmp_path.parent / "record.py"))
    assert provenance()["commit"] == "unknown"
