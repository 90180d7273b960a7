"""Every recipe's smoke preset runs whole, and the page of results is that of the records."""

from pathlib import Path

import pytest
from PIL import Image

from anynorm.errors import DataError
from anynorm.lab.recipe import load_recipe
from anynorm.lab.record import read_record
from anynorm.lab.results import page, with_overview
from anynorm.lab.trained import RUNS

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "recipes"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
RECORDS = sorted((FOLDER / "records").glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke(name, tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS, str(tmp_path / "runs"))
    recipe = load_recipe(name, FOLDER)
    record = recipe.run("smoke", tmp_path)
    assert {row["verdict"] for row in recipe.judge(record)} <= {"holds", "does not hold", "not significant", "failed"}
    pictures = recipe.draw(record, tmp_path / name)
    assert pictures
    for picture in pictures:
        with Image.open(picture) as drawn:
            assert drawn.size[0] > 500


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_whole_and_fits_its_recipe(path):
    record = read_record(path)
    recipe = load_recipe(record.recipe, FOLDER)
    assert record.settings == recipe.presets[record.preset]
    cells = recipe.cells(record.settings)
    assert len(record.rows) == len(cells)
    assert all(cell.items() <= row.items() for cell, row in zip(cells, record.rows, strict=True))
    assert not record.provenance["commit"].endswith("+")


def test_the_page_of_results_is_written_from_the_records():
    assert (FOLDER / "README.md").read_text() == page(FOLDER), "run `make results`"


def test_the_readmes_table_is_written_from_the_records():
    text = (ROOT / "README.md").read_text()
    assert text == with_overview(text, FOLDER), "run `make results`"
    with pytest.raises(DataError, match="There is no place for the results: a line <!-- results -->"):
        with_overview("nothing", FOLDER)
