"""The pages of the five papers mention every equation, table and figure, and everything they name exists."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import anynorm
from anynorm.lab.recipes.support.catalog import recipe_file, recipe_names
from anynorm.lab.recipes.support.claims import OURS, more_accurate
from anynorm.lab.recipes.support.controls import Learned
from anynorm.lab.recipes.support.verdicts import judge
from tools.inventory import MARKER, Item, inventory_block, read_inventory, status
from tools.results import insert

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "papers"
COUNTS = {"sn": (14, 7, 11), "sabn": (10, 4, 8), "bgn": (9, 7, 3), "xbn": (5, 6, 8), "hn": (5, 7, 7)}
"""The number of equations, tables and figures in each paper."""
papers = pytest.mark.parametrize("paper", COUNTS)
CLASSES = {"PerChannel", "PerClass", "Softmax", "Running", "JointCut"}
NOT_SPECS = {
    "A/B",
    "wrn-10-2",
    "style",
    "sastyle",
    "saaux@k",
    "2",
    "3",
    "4",
    "8",
    "gn:4~bn",
    "gradient_balance",
    "norm",
} | {"style_transfer", "detach_target", "darts:v2", "darts:GENOTYPE"}
"""Code spans that have the form of a spec but are something else."""


def read_page(paper: str) -> str:
    return (PAGES / f"{paper}.md").read_text()


def numbers(text: str) -> set[int]:
    """Return the numbers of "1, 2" and of "1 to 5", and also of "3b"."""
    result = {int(number) for number in re.findall(r"\d+", text)}
    for low, high in re.findall(r"(\d+)\)? to \(?(\d+)", text):
        result |= set(range(int(low), int(high) + 1))
    return result


@papers
def test_every_equation_table_and_figure_has_its_row(paper):
    kinds = dict(zip(("equation", "table", "figure"), COUNTS[paper], strict=True))
    words = {"equation": r"[Ee]qs?\.?|\(", "table": "Tables?", "figure": r"Figs?\.?"}
    for kind, count in kinds.items():
        items = [item.item for item in read_inventory(paper) if item.kind == kind]
        listed = set().union(*(numbers(item) for item in items if re.match(words[kind], item)))
        assert set(range(1, count + 1)) <= listed, kind


@papers
def test_the_tables_of_a_page_are_generated_from_the_inventory_and_the_records(paper):
    text = read_page(paper)
    assert text == insert(inventory_block(paper, ROOT / "records"), text, MARKER), "run `make results`"


@papers
def test_every_item_of_an_inventory_says_where_it_is_or_why_it_is_missing(paper):
    items = read_inventory(paper)
    assert len(items) > 25
    names = recipe_names()
    for item in items:
        assert item.what, item.item
        assert not item.recipe or item.recipe in names, item.item
    assert {item.kind for item in items} >= {"method", "equation", "table", "figure", "text"}


def test_the_status_of_an_item_follows_from_its_verdicts():
    item = Item("Table 1", "table", "x", here="y", recipe="hn_sn")
    rows = [
        {"norm": norm, "seed": seed, "accuracy": 10.0 * number + seed + 0.1 * number * seed}
        for number, norm in enumerate("ab")
        for seed in (0, 1, 2)
    ]
    (holds,) = judge([more_accurate("b", "a", OURS)], [], rows, None)
    (unfair,) = judge([more_accurate("b", "a", OURS)], [Learned(90.0)], rows, None)
    assert status(item, [holds]) == "measured conclusively"
    assert status(item, [replace(holds, exploratory=True)]) == "measured, exploratory"
    assert status(item, [holds, unfair]) == "measured, partly decided"
    assert status(item, [unfair]) == "measured, not a fair test"
    assert status(item, []) == "runs, not measured"
    assert status(item._replace(recipe=""), []) == "implemented"
    assert status(item._replace(recipe="", here="", missing="no data"), []) == "missing"


def test_a_wrong_inventory_is_refused(tmp_path):
    entry = {"item": "Table 1", "kind": "table", "what": "x", "here": "y"}
    for entries, message in (
        ([entry | {"where": "z"}], r"Table 1 has the unknown keys \['where'\]"),
        ([entry | {"kind": "thing"}], "the kind of Table 1 must be one of method, equation"),
        ([entry | {"here": ""}], "Table 1 must say where it is"),
        ([entry, entry], "lists Table 1 more than once"),
    ):
        (tmp_path / "sn.json").write_text(json.dumps(entries))
        with pytest.raises(anynorm.DataError, match=message):
            read_inventory("sn", tmp_path)


@papers
def test_every_norm_that_a_page_names_can_be_made(paper):
    spans = {span for span in re.findall(r"`([^`]+)`", read_page(paper)) if re.fullmatch(r"[\w:@,+/~.-]+", span)}
    others = CLASSES | NOT_SPECS | set(COUNTS) | set(recipe_names())
    specs = {span for span in spans - others if not re.search(r"\.py$|^anynorm|=", span)}
    for spec in sorted(specs):
        anynorm.parse(spec, batch_size=32)
    assert len(specs) > 5


@papers
def test_every_public_name_that_a_page_has_exists(paper):
    for name in re.findall(r"`(?:with )?anynorm\.([\w.]+)", read_page(paper)):
        target = anynorm
        for part in name.split("."):
            target = getattr(target, part)
        assert callable(target), name


@papers
def test_every_class_that_a_page_has_is_in_the_module_beside_it(paper):
    for module, name in re.findall(rf"`((?:\w+/)+\w+)\.py`, `({'|'.join(sorted(CLASSES))})`", read_page(paper)):
        assert f"class {name}" in (ROOT / "anynorm" / f"{module}.py").read_text(), name


def test_every_norm_of_the_zoo_is_on_a_page():
    text = "".join(path.read_text() for path in PAGES.glob("*.md"))
    for entry in anynorm.zoo():
        assert f"`{entry.spec}`" in text, entry.spec


def test_every_recipe_and_every_record_is_linked_from_a_page():
    text = "".join(read_page(paper) for paper in COUNTS)
    names = recipe_names()
    records = sorted((ROOT / "records").glob("*.jsonl"))
    assert names
    assert records
    for name in names:
        assert f"(../../anynorm/lab/recipes/{recipe_file(name)})" in text
    for record in records:
        assert f"(../../records/{record.name})" in text


@papers
def test_links_and_modules_that_a_page_names_exist(paper):
    text = read_page(paper)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (PAGES / target).exists(), target
    modules = re.findall(r"`((?:\w+/)+\w+\.py)`", text)
    assert modules
    for path in modules:
        assert (ROOT / "anynorm" / path).exists(), path
