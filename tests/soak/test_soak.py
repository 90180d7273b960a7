"""The soak finds wrong kernels, says how to run a failing pass again, and a short one passes."""

import json
from dataclasses import replace

import pytest
import torch

from anynorm.kernels import cpu
from tests.lab.tasks.test_battery import SMOKE
from tests.soak import __main__ as soak
from tests.soak import page
from tests.soak.compare import run
from tests.soak.generate import draw
from tests.soak.kill import kill_run
from tests.soak.result import read_result, write_result
from tests.soak.steady import watch


def outcomes(numbers, seed=0):
    return [outcome for number in numbers for outcome in run(draw(seed, number))]


def test_a_draw_depends_on_its_seed_and_number_alone():
    first = [draw(0, number) for number in range(20)]
    assert [draw(0, number) for number in reversed(range(20))] == first[::-1]
    assert len({str(case) for case in first} | {str(draw(1, number)) for number in range(20)}) == 40


def test_a_short_soak_finds_nothing():
    found = outcomes(range(150))
    assert not [outcome for outcome in found if outcome.problems]
    assert {outcome.definition for outcome in found} == {"naive", "float64", "error"}
    assert {outcome.backend for outcome in found} == {"auto", "reference"}


@pytest.mark.parametrize("part", ["y", "gradient", "statistics", "error"])
def test_a_wrong_kernel_is_found(part, monkeypatch):
    right = cpu.normalize

    def wrong(spec, x, params, buffers):
        if part == "statistics" and buffers.momentum is not None:
            buffers = buffers._replace(momentum=buffers.momentum + 0.01)
        y, batch = right(spec, x, params, buffers)
        if part == "y":
            y = y + 1e-3 * y.detach().abs().max()
        elif part == "gradient":
            y = 1.001 * y - (0.001 * y).detach()
        elif part == "error" and spec.has_variable_counts:
            batch = batch._replace(by_cut=[None] * len(batch.by_cut))
        return y, batch

    monkeypatch.setattr(cpu, "normalize", wrong)
    numbers = [number for number in range(600) if draw(0, number).dtype is torch.float32]
    numbers = numbers[:60] if part != "error" else [n for n in numbers if ("aux" in draw(0, n).spec or "dom" in draw(0, n).spec)]
    found = outcomes(numbers)
    assert any(outcome.problems for outcome in found if outcome.backend == "auto")
    assert not any(outcome.problems for outcome in found if outcome.backend == "reference")


def test_the_command_goes_on_where_it_stopped_and_prints_how_to_run_a_failure_again(tmp_path, capsys, monkeypatch):
    path = tmp_path / "soak.json"
    assert soak.run_many(1.0, 20, 5, path) == 0
    first = json.loads(path.read_text())["passes"]
    assert first["passes"] >= 20
    assert soak.run_many(1.0, 40, 5, path) == 0
    second = json.loads(path.read_text())["passes"]
    assert second["draws"] > first["draws"]
    assert second["passes"] == sum(second["by_kernels"].values()) >= 40
    assert read_result(path, "passes", 6) == {}
    monkeypatch.setattr(cpu, "normalize", lambda spec, x, params, buffers: 1 / 0)
    assert soak.run_many(1.0, 60, 5, path) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if "ZeroDivisionError" in line)
    assert line.startswith("python -m tests.soak --seed 5 --case ")
    assert soak.run_one(5, int(line.split("--case ")[1].split()[0])) == 1
    write_result(None, "passes", {})  # without a file, nothing is written


def test_the_page_has_the_recorded_results():
    assert page.item() in page.PAGE.read_text()


def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_bits():
    import random

    _, problem = kill_run(replace(SMOKE["classification"], num_train=32), 2, random.Random(0))
    assert problem == ""


def test_file_descriptors_and_threads_do_not_grow():
    growth = watch(300, 100)
    assert growth["file descriptors"] == growth["threads"] == 0
    assert growth["memory in MB"] < 20
