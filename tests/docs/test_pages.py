"""Generated pages: every norm and task has one, its code runs, and links of the repository keep their targets."""

import pkgutil
import re

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.tasks import TASKS, task_class
from anynorm.lab.training.config import Config
from anynorm.layers.registered import REGISTRY
from anynorm.registry import summary
from docs.api_pages import PACKAGES, public_groups, public_page
from docs.build import CONTENTS, ON_SITE, OUTSIDE, ROOT, expand_contents, move_links, pages, site_path
from docs.norm_pages import _benchmark, advise, advise_folding, drawn_specs, norm_page, norm_pages
from docs.norm_records import records, specs_of_records
from docs.run import matches, read_blocks
from docs.task_pages import ARGUMENTS, DATA, GUIDES, SETTING_TEXTS, UNUSED, task_page

pytestmark = pytest.mark.docs


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
    assert page.startswith(f"# {norm.__name__} (`{name}`)\n")
    assert ("μ[s] and σ²[s] are" in page) == ("μ[" in page.partition("```text")[2].partition("```")[0])
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
        assert f"]({name}.md) {summary(REGISTRY[name])}\n" in gallery


def test_costs_are_those_of_the_benchmark():
    page = norm_page("hn")
    rows = [row["seconds"]["forward + backward"] for row in _benchmark()["rows"] if row["threads"] == 1]
    ratios = sorted(row["hn:32"] / row["nn.BatchNorm"] for row in rows if "hn:32" in row)
    low, high = ratios[(len(ratios) - 1) // 2], ratios[len(ratios) // 2]
    assert f"| `hn:32` | {(low + high) / 2:.2f} | {ratios[-1]:.2f} |" in page
    assert "Not in the" in norm_page("modenorm")


def test_records_of_a_norm_are_those_whose_runs_have_it():
    assert {"bn", "in", "ln", "en"} <= specs_of_records()["hn_grid.desk.jsonl"]
    assert "hn_grid" in records("in")
    assert "sabn_style" in records("adain")
    assert "hn_grid" not in records("adain")
    assert records("gwzca") == "No record has measured it."


def test_records_with_layouts_of_norms_are_found():
    assert "| `sabn@K` | [`sabn_generation`]" in records("sabn")
    assert "| `ccbn@K` | [`sabn_search`]" in records("ccbn")
    assert "`xbn=gn:8;fpn=gn:8;heads=gn:8` | [`xbn_detection`]" in records("gn")
    assert "| `bn.aux@2` | [`bgn_adaptation`]" in records("auxbn")  # auxbn@2 in another notation
    assert "[`bgn_groups`]" in records("bgn")
    assert "[`hn_fluctuation`]" not in records("hn")  # it measured statistics of bn and en, without hn
    for name in ("brn", "ibn", "gw", "gbgn", "ssn", "bkn", "ilmin", "ilmgn"):
        texts = [path.read_text() for path in (ROOT / "records").glob("*.json")]
        assert not any(re.search(rf'"{name}\b', text) for text in texts)
        assert records(name) == "No record has measured it."


def test_advice_follows_from_the_definition():
    assert "any batch size" in " ".join(advise(REGISTRY["gn"]))
    assert "the class of each sample" in " ".join(advise(REGISTRY["sabn"]))
    assert "the domain of each sample" in " ".join(advise(REGISTRY["auxbn"]))
    assert "It needs a style" in " ".join(advise(REGISTRY["adain"]))


def folds(spec, condition=None, largest=None):
    """Whether a norm after a convolution is folded; `largest` is the cut that gets the largest weights before hardening."""
    norm = anynorm.make(spec, 16)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), norm).eval()
    if largest is not None:
        with torch.no_grad():
            norm.mean_weight[largest] = norm.var_weight[largest] = 3.0
        anynorm.harden(model)
    if norm.norm_spec.takes_style:
        condition = torch.randn(2, 16, 4, 4)
    report = anynorm.fold(model, torch.randn(2, 3, 8, 8), condition=condition)
    return report["1"]["into"] == "0"


@pytest.mark.parametrize("name", REGISTRY)
def test_advice_about_folding_is_what_fold_does(name):
    norm = REGISTRY[name]
    advice, text = advise_folding(norm), norm_page(name)
    spec = re.sub(r"[:,]32", lambda match: f"{match[0][0]}4", norm.example or name)
    assert advice in text
    if name == "bgn":
        assert "if G, its number of groups, divides the number of channels" in advice
        assert [folds("bgn:4"), folds("bgn:32"), folds("bgn:12")] == [True, False, False]
    elif "for one chosen" in advice:
        assert folds(spec, condition=int(re.search(r"condition=(\d)", advice)[1]))
    elif "anynorm.harden" in advice:
        assert not folds(spec)
        assert [folds(spec, largest=cut) for cut in range(3)] == [False, False, True]
    else:
        assert advice.startswith(("It folds into convolutions for inference", "It cannot be folded"))
        assert folds(spec) == advice.startswith("It folds")


