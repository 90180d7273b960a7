"""The smoke presets of recipes work, every record fits its recipe, and the result pages are those of the records."""

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from anynorm.cli import app
from anynorm.errors import DataError
from anynorm.lab.recipes.support.adversarial import TrainedNorm
from anynorm.lab.recipes.support.catalog import (
    has_run,
    load_recipe,
    read_header,
    read_minutes,
    read_record,
    recipe_file,
    recipe_names,
)
from anynorm.lab.recipes.support.claims import PAPERS, Check, Equivalent
from anynorm.lab.recipes.support.recipe import PRESETS, Recipe
from anynorm.lab.recipes.support.record import MeasuredCell, RecipeRecord
from anynorm.lab.recipes.support.results import write_pictures
from anynorm.lab.recipes.support.runs import make_config, options_of
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.recipes.support.settings_json import to_json
from anynorm.lab.recipes.support.verdict_table import control_table, verdict_table
from anynorm.lab.recipes.support.verdicts import FAILED, VERDICTS
from anynorm.lab.training.config import Config
from anynorm.lab.training.items import unpack_items
from tests.cover import thorough_except
from tools.conversions import MARKER as CONVERSIONS
from tools.conversions import PAGE as CONVERSIONS_PAGE
from tools.conversions import conversions_block
from tools.guides import GUIDES, guide_block
from tools.inventory import read_inventory
from tools.results import insert, minutes, overview, results_page, summary
from tools.robustness import MARKER, robustness_block

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "records"
NAMES = recipe_names()
RECORDS = sorted(path for path in FOLDER.glob("*.jsonl") if "pilot" not in path.name)
ONE_PER_MEASUREMENT = {
    "bgn_adaptation",
    "bgn_adversarial",
    "bgn_few_shot",
    "bgn_search",
    "hn_imagenet",
    "sabn_generation",
    "shift_adaptation",
    "sn_controller",
    "sn_detection",
    "sn_segmentation",
    "sn_style",
    "sn_video",
    "xbn_perturbation",
}
"""A recipe per kind of measurement; a test of the command below runs one with pairs of norms. `make test-all` runs all."""
FAILS_WITH_IN = {"bgn_batch_size", "xbn_blocks"}
"""Recipes whose smoke preset has maps of 1 × 1 pixels, for which IN is refused."""


