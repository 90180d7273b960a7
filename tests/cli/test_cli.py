"""The command line: tables for a person, JSON for a program, misuse on stderr with exit code 2."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import anynorm
from anynorm.cli import app
from anynorm.core.cuts import ALL, Cut
from anynorm.draw.descriptions import count, describe, draw_cut, formula
from anynorm.lab.tasks import TASKS
from anynorm.registry import parse


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "anynorm", *words], capture_output=True, text=True, check=False)


def test_list_shows_every_norm_as_a_table_and_as_json():
    table = run("list")
    assert table.returncode == 0, table.stderr
    for entry in anynorm.zoo():
        assert f"\n{entry.spec} " in f"\n{table.stdout}"
    assert table.stdout.splitlines()[0].split()[:3] == ["spec", "class", "cuts:"]
    assert "explains one" in table.stdout.splitlines()[-1]
    lines = json.loads(run("list", "--json").stdout)
    assert {"spec", "class", "cuts", "running_statistics", "affine", "paper"} <= set(lines[0])
    assert {line["spec"]: line["class"] for line in lines}["sabn@10"] == "SandwichBatchNorm"


def test_info_has_versions_threads_and_the_active_kernels():
    done = run("info")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert lines["anynorm"].strip() == anynorm.__version__
    assert lines["torch"].strip() == torch.__version__
    assert "threads" in lines["processor"]
    assert "C++ (" in lines["kernels: cpu"]
    gpu = "no GPU has run them yet" if find_spec("triton") else "not available: triton is not installed"
    assert gpu in lines["kernels: gpu"]
    assert json.loads(run("info", "--json").stdout)["kernels: cpu"] == lines["kernels: cpu"].strip()


def test_show_explains_a_norm():
    shown = run("show", "sn", "--shape", "2,8,4,4")
    assert shown.returncode == 0, shown.stderr
    assert "2C + 6" in shown.stdout
    assert "2CN + 2N + 2C" in shown.stdout
    assert "mean = w[in] μ[in] + w[ln] μ[ln] + w[bn] μ[bn]" in shown.stdout
    assert json.loads(run("show", "hn:4", "--shape", "2,8,4,4", "--json").stdout)["canonical"] == "bn/en:4"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "swich"], "SpecError: 'swich': unknown norm 'swich'. Did you mean sn?"),
        (["show", "gn:5"], "SpecError: gn:5 cuts 32 channels into 5 equal parts"),
        (
            ["show", "bn", "--shape", "3"],
            "ShapeError: --shape must be N,C or N,C,H,W and so on, integers of at least 1, such as 8,32,8,8; got '3'.",
        ),
        (
            ["show", "bn", "--shape", "a,b"],
            "ShapeError: --shape must be N,C or N,C,H,W and so on, integers of at least 1, such as 8,32,8,8; got 'a,b'.",
        ),
        (["show", "bgn:64", "--shape", "2,32,3,3"], "Nearest usable: bgn:32. Input (2, 32, 3, 3)."),
        (["shwo"], "No such command"),
    ],
)
def test_misuse_goes_to_stderr_with_exit_code_2(words, message):
    failed = run(*words)
    assert failed.returncode == 2
    assert message in failed.stderr
    assert failed.stdout == ""
    assert "Traceback" not in failed.stderr


def test_a_terminal_without_greek_and_huge_shapes_do_no_harm():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for words in (["show", "sn", "--json"], ["show", "bgn:512"], ["show", "bn", "--shape", "4,99999999999"]):
        done = subprocess.run(
            [sys.executable, "-m", "anynorm", *words], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
    assert "letters repeat" in run("show", "bgn:512").stdout
    assert "letters repeat" not in run("show", "bgn:64").stdout


def test_the_version_is_printed():
    assert run("--version").stdout.strip() == anynorm.__version__


# sn Table 1, at N=2, C=8
@pytest.mark.parametrize(
    ("spec", "parameters", "statistics"),
    [
        ("bn", "2C", "2C"),
        ("in", "2C", "2CN"),
        ("ln", "2C", "2N"),
        ("gn:4", "2C", "2·4·N"),
        ("sn", "2C + 6", "2CN + 2N + 2C"),
        ("hn", "2C", "C + 1"),
    ],
)
def test_counts_are_those_of_the_sn_papers_first_table(spec, parameters, statistics):
    found = count(anynorm.make(spec, 8), (2, 8, 4, 4))
    assert (found.parameter_terms, found.statistic_terms) == (parameters, statistics)
    value = eval(statistics.replace("2C", "2*C").replace("CN", "C*N").replace("2N", "2*N").replace("·", "*"), {"N": 2, "C": 8})
    assert found.num_statistics == value
    assert found.num_parameters == 16 + (6 if spec == "sn" else 0)


def test_a_drawing_gives_pixels_of_one_statistic_one_letter():
    assert draw_cut(Cut(1, ALL, 2), (2, 2, 2, 2)) == [["AABB", "CCDD"], ["AABB", "CCDD"]]
    assert draw_cut(Cut(ALL, 1, ALL), (2, 2, 2)) == [["AB", "AB"], ["CD", "CD"]]
    assert draw_cut(Cut(ALL, 1, 1, samples_per_part=2), (4, 1, 1)) == [["A"], ["A"], ["B"]]


def test_formulas_show_the_affine_and_the_weights():
    assert formula(parse("sabn@3"))[-1] == "y    = γ[k] (γ (x − mean)/√(var + ε) + β) + β[k]"
    assert formula(parse("sn:2.hard"))[-1] == "w, w′ = one-hot(argmax λ), for each of 2 channel groups"
    assert formula(parse("saadain"))[-1] == "y    = σ(style) (γ (x − mean)/√(var + ε) + β) + μ(style)"
    assert formula(parse("bn.none"))[-1] == "y    = (x − mean)/√(var + ε)"


@pytest.mark.parametrize("entry", anynorm.zoo(), ids=lambda entry: entry.spec)
def test_every_norm_can_be_described(entry):
    about = describe(entry.spec, (8, 32, 8, 8))
    assert bool(about["cuts"]) == bool(anynorm.parse(entry.spec).var)  # a norm without statistics has no cuts
    json.dumps(about)


def test_the_help_of_compare_and_the_guide_list_every_task():
    command: Any = typer.main.get_command(app)
    text = next(param.help for param in command.commands["compare"].params if param.name == "task")
    guide = (Path(__file__).parents[2] / "docs/guide/tasks.md").read_text()
    for task in TASKS:
        assert task in text.replace(",", " ").split(), task
        assert f"`{task}`" in guide, task
