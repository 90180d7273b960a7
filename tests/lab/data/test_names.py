"""Names of data sets: which reader reads them, and which files a run depends on."""

import pytest

from anynorm.errors import DataError
from anynorm.lab.data.datasets import STREAMS
from anynorm.lab.data.names import FILE_PREFIXES, find_folder, path_of, resolve
from anynorm.lab.tasks.detection.data import datasets as detection
from anynorm.lab.tasks.segmentation import data as segmentation
from anynorm.lab.tasks.video import data as video
from anynorm.lab.training.config import Config, hash_sources

BUILT_IN, PREFIXES = {"shapes": "built in", "pets": "built in"}, {"coco": "folder"}


@pytest.mark.parametrize(("name", "reader"), [("pets", "built in"), ("coco:a:b", "folder"), ("module:make", "factory")])
def test_a_name_is_read_by_its_form(name, reader):
    assert resolve(name, "data set", BUILT_IN, PREFIXES, "factory") == reader


def test_an_unknown_name_is_refused_with_similar_names_and_all_forms():
    expected = r"^unknown data set 'shape'\. Did you mean shapes\? Usable: shapes pets coco:PATH package\.module:factory\.$"
    with pytest.raises(DataError, match=expected):
        resolve("shape", "data set", BUILT_IN, PREFIXES, "factory")


def test_the_list_of_prefixes_has_those_of_every_problem_and_no_others():
    unlabeled = {"folder", "npz"}
    tables = (detection.FOLDERS, segmentation.FOLDERS, video.FOLDERS, STREAMS.keys() - {"hf"}, unlabeled)
    assert set().union(*tables) == set(FILE_PREFIXES)


@pytest.mark.parametrize("prefix", FILE_PREFIXES)
def test_a_run_depends_on_the_files_of_its_folder(prefix, tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    (tmp_path / "photos").mkdir()
    name = f"{prefix}:photos"
    assert path_of(name) == tmp_path / "photos"
    empty = hash_sources(Config(data=name))
    (tmp_path / "photos" / "1.png").write_bytes(b"1")
    assert hash_sources(Config(data=name)) not in (empty, "")
    assert hash_sources(Config(options={"styles": name})) == hash_sources(Config(data=name))


def test_the_hash_of_a_folder_is_that_of_the_first_version(tmp_path):
    assert hash_sources(Config(data=f"folder:{tmp_path / 'none'}")) == hash_sources(Config(data=f"coco:{tmp_path}"))
    assert hash_sources(Config(data=f"coco:{tmp_path}")) == "4f53cda18c2b"
    assert hash_sources(Config(data="hf:mnist")) == ""


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(DataError, match=r"^coco:none must be an existing folder with images; /.*none does not exist\.$"):
        find_folder("coco:none", "images")
    with pytest.raises(DataError, match=r"coco: must be an existing folder; "):
        find_folder("coco:")
    assert find_folder(f"coco:{tmp_path}") == tmp_path
