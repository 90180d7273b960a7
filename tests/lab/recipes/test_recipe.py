"""A recipe measures every cell once, resumes after an interruption, and tests its claims with the measured numbers."""

import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import anynorm
from anynorm.lab import recipes
from anynorm.lab.recipes.support.catalog import load_recipe, recipe_file, recipe_names
from anynorm.lab.recipes.support.claims import RATIO, Larger, Level, Published, Source
from anynorm.lab.recipes.support.controls import Learned, check_recorded
from anynorm.lab.recipes.support.design import design_hash
from anynorm.lab.recipes.support.executed_code import executed_sources, training_version
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.recipe import RUNS, Recipe
from anynorm.lab.recipes.support.record import MeasuredCell, RecipeRecord, read_record
from anynorm.lab.recipes.support.settings import Settings
from anynorm.lab.recipes.support.status import seconds_left, status_table
from anynorm.lab.training.code_version import SHARED, cpu_family, dump
from anynorm.lab.training.executors import LocalExecutor
from anynorm.lab.training.provenance import _commit, provenance
from anynorm.lab.training.sweep import grid


@dataclass(frozen=True, kw_only=True)
class ToySettings(Settings):
    step: float = 1.0
    stop: int | None = None


CALLS: list[dict[str, object]] = []
ERRORS = {"bn": 30.0, "gn": 20.0}


def cells(settings):
    return grid(settings.seeds, norm=["bn", "gn"])


def measure(settings, cell, runs):
    CALLS.append(cell)
    if len(CALLS) == settings.stop:
        raise KeyboardInterrupt
    noise = 0.1 * (cell["seed"] % 2) * (cell["norm"] == "bn")
    return {"error": ERRORS[cell["norm"]] + cell["seed"] * settings.step + noise, "runs": str(runs)}


def claims(settings):
    sides = [Measured("error", {"norm": norm}) for norm in ("bn", "gn")]
    published = Published(73.0, 58.0)
    source = Source("xbn", "Fig. 3a")
    return [
        Larger(statement="the error is larger with bn", source=source, published=published, larger=sides[0], smaller=sides[1])
    ]


def swapped_claims(settings):
    return [replace(claim, larger=claim.smaller, smaller=claim.larger) for claim in claims(settings)]


def plot(record, path):
    return []


PRESETS = {"desk": ToySettings(seeds=3)}
RECIPE = Recipe("toy", PRESETS, cells, measure, claims, plot)
FILE = "toy.desk.jsonl"


@pytest.fixture(autouse=True)
def _clear_calls():
    CALLS.clear()


@pytest.mark.parametrize("processes", [1, 2])
def test_every_cell_is_measured_and_the_record_has_the_order_of_the_cells(processes, tmp_path):
    record = RECIPE.run("desk", tmp_path, LocalExecutor(processes))
    assert [(row["norm"], row["seed"]) for row in record.rows] == [(norm, seed) for norm in ("bn", "gn") for seed in range(3)]
    reread = RECIPE.read(tmp_path / FILE)
    assert reread.latest == record.latest
    for cell in reread.cells:
        assert {"commit", "code", "cpu", "torch", "hardware", "threads", "seconds"} <= cell.provenance.keys()
        assert cell.provenance["processes"] == processes
    (verdict,) = RECIPE.judge(reread)
    assert (verdict.verdict, verdict.note, verdict.n) == ("holds", "smaller than published", 3)
    assert verdict.estimate.difference == pytest.approx(10.0, abs=0.1)


def test_cells_are_measured_seed_by_seed(tmp_path):
    RECIPE.run("desk", tmp_path)
    assert [cell["seed"] for cell in CALLS] == [0, 0, 1, 1, 2, 2]


def test_the_run_store_has_one_folder_per_version_of_the_code_that_trains(tmp_path):
    record = RECIPE.run("desk", tmp_path, runs=tmp_path / "store")
    folder = f"{training_version(PRESETS['desk'])}-{cpu_family().replace(' ', '-')}"
    assert {row["runs"] for row in record.rows} == {str(tmp_path / "store" / folder)}
    assert RECIPE.run("desk", tmp_path / "other").rows[0]["runs"].startswith(str(RUNS))
    versions = {training_version(load_recipe(name).settings("night")) for name in ("hn_sn", "sn_batch_size", "bgn_batch_size")}
    assert len(versions) == 1  # so that these recipes share runs


