"""The pages of the five papers mention every equation, table and figure, and everything they name exists."""

import re
from pathlib import Path

import pytest

import anynorm
from anynorm.lab.recipes.support.catalog import recipe_file, recipe_names

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


def first_cells(paper: str, heading: str) -> list[str]:
    section = read_page(paper).partition(f"## {heading}")[2].partition("\n## ")[0]
    return [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|") and "---" not in line]


def numbers(text: str) -> set[int]:
    """Return the numbers of '1, 2' and of '(1) to (5)'."""
    result = {int(number) for number in re.findall(r"\d+", text)}
    for low, high in re.findall(r"\((\d+)\) to \((\d+)\)", text):
        result |= set(range(int(low), int(high) + 1))
    return result


@papers
def test_every_equation_table_and_figure_has_its_row(paper):
    num_equations, num_tables, num_figures = COUNTS[paper]
    equations = " ".join(re.sub(r"Def\. \d", "", cell) for cell in first_cells(paper, "Equations"))
    assert numbers(" ".join(re.findall(r"\(\d+\)(?: to \(\d+\))?", equations))) == set(range(1, num_equations + 1))
    listed: dict[str, set[int]] = {"Table": set(), "Fig": set()}
    for cell in first_cells(paper, "Tables and figures"):
        for kind, items in re.findall(r"(Table|Fig)s?\.? ([\d, ]+)", cell):
            assert not listed[kind] & numbers(items), cell
            listed[kind] |= numbers(items)
    assert listed == {"Table": set(range(1, num_tables + 1)), "Fig": set(range(1, num_figures + 1))}


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
    records = sorted((ROOT / "records").glob("*.json"))
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
