"""Several processes train one network."""

import subprocess
import sys

import pytest
import torch

import anynorm
from anynorm.data import load
from anynorm.training.config import Config, config_from_dict
from anynorm.training.run import run
from anynorm.training.store import Store

DATA = load("digits")
QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)


@pytest.mark.slow
def test_processes_of_torchrun_train_one_network_and_synchronised_they_are_one_batch(tmp_path):
    code = f"""
import sys, torch
from dataclasses import replace
from pathlib import Path
torch.set_num_threads(1)
from anynorm.training.norm_layout import split_norms
from anynorm.training.run import run
from anynorm.training.config import Config
base = {QUICK!r}
run(replace(base, batch_size=8, devices=2, sync=True), Path({str(tmp_path)!r}))
run(replace(base, batch_size=8, devices=2), Path({str(tmp_path)!r}))
"""
    script = tmp_path / "two.py"
    script.write_text(code)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(launcher, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "requires_grad" not in done.stderr
    run(QUICK, tmp_path, data=DATA)
    store = Store(tmp_path)
    synced, apart = (config_from_dict({**vars(QUICK), "batch_size": 8, "devices": 2, "sync": sync}) for sync in (True, False))
    weights = [torch.load(store.folder(config.id) / "model.pt")["0.0.weight"] for config in (QUICK, synced, apart)]
    together, on_their_own = (float((weights[0] - found).abs().max() / weights[0].abs().max()) for found in weights[1:])
    assert together < 1e-4
    assert on_their_own > 10 * together
    assert store.record(synced.id)["curve"][-1]["test_loss"] == pytest.approx(
        store.record(QUICK.id)["curve"][-1]["test_loss"], rel=1e-3
    )
    with pytest.raises(anynorm.DataError, match="torchrun --nproc-per-node 2"):
        run(synced, tmp_path / "other", data=DATA)
