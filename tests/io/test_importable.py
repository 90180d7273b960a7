"""Modules of the current folder can be imported by a command, and nothing else changes sys.path."""

import sys

import pytest
import torch
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.io.checkpoints import import_object
from anynorm.io.importable import importable_folder
from anynorm.lab.tasks.run import make_trainer
from anynorm.lab.training.config import Config

MODEL = """
import torch

def net():
    import helper_of_a_user
    return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4))
"""


def test_a_command_imports_from_the_current_folder_and_takes_that_back(tmp_path, monkeypatch):
    (tmp_path / "model_of_a_user.py").write_text(MODEL)
    (tmp_path / "helper_of_a_user.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = list(sys.path)
    for words, code in (
        (["inspect", "--model", "model_of_a_user:net"], 0),
        (["inspect", "--model", "model_of_a_user:nothing"], 1),
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == code, done.output
        assert sys.path == before


def test_a_block_that_fails_takes_the_folder_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = list(sys.path)
    try:
        with importable_folder():
            assert sys.path == [str(tmp_path), *before]
            raise KeyError
    except KeyError:
        assert sys.path == before


def test_the_library_and_the_trainer_leave_the_path_alone(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="needs the lab extra")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = list(sys.path)
    anynorm.make("sn", 8)(torch.randn(2, 8, 3))
    import_object("torch.nn:Identity")
    make_trainer(Config(num_train=64)).training_step()
    settings = {"model": "small", "num_train": 64, "epochs": 1, "processes": 1, "runs": tmp_path}
    anynorm.compare(["bn"], [16], 1, width=0.5, **settings)
    assert sys.path == before
