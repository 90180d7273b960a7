"""A recipe is a file PAPER/NAME.py or a folder PAPER/NAME/ with recipe.py."""

from importlib import resources

import pytest

import anynorm
from anynorm.lab.recipes.support import catalog


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty folder that is read instead of that of the recipes."""
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    catalog._read_sources.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    catalog._read_sources.cache_clear()


def write(path, text='"""hn Table 1: what is measured."""\n\nRECIPE = 1\n'):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_and_folders_with_a_recipe_are_found(folder):
    write(folder / "hn" / "with_sn.py")
    write(folder / "hn" / "night.py", "NIGHT = 1\n")
    write(folder / "hn" / "fluctuation" / "recipe.py")
    write(folder / "hn" / "fluctuation" / "results.py")
    write(folder / "hn" / "__pycache__" / "grid.pyc")
    write(folder / "support" / "recipe.py")
    write(folder / "support" / "detection" / "recipe.py")
    assert catalog.recipe_names() == ["hn_fluctuation", "hn_with_sn"]
    assert catalog.recipe_file("hn_fluctuation") == "hn/fluctuation/recipe.py"
    assert catalog.recipe_file("hn_with_sn") == "hn/with_sn.py"


def test_a_folder_that_has_only_compiled_files_left_does_not_hide_a_file(folder):
    write(folder / "xbn" / "mlp.py")
    write(folder / "xbn" / "mlp" / "__pycache__" / "recipe.pyc")
    assert catalog.recipe_file("xbn_mlp") == "xbn/mlp.py"


def test_a_recipe_in_a_folder_is_imported_with_its_header():
    assert catalog.load_recipe("xbn_mlp").name == "xbn_mlp"
    assert catalog.read_header("xbn_mlp").source == "xbn Figs. 2 to 5"
    with pytest.raises(anynorm.DataError, match=r"unknown recipe 'xbn_mpl'\. Did you mean xbn_mlp"):
        catalog.recipe_file("xbn_mpl")