def test_an_interrupted_run_resumes_and_measures_no_cell_twice(tmp_path):
    interrupted = Recipe("toy", {"desk": replace(PRESETS["desk"], stop=4)}, cells, measure, claims, plot)
    with pytest.raises(KeyboardInterrupt):
        interrupted.run("desk", tmp_path)
    assert len(RECIPE.read(tmp_path / FILE).cells) == 3
    record = interrupted.run("desk", tmp_path)
    assert len(CALLS) == 4 + 3
    assert len(record.rows) == 6


def test_seeds_are_measured_in_parts_but_not_more_than_the_design_has(tmp_path):
    assert len(RECIPE.run("desk", tmp_path, seeds=1).rows) == 2
    assert len(RECIPE.run("desk", tmp_path, seeds=2).rows) == 4
    assert len(CALLS) == 4
    with pytest.raises(anynorm.DataError, match=r"--seeds must be at most 3, the number of seeds of preset 'desk'; got 4"):
        RECIPE.run("desk", tmp_path, seeds=4)


def test_a_pilot_has_other_seeds_and_a_record_of_its_own(tmp_path):
    record = RECIPE.run("desk", tmp_path, seeds=2, pilot=True)
    assert sorted({row["seed"] for row in record.rows}) == [1000, 1001]
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["toy.desk.pilot.jsonl"]
    assert len(RECIPE.run("desk", tmp_path, seeds=4, pilot=True).rows) == 8  # more seeds than the design has


def test_two_processes_never_measure_the_same_cell(tmp_path):
    """The second call starts while the first one measures its first cell."""
    started, finish, lock, calls = threading.Event(), threading.Event(), threading.Lock(), []

    def measure_slowly(settings, cell, runs):
        with lock:
            calls.append((cell["norm"], cell["seed"]))
            is_first = len(calls) == 1
        if is_first:
            started.set()
            assert finish.wait(20)
        return {"error": 1.0}

    recipe = Recipe("toy", PRESETS, cells, measure_slowly, claims, plot)
    first, second = (threading.Thread(target=recipe.run, args=("desk", tmp_path)) for _ in range(2))
    first.start()
    assert started.wait(20)
    second.start()
    second.join(20)
    assert len(calls) == 6  # the second call measured the five other cells
    finish.set()
    first.join(20)
    assert sorted(calls) == [(norm, seed) for norm in ("bn", "gn") for seed in range(3)]
    assert len(RECIPE.read(tmp_path / FILE).cells) == 6
    assert sorted(file.name for file in tmp_path.iterdir()) == [f".{FILE}.lock", FILE]


def test_cells_outside_the_design_and_cells_without_an_origin_are_named(tmp_path):
    RECIPE.run("desk", tmp_path)
    path = tmp_path / FILE
    text = path.read_text()
    extra = json.loads(text.splitlines()[-1])
    path.write_text(text + json.dumps(extra | {"cell": {"norm": "ln", "seed": 0}}) + "\n")
    with pytest.raises(anynorm.DataError, match=r"has 1 cells that preset 'desk' does not have, such as .*\"ln\""):
        RECIPE.run("desk", tmp_path)
    path.write_text(text + json.dumps(extra | {"provenance": {"code": "x"}}) + "\n")
    with pytest.raises(anynorm.DataError, match=r"line 8 of .* must have a seed in its cell, and code and cpu in its provenance"):
        RECIPE.run("desk", tmp_path)


def test_a_complete_record_of_another_version_of_the_measurement_is_refused(tmp_path):
    record = RECIPE.run("desk", tmp_path)
    other = replace(RECIPE, version=2)
    with pytest.raises(anynorm.DataError, match=r"another design .* \(version of recipe\)"):
        other.run("desk", tmp_path)
    assert "another meaning now (version of recipe)" in other.conclusion(record)


