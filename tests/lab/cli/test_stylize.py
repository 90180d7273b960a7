"""`anynorm stylize` writes a picture with a trained run, and says what is wrong otherwise."""

import re
from dataclasses import replace

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.lab.tasks.run import load_run, run
from anynorm.lab.tasks.style.stylize import stylize
from tests.lab.tasks.test_battery import SMOKE


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name in ("style_transfer", "single_style_transfer", "classification"):
        assert run(replace(SMOKE[name], epochs=12, num_evals=1), root)
    return root


def run_id(name):
    return replace(SMOKE[name], epochs=12, num_evals=1).id


@pytest.fixture
def pictures(tmp_path):
    for name, size in (("content", (37, 21)), ("style", (20, 50)), ("tiny", (8, 30))):
        pixels = torch.randint(256, (size[1], size[0], 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        Image.fromarray(pixels.numpy()).save(tmp_path / f"{name}.png")
    (tmp_path / "bad.png").write_text("not an image")
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, ["stylize", *map(str, arguments)])


def test_a_picture_of_the_size_of_the_content_is_written(runs, pictures):
    out = pictures / "out.png"
    result = invoke(
        pictures / "content.png", pictures / "style.png", "-o", out, "--model", run_id("style_transfer"), "--runs", runs
    )
    assert result.exit_code == 0, result.output
    assert result.output == f"Wrote {out}.\n"
    with Image.open(out) as image:
        assert image.size == (37, 21)
    arguments = (pictures / "content.png", pictures / "style.png", out)
    first, task = out.read_bytes(), load_run(runs, run_id("style_transfer")[:6])
    stylize(task, *arguments, alpha=0.5)
    assert out.read_bytes() != first
    stylize(task, *arguments, image_size=30)
    with Image.open(out) as image:
        assert image.size == (53, 30)


def test_a_run_with_a_style_of_its_own_needs_no_style(runs, pictures):
    out = pictures / "out.png"
    result = invoke(pictures / "content.png", "-o", out, "--model", run_id("single_style_transfer"), "--runs", runs)
    assert result.exit_code == 0, result.output
    with Image.open(out) as image:
        assert image.size == (37, 21)


def test_what_is_wrong_is_said_and_nothing_is_written(runs, pictures):
    arbitrary, other = run_id("style_transfer"), run_id("classification")
    (pictures / "folder.png").mkdir()
    cases = [
        ("content", None, "out.png", {}, r"a run of style_transfer needs a style image; got none"),
        ("content", "style", "out.png", {"model": run_id("single_style_transfer")}, r"has a style of its own; got a style image"),
        ("content", "style", "out.png", {"model": other}, r"needs a run of style transfer .*; got one of classification"),
        ("content", "style", "out.png", {"model": "zzz"}, r"zzz"),
        ("content", "style", "out.png", {"alpha": 1.5}, r"alpha must be in \[0, 1\]; got 1\.5"),
        ("content", "style", "out.png", {"image_size": 0}, r"image_size must be at least 1; got 0"),
        ("content", "style", "out.jpg", {}, r"must be a file that ends in \.png; got .*out\.jpg"),
        ("content", "style", "folder.png", {}, r"must be a file that ends in \.png; got .*folder\.png"),
        ("content", "style", "none/out.png", {}, r"folder of the picture must exist; got .*none/out\.png\. Create the folder"),
        ("bad", "style", "out.png", {}, r"cannot read the image .*bad\.png"),
        ("none", "style", "out.png", {}, r"image not found: .*none\.png"),
        ("content", "tiny", "out.png", {}, r"at least 9 × 9 pixels .*; got 30 × 8\. Content .*content\.png, style .*tiny\.png"),
    ]  # fmt: skip
    for content, style, out, options, message in cases:
        paths = (pictures / f"{content}.png", style and pictures / f"{style}.png", pictures / out)
        with pytest.raises(anynorm.AnynormError, match=message):
            stylize(load_run(runs, options.pop("model", arbitrary)), *paths, **options)
        assert not (pictures / "out.png").exists()
    assert invoke(pictures / "content.png").exit_code == 2


def test_a_run_that_failed_is_refused_with_its_reason(pictures, tmp_path):
    config = replace(SMOKE["style_transfer"], norm="gn:4.style", lr=1e12, epochs=20, schedule="constant")
    run(config, tmp_path)
    files = (pictures / "content.png", pictures / "style.png", "-o", pictures / "out.png")
    result = invoke(*files, "--model", config.id, "--runs", tmp_path)
    assert isinstance(result.exception, anynorm.DataError)
    assert re.search(r"trained to its end; run .* failed: the .*step", str(result.exception))
    assert not (pictures / "out.png").exists()


def test_help_is_printed():
    assert "single_style_transfer" in invoke("--help").output
