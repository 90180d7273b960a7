"""What is distributed: metadata, citation, the files of the sdist and the wheel. `make dist` builds and tests both."""

import ast
import fnmatch
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from tools import dist, smoke, typed_client

ROOT = Path(__file__).parents[1]
PROJECT = import_module("tomllib").loads((ROOT / "pyproject.toml").read_text())
CITATION = import_module("yaml").safe_load((ROOT / "CITATION.cff").read_text())
CITATION_KEYS = {"cff-version", "message", "title", "type", "abstract", "version", "license", "keywords", "authors", "references"}
REFERENCE_KEYS = {"type", "title", "year", "authors", "conference", "notes"}
"""Keys of schema 1.2.0 of the Citation File Format, those that we use."""


def test_importing_the_package_warns_of_nothing():
    done = subprocess.run([sys.executable, "-W", "error", "-c", "import anynorm"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_citation_has_the_keys_of_its_schema_and_our_metadata():
    assert {"cff-version", "message", "title", "authors"} <= set(CITATION) <= CITATION_KEYS
    assert (CITATION["cff-version"], CITATION["type"]) == ("1.2.0", "software")
    assert CITATION["authors"] == [{"name": "The anynorm developers"}]
    assert str(CITATION["version"]) == anynorm.__version__
    project = PROJECT["project"]
    assert [CITATION[key] for key in ("title", "abstract", "license", "keywords")] == [
        project[key] for key in ("name", "description", "license", "keywords")
    ]


def test_every_place_has_the_version_of_the_package():
    version = anynorm.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "anynorm.__version__"}
    assert str(CITATION["version"]) == version
    released = re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == version
    assert "version = release = anynorm.__version__\n" in (ROOT / "docs" / "conf.py").read_text()
    assignments = [path for path in (ROOT / "anynorm").rglob("*.py") if re.search(r"^__version__ =", path.read_text(), re.M)]
    assert assignments == [ROOT / "anynorm" / "__init__.py"]


@pytest.mark.parametrize("name", ["bug", "gpu"])
def test_the_forms_of_issues_ask_for_commands_that_exist(name):
    form = import_module("yaml").safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) == 3
    assert all(field["attributes"]["label"] and field["validations"]["required"] for field in fields)
    commands = {command for field in form["body"] for command in re.findall(r"`anynorm (.*?)`", str(field))}
    assert commands == ({"info"} if name == "bug" else {"info", "selftest --device cuda"})
    for command in commands:
        assert CliRunner().invoke(app, [command.split()[0], "--help"]).exit_code == 0


