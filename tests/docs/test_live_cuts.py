"""The live picture of cuts on the home page: the script agrees with Python on every spec, and works in a real browser."""

import itertools
import json
import shutil
import subprocess

import pytest

import anynorm
from anynorm.draw.descriptions import count, formula
from anynorm.errors import AnynormError
from anynorm.layers.registered import REGISTRY
from docs.build import ROOT
from docs.live_cuts import EXAMPLES, PLACE, html, table
from tests.helpers import ROWS
from tests.lab.report.test_page import ARGUMENTS, BROWSER

pytestmark = pytest.mark.docs
SCRIPT = ROOT / "docs" / "static" / "cuts.js"
SHAPE = (4, 16, 12)
VALID = [
    *ROWS,
    *EXAMPLES,
    " GN:4/EN ",
    "hn:1",
    "en:2",
    "sn:2",
    "bn.nobias",
    "rms.none",
    "0/bn+ln.hard",
    "gn:2+en:4.groups:2.sa@3",
]
VALID += [
    "[1,4,2]",
    "[/2,*,1]",
    "[*,*,*]",
    "[1,24]",
    "[1,64]/[*,8]",
    "sn-in",
    "ccbn@5",
    "saauxbn@2",
    "bn.domnone@2",
    "gbgn:2,8/ln",
]
VALID += ["bgn:12", "bgn:48", "ln.cc@2", "sn.hard.groups:2.aux@3", "saadain", "in.style", "bn/bn+ln+in", "0/[1,4,1]+pn"]
INVALID = [
    "",
    "gn",
    "gn:",
    "gn:3",
    "gn:0",
    "hn:2,4",
    "bgn",
    "sabn",
    "gbgn:2",
    "foo",
    "toString",
    "bn@3",
    "bn+bn",
    "sn+bn",
    "bn-in",
    "bn-bn",
]
INVALID += [
    "0",
    "0+bn",
    "bn+0/ln",
    "rms+bn",
    "bn+rms",
    "0/rms",
    "bn/",
    "/bn",
    "bn//ln",
    "bn.x",
    "bn.sa",
    "bn.sa@0",
    "bn.none.sa@3",
    "[1,2]x",
]
INVALID += [
    "[2,1,1]",
    "[1,0,1]",
    "[1,*,*]",
    "[1,1]]",
    "bn.hard",
    "sn.groups:3",
    "sn.groups",
    "sn.hard.hard",
    "in.dom@2",
    "[/2,1,1].dom@2",
]
INVALID += [
    "gbgn:3,4",
    "bgn:80",
    "[1,24]/[1,1,7]",
    "sabn@3+bn",
    "bn+in@2",
    "bn.none@2",
    "sabn@3.none",
    "hn:2 extra",
    "sn.hard+bn",
    "bn..none",
]


