"""The site builds without a warning, all of its links resolve, and its search finds what people look for, in a real browser."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import quote_plus, unquote, urlsplit

import pytest

import anynorm
from anynorm.lab.tasks import TASKS
from anynorm.layers.registered import REGISTRY
from docs.build import ROOT
from tests.docs.test_public_names import public_names
from tests.lab.report.test_page import ARGUMENTS, BROWSER

pytestmark = [pytest.mark.docs, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("docs")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "docs.build", "--out", str(out)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "html"


class Page(HTMLParser):
    """The links, the pictures and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.links += [values[name] for name in ("href", "src") if values.get(name)]
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}


def test_every_internal_link_resolves_and_nothing_is_loaded_from_elsewhere(site):
    parsed = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    assert len(parsed) > 90
    for path, page in parsed.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {link}"
            if parts.fragment and target in parsed and not path.name.startswith("genindex"):
                assert unquote(parts.fragment) in parsed[target].anchors, f"{path.name}: {link}"
        loaded = re.findall(r"<(?:script|img|link rel=\"stylesheet\")[^>]*(?:src|href)=\"(https?:[^\"]*)", path.read_text())
        assert not loaded, f"{path.name}: {loaded}"


def test_every_norm_and_every_task_has_a_page(site):
    own = [name for name, norm in REGISTRY.items() if norm.__module__.startswith("anynorm.")]  # a page may have added another
    assert "sn" in own
    for name in own:
        assert (site / "norms" / f"{name}.html").is_file()
    for name in TASKS:
        assert (site / "tasks" / f"{name}.html").is_file()


def test_every_public_name_is_in_the_reference(site):
    anchors = {anchor for path in (site / "api").glob("*.html") for anchor in Page(path.read_text()).anchors}
    assert not [name for name in public_names() if name not in anchors and f"module-{name}" not in anchors]
    assert "module-anynorm.lab.data.readers" in anchors  # the pages of tasks refer to it


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if BROWSER is None:
        pytest.skip("chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    profile = tmp_path_factory.mktemp("profile")
    with playwright.sync_playwright() as start:
        context = start.chromium.launch_persistent_context(profile, executable_path=BROWSER, args=ARGUMENTS)
        context.set_default_timeout(120_000)
        yield context
        context.close()


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("hn:32", "norms/hn.html"),
        ("replace BatchNorm timm", "questions.html"),
        ("eval accuracy bad", "questions.html"),
        ("add a norm", "guide/add_a_norm.html"),
        ("tested on a GPU", "questions.html"),
        ("slower than torch", "questions.html"),
        ("recalibrate", "api/public.html"),
    ],
)
def test_the_search_finds_the_page_without_a_server(site, browser, query, page):
    found = search(site, browser, query)
    assert page in found[:6], found[:10]


@pytest.mark.parametrize(
    ("query", "pages"),
    [
        ("hn", ["norms/hn.html"]),
        ("sabn@10", ["norms/sabn.html"]),
        ("fold", ["guide/deployment.html", "questions.html"]),
        ("convert", ["guide/surgery.html", "questions.html", "migration.html"]),
        ("gpu", ["guide/amp_and_gpu.html", "questions.html"]),
        ("eval", ["guide/diagnose.html", "questions.html"]),
        ("timm", ["guide/integrations.html", "guide/surgery.html", "questions.html", "interop.html"]),
        ("custom norm", ["guide/add_a_norm.html"]),
        ("distributed", ["guide/distributed.html"]),
    ],
)
def test_guides_and_answers_come_before_the_reference(site, browser, query, pages):
    found = search(site, browser, query)
    assert found[0] in pages, found[:10]


def search(site, browser, query):
    """Return the pages that the search finds, best first."""
    tab = browser.new_page()
    tab.goto(f"{(site / 'search.html').as_uri()}?q={quote_plus(query)}")
    tab.wait_for_function("document.querySelector('#search-results .search-summary')?.innerText.includes('finished')")
    links = tab.eval_on_selector_all("#search-results li a", "links => links.map(link => link.getAttribute('href'))")
    tab.close()
    return [link.partition("#")[0] for link in links]


@pytest.mark.parametrize("page", ["index", "norms/index", "norms/hn", "tasks/classification", "api/public", "benchmarks/index"])
def test_pages_fit_a_phone_and_cause_no_error(site, browser, page):
    tab = browser.new_page()
    errors: list[str] = []
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.emulate_media(color_scheme="dark")
    tab.goto((site / f"{page}.html").as_uri())
    width, background = tab.evaluate("[document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]")
    broken = tab.evaluate("Array.from(document.images).filter(image => image.complete && !image.naturalWidth).length")
    tab.close()
    assert width <= 390
    assert sum(map(int, re.findall(r"\d+", background)[:3])) < 150
    assert broken == 0
    assert errors == []


@pytest.mark.parametrize("width", [1100, 1280, 1320, 1600])
@pytest.mark.parametrize("page", ["guide/surgery", "benchmarks/index"])
def test_code_is_not_cut_off_and_no_table_of_contents_is_covered(site, browser, page, width):
    tab = browser.new_page()
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto((site / f"{page}.html").as_uri())
    cut_off = tab.eval_on_selector_all("div.highlight pre", "all => all.filter(pre => pre.scrollWidth > pre.clientWidth).length")
    boxes = tab.evaluate(
        "['.sidebar-container', '.content', '.toc-drawer'].map(name => document.querySelector(name).getBoundingClientRect())"
        ".map(box => [box.left, box.right])"
    )
    page_width = tab.evaluate("document.documentElement.scrollWidth")
    tab.close()
    (_, sidebar), (left, right), (contents, contents_end) = boxes
    assert not cut_off
    assert page_width <= width
    assert sidebar <= left
    assert right <= contents
    assert contents_end <= width or contents >= width - 15  # beside the article, or outside until it is opened


def test_short_cells_and_signatures_are_readable(site):
    assert "<factory>" not in (site / "api" / "lab.html").read_text()
    assert re.search(r'<td class="number"><p>\d+ of \d+', (site / "interop.html").read_text())
    assert anynorm.__version__ in re.search(r"<title>(.*?)</title>", (site / "index.html").read_text())[1]
    assert "MIT License" in (site / "index.html").read_text()