def numbers(value):
    """Yield all numbers in nested dictionaries and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from numbers(entry)
    elif isinstance(value, int | float):
        yield value


def is_in(row):
    return row.get("norm", row.get("network")).startswith(("in", "IN"))


@pytest.mark.slow
@pytest.mark.parametrize("name", thorough_except(ONE_PER_MEASUREMENT, NAMES))
def test_the_smoke_preset_measures_every_cell_decides_every_claim_and_plots(name, tmp_path):
    recipe = load_recipe(name)
    record = recipe.run("smoke", tmp_path, runs=tmp_path / "runs")
    assert fits(record)
    failed = [row for row in record.rows if row.get("failure")]
    assert failed == [row for row in record.rows if name in FAILS_WITH_IN and is_in(row)]
    assert all(row["failure"].startswith("ShapeError: ") for row in failed)
    for row in record.rows:
        assert all(map(math.isfinite, numbers(row)))
        check_items(row)
        for column in ("accuracy", "train_accuracy", "train_error", "test_error"):
            assert row in failed or column not in row or 0 <= row[column] <= 100
    for verdict in check_results(recipe, record, tmp_path):
        assert verdict.n == 2


def check_items(row):
    """Check that the values of test items have the metric as their mean; that of pseudo-values is another estimate of it."""
    for column, packed in row.get("items", {}).items():
        if isinstance(row[column], float) and not column.startswith(("ap", "mask_ap", "miou", "pixel_accuracy")):
            assert unpack_items(packed).mean() == pytest.approx(row[column], rel=1e-3, abs=1e-3), column


def check_results(recipe, record, folder):
    """Check the claims, controls, tables and pictures of a record, and return the verdicts."""
    verdicts = recipe.judge(record)
    claims = recipe.claims(record.settings)
    assert len(verdicts) == sum(not isinstance(claim, Check) for claim in claims)
    assert claims
    assert all(recipe.checks(record).values())
    for verdict in verdicts:
        assert verdict.verdict in VERDICTS
        assert verdict.p is None or 0 <= verdict.p <= 1
        assert verdict.verdict == FAILED or not verdict.n or math.isfinite(verdict.first.mean)
    assert control_table(recipe.check_controls(record)).rows or record.preset == "smoke"
    assert len(verdict_table(verdicts)) == len(verdicts)
    for table in recipe.tables(record):
        assert table.rows
        assert all(set(row) == set(table.rows[0]) for row in table)
    pictures = write_pictures(recipe, record, folder)
    assert pictures
    for picture in pictures:
        with Image.open(picture) as image:
            assert image.size[0] > 400
    return verdicts


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_claims_tables_and_plots_are_made_from_a_record_without_training(path, tmp_path):
    record = read_record(path)
    check_results(load_recipe(record.recipe), record, tmp_path)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_complete_and_fits_its_recipe(path):
    record = read_record(path)
    assert fits(record)
    assert "+" not in " ".join(record.values_of_provenance("commit"))
    assert has_run(record.recipe, record.preset)


def test_a_record_with_other_settings_or_cells_does_not_fit():
    record = read_record(FOLDER / "hn_sn.desk.jsonl")
    assert not fits(replace(record, settings=replace(record.settings, seeds=4)))
    assert not fits(replace(record, cells=[*record.cells, replace(record.cells[0], cell={"norm": "bn", "seed": 0})]))


def fits(record):
    """Whether a record has the settings of its preset and no cell that the recipe does not have."""
    recipe = load_recipe(record.recipe)
    cells = recipe.cells(record.settings)
    same_settings = to_json(record.settings) == to_json(recipe.presets[record.preset])
    return same_settings and all(cell.cell in cells for cell in record.cells)


def all_claims(name):
    recipe = load_recipe(name)
    return [claim for settings in recipe.presets.values() for claim in recipe.claims(settings)]


@pytest.mark.parametrize("name", NAMES)
def test_the_larger_quantity_of_a_claim_is_the_larger_one_in_the_paper(name):
    for claim in all_claims(name):
        if not isinstance(claim, Check | Equivalent) and claim.published is not None:
            assert claim.margin > 0, claim.statement


@pytest.mark.parametrize("name", NAMES)
def test_the_source_of_a_claim_is_an_item_of_the_papers_inventory(name):
    for claim in all_claims(name):
        if claim.source.paper:
            assert claim.source.paper in PAPERS
            items = {item.item: item for item in read_inventory(claim.source.paper)}
            assert claim.source.place in items, claim.statement
            assert items[claim.source.place].recipe, claim.statement


@pytest.mark.parametrize("name", NAMES)
def test_requirements_that_claims_name_exist_and_every_recipe_has_controls(name):
    recipe = load_recipe(name)
    for preset, settings in recipe.presets.items():
        names = {control.name for control in recipe.controls(settings)}
        assert names or preset == "smoke"
        for claim in recipe.claims(settings):
            assert isinstance(claim, Check) or set(claim.requires) <= names, claim.statement


@pytest.mark.parametrize("name", NAMES)
def test_paper_presets_have_at_least_three_seeds_and_night_presets_at_least_five(name):
    for preset, settings in load_recipe(name).presets.items():
        assert settings.seeds >= {"smoke": 2, "desk": 1, "night": 5}.get(preset, 3), preset


@pytest.mark.parametrize(
    ("name", "samples", "rates"),
    [
        ("bgn_batch_size", [1024, 512, 256, 128, 64, 32, 16], [0.4, 0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625]),
        ("sn_importance", [256, 128, 64, 32, 16, 8], [0.1, 0.05, 0.025, 0.0125, 0.00625, 0.003125]),
        ("hn_grid", [128, 4], [0.1, 0.003125]),
        ("hn_imagenet", [256, 16], [0.1, 0.00625]),
    ],
)
def test_paper_presets_have_the_papers_samples_per_step_and_learning_rates(name, samples, rates):
    settings = load_recipe(name).presets["paper"]
    training = settings.training
    configs = [make_config(replace(training.config, batch_size=size), training) for size in settings.batch_sizes]
    assert [config.batch_size * config.devices for config in configs] == samples
    assert [config.lr for config in configs] == pytest.approx(rates)


def test_the_paper_preset_of_sn_has_its_devices_samples_and_learning_rates():
    configs = device_configs(load_recipe("sn_batch_size").presets["paper"])
    assert [(config.devices, config.batch_size) for config in configs] == [
        (8, 32), (8, 16), (8, 8), (8, 4), (8, 2), (1, 16), (1, 32), (8, 1), (1, 8),
    ]  # fmt: skip
    assert [config.lr for config in configs] == pytest.approx([config.devices * config.batch_size / 2560 for config in configs])


def device_configs(settings):
    """Return the configuration of BN for each division of samples over devices."""
    cells = [{"setting": setting, "seed": 0} for setting in settings.divisions]
    return [make_config(settings.cell_config(cell, "bn"), settings.training) for cell in cells]


def test_the_paper_preset_of_videos_has_its_devices_clips_and_schedule():
    settings = load_recipe("sn_video").presets["paper"]
    configs = device_configs(settings)
    assert [(config.devices, config.batch_size) for config in configs] == [(8, 8), (8, 4)]
    assert [config.lr for config in configs] == pytest.approx([0.01, 0.005])
    assert [configs[0].lr_at(step / 400_000) for step in (149_999, 150_001, 300_001)] == pytest.approx([0.01, 0.001, 0.0001])
    options = options_of(settings.training.config)
    assert (options.num_frames, options.frame_stride, options.num_clips) == (32, 2, 10)


@pytest.mark.parametrize("name", ["xbn_blocks", "xbn_networks", "xbn_strategies"])
def test_the_paper_presets_of_xbn_have_256_images_per_step(name):
    training = load_recipe(name).presets["paper"].training
    config = make_config(training.config, training)
    assert config.batch_size * config.devices == 256
    assert config.lr == pytest.approx(0.1)


def test_the_paper_presets_of_adversarial_training_have_the_published_settings():
    training = load_recipe("sabn_adversarial").presets["paper"].training
    config = make_config(training.config, training)
    steps_per_epoch = config.num_train // config.batch_size
    rates = [config.lr_at(epoch / config.epochs) for epoch in (0, 100 / steps_per_epoch, 49, 51, 149, 151)]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.01, 0.01, 0.001], abs=2e-4)
    assert (config.epochs, config.batch_size, config.weight_decay, config.momentum) == (200, 128, 5e-4, 0.9)
    assert options_of(config).train_attack == "pgd:10"
    training = load_recipe("bgn_adversarial").presets["paper"].training
    config = make_config(training.config, training)
    assert (config.model, config.epochs, config.optimizer, config.lr) == ("wrn-10-2", 200, "adam", 0.01)
    assert options_of(config).epsilon == pytest.approx(0.0157, abs=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_paper_presets_on_imagenet_stream_random_resized_crops_to_devices_with_their_own_statistics(name):
    settings = load_recipe(name).presets.get("paper")
    config = settings.training.config if isinstance(settings, TrainingSettings) else Config()
    if ":imagenet" in config.data:
        assert config.data == "stream:imagenet"
        assert (config.image_size, config.min_area, config.crop, config.flip, config.color_jitter) == (224, 0.08, 0, True, 0)
        assert (config.grad_accum_steps, config.sync, config.devices > 1) == (1, False, True)
        assert (config.weight_decay, config.decay_norms, config.warmup_epochs, config.label_smoothing) == (1e-4, True, 0, 0)


def test_missing_data_are_named_with_the_folder_that_should_have_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=rf"stream:imagenet must be .* train/CLASS/.*; {tmp_path}/imagenet does not exist"):
        load_recipe("bgn_groups").run("paper", tmp_path, runs=tmp_path / "runs")


@pytest.mark.parametrize("name", NAMES)
def test_the_header_of_a_recipe_describes_its_presets_and_has_its_command(name):
    header, presets = read_header(name), list(load_recipe(name).presets)
    assert re.fullmatch(r"(bgn|hn|sabn|sn|xbn) (Table|Fig|Figs)\.? \d.*|ours", header.source)
    assert 10 < len(header.title) < 70
    text = (ROOT / "anynorm" / "lab" / "recipes" / recipe_file(name)).read_text()
    assert re.findall(r"^    (smoke|desk|evening|night|paper) +\S", text.split('"""')[1], re.MULTILINE) == presets
    (command,) = re.findall(r"^    anynorm reproduce (\w+) --preset (\w+)$", text, re.MULTILINE)
    assert command[0] == name
    assert command[1] in presets


