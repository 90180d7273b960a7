"""Every recipe's smoke preset runs whole, and the page of results is that of the records."""

import inspect
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from anynorm.cli import app
from anynorm.errors import DataError
from anynorm.recipes.support.presets import RUNS, config_of
from anynorm.recipes.support.recipe import load_recipe, recipe_names
from anynorm.recipes.support.record import read_record
from tools.results import page, with_overview

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "records"
NAMES = recipe_names()
RECORDS = sorted(FOLDER.glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke(name, tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS, str(tmp_path / "runs"))
    recipe = load_recipe(name)
    record = recipe.run("smoke", tmp_path)
    judged = {row["verdict"] for row in recipe.judge(record)}
    assert judged <= {"holds", "does not hold", "not significant", "failed"}
    assert judged != {"failed"}
    pictures = recipe.draw(record, tmp_path / name)
    assert pictures
    for picture in pictures:
        with Image.open(picture) as drawn:
            assert drawn.size[0] > 500


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_whole_and_fits_its_recipe(path):
    record = read_record(path)
    assert fits(record)
    assert "+" not in record.provenance["commit"]
    header = " ".join(inspect.getmodule(recipe_of(record).claims).__doc__.split())
    assert f"`{record.preset}` took {record.minutes:.0f} minutes" in header


def test_a_record_of_other_settings_or_cells_does_not_fit():
    record = read_record(FOLDER / "hn_sn.desk.json")
    assert not fits(replace(record, settings=record.settings | {"seeds": 4}))
    assert not fits(replace(record, rows=record.rows[1:]))
    assert not fits(replace(record, rows=record.rows[::-1]))


def recipe_of(record):
    return load_recipe(record.recipe)


def fits(record):
    recipe = recipe_of(record)
    cells = recipe.cells(record.settings)
    if record.settings != recipe.presets[record.preset] or len(cells) != len(record.rows):
        return False
    return all(cell.items() <= row.items() for cell, row in zip(cells, record.rows, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_claims_say_what_the_papers_numbers_say(name):
    """The number that is claimed to be larger is the larger one in the paper."""
    recipe = load_recipe(name)
    claims = [claim for settings in recipe.presets.values() for claim in recipe.claims(settings)]
    pairs = [(pair, claim.says) for claim in claims for pair in re.findall(r"(-?\d+\.\d+) and (-?\d+\.\d+)", claim.paper)]
    assert bool(pairs) == (name not in {"hn_fluctuation", "sn_importance", "xbn_perturbation"})  # these read figures
    for (larger, smaller), says in pairs:
        assert float(larger) > float(smaller), says


@pytest.mark.parametrize(
    ("name", "samples", "rates"),
    [
        ("bgn_batch_size", [1024, 512, 256, 128, 64, 32, 16], [0.4, 0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625]),
        ("sn_importance", [256, 128, 64, 32, 16], [0.1, 0.05, 0.025, 0.0125, 0.00625]),
        ("hn_grid", [128, 4], [0.1, 0.003125]),
    ],
)
def test_the_papers_settings_have_its_samples_a_step_and_its_rates(name, samples, rates):
    settings = load_recipe(name).presets["paper"]
    configs = [config_of(settings, "bn", size, 0) for size in settings["batch_sizes"]]
    assert [config.batch_size * config.grad_accum_steps for config in configs] == samples
    assert [config.lr for config in configs] == pytest.approx(rates)


def test_data_that_are_missing_are_named_with_their_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(RUNS, str(tmp_path / "runs"))
    with pytest.raises(DataError, match=rf"folder:imagenet must be an existing folder with train/CLASS.*{tmp_path}/imagenet does not exist"):
        load_recipe("bgn_groups").run("paper", tmp_path)


def test_the_command_measures_judges_and_draws(tmp_path):
    done = command("hn_with_sn", "--processes", "1", "--runs", tmp_path / "runs", "--records", tmp_path)
    assert (done.exit_code, done.exception) == (0, None)
    assert "hn_with_sn, preset smoke: " in done.output
    assert (tmp_path / "hn_with_sn.smoke.png").exists()
    assert len(list((tmp_path / "runs" / "runs").iterdir())) == len(read_record(tmp_path / "hn_with_sn.smoke.json").rows)


def test_the_command_ends_with_1_where_a_claim_does_not_hold(tmp_path):
    shutil.copy(FOLDER / "hn_sn.desk.json", tmp_path)  # so that nothing is measured
    done = command("hn_sn", "--preset", "desk", "--records", tmp_path)
    assert done.exit_code == 1
    assert "does not hold" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hn_sm"], "There is no recipe 'hn_sm' in .*Near: hn_sn"),
        (["hn_sn", "--preset", "full"], "hn_sn has no preset 'full'. It has: smoke desk paper"),
        (["hn_sn", "--executor", "slurm"], "There is no executor 'slurm'"),
    ],
)
def test_the_command_tells_what_it_does_not_know(words, said):
    done = command(*words)
    with pytest.raises(DataError, match=said):
        raise done.exception


def command(*words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNS, "not there")  # what the command sets is forgotten
        return CliRunner().invoke(app, ["reproduce", *map(str, words), "--recipes", str(FOLDER)])


def test_the_page_of_results_is_written_from_the_records():
    assert (FOLDER / "README.md").read_text() == page(FOLDER), "run `make results`"


def test_the_readmes_table_is_written_from_the_records():
    text = (ROOT / "README.md").read_text()
    assert text == with_overview(text), "run `make results`"
    with pytest.raises(DataError, match="There is no place for the results: a line <!-- results -->"):
        with_overview("nothing")
