"""The page of a store is whole in one file, and works in a real browser."""

import json
import re
import shutil

import pytest

import anynorm
from anynorm.comparison import Plan, run_all
from anynorm.report.page import write_page
from anynorm.training.config import Config
from anynorm.training.store import Store
from tests.test_compare import command

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    base = Config(model="small", width=0.5, num_train=64, epochs=2, lr=0.05)
    for _ in run_all(Plan(base, ["bn", "sn", "gn:4"], [8, 16], seeds=2, root=root), processes=1):
        pass
    failing = Config(model="small", width=0.5, num_train=64, epochs=2, lr=1e12, norm="gn:8", batch_size=8)
    for _ in run_all(Plan(failing, ["gn:8"], [8], 1, "none", root), processes=1):
        pass
    return root


def test_the_page_needs_nothing_else(store, tmp_path):
    path = tmp_path / "report.html"
    assert write_page(store, path) == (13, [])
    text = path.read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)[1])
    group, other = data["groups"]
    assert group["norms"] == ["bn", "sn", "gn:4"]
    assert other["norms"] == ["gn:8"]  # at another rate, which is another comparison
    assert next(row["8"] for row in other["rows"] if row["norm"]["text"] == "gn:8") == {
        "text": "failed",
        "value": None,
        "mark": "failed",
    }
    assert [one["batch"] for one in group["curves"]] == [8, 16]
    assert {line["name"] for line in group["shifts"][0]["lines"]} == {"bn", "sn"}
    assert len(group["runs"]) == 12


def test_damaged_and_unfinished_runs_are_told_and_left_out(store, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(store, root)
    run = Store(root).rows()[0]["id"]
    (Store(root).folder(run) / "record.json").write_text("{")
    held = Store(root)
    held.begin(Config(seed=99))
    count, left_out = write_page(root, tmp_path / "report.html")
    held.release(Config(seed=99))
    assert count == 12
    assert any("is damaged" in reason for reason in left_out)
    assert any("running" in reason for reason in left_out)
    Store(tmp_path / "empty")
    for folder, said in (("empty", "no run that has ended"), ("none", "There is no folder")):
        with pytest.raises(anynorm.DataError, match=said):
            write_page(tmp_path / folder, tmp_path / "report.html")


def test_a_text_in_the_data_cannot_end_the_script(store, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(store, root)
    config = Config(seed=7, data="</script><script>alert(1)</script>")
    Store(root).begin(config)
    Store(root).finish(config, {"status": "failed", "note": "</script>", "curve": [], "provenance": {}})
    write_page(root, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("</script>") == 2
    with pytest.raises(anynorm.DataError, match=r"no folder .*nowhere to write"):
        write_page(root, tmp_path / "nowhere" / "report.html")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1100), ("dark", 390)])
def test_it_sorts_and_tells_what_is_pointed_at_in_a_real_browser(scheme, width, store, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "report.html"
    assert command("report", store, "-o", path).exit_code == 0
    with playwright.sync_playwright() as start:
        browser = start.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        try:
            page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}).new_page()
            wrong: list[str] = []
            page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(path.as_uri())
            column = "main > section > .scroll td:nth-child(2)"
            button = page.locator("main > section > .scroll th button").nth(1)
            button.click()
            track = page.locator("main > section").first.locator(".scroll td:nth-child(2)")
            up = [float(text.split()[0]) for text in track.all_inner_texts()[:3]]
            button.click()
            down = [float(text.split()[0]) for text in track.all_inner_texts()[:3]]
            assert up == sorted(up)
            assert down == up[::-1]
            assert "failed" in page.locator(column).all_inner_texts()
            chart = page.locator("svg").first
            chart.scroll_into_view_if_needed()
            chart.hover()
            tip = page.locator(".tip").first
            assert tip.is_visible()
            assert re.match(r"epoch [\d.]+\n", tip.inner_text())
            assert "bn" in tip.inner_text()
            page.locator("summary").first.click()
            assert page.locator("details table tbody tr").count() == 13
            assert page.locator("main > section").count() == 2
            assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", paper))) > 380) == (scheme == "light")
            assert wrong == []
        finally:
            browser.close()