def test_the_running_times_are_those_of_the_records():
    assert (ROOT / "anynorm" / "lab" / "recipes" / "minutes.json").read_text() == minutes(), "run `make results`"
    assert {name: list(times) for name, times in read_minutes().items()} == {
        name: list(load_recipe(name).presets) for name in NAMES
    }
    records = {path.stem for path in RECORDS}
    assert {f"{name}.{preset}" for name in NAMES for preset in read_minutes()[name] if has_run(name, preset)} == records


def test_the_list_of_recipes_needs_neither_a_clone_nor_torch(tmp_path):
    code = "import sys; sys.argv = ['anynorm', 'reproduce', '--list', '--json']\nfrom anynorm.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\nassert 'torch' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert [row["recipe"] for row in rows] == NAMES
    assert rows[NAMES.index("bgn_batch_size")] == {
        "recipe": "bgn_batch_size",
        "reproduces": "bgn Table 2 and sn Table 2",
        "measures": "nine norms against the batch size",
        "desk": rows[NAMES.index("bgn_batch_size")]["desk"],
        "night": "not run",
        "paper": "not run",
    }


def test_the_command_measures_in_worker_processes_and_writes_to_records_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_command("hn_groups", "--processes", "2", "--runs", tmp_path / "store")
    assert (done.exit_code, done.exception) == (0, None)
    assert "hn_groups, preset smoke: " in done.output
    names = {path.name for path in (tmp_path / "records").iterdir()}
    assert {"hn_groups.smoke.jsonl", "hn_groups.smoke.png"} <= names
    num_rows = len(read_record(tmp_path / "records" / "hn_groups.smoke.jsonl").rows)
    (version,) = (tmp_path / "store").iterdir()
    assert len(list((version / "runs").iterdir())) == num_rows


