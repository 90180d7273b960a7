"""The report page is one file without network access, and works in a real browser."""

import json
import re
import shutil
from dataclasses import replace

import pytest

import anynorm
from anynorm.comparison import Comparison
from anynorm.report.page import group_records, write_page
from anynorm.report.step_times import StepTimes
from anynorm.training.config import Config
from anynorm.training.store import Store
from tests.cli.test_compare import command

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
BASE = Config(model="small", width=0.5, num_train=64, epochs=2, lr=0.05)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A store with a comparison of 18 runs and, older, a single run that failed."""
    root = tmp_path_factory.mktemp("runs")
    diverging = Comparison(replace(BASE, lr=1e12), ["gn:8"], [8], seeds=1, lr_scaling="none", root=root)
    assert [row["status"] for row in diverging.run(processes=1)] == ["failed"]
    comparison = Comparison(BASE, ["bn", "sn", "gn:4"], [8, 16], seeds=3, root=root)
    list(comparison.run(processes=1))
    comparison.step_seconds()
    return root


def read_data(path):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(), re.S)[1])


def column(table, title):
    return [row[table["columns"].index(title)] for row in table["rows"]]


def test_the_page_needs_no_other_file_and_no_network(root, tmp_path):
    path = tmp_path / "report.html"
    assert write_page(root, path) == (19, [])
    text = path.read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"/\*(STYLE|SCRIPT|DATA)\*/", text)


def test_runs_with_other_settings_are_another_section_and_the_newest_comes_first(root, tmp_path):
    write_page(root, tmp_path / "report.html")
    section, older = read_data(tmp_path / "report.html")["sections"]
    assert section["title"] == "small on digits"
    assert section["norms"] == ["bn", "sn", "gn:4"]
    assert older["norms"] == ["gn:8"]  # with another learning rate at batch size 8
    assert column(older["results"], "test error %, batch 8") == [{"text": "failed", "value": None, "mark": "failed"}]
    assert older["answer"] == "At batch size 8 every norm failed."
    assert len(section["runs"]["rows"]) == 18


def test_runs_are_one_comparison_if_one_rule_gives_their_learning_rates():
    def group(*pairs):
        return [
            [(record["config"]["batch_size"], record["config"]["lr"]) for record in records]
            for records in group_records({"config": {"model": "small", "batch_size": size, "lr": lr}} for size, lr in pairs)
        ]

    assert group((2, 0.1), (32, 1.6)) == [[(2, 0.1), (32, 1.6)]]  # linear
    assert group((2, 0.1), (32, 0.4)) == [[(2, 0.1), (32, 0.4)]]  # sqrt
    assert group((2, 0.1), (32, 0.1)) == [[(2, 0.1), (32, 0.1)]]  # none
    assert group((2, 0.1), (2, 0.2), (32, 1.6), (32, 0.2)) == [[(2, 0.2), (32, 0.2)], [(2, 0.1), (32, 1.6)]]


def test_the_page_has_the_numbers_of_the_comparison(root, tmp_path):
    write_page(root, tmp_path / "report.html")
    section = read_data(tmp_path / "report.html")["sections"][0]
    comparison = Comparison(BASE, ["bn", "sn", "gn:4"], [8, 16], seeds=3, root=root)
    table = comparison.table()
    assert section["answer"] == table.finding.splitlines()[-1]
    for size in (8, 16):
        cells = column(section["results"], f"test error %, batch {size}")
        assert [cell["text"] for cell in cells] == [row[f"error %, batch {size}"] for row in table]
        assert [cell["mark"] for cell in cells].count("best") == 1
        assert min(cells, key=lambda cell: cell["value"])["mark"] == "best"
        times = column(section["cost"], f"ms per step, batch {size}")
        seconds = [comparison.step_seconds()[norm, size] for norm in section["norms"]]
        assert [cell["value"] for cell in times] == pytest.approx([1e3 * value for value in seconds])
        assert all(cell["value"] > 0 for cell in column(section["cost"], f"MB saved, batch {size}"))
    assert [chart["batch_size"] for chart in section["curves"]] == [8, 16]
    final = {line["name"]: line["points"][-1] for line in section["curves"][0]["lines"]}
    for norm, cell in zip(section["norms"], column(section["results"], "test error %, batch 8"), strict=True):
        epoch, mean, sd = final[norm]
        assert epoch == 2
        assert mean == pytest.approx(cell["value"])
        assert cell["text"] == f"{mean:.1f} ± {sd:.1f}"
    assert {line["name"] for line in section["shifts"][0]["lines"]} == {"bn", "sn"}
    assert section["layers"]["1"] == "0.1"
    assert [weights["title"] for weights in section["weights"]] == [f"sn, batch size {size}, seed 0" for size in (8, 16)]
    assert {"commit", "torch", "hardware"} <= section["provenance"].keys()
    assert section["config"]["num_train"] == "64"


def test_without_measured_step_times_the_cost_is_the_memory(root, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    for path in (copy / "timings").iterdir():
        path.write_text("{")
    assert StepTimes(copy).get(replace(BASE, batch_size=8)) is None
    assert StepTimes(root).get(replace(BASE, batch_size=8, lr=0.0125)) > 0
    write_page(copy, tmp_path / "report.html")
    assert read_data(tmp_path / "report.html")["sections"][0]["cost"]["columns"] == [
        "norm",
        "MB saved, batch 8",
        "MB saved, batch 16",
    ]


def test_damaged_and_unfinished_runs_are_omitted_with_the_reason(root, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    run = Store(copy).rows()[0]["id"]
    (Store(copy).folder(run) / "record.json").write_text("{")
    store = Store(copy)
    store.begin(Config(seed=99))
    num_runs, omitted = write_page(copy, tmp_path / "report.html")
    done = command("report", copy, "-o", tmp_path / "report.html")
    store.release(Config(seed=99))
    assert num_runs == 18
    assert any("is damaged" in reason for reason in omitted)
    assert any(reason == f"run {Config(seed=99).id} is running." for reason in omitted)
    assert done.stdout == f"Wrote {tmp_path / 'report.html'} (18 runs).\n"
    assert done.stderr.splitlines() == [f"Omitted from the report: {reason}" for reason in omitted]


def test_a_folder_without_finished_runs_is_refused(root, tmp_path):
    Store(tmp_path / "empty")
    for folder, message in (("empty", "must hold at least one finished run; it holds none"), ("none", "it does not exist")):
        with pytest.raises(anynorm.DataError, match=message):
            write_page(tmp_path / folder, tmp_path / "report.html")
    with pytest.raises(anynorm.DataError, match=r"The folder of .*report\.html must exist; .*nowhere does not"):
        write_page(root, tmp_path / "nowhere" / "report.html")


def test_a_text_in_the_data_cannot_end_the_script(root, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    config = Config(seed=7, data="</script><script>alert(1)</script>")
    Store(copy).begin(config)
    Store(copy).finish(config, {"status": "failed", "note": "</script>", "curve": [], "provenance": {}})
    write_page(copy, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("</script>") == 2


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_browser_sorts_the_table_and_shows_values_under_the_pointer(scheme, width, root, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "report.html"
    assert command("report", root, "-o", path).exit_code == 0
    with playwright.sync_playwright() as start:
        browser = start.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        try:
            page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}).new_page()
            errors: list[str] = []
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(path.as_uri())
            section = page.locator("main > section").first
            assert page.locator("main > section").count() == 2
            assert section.locator(".answer").inner_text().startswith("At batch size 8 ")
            check_sorting(section.locator(".scroll").first)
            assert "failed" in page.locator("main > section").nth(1).locator(".scroll").first.inner_text()
            headings = section.locator("h3").all_inner_texts()
            assert headings == ["Learning curves", "Estimation shift by layer", "Learned mixing weights", "Cost", "Provenance"]
            check_chart(section.locator("figure").first)
            section.get_by_text("All 18 runs").click()
            assert section.locator("details table tbody tr").count() == 18
            assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", background))) > 380) == (scheme == "light")
            assert errors == []
        finally:
            browser.close()


def check_sorting(table):
    """A click on a header sorts ascending, a second one descending; cells without a value stay last."""
    for number, sorts_text in ((1, True), (2, False), (4, False)):
        button, header = table.locator("th button").nth(number - 1), table.locator("th").nth(number - 1)
        cells = table.locator(f"td:nth-child({number})")

        def values(cells=cells, sorts_text=sorts_text):
            texts = [text for text in cells.all_inner_texts() if text != "–"]
            return texts if sorts_text else [float(text.split()[0]) for text in texts]

        button.click()
        ascending = values()
        assert header.get_attribute("aria-sort") == "ascending"
        assert ascending == sorted(ascending)
        button.click()
        assert header.get_attribute("aria-sort") == "descending"
        assert values() == ascending[::-1]
        assert table.locator('th[aria-sort="none"]').count() == 4
    assert cells.all_inner_texts()[-1] == "–"  # gn:4 has no running statistics and no shift


def check_chart(figure):
    """Each norm has a line and a band, and the tooltip has a value of each."""
    assert figure.locator("polyline").count() == figure.locator("polygon.band").count() == 3
    chart = figure.locator("svg")
    chart.scroll_into_view_if_needed()
    chart.hover()
    tooltip = figure.locator(".tooltip")
    assert tooltip.is_visible()
    assert re.match(r"epoch [\d.]+\n", tooltip.inner_text())
    assert len(re.findall(r"^(bn|sn|gn:4)  [\d.]+( ± [\d.]+)?$", tooltip.inner_text(), re.M)) == 3