def with_origin(path, **origins):
    """Give cells of some seeds another origin."""
    record = RECIPE.read(path)
    record.cells = [
        replace(cell, provenance=cell.provenance | origins.get(f"seed{cell.cell['seed']}", {})) for cell in record.cells
    ]
    record.write(path)


def test_cells_of_an_unfinished_seed_that_other_code_measured_are_measured_again(tmp_path):
    RECIPE.run("desk", tmp_path, seeds=2)
    path = tmp_path / FILE
    with_origin(path, seed0={"code": "old"}, seed1={"code": "old"})
    record = RECIPE.read(path)
    record.cells.pop()  # seed 1 is unfinished
    record.write(path)
    CALLS.clear()
    record = RECIPE.run("desk", tmp_path)
    assert [cell["seed"] for cell in CALLS] == [1, 1, 2, 2]  # the finished seed 0 stays
    assert {cell.provenance["code"] for cell in record.cells if cell.cell["seed"] == 0} == {"old"}
    assert len({cell.origin for cell in record.cells if cell.cell["seed"] == 1}) == 1
    assert len(RECIPE.read(path).cells) == 7  # nothing is deleted


def test_a_comment_does_not_change_the_version_of_the_code_but_the_code_does(tmp_path):
    source = "def f(x):\n    return x + 1\n"
    assert dump(source) == dump('def f(x):\n    """Text."""\n    # comment\n    return (x + 1)\n')
    assert dump(source) != dump("def f(x):\n    return x + 2\n")
    names = " ".join(executed_sources(load_recipe("hn_fluctuation").measure))
    assert "def measure(" in names
    assert "def train(" in names
    assert "def plot(" not in names
    assert "FIRST_PILOT_SEED = 1000" in executed_sources(load_recipe("bgn_batch_size").measure)  # a constant, imported
    assert any("def cell_config(" in source for source in executed_sources(load_recipe("bgn_batch_size").measure))  # norm_grid.…
    assert "diagnostics" in SHARED


