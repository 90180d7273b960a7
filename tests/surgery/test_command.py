"""`anynorm convert` chooses norms as `anynorm.convert` does."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app, main

HERE = "tests.surgery.test_command"


def hybrid():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8))


def without_batch_norm():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8))


def without_supported_norm():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(2))


def layer_norm():
    return nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make("pn", 8), nn.Conv2d(8, 4, 1))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def converted(*arguments):
    done = run("convert", "in", "--model", f"{HERE}:hybrid", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return {row["path"]: row["new_norm"] for row in json.loads(done.stdout)["rows"]}


def test_without_where_only_norms_that_pool_over_samples_are_converted():
    assert converted() == {"1": "in", "2": None}


def test_where_takes_all_and_paths():
    assert converted("--where", "all") == {"1": "in", "2": "in"}
    assert converted("--where", "2") == {"2": "in"}


def test_without_where_all_norms_are_converted_if_none_pools_over_samples():
    done = run("convert", "in", "--model", f"{HERE}:without_batch_norm", "--json")
    assert [row["new_norm"] for row in json.loads(done.stdout)["rows"]] == ["in"]


def test_a_model_without_a_supported_norm_is_misuse(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["anynorm", "convert", "in", "--model", f"{HERE}:without_supported_norm"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "can be converted; nothing was changed:\n  1 (LocalResponseNorm): the class" in capsys.readouterr().err


def test_the_help_says_what_is_converted_by_default():
    assert "norms that pool over samples" in " ".join(run("convert", "--help").stdout.replace("│", " ").split())


def test_to_rms_writes_the_centered_model_and_fold_lists_gamma_and_beta(tmp_path):
    torch.save(torch.randn(2, 3, 6, 6), tmp_path / "x.pt")
    arguments = ("--model", f"{HERE}:layer_norm", "--data", tmp_path / "x.pt")
    done = run("to-rms", *arguments, "--out", tmp_path / "rms.safetensors")
    assert done.exit_code == 0, done.output
    assert "1 of 1 norms changed, 2 tensors centered or scaled" in done.stdout
    weight = load_file(tmp_path / "rms.safetensors")["0.weight"]
    assert float(weight.mean(0).abs().max()) < 1e-7
    rows = json.loads(run("fold", *arguments, "--json").stdout)["rows"]
    assert rows[0]["into"] == "2"
    assert "only γ and β" in rows[0]["note"]


def group_normed():
    torch.manual_seed(0)
    return anynorm.lab.CifarResNet(8, norm=anynorm.layer("gn:4"), width=8)


def test_convert_distill_and_fold_are_one_command(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(80, 3, 16, 16)
    torch.save(x, tmp_path / "x.pt")
    arguments = ["convert", "hn", "--model", f"{HERE}:group_normed", "--distill", tmp_path / "x.pt", "--steps", "40", "--fold"]
    done = run(*arguments, "--resume", tmp_path / "d.pt", "--out", tmp_path / "m.safetensors", "--json")
    assert done.exit_code == 0, done.output
    reports = json.loads(done.stdout)
    assert [row["new_norm"] for row in reports["rows"]] == ["hn"] * 7
    assert [row["path"] for row in reports["distill"]["rows"]] == ["layer1.0", "layer2.0", "layer3.0", "end to end"]
    assert reports["fold"]["finding"].startswith("7 of 7 norms folded")
    assert reports["fold"]["finding"].endswith(f"Wrote {tmp_path / 'm.safetensors'}.")
    assert torch.load(tmp_path / "d.pt", weights_only=True)["rows"] == reports["distill"]["rows"]

    original, plain = group_normed().eval(), group_normed().eval()
    anynorm.convert(plain, "hn", where="all", fit=x)
    folded = group_normed().eval()
    anynorm.convert(folded, "hn", where="all", fit=x)
    anynorm.fold(folded, x[:1])
    folded.load_state_dict(load_file(tmp_path / "m.safetensors"))
    with torch.no_grad():
        target = original(x)
        assert (folded(x) - target).norm() < (plain(x) - target).norm()


def test_the_tables_of_all_operations_are_printed(tmp_path):
    torch.save(torch.randn(80, 3, 16, 16), tmp_path / "x.pt")
    done = run("convert", "hn", "--model", f"{HERE}:group_normed", "--fit", tmp_path / "x.pt", "--fold")
    assert done.exit_code == 0, done.output
    assert "7 of 7 norms are now hn." in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("7 of 7 norms folded")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "3"], "--steps is an option of --distill"),
        (["--fold"], "--fold runs the model on an example; pass inputs by"),
    ],
)
def test_options_of_a_later_operation_need_its_inputs(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr("sys.argv", ["anynorm", "convert", "hn", "--model", f"{HERE}:group_normed", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
