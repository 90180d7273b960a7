"""Errors on adversarial images: which columns a comparison has, and where it warns."""

from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.lab.comparison.results import Results
from anynorm.lab.comparison.robustness import RobustErrors, attacks_of, mode_warning, robust_errors, robust_results
from anynorm.lab.comparison.step_times import StepTimes
from anynorm.lab.comparison.table import make_table
from anynorm.lab.report.page_data import Cell
from anynorm.lab.report.section import make_section
from anynorm.lab.tasks.run import run
from anynorm.lab.training.config import Config
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.result import Result
from anynorm.lab.training.store import Store


def make_record(norm: str, seed: int = 0, **errors: Any) -> RunRecord:
    metrics = {f"test_robust_error_{name}": value for name, value in errors.items()}
    config = {"norm": norm, "batch_size": 32, "seed": seed}
    return RunRecord("", config, "done", metrics={"test_error": 10.0 + seed, **metrics})


def make_records(norm: str, pairs: list[tuple[float, float]]) -> list[RunRecord]:
    return [
        make_record(norm, seed, pgd4=eval_mode, pgd4_train_mode=train_mode) for seed, (eval_mode, train_mode) in enumerate(pairs)
    ]


BN = make_records("bn", [(60.0, 50.0), (62.0, 53.0), (61.0, 50.0)])
GN = make_records("gn:8", [(70.0, 70.0), (71.0, 71.0), (69.0, 69.0)])


def test_errors_are_read_by_attack_and_branch_and_need_both_modes():
    values: dict[str, Any] = {"pgd4": 60.0, "pgd4_train_mode": 50.0, "fgsm": 3.0}
    branch: dict[str, Any] = {"pgd4_adversarial_branch": 40.0, "pgd4_train_mode_adversarial_branch": 30.0}
    expected = {"pgd4": RobustErrors(60, 50), "pgd4 adversarial branch": RobustErrors(40, 30)}
    assert robust_errors(make_record("bn", **values, **branch)) == expected
    assert robust_errors(make_record("bn", pgd4=None, pgd4_train_mode=None)) == {}
    assert attacks_of([*BN, make_record("bn")]) == ["pgd4"]


def test_a_table_has_the_clean_error_and_the_robust_error_of_both_modes():
    table = make_table(Results([*BN, *GN], ["bn", "gn:8"], [32]), {})
    assert format(table["bn"]["error %, batch 32"], ".1f") == "11.0 ± 1.0"
    assert format(table["bn"]["robust error % (eval-mode pgd4), batch 32"], ".1f") == "61.0 ± 1.0"
    assert format(table["bn"]["robust error % (train-mode pgd4), batch 32"], ".1f") == "51.0 ± 1.7"
    assert format(table["gn:8"]["robust error % (train-mode pgd4), batch 32"], ".1f") == "70.0 ± 1.0"
    assert table.finding.startswith("Robust error: on adversarial images")
    failed = replace(make_record("bn"), status="failed")
    assert robust_results([failed], ["pgd4"]) == {
        f"robust error % ({mode} pgd4)": Result(None, None, 0, num_failed=1) for mode in ("eval-mode", "train-mode")
    }


def test_a_warning_names_the_norms_whose_errors_differ_by_more_than_the_standard_error():
    warning = mode_warning([*BN, *GN], ["bn", "gn:8"], [32])
    assert "for bn (pgd4, batch size 32: 61.0 % and 51.0 %). State the mode" in warning
    assert "gn:8" not in warning
    assert Results([*BN, *GN], ["bn", "gn:8"], [32]).recommendation.endswith(warning)
    assert mode_warning(GN, ["gn:8"], [32]) == ""
    noise = make_records("bn", [(60.0, 61.0), (60.0, 59.0), (60.0, 60.5)])  # 0.17 ± 0.6
    assert mode_warning(noise, ["bn"], [32]) == ""
    assert "bn" in mode_warning(noise[:1], ["bn"], [32])
    assert mode_warning([make_record("bn")], ["bn"], [32]) == ""


def test_the_report_page_has_the_same_columns_and_the_warning(tmp_path):
    config = Config(
        model="small", width=0.5, num_train=64, num_test=40, epochs=1, num_evals=1, options={"attack": "fgsm", "epsilon": 0.2}
    )
    for norm in ("bn", "gn:4"):
        run(replace(config, norm=norm), tmp_path)
    store = Store(tmp_path)
    first, second = (store.record(run.id) for run in store.runs())
    expected = (first.metrics["test_robust_error_fgsm"] or 0.0) - 5
    records = [replace(first, metrics={**first.metrics, "test_robust_error_fgsm_train_mode": expected}), second]
    section = make_section(records, ("norm", "batch_size", "seed", "lr"), StepTimes(tmp_path), store)
    column = section.results.columns.index("robust error % (train-mode fgsm), batch 32")
    assert section.results.rows[0][column] == Cell(f"{expected:.1f}", expected)
    assert "Warning: " in section.answer
    assert "for bn (fgsm, batch size 32" in section.answer
    labels = [curve.label for curve in section.curves]
    assert {"test robust_error_fgsm", "test robust_error_fgsm_train_mode"} <= set(labels)


QUICK = ["--model", "small", "--norms", "bn,gn:4", "--batch-sizes", "16", "--seeds", "1", "--epochs", "1", "--num-train", "64"]
SETTINGS = {"width": 0.5, "num_test": 40, "num_evals": 2}


def test_the_command_and_the_function_attack_every_network(tmp_path):
    arguments = ["compare", *QUICK, *(f"--set={name}={value}" for name, value in SETTINGS.items()), "--processes", "1"]
    done = CliRunner().invoke(app, [*arguments, "--attack", "fgsm", "--attack", "pgd:2", "--runs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "(train-mode pgd2)" in done.output
    table = anynorm.compare(
        ["bn", "gn:4"],
        [16],
        1,
        model="small",
        epochs=1,
        num_train=64,
        attack="fgsm,pgd:2",
        config=SETTINGS,
        processes=1,
        runs=tmp_path,
    )
    names = [name for name in table.rows[0] if name.startswith("robust error")]
    assert names == [
        f"robust error % ({mode} {attack}), batch 16" for attack in ("fgsm", "pgd2") for mode in ("eval-mode", "train-mode")
    ]
    assert len(Store(tmp_path).runs()) == 2  # the function found the runs of the command
    assert table["gn:4"][names[2]] == table["gn:4"][names[3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--attack", "pgd:4", "--set", "epsilon=8"],
            "epsilon must be in [0, 1], the range of images; got 8. Divide by 255: 8/255",
        ),
        (["--attack", "cw"], "an attack must be fgsm or pgd:STEPS, such as pgd:10; got 'cw'"),
        (["--attack", "pgd:4", "--task", "generation"], "there is no flag '--attack'"),
    ],
)
def test_attacks_that_make_no_sense_are_refused(arguments, message, tmp_path):
    done = CliRunner().invoke(app, ["compare", *QUICK[2:], *arguments, "--runs", str(tmp_path)])
    assert done.exit_code != 0
    assert message in str(done.exception)