def test_processes_that_append_at_once_lose_nothing(tmp_path):
    path = tmp_path / FILE
    RECIPE.open_record("desk", tmp_path).write(path)

    def append(first):
        own = RecipeRecord("toy", "desk", PRESETS["desk"])
        for seed in range(first, first + 40):
            own.append(path, MeasuredCell({"seed": seed}, {"error": 1.0, "text": "x" * 5000}, {"code": "", "cpu": ""}))

    threads = [threading.Thread(target=append, args=(100 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seeds = [cell.cell["seed"] for cell in RECIPE.read(path).cells]
    assert sorted(seeds) == sorted(100 * number + seed for number in range(4) for seed in range(40))


def test_an_unfinished_last_line_is_measured_again_and_a_damaged_line_is_named(tmp_path):
    RECIPE.run("desk", tmp_path)
    path = tmp_path / FILE
    text = path.read_text()
    path.write_text(text[:-20])
    assert len(RECIPE.read(path).cells) == 5
    CALLS.clear()
    assert len(RECIPE.run("desk", tmp_path).rows) == 6
    assert len(CALLS) == 1
    path.write_text(text.rstrip("\n"))  # complete, but without the newline
    assert len(RECIPE.read(path).cells) == 6
    lines = text.splitlines()
    path.write_text("\n".join([*lines[:2], lines[2][:30], *lines[3:]]) + "\n")
    with pytest.raises(anynorm.DataError, match=r"line 3 of .*toy\.desk\.jsonl is not a cell: .* Restore the file"):
        RECIPE.run("desk", tmp_path)
    path.write_text("\n".join([lines[0], '{"cell": {}}']) + "\n")
    with pytest.raises(anynorm.DataError, match=r"line 2 of .* must have the keys cell, provenance, values"):
        RECIPE.run("desk", tmp_path)
    path.write_text("\n".join([lines[0], '{"cell": 3, "values": {}, "provenance": {}}']) + "\n")
    with pytest.raises(anynorm.DataError, match=r"line 2 of .*: cell, provenance, values must be objects"):
        RECIPE.run("desk", tmp_path)


def test_failed_runs_are_summarized_by_reason():
    failures = ["the loss is nan in step 3", "the loss is nan in step 14", "", "SpecError: no. Because."]
    measured = [MeasuredCell({"seed": seed}, {"failure": text}, {"code": "", "cpu": ""}) for seed, text in enumerate(failures)]
    record = RecipeRecord("toy", "desk", PRESETS["desk"], cells=measured)
    assert record.failure_summary == "2 of 4 runs failed: the loss is nan. 1 of 4 runs failed: SpecError: no."
    assert RecipeRecord("toy", "desk", PRESETS["desk"]).failure_summary == ""


def test_runs_taken_from_the_store_keep_the_commit_and_the_time_of_their_training(tmp_path):
    def measure_stored(settings, cell, runs):
        return measure(settings, cell, runs) | {"commit": "abc", "seconds": 12.5}

    stored = Recipe("toy", PRESETS, cells, measure_stored, claims, plot)
    record = stored.run("desk", tmp_path)
    assert record.values_of_provenance("commit") == ["abc"]
    assert record.minutes == pytest.approx(6 * 12.5 / 60)
    assert "seconds" not in record.rows[0]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (Recipe("toy", {"desk": ToySettings(seeds=4)}, cells, measure, claims, plot), "seeds"),
        (Recipe("toy", PRESETS, cells, measure, lambda _: claims(_) * 2, plot), "claims or controls"),
        (
            Recipe("toy", PRESETS, cells, measure, claims, plot, controls=lambda _: [Learned(5.0, column="error")]),
            "claims or controls",
        ),
        (Recipe("toy", PRESETS, cells, measure, swapped_claims, plot), "claims or controls"),
        (Recipe("toy", PRESETS, cells, measure, claims, plot, version=2), "version of recipe"),
    ],
)
def test_a_record_that_was_begun_with_another_design_is_not_completed(other, name, tmp_path):
    RECIPE.run("desk", tmp_path, seeds=2)
    text = (tmp_path / FILE).read_text()
    with pytest.raises(
        anynorm.DataError, match=rf"begun with another design than preset 'desk' has now \({name}\), so its 4 cells cannot"
    ):
        other.run("desk", tmp_path)
    assert (tmp_path / FILE).read_text() == text


def test_a_claim_is_undecided_as_long_as_seeds_of_the_design_are_missing(tmp_path):
    (verdict,) = RECIPE.judge(RECIPE.run("desk", tmp_path, seeds=2))
    assert (verdict.verdict, verdict.note, verdict.p) == ("undecided", "2 of 3 seeds are measured", None)
    (verdict,) = RECIPE.judge(RECIPE.run("desk", tmp_path))
    assert (verdict.verdict, verdict.exploratory) == ("holds", False)
    (verdict,) = replace(RECIPE, controls=lambda _: [Learned(1.0, column="error")]).judge(RECIPE.read(tmp_path / FILE))
    assert verdict.exploratory


def test_words_do_not_belong_to_the_design_but_sides_scale_and_columns_do():
    settings, (claim,) = PRESETS["desk"], claims(PRESETS["desk"])
    control = Learned(5.0, column="error")
    design = design_hash(settings, [claim], [control])
    reworded = replace(claim, statement="other words", source=claim.source._replace(quote="a quote"))
    assert design_hash(settings, [reworded], [control]) == design
    for other in (
        replace(claim, scale=RATIO),
        replace(claim, level=Level.LAYER, group="layers"),
        replace(claim, larger=Measured("error", {"norm": "ln"})),
        replace(claim, larger=Measured("loss", {"norm": "bn"})),
        replace(claim, delta=2.0),
    ):
        assert design_hash(settings, [other], [control]) != design
    assert design_hash(settings, [claim], [replace(control, column="train_accuracy")]) != design


def test_verdicts_of_claims_that_were_changed_after_measuring_are_called_exploratory(tmp_path):
    record = RECIPE.run("desk", tmp_path)
    assert "exploratory" not in RECIPE.conclusion(record)
    other = Recipe("toy", PRESETS, cells, measure, lambda _: claims(_) * 2, plot)
    assert "these verdicts are exploratory" in other.conclusion(record)


def test_a_measurement_without_the_number_of_a_control_is_refused(tmp_path):
    recipe = Recipe("toy", PRESETS, cells, measure, claims, plot, controls=lambda _: [Learned(20.0)])
    with pytest.raises(anynorm.DataError, match="has no number: the measurement must return a finite 'train_accuracy'; got None"):
        recipe.run("desk", tmp_path)
    assert not (tmp_path / FILE).exists()
    with pytest.raises(anynorm.DataError, match="got nan"):
        check_recorded([Learned(20.0)], {"train_accuracy": float("nan")})


def test_the_status_counts_measured_and_missing_cells_and_estimates_the_time(tmp_path):
    recipe = Recipe("toy", {"night": ToySettings(seeds=3), "paper": ToySettings(seeds=3)}, cells, measure, claims, plot)
    (row,) = status_table([recipe], tmp_path).rows
    assert (row["preset"], row["cells"], row["measured"], row["core hours left"]) == ("night", 6, 0, None)
    recipe.run("night", tmp_path, seeds=2)
    path = tmp_path / "toy.night.jsonl"
    record = recipe.read(path)
    record.cells = [replace(cell, provenance=cell.provenance | {"seconds": 3600.0}) for cell in record.cells]
    record.write(path)
    table = status_table([recipe], tmp_path)
    assert (table.rows[0]["measured"], table.rows[0]["core hours left"]) == (4, 2.0)
    assert "2 cells are missing: about 2.0 hours of one core" in table.finding
    record.cells = [replace(cell, provenance=cell.provenance | {"code": "old"}) for cell in record.cells[:3]]
    record.write(path)
    (row,) = status_table([recipe], tmp_path).rows
    assert (row["measured"], row["to repeat"]) == (2, 1)
    other = Recipe("toy", {"night": ToySettings(seeds=5)}, cells, measure, claims, plot)
    assert "begun with another design" in status_table([other], tmp_path).rows[0]["note"]
    assert seconds_left([], []) == 0.0


def test_an_unknown_preset_or_recipe_is_refused_with_the_usable_names(tmp_path):
    with pytest.raises(anynorm.DataError, match=r"recipe 'toy' has no preset 'paper'\. Usable: desk"):
        RECIPE.run("paper", tmp_path)
    with pytest.raises(anynorm.DataError, match=r"unknown recipe 'xbn_mpl'\. Did you mean xbn_mlp"):
        load_recipe("xbn_mpl")
    with pytest.raises(anynorm.DataError, match=r"unknown recipe '\?'\. Usable: bgn_adaptation bgn_adversarial bgn_background"):
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
    path = tmp_path / FILE
    for text in (json.dumps({"recipe": "toy"})[:-4], "[]", "{}", json.dumps({"version": 4, "recipe": "toy", "x": 1})):
        path.write_text(text)
        with pytest.raises(anynorm.DataError, match=r"toy\.desk\.jsonl is not a record: .*Move it away"):
            RECIPE.run("desk", tmp_path)
    with pytest.raises(anynorm.DataError, match=r"record not found: .*none\.jsonl"):
        read_record(tmp_path / "none.jsonl", ToySettings)


@pytest.mark.parametrize("version", [None, 3, 5, "4"])
def test_a_record_of_another_version_is_refused(version, tmp_path):
    RECIPE.run("desk", tmp_path)
    path = tmp_path / FILE
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(header) | {"version": version}), *lines]) + "\n")
    message = re.escape(f"{path} has version {version!r}; this anynorm reads records of version 4. Move it away")
    with pytest.raises(anynorm.DataError, match=message):
        RECIPE.run("desk", tmp_path)


def test_a_write_that_fails_leaves_the_previous_record(tmp_path):
    path = tmp_path / FILE
    record = RECIPE.run("desk", tmp_path)
    before = path.read_text()
    record.cells[0].values["error"] = object()
    with pytest.raises(TypeError):
        record.write(path)
    assert path.read_text() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == [f".{FILE}.lock", FILE]


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
