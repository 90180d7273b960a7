"""Generated pages: every norm and task has one, its code runs, and links of the repository keep their targets."""

import pkgutil
import re

import pytest

import anynorm
from anynorm.layers.registered import REGISTRY
from anynorm.tasks import TASKS, task_class
from anynorm.training.task import Task
from docs.build import CONTENTS, ON_SITE, OUTSIDE, ROOT, expand_contents, move_links, pages, site_path
from docs.norm_pages import _benchmark, advise, drawn_specs, norm_page, norm_pages, records, specs_of_records
from docs.run import matches, read_blocks
from docs.task_pages import ARGUMENTS, DATA, GUIDES, UNUSED, first_line, option_descriptions, task_page


@pytest.mark.parametrize("name", REGISTRY)
def test_the_code_of_a_norms_page_runs_and_prints_what_it_says(name, capsys):
    page = norm_page(name)
    block = next(block for block in read_blocks(page) if block.language == "python")
    exec(block.code, {})
    expected = re.findall(r"^print\(.*?\)  # (.*)$", block.code, re.M)
    assert len(expected) == 2
    assert matches("\n".join(expected), capsys.readouterr().out)


@pytest.mark.parametrize("name", REGISTRY)
def test_the_page_of_a_norm_has_all_its_parts(name):
    page, norm = norm_page(name), REGISTRY[name]
    assert re.findall(r"^## (.*)$", page, re.M) == ["When to use it", "What it computes", "Code", "What it costs", "Records"]
    assert norm.paper in page
    assert norm.use
    assert norm.use in page
    for spec in drawn_specs(norm):
        anynorm.registry.parse(spec)
        assert f"]({re.sub(r'[^a-z0-9]', '-', spec)}.svg)" in page


def test_the_gallery_shows_every_norm():
    gallery = norm_pages()["norms/index.md"]
    for name in REGISTRY:
        assert f"]({name}.md)" in gallery