@pytest.fixture(scope="module")
def run():
    """A function that describes specs by the script: of each, what the page shows and the part of every value, or the message."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    code = """
        const {describe, partOf, SpecError} = require(process.argv[1]);
        const {table, specs, shape} = JSON.parse(require("fs").readFileSync(0, "utf8"));
        const [n, c, s] = shape;
        const one = (spec) => {
          try {
            const d = describe(spec, table, shape);
            const places = [];
            for (let i = 0; i < n; i++) for (let j = 0; j < c; j++) for (let k = 0; k < s; k++) places.push([i, j, k]);
            return {...d, parts: d.cuts.map((cut) => places.map((place) => partOf(cut, place, shape)))};
          } catch (error) {
            if (!(error instanceof SpecError)) throw error;
            return {error: error.message, norm: error.norm};
          }
        };
        console.log(JSON.stringify(specs.map(one)));
    """

    def describe(specs):
        given = json.dumps({"table": table(), "specs": specs, "shape": SHAPE})
        done = subprocess.run(["node", "-e", code, str(SCRIPT)], input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return dict(zip(specs, json.loads(done.stdout), strict=True))

    return describe


def same_partition(numbers, parts):
    """Whether two labelings of values divide them in the same way."""
    return len(set(zip(numbers, parts, strict=True))) == len(set(numbers)) == len(set(parts))


def test_cuts_formula_and_counts_are_those_of_python(run):
    described = run(VALID)
    places = list(itertools.product(*map(range, SHAPE)))
    compared = 0
    for spec, shown in described.items():
        norm = anynorm.make(spec, SHAPE[1])
        if norm.norm_spec.custom:
            assert shown["norm"] == norm.norm_spec.class_name
            continue
        compared += 1
        assert "error" not in shown, (spec, shown)
        assert shown["formula"] == formula(norm.norm_spec), spec
        assert (tuple(shown["mean"]), tuple(shown["var"])) == (norm.mean_cut_indices, norm.var_cut_indices), spec
        for cut, parts in zip(norm.cuts, shown["parts"], strict=True):
            assert same_partition([cut.part_of(place, SHAPE) for place in places], parts), (spec, str(cut))
        numbers = count(norm, SHAPE)
        assert shown["parameters"] == numbers.num_parameters, spec
        assert shown["running"] == numbers.num_running_statistics, spec
        assert shown["statistics"] == numbers.num_statistics, spec
    assert compared > 60


def python_message(spec):
    try:
        norm = anynorm.make(spec, SHAPE[1])
        for cut in norm.cuts:
            cut.check_shape(SHAPE)
    except AnynormError as error:
        return str(error)
    return None


def test_what_python_refuses_the_page_refuses_with_the_same_words(run):
    differing = []
    for spec, shown in run(INVALID).items():
        expected = python_message(spec)
        assert expected is not None, spec
        assert "error" in shown, (spec, shown)
        if shown["error"] != expected:
            differing.append(spec)
    # the page knows neither similar names nor keyword arguments, and leaves the whole spec and advice for data loaders out
    assert set(differing) <= {"bgn", "sabn", "gbgn:2", "foo", "toString", "in.dom@2", "[/2,1,1].dom@2", "gbgn:3,4", "[1,*,*]"}


def test_an_error_says_what_to_write(run):
    shown = run(["sabn", "bgn", "gn:3", "foo", "bn.sa", "bgn:80", "gw"])
    assert shown["sabn"]["error"] == "sabn needs num_classes: write sabn@NUM_CLASSES."
    assert shown["bgn"]["error"] == "bgn needs num_groups: write bgn:NUM_GROUPS."
    assert shown["gn:3"]["error"].endswith("16 is not divisible by 3. Usable: 1 2 4 8 16.")
    assert shown["foo"]["error"].startswith("'foo': unknown norm 'foo'. Known: bn in ln gn")
    assert shown["bn.sa"]["error"].endswith("as in '.sa@10'.")
    assert shown["bgn:80"]["error"].endswith("Nearest usable: bgn:64.")
    assert shown["gw"]["error"] == f"gw is a norm outside the algebra: {anynorm.registry.summary(REGISTRY['gw'])}."


def test_a_new_norm_is_in_the_table_by_itself(monkeypatch, run):
    class Striped(anynorm.RegisteredNorm):
        """Statistics per strip of the channels."""

        name, paper = "striped", "test"
        arguments = {"num_groups": None, "num_strips": 2}
        __module__ = "anynorm.norms"
        define = staticmethod(
            lambda num_groups, num_strips: anynorm.NormSpec(
                (anynorm.Cut(1, num_groups, num_strips),), (anynorm.Cut(0, num_groups, 1, name=f"gn:{num_groups}"),)
            )
        )

    try:
        shown = run(["striped:4,6.none", "striped:4", "striped"])
        assert shown["striped:4,6.none"]["formula"][0] == "mean = μ[[1,4,6]]"
        assert shown["striped:4"]["running"] == 8
        assert shown["striped"]["error"] == "striped needs num_groups: write striped:NUM_GROUPS,NUM_STRIPS."
    finally:
        del REGISTRY["striped"]


def test_the_page_has_a_place_for_the_picture_and_its_table_cannot_end_the_script():
    assert PLACE in (ROOT / "docs" / "index.md").read_text()
    assert html().count("</script>") == 2


# In a browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The picture in a page of its own, with the variables of the theme."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "_static").mkdir()
    shutil.copy(SCRIPT, folder / "_static")
    shutil.copy(SCRIPT.with_name("site.css"), folder / "_static")
    body = html().removeprefix("```{raw} html\n").removesuffix("```")
    head = (
        '<meta charset="utf-8"><link rel="stylesheet" href="_static/site.css"><meta name="viewport" content="width=device-width">'
    )
    (folder / "index.html").write_text(f"<!doctype html><html><head>{head}</head><body><article>{body}</article></body></html>")
    return (folder / "index.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if BROWSER is None:
        pytest.skip("chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        profile = tmp_path_factory.mktemp("profile")
        context = started.chromium.launch_persistent_context(profile, executable_path=BROWSER, args=ARGUMENTS, has_touch=True)
        yield context
        context.close()


@pytest.fixture(params=[390, 1280], ids=["phone", "desk"])
def tab(request, browser, page):
    tab = browser.new_page()
    errors: list[str] = []
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.set_viewport_size({"width": request.param, "height": 800})
    tab.goto(page)
    yield tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= request.param
    tab.close()
    assert errors == []


def read(tab):
    """Return the titles of the figures, and the number of highlighted values of each."""
    figures = tab.query_selector_all("#live-cuts figure")
    return {
        figure.query_selector("figcaption").inner_text(): len(figure.query_selector_all("rect:not(.other)")) for figure in figures
    }


def test_a_value_that_is_pointed_at_highlights_those_that_share_its_statistics(tab):
    assert read(tab) == {"mean [gn:4]": 192, "variance [en]": 192}
    first, second = (figure.query_selector_all("rect") for figure in tab.query_selector_all("figure"))
    first[0].hover()
    assert read(tab) == {"mean [gn:4]": 12, "variance [en]": 192}
    assert "12 in mean [gn:4]; 192 in variance [en]" in tab.inner_text(".status")
    tab.mouse.move(0, 0)
    assert read(tab)["mean [gn:4]"] == 192
    second[191].tap()
    assert read(tab)["mean [gn:4]"] == 12
    assert tab.inner_text(".status").startswith("Sample 4, channel 8, position 6 shares its statistic")
    second[191].tap()
    assert read(tab)["mean [gn:4]"] == 192


def test_a_typed_spec_is_drawn_and_an_invalid_one_says_what_to_write(tab):
    tab.fill("#live-cuts-spec", "sabn@10")
    assert read(tab) == {"mean and variance [bn]": 192}
    assert tab.inner_text("pre").splitlines()[2] == "y    = γ[k] (γ (x − mean)/√(var + ε) + β) + β[k]"
    assert tab.inner_text(".numbers") == "For 8 channels: 176 parameters, 16 running statistics; 16 statistics of a batch."
    tab.fill("#live-cuts-spec", "sabn")
    assert read(tab) == {}
    assert tab.inner_text(".message") == "sabn needs num_classes: write sabn@NUM_CLASSES."
    assert tab.get_attribute("#live-cuts-spec", "aria-invalid") == "true"
    tab.fill("#live-cuts-spec", "gn:16")
    tab.click("text=Draw 16 channels")
    tab.mouse.move(0, 0)
    assert read(tab) == {"mean and variance [gn:16]": 384}
    assert tab.inner_text(".message") == ""
    tab.fill("[aria-label='number of samples']", "99")
    assert tab.inner_text(".message") == "The number of samples must be from 1 to 8."
    tab.fill("[aria-label='number of samples']", "1")
    tab.fill("#live-cuts-spec", "dyt")
    assert tab.get_attribute(".message a", "href") == "norms/dyt.html"
    tab.click("button:has-text('sn')")
    assert list(read(tab)) == ["mean and variance [in]", "mean and variance [ln]", "mean and variance [bn]"]


def test_every_example_is_drawn(tab):
    for spec in EXAMPLES:
        tab.click(f"button:text-is('{spec}')")
        assert read(tab), spec
        assert tab.inner_text(".message") == "", spec


def test_arrow_keys_choose_a_value(tab):
    tab.fill("#live-cuts-spec", "in")
    tab.focus("figure svg")
    for key in ("ArrowRight", "ArrowDown", "PageDown"):
        tab.keyboard.press(key)
    assert tab.inner_text(".status").startswith("Sample 2, channel 2, position 2 ")
    assert read(tab) == {"mean and variance [in]": 6}
