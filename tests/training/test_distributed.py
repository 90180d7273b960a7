"""Several processes train one network, and end together when one of them diverges."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import anynorm
from anynorm.data import load_dataset
from anynorm.training import distributed
from anynorm.training.config import Config
from anynorm.training.run import run
from anynorm.training.store import Store

DATA = load_dataset("digits")
QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)


def torchrun(script, code):
    """Run code in two processes and return what they print."""
    script.write_text(code)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(launcher, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "requires_grad" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_processes_of_torchrun_train_one_network_and_synchronized_they_are_one_batch(tmp_path):
    synced = replace(QUICK, batch_size=8, devices=2, sync=True)
    apart = replace(synced, sync=False)
    torchrun(
        tmp_path / "two.py",
        f"""
import torch
from pathlib import Path
torch.set_num_threads(1)
from anynorm.training.run import run
from anynorm.training.config import Config
assert run({synced!r}, Path({str(tmp_path)!r}))
assert run({apart!r}, Path({str(tmp_path)!r}))
assert not run({apart!r}, Path({str(tmp_path)!r}))
""",
    )
    run(QUICK, tmp_path, data=DATA)
    store = Store(tmp_path)
    weights = [torch.load(store.folder(config.id) / "model.pt")["0.0.weight"] for config in (QUICK, synced, apart)]
    with_sync, without = (float((weights[0] - other).abs().max() / weights[0].abs().max()) for other in weights[1:])
    assert with_sync < 1e-4
    assert without > 10 * with_sync
    assert store.record(synced.id)["curve"][-1]["test_loss"] == pytest.approx(
        store.record(QUICK.id)["curve"][-1]["test_loss"], rel=1e-3
    )
    with pytest.raises(anynorm.DataError, match=r"devices=2 and 1 process\. Use torchrun --nproc-per-node 2"):
        run(synced, tmp_path / "other", data=DATA)


@pytest.mark.slow
def test_a_nan_in_one_process_ends_the_run_in_all_of_them_at_that_step(tmp_path):
    """Only rank 1 has the NaN, in its loss or in its running statistics."""
    lines = torchrun(
        tmp_path / "nan.py",
        f"""
import os
import torch
torch.set_num_threads(1)
from anynorm.data import load_dataset
from anynorm.training import distributed
from anynorm.training.config import Config
from anynorm.training import trainer as module
from anynorm.training.trainer import Trainer

distributed.init_process_group(2)
rank = distributed.rank()
config = Config(**{vars(replace(QUICK, batch_size=8, devices=2, num_evals=2))!r})

class NanInLoss(Trainer):
    def batch(self, step, part):
        inputs, targets = super().batch(step, part)
        return (inputs * float("nan") if rank == 1 and step == 2 else inputs), targets

class NanInBuffers(Trainer):
    def evaluate(self):
        for name, buffer in self.model.named_buffers():
            if rank == 1 and name.endswith("running_mean"):
                buffer.fill_(float("nan"))
        super().evaluate()

for module.Trainer in (NanInLoss, NanInBuffers):
    trainer, failure = module.train(config, data=load_dataset("digits"))
    os.write(1, f"{{module.Trainer.__name__}}, rank {{rank}}: {{failure}}\\n".encode())  # one write: lines do not mix
    assert trainer.step == 2
""",
    ).splitlines()
    assert sorted(line for line in lines if "rank" in line) == [
        "NanInBuffers, rank 0: the test loss is not finite in another process after step 2",
        "NanInBuffers, rank 1: the test loss is nan after step 2",
        "NanInLoss, rank 0: the loss is not finite in another process in step 2",
        "NanInLoss, rank 1: the loss is nan in step 2",
    ]


@pytest.mark.slow
def test_the_main_process_decides_and_all_wait_at_a_barrier(tmp_path):
    output = torchrun(
        tmp_path / "collectives.py",
        """
import time
from anynorm.training import distributed
distributed.init_process_group(2)
distributed.init_process_group(2)  # once is enough
rank = distributed.rank()
assert distributed.world_size() == 2
assert distributed.is_main_process() == (rank == 0)
assert distributed.broadcast_bool(rank == 0) and not distributed.broadcast_bool(rank == 1)
assert distributed.all_true(True) and not distributed.all_true(rank == 0) and not distributed.all_true(rank == 1)
start = time.monotonic()
time.sleep(2 * rank)
distributed.barrier()
assert time.monotonic() - start > 1.5
print("agreed", flush=True)
""",
    )
    assert output.count("agreed") == 2


def test_a_single_process_is_its_own_group():
    distributed.init_process_group(1)
    distributed.barrier()
    assert (distributed.world_size(), distributed.rank(), distributed.is_main_process()) == (1, 0, True)
    for value in (True, False):
        assert distributed.broadcast_bool(value) is distributed.all_true(value) is value