def test_nothing_is_unpickled_or_evaluated_that_the_security_page_does_not_name():
    found = set()
    for path in (ROOT / "anynorm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name, keywords = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
                is_unsafe = name in ("eval", "exec", "pickle.load", "pickle.loads", "os.system")
                is_unsafe |= name == "torch.load" and keywords.get("weights_only") != "True"
                is_unsafe |= name == "np.load" and keywords.get("allow_pickle", "False") != "False"
                found |= {(path.name, name)} if is_unsafe else set()
    assert found == {("block_forward.py", "exec"), ("block_trace.py", "eval")}  # anynorm.fuse: code that torch.fx writes
    assert "`anynorm.fuse`" in (ROOT / "SECURITY.md").read_text()


def test_the_entry_points_of_torch_hub_are_those_of_the_package():
    norm = torch.hub.load(str(ROOT), "make", "hn:4", 16, source="local")
    assert (type(norm), norm.spec) == (anynorm.HeteroNorm, "hn:4")
    hubconf = import_module("hubconf")
    assert set(hubconf.__all__) == {"convert", "dependencies", "layer", "load_pretrained", "make"}
    needed = {re.split(r"[<>=]", each)[0] for each in PROJECT["project"]["dependencies"]}
    assert set(hubconf.dependencies) == needed


def test_the_citation_has_the_five_papers_with_the_authors_of_their_pages():
    references = CITATION["references"]
    pages = {path.stem: " ".join(path.read_text().split()) for path in (ROOT / "docs" / "papers").glob("[a-z]*.md")}
    assert len(references) == len(pages) == 5
    for reference in references:
        assert {"type", "title", "year", "authors"} <= set(reference) <= REFERENCE_KEYS
        assert reference["type"] in ("article", "conference-paper", "unpublished")
        assert ("conference" in reference) is (reference["type"] == "conference-paper")
        (page,) = [page for page in pages.values() if f"*{reference['title']}*" in page]
        names = [f"{author['given-names']} {author['family-names']}" for author in reference["authors"] if "name" not in author]
        assert ", ".join(names) in page
        assert str(reference["year"]) in page


def test_every_file_of_the_package_is_in_the_wheel():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["anynorm"]
    package = ROOT / "anynorm"
    others = [path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc", ".so")]
    names = {str(path.relative_to(package)) for path in others if path.name != "_build_error.txt"}
    assert {"py.typed", "lab/report/page.html"} <= names
    assert [name for name in names if not any(fnmatch.fnmatch(name, pattern.replace("**/", "*")) for pattern in patterns)] == []


def test_every_line_of_the_manifest_selects_files_and_no_c_file_is_left_out():
    selected = set()
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        kind, *words = line.split()
        folder, patterns = (ROOT, words) if kind == "include" else (ROOT / words[0], words[1:])
        for pattern in patterns:
            files = set(folder.glob(pattern) if kind == "include" else folder.rglob(pattern))
            assert files, f"{line}: {pattern} selects nothing"
            selected |= files
    assert set((ROOT / "csrc").iterdir()) <= selected
    assert {ROOT / "CITATION.cff", ROOT / "constraints.txt", ROOT / "tools" / "smoke.py"} <= selected


def test_make_dist_tests_every_extra_for_users():
    assert set(dist.EXTRAS) == set(PROJECT["project"]["optional-dependencies"]) - {"dev", "docs"}


def write_archives(folder, in_sdist, in_wheel):
    sdist, wheel = folder / "a.tar.gz", folder / "a.whl"
    (folder / "empty").touch()
    with tarfile.open(sdist, "w:gz") as archive:
        for name in in_sdist:
            archive.add(folder / "empty", f"anynorm-1/{name}")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in in_wheel:
            archive.writestr(name, "")
    return sdist, wheel


def test_a_file_that_is_missing_or_does_not_belong_there_is_reported(tmp_path):
    recipes = [str(path.relative_to(ROOT)) for path in (ROOT / "anynorm" / "lab" / "recipes").rglob("*.py")]
    in_sdist, in_wheel = [*dist.IN_SDIST, *recipes], [*dist.IN_WHEEL, *recipes]
    dist.check_contents(*write_archives(tmp_path, in_sdist, in_wheel))
    with pytest.raises(SystemExit, match=r"the sdist or the wheel lacks csrc/operators\.cpp$"):
        dist.check_contents(*write_archives(tmp_path, in_sdist[1:], in_wheel))
    with pytest.raises(SystemExit, match=r"the sdist or the wheel lacks anynorm/py\.typed$"):
        dist.check_contents(*write_archives(tmp_path, in_sdist, in_wheel[1:]))
    with pytest.raises(SystemExit, match=r"must have the package only; got tests/test_docs\.py"):
        dist.check_contents(*write_archives(tmp_path, in_sdist, [*in_wheel, "tests/test_docs.py"]))


def test_the_smoke_test_passes_on_a_small_model_and_exits_if_a_check_fails(capsys):
    smoke.check_model()
    assert "ok  fold: 2 of 2 norms folded" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="smoke test failed: the sky is green"):
        smoke.check(False, "the sky is green")


def test_the_typed_client_runs():
    model = typed_client.Block("bn", 8).eval()
    assert len(typed_client.change_norms(model, torch.randn(2, 8, 4, 4))) == 3
    assert "unknown" in typed_client.read_error("nothing")


def test_the_pinned_torch_is_the_one_in_the_documentation():
    (pinned,) = re.findall(r"^torch==(.*)", (ROOT / "constraints.txt").read_text(), re.M)
    assert f"`_native-torch{pinned}-cpython-311.so`" in (ROOT / "CONTRIBUTING.md").read_text()
