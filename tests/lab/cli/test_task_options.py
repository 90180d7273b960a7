"""Options of tasks as flags of `anynorm compare`."""

import pytest
from typer.testing import CliRunner

from anynorm.cli import app
from anynorm.errors import SpecError
from anynorm.lab.cli.task_options import describe_options, parse_flags
from tests.lab.training.test_options import WaveOptions


def test_flags_are_parsed_by_the_type_of_the_field():
    args = ["--noise", "1/4", "--masks", "--sizes=4,8", "--kind", "sine"]
    assert WaveOptions.from_values(parse_flags(args, WaveOptions)) == WaveOptions(noise=0.25, masks=True, sizes=(4, 8))
    assert parse_flags(["--no-masks"], WaveOptions) == {"masks": "false"}
    for args, message in (
        (["--nose", "1"], "there is no flag '--nose'. Did you mean --noise?"),
        (["--noise"], "--noise must have a value"),
        (["word"], "there is no flag 'word'. See --help"),
        (["--no-noise"], "there is no flag '--no-noise'"),
    ):
        with pytest.raises(SpecError, match=message.replace("?", r"\?")):
            parse_flags(args, WaveOptions)


def test_a_flag_of_several_values_can_be_repeated():
    assert parse_flags(["--sizes", "4", "--sizes=8,16", "--noise", "1", "--noise", "2"], WaveOptions) == {
        "sizes": "4,8,16",
        "noise": "2",
    }


def test_the_help_has_every_flag_with_its_default():
    text = describe_options(WaveOptions)
    for name, help_text in WaveOptions.descriptions().items():
        assert f"--{name}" in text
        assert help_text in text
    assert "--sizes   comma-separated integers [default: 8,16]" in text


@pytest.mark.parametrize("arguments", [["--task", "adversarial"], ["--task=adversarial"]])
def test_help_of_a_task_lists_its_options(arguments):
    text = CliRunner().invoke(app, ["compare", *arguments, "--help"]).stdout
    assert "Options of adversarial" in text
    assert "--attack-norm-mode   text [default: eval]" in text
    assert text.count("--attack   ") == 1
    assert "Options of" not in CliRunner().invoke(app, ["compare", "--help"]).stdout


def test_a_flag_of_an_option_is_checked_like_a_setting(tmp_path):
    for arguments in (["--train-attack", "cw"], ["--set", "train_attack=cw"]):
        done = CliRunner().invoke(app, ["compare", "--task", "adversarial", *arguments, "--runs", str(tmp_path)])
        assert "an attack must be fgsm or pgd:STEPS, such as pgd:10; got 'cw'" in str(done.exception)