def test_costs_are_those_of_the_benchmark():
    page = norm_page("hn")
    rows = [row["seconds"]["forward + backward"] for row in _benchmark()["rows"] if row["threads"] == 1]
    ratios = sorted(row["hn:32"] / row["nn.BatchNorm"] for row in rows if "hn:32" in row)
    low, high = ratios[(len(ratios) - 1) // 2], ratios[len(ratios) // 2]
    assert f"| `hn:32` | {(low + high) / 2:.2f} | {ratios[-1]:.2f} |" in page
    assert "Not in the" in norm_page("modenorm")


def test_records_of_a_norm_are_those_whose_runs_have_it():
    assert {"bn", "in", "ln", "en"} <= specs_of_records()["hn_grid.desk.json"]
    assert "hn_grid" in records("in")
    assert "sabn_style" in records("adain")
    assert "hn_grid" not in records("adain")
    assert records("gwzca") == "No record has measured it yet."


def test_advice_follows_from_the_definition():
    assert "It folds into convolutions" in " ".join(advise(REGISTRY["hn"]))
    assert "any batch size" in " ".join(advise(REGISTRY["gn"]))
    assert "It cannot be folded" in " ".join(advise(REGISTRY["sn"]))
    assert "It folds" not in " ".join(advise(REGISTRY["brn"]))
    assert "the class of each sample" in " ".join(advise(REGISTRY["sabn"]))
    assert "the domain of each sample" in " ".join(advise(REGISTRY["auxbn"]))
    assert "It needs a style" in " ".join(advise(REGISTRY["adain"]))


@pytest.mark.parametrize("name", TASKS)
def test_the_page_of_a_task_has_its_command_and_settings(name):
    page = task_page(name)
    assert f"\nanynorm compare --task {name}" in page
    for option in task_class(name).default_options:
        assert f"| `{option}` |" in page


@pytest.mark.parametrize("name", TASKS)
def test_defaults_of_a_task_are_those_of_its_comparison(name):
    rows = re.findall(r"^\| `(?:--set |--)?([\w-]+)` \| (.*?) \|", task_page(name), re.M)
    cells = {key.replace("-", "_"): value for key, value in rows}
    assert len(cells) == len(rows)
    task = task_class(name)
    defaults = {**task.default_options, **Task.comparison_defaults, **task.comparison_defaults}
    for key, value in defaults.items():
        if value is None or key in UNUSED.get(name, ()):
            assert key not in cells
        elif key not in ("epsilon", "step_size"):
            values = value if isinstance(value, tuple) else [value]
            texts = [str(each).lower() if isinstance(each, bool) else str(each) or '""' for each in values]
            assert cells.pop(key) == ", ".join(f"`{text}`" for text in texts)
    assert set(cells) <= {"seeds", "lr_scaling", "epsilon", "step_size"}


def test_a_default_of_the_comparison_has_the_default_of_the_class_beside_it():
    page = task_page("darts")
    assert re.search(r"\| `alpha_lr` \| `0.01` \| .* The default outside of comparisons is `0.0003`\. \|", page)
    assert page.count("outside of comparisons") == 1
    assert "outside of comparisons" not in task_page("manas_exp3")


def test_only_distances_of_pixels_are_fractions_of_255():
    page = task_page("adversarial")
    assert "| `epsilon` | `8/255` |" in page
    assert "| `step_size` | `2/255` |" in page
    assert "| `--lr` | `0.2` |" in task_page("segmentation")  # 51/255


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_of_a_task_has_a_description_of_its_own(name):
    task = task_class(name)
    described = option_descriptions(task)
    assert all(setting.isidentifier() for setting in described), "one entry per setting"
    for setting in task.default_options:
        text = described.get(setting, "")
        assert text.endswith("."), setting
        assert not re.match(r"(of|see|for) ", text), text
        assert "latter" not in text, text
    texts = [described[setting] for setting in task.default_options]
    assert len(set(texts)) == len(texts)


def test_the_list_of_tasks_in_the_package_has_their_first_lines():
    for name in TASKS:
        line = first_line(task_class(name))
        assert line.endswith(".")
        assert re.search(rf"^{name} +{re.escape(line)}$", anynorm.tasks.__doc__, re.M), line


def test_every_task_has_guides_and_the_options_of_its_data():
    assert set(GUIDES) == set(DATA) == set(TASKS)
    for name, guides in GUIDES.items():
        assert guides
        assert all((ROOT / "docs" / "guide" / f"{guide}.md").exists() for guide in guides)
        assert set(re.findall(r"--set (\w+)=", DATA[name] + ARGUMENTS.get(name, ""))) <= set(task_class(name).default_options)


@pytest.mark.parametrize("name", TASKS)
def test_objects_on_the_page_of_a_task_are_links(name):
    page = task_page(name)
    assert not re.findall(r"(?<!\})`anynorm(?:\.\w+)+`", page)
    for target in re.findall(r"\{py:obj\}`(.*?)`", page):
        pkgutil.resolve_name(target)


def test_the_nearest_class_describes_a_setting():
    assert option_descriptions(task_class("advprop"))["attack"] == "comma-separated attacks of the last evaluation."
    assert option_descriptions(task_class("advprop"))["restarts"] == option_descriptions(task_class("classification"))["restarts"]


def test_links_move_with_their_targets(tmp_path):
    text, files = move_links(
        "[a](../../records/hn_grid.desk.json) ![b](night.png)\n```python\nx[0](nothing)\n```\n", "docs/guide/diagnose.md"
    )
    assert text == "[a](../records/hn_grid.desk.json) ![b](night.png)\n```python\nx[0](nothing)\n```\n"
    assert files == ["records/hn_grid.desk.json", "docs/guide/night.png"]
    assert move_links("[a](docs/papers/) [b](https://x.org/y)", "CHANGELOG.md")[0] == "[a](papers/index.md) [b](https://x.org/y)"
    assert move_links("[a](../README.md)", "docs/install.md")[0] == "[a](index.md)"
    with pytest.raises(FileNotFoundError, match=r"docs/install.md links to files that do not exist: nothing.md b.md"):
        move_links("[a](nothing.md) [b](b.md)", "docs/install.md")


def test_the_text_of_a_link_is_not_a_file_name():
    texts = {page: re.findall(r"\[`?([\w/.]+\.md)`?\]\(", (ROOT / page).read_text()) for page in pages()}
    assert not {page: found for page, found in texts.items() if found}


def test_text_for_the_site_alone_appears_there():
    assert ON_SITE.sub(r"\1", "a <!-- site: [b](c.md)\nd --> e <!-- not run: f -->") == "a [b](c.md)\nd e <!-- not run: f -->"


def test_the_navigation_has_each_page_once_and_leaves_out_what_does_not_exist(tmp_path):
    for name in ("install.md", "guide/specs.md", "guide/mine.md", "guide/surgery.md", "guide/plot.py", "api/index.rst"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    contents = expand_contents(tmp_path)
    assert contents["Start"] == ["install"]
    assert contents["Norms"] == ["guide/specs"]
    assert contents["Guides"] == ["guide/surgery", "guide/mine"]
    assert contents["Reference"] == ["api/index"]


def test_every_page_of_the_repository_is_in_the_navigation():
    listed = [name for names in CONTENTS.values() for name in names]
    for page in pages():
        name = site_path(page).removesuffix(".md")
        assert name in (*listed, "index") or name.startswith(("guide/", "papers/")), page
    assert all((ROOT / path).exists() for path in OUTSIDE)
