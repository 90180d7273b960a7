"""The report page is one file without network access, and works in a real browser."""

import base64
import errno
import io
import json
import re
import shutil
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from PIL import Image

import anynorm
from anynorm.lab.comparison.comparison import Comparison
from anynorm.lab.comparison.step_times import StepTimes
from anynorm.lab.report.page import group_records, write_page
from anynorm.lab.report.page_data import Picture
from anynorm.lab.training.config import Config
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.store import Store
from tests.lab.cli.test_compare import command
from tests.lab.training.test_task import Measured

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
    assert [record.status for record in diverging.run((), processes=1)] == ["failed"]
    comparison = Comparison(BASE, ["bn", "sn", "gn:4"], [8, 16], seeds=3, root=root)
    list(comparison.run((), processes=1))
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
            [(record.batch_size, record.config["lr"]) for record in records]
            for records in group_records(
                RunRecord("", {"model": "small", "batch_size": size, "lr": lr}, "done") for size, lr in pairs
            )
        ]

    assert group((2, 0.1), (32, 1.6)) == [[(2, 0.1), (32, 1.6)]]  # linear
    assert group((2, 0.1), (32, 0.4)) == [[(2, 0.1), (32, 0.4)]]  # sqrt
    assert group((2, 0.1), (32, 0.1)) == [[(2, 0.1), (32, 0.1)]]  # none
    assert group((2, 0.1), (2, 0.2), (32, 1.6), (32, 0.2)) == [[(2, 0.2), (32, 0.2)], [(2, 0.1), (32, 1.6)]]


