"""Import packages once with their warnings ignored: warnings of their own imports, about torch, are not the tests' concern."""

import warnings
from importlib import import_module

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in (
        "mmcv.cnn",
        "opacus",
        "monai.networks.nets",
        "lightning.pytorch",
        "pytorch_lightning",
        "transformers",
        "accelerate",
    ):
        import_module(name)


@pytest.fixture(autouse=True)
def _in_a_temporary_folder(tmp_path, monkeypatch):
    """Trainers write checkpoints into the working directory."""
    monkeypatch.chdir(tmp_path)
