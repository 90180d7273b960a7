"""The pages of the five papers: nothing of a paper goes unmentioned, and what they name is there."""

import re
from pathlib import Path

import pytest

import anynorm

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "papers"
HOLDS = {"sn": (14, 7, 11), "sabn": (10, 4, 8), "bgn": (9, 7, 3), "xbn": (5, 6, 8), "hn": (5, 7, 7)}
"""How many equations, tables and figures each paper numbers."""
papers = pytest.mark.parametrize("paper", HOLDS)
NO_SPEC = {
    "A/B",
    "PerChannel",
    "PerClass",
    "Soft",
    "Running",
    "JointCut",
    "wrn-10-2",
    "style",
    "sastyle",
    "saaux@k",
    "2",
    "4",
    "8",
}
NO_SPEC |= {"3", "gn:4~bn", "gradient_balance", "bkn"}


def first_cells(paper: str, heading: str) -> list[str]:
    section = (PAGES / f"{paper}.md").read_text().partition(f"## {heading}")[2].partition("\n## ")[0]
    return [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|") and "---" not in line]


def numbers(text: str) -> set[int]:
    """Read '1, 2' and '1 to 5'."""
    found = {int(number) for number in re.findall(r"\d+", text)}
    for low, high in re.findall(r"\((\d+)\) to \((\d+)\)", text):
        found |= set(range(int(low), int(high) + 1))
    return found


@papers
def test_every_equation_table_and_figure_has_its_line(paper):
    equations, tables, figures = HOLDS[paper]
    told = " ".join(re.sub(r"Def\. \d", "", cell) for cell in first_cells(paper, "Equations"))
    assert numbers(" ".join(re.findall(r"\(\d+\)(?: to \(\d+\))?", told))) == set(range(1, equations + 1))
    seen: dict[str, set[int]] = {"Table": set(), "Fig": set()}
    for cell in first_cells(paper, "Tables and figures"):
        for kind, listed in re.findall(r"(Table|Fig)s?\.? ([\d, ]+)", cell):
            assert not seen[kind] & numbers(listed), cell
            seen[kind] |= numbers(listed)
    assert seen == {"Table": set(range(1, tables + 1)), "Fig": set(range(1, figures + 1))}


@papers
def test_every_norm_a_page_names_can_be_made(paper):
    text = (PAGES / f"{paper}.md").read_text()
    spans = {span for span in re.findall(r"`([^`]+)`", text) if re.fullmatch(r"[\w:@,+/~.-]+", span)}
    specs = {span for span in spans if not re.search(r"\.py$|^anynorm|=|^norm$", span) and span not in NO_SPEC | set(HOLDS)}
    recipes = {path.stem for path in (ROOT / "recipes").glob("*.py")}
    for spec in sorted(specs - recipes):
        anynorm.registry.parse(spec, batch_size=32)
    assert len(specs) > 5


def test_every_norm_of_the_zoo_is_on_a_page():
    text = "".join(path.read_text() for path in PAGES.glob("*.md"))
    for entry in anynorm.zoo():
        assert f"`{entry.spec}`" in text, entry.spec
    assert "`bkn`" in text


def test_every_recipe_is_linked_from_a_page_with_its_record():
    text = "".join(path.read_text() for path in PAGES.glob("*.md"))
    for recipe in (ROOT / "recipes").glob("*.py"):
        assert f"(../../recipes/{recipe.name})" in text
        for record in (ROOT / "recipes" / "records").glob(f"{recipe.stem}.*.json"):
            assert f"(../../recipes/records/{record.name})" in text


@papers
def test_links_and_files_that_a_page_names_are_there(paper):
    page = PAGES / f"{paper}.md"
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:core|kernels|diagnostics|surgery|beyond|lab)/\w+\.py)`", page.read_text()):
        assert (ROOT / "anynorm" / path).exists(), path
