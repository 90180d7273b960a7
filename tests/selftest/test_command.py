"""`anynorm selftest`: table, JSON file, exit codes."""

import json
import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from anynorm import kernels
from anynorm.cli import app
from anynorm.selftest import report
from anynorm.selftest.cases import SHAPE, Case
from anynorm.selftest.comparisons import Comparison, Difference
from anynorm.selftest.report import SelftestReport


@pytest.fixture(autouse=True)
def few_cases(monkeypatch):
    """Compare and time only what the tests need."""
    cases = [Case("bn", SHAPE, dtype, True, "relu", True) for dtype in ("float32", "bfloat16")]
    monkeypatch.setattr(report, "make_cases", lambda specs, dtypes: [case for case in cases if case.spec in specs])
    monkeypatch.setattr(report, "timed_shape", lambda device: (4, 32, 6, 6))


def run(*words):
    return CliRunner().invoke(app, ["selftest", "--norms", "bn", *words])


def test_a_table_is_printed_and_all_numbers_are_written(tmp_path):
    out = tmp_path / "selftest.json"
    done = run("--device", "cpu", "--out", str(out))
    assert done.exit_code == 0, done.output
    header, row, finding = done.stdout.splitlines()
    assert header.split()[:4] == ["norm", "kernels", "comparisons", "differ"]
    assert row.split()[:4] == ["bn", "cpu", "4", "0"]
    assert finding.startswith("All 4 comparisons agree; median ")
    assert finding.endswith(f" of torch's time. Wrote {out}.")
    data = json.loads(out.read_text())
    assert data["finding"] in finding
    assert data["environment"]["torch"] == torch.__version__
    assert data["environment"]["kernels"] == kernels.describe()
    assert {"anynorm", "python", "triton", "device", "device_name", "threads"} <= set(data["environment"])
    comparison = data["comparisons"][-1]
    assert (comparison["spec"], comparison["dtype"], comparison["layout"]) == ("bn", "bfloat16", "channels_last")
    assert comparison["agrees"]
    assert 0 <= comparison["error"] <= comparison["tolerance"]
    assert set(comparison["errors"]) >= {"y", "dx", "dresidual", "dweight", "running_var"}
    assert len(data["timings"]) == 8
    assert all(timing["torch_layer"] == "nn.BatchNorm2d" and timing["ratio"] > 0 for timing in data["timings"])


def test_json_is_printed_on_request(tmp_path):
    out = tmp_path / "selftest.json"
    assert run("--device", "cpu", "--json", "--out", str(out)).stdout == out.read_text()


def test_a_wrong_kernel_is_named_and_the_exit_code_is_one(tmp_path, monkeypatch):
    normalize = kernels.cpu.normalize

    def normalize_wrongly(spec, x, params, buffers):
        y, batch = normalize(spec, x, params, buffers)
        return (1.1 * y if x.dtype is torch.bfloat16 else y), batch

    monkeypatch.setattr(kernels.cpu, "normalize", normalize_wrongly)
    out = tmp_path / "selftest.json"
    done = run("--device", "cpu", "--out", str(out))
    assert done.exit_code == 1
    finding = done.stdout.splitlines()[-1]
    assert finding.startswith("2 of 4 comparisons differ: bn bfloat16 c")
    assert "training + residual + relu (y by " in finding
    wrong = [each for each in json.loads(out.read_text())["comparisons"] if not each["agrees"]]
    assert {each["dtype"] for each in wrong} == {"bfloat16"}
    assert len(wrong) == 2


def test_misuse_exits_with_two_and_says_what_to_do(tmp_path):
    command = [sys.executable, "-m", "anynorm", "selftest", "--device"]
    done = subprocess.run([*command, "meta"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("SpecError: device must be auto, cuda, ")
    missing = run("--device", "cpu", "--out", str(tmp_path / "none" / "selftest.json"))
    assert "--out must be in an existing folder" in str(missing.exception)
    unknown = CliRunner().invoke(app, ["selftest", "--norms", "nothing", "--out", str(tmp_path / "selftest.json")])
    assert "nothing" in str(unknown.exception)
    assert not list(tmp_path.iterdir())


def make_report(errors, kernels_name="cpu", device="cpu"):
    case = Case("bn", SHAPE, "float32", True, None, False)
    comparisons = [Comparison(case, "contiguous", kernels_name, [Difference("y", error, 0.1)]) for error in errors]
    return SelftestReport(torch.device(device), comparisons, [])


def test_the_finding_lists_the_largest_errors_and_counts_the_others():
    finding = make_report([0.2, 0.05, 0.5, float("nan"), 0.3]).finding
    assert finding.startswith("4 of 5 comparisons differ: ")
    assert re.findall(r"y by ([\w.]+)", finding) == ["nan", "0.5", "0.3"]
    assert finding.endswith("; and 1 more.")
    json.loads(make_report([float("nan")]).json())


def test_the_finding_says_if_no_kernel_of_the_device_ran():
    assert make_report([0.0]).finding == "All 1 comparisons agree."
    assert " The cpu kernels did not run on cpu, plain torch operations did: C++" in make_report([0.0], "reference").finding
    assert "anynorm has no kernels for mps: plain torch operations ran." in make_report([0.0], "reference", "mps").finding