def test_the_page_has_the_numbers_of_the_comparison(root, tmp_path):
    write_page(root, tmp_path / "report.html")
    section = read_data(tmp_path / "report.html")["sections"][0]
    comparison = Comparison(BASE, ["bn", "sn", "gn:4"], [8, 16], seeds=3, root=root)
    table = comparison.table(comparison.read())
    assert section["answer"] == table.finding.splitlines()[-1]
    for size in (8, 16):
        cells = column(section["results"], f"test error %, batch {size}")
        assert [cell["text"] for cell in cells] == [format(row[f"error %, batch {size}"], ".1f [.1f]") for row in table]
        recommended = table.results.rankings[size].not_worse
        assert [cell["mark"] for cell in cells] == ["best" if row["norm"] in recommended else "" for row in table]
        assert min(cells, key=lambda cell: cell["value"])["mark"] == "best"
        times = column(section["cost"], f"ms per step, batch {size}")
        seconds = [comparison.step_seconds()[norm, size] for norm in section["norms"]]
        assert [cell["value"] for cell in times] == pytest.approx([1e3 * value for value in seconds])
        assert all(cell["value"] > 0 for cell in column(section["cost"], f"MB saved, batch {size}"))
    assert [chart["batch_size"] for chart in section["curves"][0]["charts"]] == [8, 16]
    final = {line["name"]: line["points"][-1] for line in section["curves"][0]["charts"][0]["lines"]}
    for norm, cell in zip(section["norms"], column(section["results"], "test error %, batch 8"), strict=True):
        epoch, mean, sd = final[norm]
        assert epoch == 2
        assert mean == pytest.approx(cell["value"])
        assert cell["text"].startswith(f"{mean:.1f} [")
        assert sd > 0
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
    run = Store(copy).runs()[0].id
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
    Store(copy).finish(RunRecord(config.id, asdict(config), "failed", "</script>"))
    write_page(copy, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("</script>") == 2


def png(width, height, level, size=0):
    """A grey picture; `size` bytes of zeros follow its end, which readers ignore."""
    buffer = io.BytesIO()
    Image.new("L", (width, height), level).save(buffer, "PNG")
    return buffer.getvalue() + bytes(size)


class Painting(Measured):
    """Pictures of three kinds after each evaluation, and a metric that every second evaluation has."""

    def evaluate(self):
        second = {"inception (×2)": 1.5} if int(self.num_updates) % 16 == 0 else {}
        return super().evaluate() | second

    def artifacts(self):
        step = int(self.num_updates)
        return {
            f"samples/step-{step:08d}.png": png(8, 4, 5 * step),
            f"large/step-{step:08d}.png": png(400, 300, 2 * step),
            "content.png": png(16, 16, 90),
            "samples.txt": b"text",
        }


PAINTING = ["--task", "tests.lab.report.test_page:Painting", "--norms", "bn,gn:2", "--batch-sizes", "8,16", "--seeds", 2]
PAINTING += ["--epochs", 10, "--lr", 0.01, "--set", "num_evals=20"]


@pytest.fixture(scope="module")
def painted(tmp_path_factory):
    """A store with a comparison of 8 runs of 20 evaluations in 40 steps (20 at batch size 16) that wrote pictures."""
    root = tmp_path_factory.mktemp("painted")
    done = command("compare", *PAINTING, "--runs", root, "--processes", 1)
    assert done.exit_code == 0, done.output
    return root


def folder_of(root, norm="bn", batch_size=8, seed=0):
    """The artifacts of a run."""
    cell = {"norm": norm, "batch_size": batch_size, "seed": seed}
    (run,) = [row.id for row in Store(root).runs() if cell.items() <= row.config.items()]
    return Store(root).folder(run) / "artifacts"


def series_of(root, path):
    write_page(root, path)
    (section,) = read_data(path)["sections"]
    return {(series["kind"], series["title"]): series["pictures"] for series in section["pictures"]}


def test_the_page_has_pictures_of_the_first_seed_per_norm_and_batch_size(painted, tmp_path):
    series = series_of(painted, tmp_path / "report.html")
    cells = [f"{norm}, batch size {size}, seed 0" for size in (8, 16) for norm in ("bn", "gn:2")]
    assert list(series) == [(kind, title) for kind in ("content", "large/step", "samples/step") for title in cells]
    names = [picture["name"] for picture in series["samples/step", cells[0]]]
    assert names == [f"samples/step-{step:08d}.png" for step in (2, 8, 12, 18, 24, 30, 34, 40)]  # evenly spaced out of 20
    for picture in series["samples/step", cells[0]]:
        content = base64.b64decode(picture["uri"].removeprefix("data:image/png;base64,"))
        assert content == (folder_of(painted) / picture["name"]).read_bytes()
        assert (picture["width"], picture["height"]) == (8, 4)
    assert [picture["name"] for picture in series["content", cells[0]]] == ["content.png"]
    text = (tmp_path / "report.html").read_text()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_files_that_are_too_large_or_not_pictures_are_named_and_not_embedded(painted, tmp_path, monkeypatch):
    copy, title = tmp_path / "copy", "bn, batch size 8, seed 0"
    shutil.copytree(painted, copy)
    folder = folder_of(copy)
    (folder / "content.png").write_bytes(png(16, 16, 0, 2_500_000))
    (folder / "samples" / "step-00000040.png").write_bytes(b"not a picture")
    for path in (folder / "large").iterdir():
        path.write_bytes(png(400, 300, 0, 900_000))
    read = Path.read_bytes

    def fail_for_the_first(path):
        if path.match("large/step-00000002.png"):
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fail_for_the_first)
    series = series_of(copy, tmp_path / "report.html")
    assert series["content", title] == [vars(Picture("content.png", note="not embedded: 2.5 MB, more than 2 MB"))]
    broken = Picture("samples/step-00000040.png", note="not embedded: not a PNG file")
    assert series["samples/step", title][-1] == vars(broken)
    unreadable, last = series["large/step", title]  # two of 0.9 MB are not larger than 2 MB
    assert unreadable == vars(Picture("large/step-00000002.png", note="cannot be read: Input/output error"))
    assert last["name"] == "large/step-00000040.png"
    for path in (folder / "large").iterdir():
        path.write_bytes(png(400, 300, 0, 1_500_000))
    series = series_of(copy, tmp_path / "report.html")
    assert [picture["name"] for picture in series["large/step", title]] == ["large/step-00000040.png"]