def test_runs_of_several_devices_are_trained_one_after_another(tmp_path, monkeypatch):
    workers = []

    def run(recipe, preset, folder, executor, runs, **_):
        workers.append(executor.workers)
        raise DataError("stop")

    monkeypatch.setattr(Recipe, "run", run)
    for name, preset in (("bgn_groups", "desk"), ("bgn_groups", "paper"), ("sn_batch_size", "paper"), ("sn_detection", "paper")):
        run_command(name, "--preset", preset, "--processes", "3", "--records", tmp_path)
    assert workers == [3, 1, 1, 1]


def test_the_command_prints_tables_controls_and_verdicts_and_exits_with_1_if_a_claim_is_reversed(tmp_path):
    path = shutil.copy(FOLDER / "bgn_few_shot.desk.jsonl", tmp_path)  # complete, so nothing is measured
    recipe, record = load_recipe("bgn_few_shot"), read_record(Path(path))
    tables, verdicts = recipe.tables(record), verdict_table(recipe.judge(record))
    done = run_command("bgn_few_shot", "--preset", "desk", "--records", tmp_path)
    assert done.exit_code == int(any(verdict.verdict in ("reversed", "failed") for verdict in recipe.judge(record)))
    controls = control_table(recipe.check_controls(record))
    assert done.stdout.startswith("\n\n".join(map(str, [*tables, controls])))
    assert done.stdout.rstrip().endswith(verdicts.finding)
    values = json.loads(run_command("bgn_few_shot", "--preset", "desk", "--records", tmp_path, "--json").stdout)
    assert values["rows"] == verdicts.to_dict()["rows"]
    assert values["tables"] == [table.to_dict() for table in tables]
    assert values["controls"] == controls.to_dict()


def test_the_status_lists_what_is_measured_and_missing(tmp_path):
    shutil.copy(FOLDER / "hn_sn.desk.jsonl", tmp_path)
    values = json.loads(run_command("hn_sn", "--status", "--records", tmp_path, "--json").stdout)
    by_preset = {row["preset"]: row for row in values["rows"]}
    assert by_preset["desk"]["measured"] == by_preset["desk"]["cells"] == 30
    assert by_preset["night"]["measured"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hn_sm"], r"unknown recipe 'hn_sm'\. Did you mean hn_sn"),
        (["hn_sn", "--preset", "full"], "recipe 'hn_sn' has no preset 'full'. Usable: smoke desk"),
        (["hn_sn", "--executor", "slurm"], "executor.*'slurm'"),
    ],
)
def test_the_command_refuses_unknown_names(arguments, message, tmp_path):
    done = run_command(*arguments, "--records", tmp_path)
    with pytest.raises(DataError, match=message):
        raise done.exception