@pytest.mark.parametrize("name", TASKS)
def test_the_page_of_a_task_has_its_command_and_settings(name):
    page = task_page(name)
    assert f"\nanynorm compare --task {name}" in page
    for option in task_class(name).options_class.defaults():
        assert f"| `{option}` |" in page


@pytest.mark.parametrize("name", TASKS)
def test_defaults_of_a_task_are_those_of_its_comparison(name):
    rows = re.findall(r"^\| `(?:--set |--)?([\w-]+)` \| (.*?) \|", task_page(name), re.M)
    cells = {key.replace("-", "_"): value for key, value in rows}
    assert len(cells) == len(rows)
    task = task_class(name)
    compared = task.comparison_defaults
    options = task.options_of(compared.base)
    defaults = {key: getattr(options, key) for key in options.defaults()}
    defaults |= {key: getattr(compared, key) for key in ("norms", "batch_sizes", "lr_scaling")}
    defaults |= {key: getattr(compared.base, key) for key in ("data", "model", "width", "epochs", "lr")}
    defaults |= {
        key: getattr(compared.base, key) for key in SETTING_TEXTS if getattr(compared.base, key) != getattr(Config(), key)
    }
    for key, value in defaults.items():
        if value is None or key in UNUSED.get(name, ()):
            assert key not in cells
        elif key not in ("epsilon", "step_size"):
            values = value if isinstance(value, tuple) else [value]
            texts = [str(each).lower() if isinstance(each, bool) else str(each) or '""' for each in values]
            assert cells.pop(key) == (", ".join(f"`{text}`" for text in texts) or '`""`')
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
    described = task.options_class.descriptions()
    for setting, text in described.items():
        assert text.endswith("."), setting
        assert not re.match(r"(of|see|for) ", text), text
        assert "latter" not in text, text
    texts = list(described.values())
    assert len(set(texts)) == len(texts)


def test_every_task_has_guides_and_the_options_of_its_data():
    assert set(GUIDES) == set(DATA) == set(TASKS)
    for name, guides in GUIDES.items():
        assert guides
        assert all((ROOT / "docs" / "guide" / f"{guide}.md").exists() for guide in guides)
        assert set(re.findall(r"--set (\w+)=", DATA[name] + ARGUMENTS.get(name, ""))) <= set(
            task_class(name).options_class.defaults()
        )


@pytest.mark.parametrize("name", TASKS)
def test_objects_on_the_page_of_a_task_are_links(name):
    page = task_page(name)
    assert not re.findall(r"(?<!\})`anynorm(?:\.\w+)+`", page)
    for target in re.findall(r"\{py:obj\}`(.*?)`", page):
        pkgutil.resolve_name(target)


def test_the_nearest_class_describes_a_setting():
    assert task_class("advprop").options_class.descriptions()["attack"] == "comma-separated attacks of the last evaluation."
    descriptions = [task_class(name).options_class.descriptions()["restarts"] for name in ("advprop", "classification")]
    assert descriptions[0] == descriptions[1]


def test_links_move_with_their_targets(tmp_path):
    text, files = move_links(
        "[a](../../records/hn_grid.desk.jsonl) ![b](night.png)\n```python\nx[0](nothing)\n```\n", "docs/guide/diagnose.md"
    )
    assert text == "[a](../records/hn_grid.desk.jsonl) ![b](night.png)\n```python\nx[0](nothing)\n```\n"
    assert files == ["records/hn_grid.desk.jsonl", "docs/guide/night.png"]
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


def test_the_page_of_public_names_has_each_once_and_starts_with_the_functions_that_are_called_first():
    groups = public_groups()
    assert sorted([*(name for names in groups.values() for name in names), *PACKAGES]) == anynorm.__all__
    assert next(iter(groups.values()))[:6] == ["make", "layer", "convert", "xbn", "recalibrate", "fold"]
    first_line = anynorm.make.__doc__.splitlines()[0]
    assert f"   * - :py:obj:`~anynorm.make`\n     - {first_line}\n" in public_page()


def test_the_map_of_contributing_names_every_folder_and_every_room():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = text.partition("    anynorm/\n")[2].partition("\n\n")[0]
    package = ROOT / "anynorm"
    folders = [path.parent.name for path in sorted([*package.glob("*/__init__.py"), *package.glob("lab/*/__init__.py")])]
    assert [name for name in folders if not re.search(rf"\b{name}/\s", tree)] == []
    rooms = [path.parent.name for path in package.glob("lab/tasks/*/__init__.py")]
    assert [name for name in rooms if not re.search(rf"\b{name}\b", tree)] == []