def test_a_seed_without_pictures_is_passed_over(painted, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(painted, copy)
    shutil.rmtree(folder_of(copy))
    titles = {title for _, title in series_of(copy, tmp_path / "report.html")}
    assert "bn, batch size 8, seed 1" in titles
    assert "gn:2, batch size 8, seed 0" in titles
    assert len(titles) == 4


def test_the_page_has_the_curves_of_all_metrics_at_the_evaluations_that_have_them(painted, tmp_path):
    write_page(painted, tmp_path / "report.html")
    (section,) = read_data(tmp_path / "report.html")["sections"]
    labels = ["test FD (ResNet-56)", "test mean", "test inception (×2)", "train d_loss", "train g_loss"]
    assert [curve["label"] for curve in section["curves"]] == labels
    assert section["curves"][2]["charts"][0]["lines"][0]["points"] == [[4, 1.5, 0], [8, 1.5, 0]]
    assert len(section["curves"][0]["charts"][0]["lines"][0]["points"]) == 20


def test_a_metric_with_spaces_and_parentheses_is_shown_everywhere(painted, tmp_path):
    name = "FD (ResNet-56)"
    write_page(painted, tmp_path / "report.html")
    (section,) = read_data(tmp_path / "report.html")["sections"]
    assert section["results"]["columns"] == ["norm", f"test {name}, batch 8", f"test {name}, batch 16"]  # no shift was measured
    assert (section["curves"][0]["name"], section["curves"][0]["label"]) == (name, f"test {name}")
    assert section["runs"]["columns"][5:] == [f"test {name}", "seconds", "note"]  # training does not have it
    assert f"has the lowest mean ({name} " in section["answer"]
    values = [row.value for row in Store(painted).runs()]
    assert sorted(cell["value"] for cell in column(section["runs"], f"test {name}")) == sorted(values)
    listed = command("runs", "list", "--runs", painted).stdout
    assert listed.count(f"  {name}  ") == 8
    run = Store(painted).runs()[0].id
    shown = json.loads(command("runs", "show", run, "--runs", painted).stdout)
    assert shown[f"test_{name}"] == shown["curve"][-1][f"test_{name}"]
    done = command("compare", *PAINTING, "--runs", painted)
    assert done.exit_code == 0, done.output
    assert not done.stderr  # nothing was trained
    header, sizes, *_, legend, _, answer, _ = done.stdout.splitlines()
    columns = [title.strip() for title in header.split("  ") if title.strip()]
    assert columns == [f"test {name}", f"test {name}", "step time", "step time"]  # no empty columns
    assert sizes.split() == ["norm", *["batch", "8", "batch", "16"] * 2]
    assert legend == "Step time: relative to bn."
    assert answer == section["answer"]
    table = json.loads(command("compare", *PAINTING, "--runs", painted, "--json").stdout)
    assert f"{name}, batch 16" in table["rows"][0]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_browser_sorts_the_table_and_shows_values_under_the_pointer(scheme, width, root, tmp_path):
    with open_page(root, tmp_path / "report.html", scheme, width) as page:
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
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background))) > 380) == (scheme == "light")


@contextmanager
def open_page(root, path, scheme="light", width=1280):
    """Open the page of a store in a browser; at the end it must have caused no error, and fit into the window."""
    playwright = pytest.importorskip("playwright.sync_api")
    assert command("report", root, "-o", path).exit_code == 0
    with playwright.sync_playwright() as start:
        browser = start.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        try:
            page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}).new_page()
            errors: list[str] = []
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(path.as_uri())
            yield page
            assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
            assert errors == []
        finally:
            browser.close()


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_browser_shows_pictures_of_earlier_evaluations_and_other_metrics(scheme, width, painted, tmp_path):
    with open_page(painted, tmp_path / "report.html", scheme, width) as page:
        assert page.locator("section h3").all_inner_texts() == ["Learning curves", "Pictures", "Cost", "Provenance"]
        check_pictures(page)
        check_select(page)


def check_pictures(page):
    """Per kind, one picture per norm and batch size; small ones in whole multiples of their pixels; the slider selects one."""
    sliders = page.locator("input[type=range]")
    assert [slider.is_visible() for slider in sliders.all()] == [False, True, True]  # content.png is the only one of its kind
    images = page.locator(".pictures").nth(2).locator("img")
    assert images.count() == 4
    assert images.first.get_attribute("alt") == "bn, batch size 8, seed 0: samples/step-00000040.png"
    pixels = "each => [each.naturalWidth, each.naturalHeight, each.width, each.height, getComputedStyle(each).imageRendering]"
    width, height, *_, rendering = images.first.evaluate(pixels)
    assert (width, height, rendering) == (8, 4, "pixelated")
    assert images.first.evaluate("each => each.width / each.height") == pytest.approx(2, rel=0.02)
    assert images.first.evaluate("each => each.width") > 200
    assert page.locator(".pictures").nth(1).locator("img").first.evaluate(pixels)[-1] == "auto"
    sliders.nth(2).fill("0")
    names = page.locator(".pictures").nth(2).locator("p").all_inner_texts()
    assert names == ["samples/step-00000002.png"] * 2 + ["samples/step-00000001.png"] * 2


def check_select(page):
    """The select box changes the metric of the charts; negative values are below zero."""
    select = page.locator("select")
    assert select.evaluate("each => each.selectedOptions[0].text") == "test FD (ResNet-56)"
    chart = page.locator("figure svg").first
    assert chart.get_attribute("aria-label") == "test FD (ResNet-56), batch size 8"
    assert len(page.locator("figure").first.locator("polyline").first.get_attribute("points").split()) == 20
    select.select_option(label="test inception (×2)")
    assert len(page.locator("figure").first.locator("polyline").first.get_attribute("points").split()) == 2
    select.select_option(label="train d_loss")
    assert chart.get_attribute("aria-label") == "train d_loss, batch size 8"
    points = page.locator("figure").first.locator("polyline").first.get_attribute("points").split()
    heights = [float(point.split(",")[1]) for point in points]
    assert max(heights) < 238  # the bottom of the chart: no value is cut off
    assert len({round(height) for height in heights}) > 5
    assert page.locator("section p.muted").nth(2).inner_text().startswith("Mean training d_loss over the steps since")


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