def test_the_command_without_a_recipe_exits_with_2():
    done = run_command()
    assert done.exit_code == 2
    assert "give the name of a recipe, or --list" in done.output


def test_a_preset_has_one_of_four_names():
    extra = {preset for name in NAMES for preset in load_recipe(name).presets} - set(PRESETS)
    assert extra <= {"evening"}


def run_command(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def test_the_results_page_is_generated_from_the_records():
    assert (FOLDER / "README.md").read_text() == results_page(), "run `make results`"


def test_links_and_pictures_of_the_results_page_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", results_page()):
        assert (FOLDER / target).exists(), target


@pytest.mark.parametrize(("page", "content"), [("README.md", summary), ("docs/papers/README.md", overview)])
def test_the_results_in_a_page_are_generated_from_the_records(page, content):
    text = (ROOT / page).read_text()
    assert text == insert(content(), text), "run `make results`"


def test_the_measured_part_of_the_guide_to_robustness_is_generated_from_the_records():
    text = (ROOT / "docs" / "guide" / "robustness.md").read_text()
    assert text == insert(robustness_block(FOLDER), text, MARKER), "run `make results`"


def test_the_table_of_conversions_is_that_of_its_record(tmp_path):
    text = CONVERSIONS_PAGE.read_text()
    assert text == insert(conversions_block(), text, CONVERSIONS), "run `make results`"
    cells = [
        {"network": "A", "spec": "ln", "method": method, "seed": seed, "accuracy": value, "images": images, "cpu_minutes": 0.5}
        for method, seed, value, images in (("fit + distill", 0, 91.0, 9), ("fit + distill", 1, 90.5, 9), ("fit", 0, 80.0, 5))
    ]
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"conversions": {"originals": {"A": 92.0}, "cells": cells}}))
    assert conversions_block(record).splitlines()[-1] == "| A (92.00) | `ln` | 80.00 | 90.75 (90.50–91.00) | 9 | 0.5 | 2 |"


@pytest.mark.parametrize("name", GUIDES)
def test_the_results_in_a_guide_are_those_of_its_record(name):
    text = (ROOT / "docs" / "guide" / name).read_text()
    assert text == insert(guide_block(name, FOLDER), text), "run `make results`"


def test_a_guide_without_a_record_says_so(tmp_path):
    assert guide_block("domains.md", tmp_path) == "The recipe `bgn_adaptation` has no record yet."


def test_the_measured_part_of_the_guide_says_for_which_norms_the_mode_matters(tmp_path):
    assert robustness_block(tmp_path) == "The recipes `bgn_adversarial` and `sabn_adversarial` have no record yet."
    desk = load_recipe("bgn_adversarial").presets["desk"]
    settings = replace(desk, norms={norm: TrainedNorm(norm) for norm in ("bn", "gn:8", "in")})
    rows = []
    for seed in range(3):
        robust = {"robust_accuracy_pgd20": 30.0, "robust_accuracy_pgd20_train_mode": 32.0 + seed / 10}
        rows.append({"norm": "bn", "seed": seed, "accuracy": 40.0 + seed} | robust)
        rows.append({"norm": "gn:8", "seed": seed, "accuracy": 20.0} | dict.fromkeys(robust, 15.0))
        rows.append({"norm": "in", "seed": seed, "accuracy": None} | dict.fromkeys(robust))
    measured = [MeasuredCell({key: row.pop(key) for key in ("norm", "seed")}, row, {"code": "", "cpu": ""}) for row in rows]
    RecipeRecord("bgn_adversarial", "desk", settings, cells=measured).write(tmp_path / "bgn_adversarial.desk.jsonl")
    block = robustness_block(tmp_path)
    assert "| `bn` | 41.0 ± 1.0 | 30.0 ± 0.0 | 32.1 ± 0.1 | +2.1 ± 0.1 | 0.00076 |" in block
    assert "| `gn:8` | 20.0 ± 0.0 | 15.0 ± 0.0 | 15.0 ± 0.0 | +0.0 ± 0.0 | equal |" in block
    assert "| `in` | failed | | | | |" in block
    assert "significantly weaker for `bn`, and significantly stronger for none of them." in block


def test_a_page_without_markers_is_refused():
    for text in ("nothing", "<!-- results -->", "<!-- end of results -->"):
        with pytest.raises(DataError, match="must have a line <!-- results --> and a line <!-- end of results -->"):
            insert("content", text)
