"""Several processes train one network, and end together when one of them diverges."""

from dataclasses import replace

import pytest
import torch

import anynorm
from anynorm.lab.tasks.run import run
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.store import Store
from tests.distributed import torchrun

QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)


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
from anynorm.lab.tasks.run import run
from anynorm.lab.training.config import Config
assert run({synced!r}, Path({str(tmp_path)!r}))
assert run({apart!r}, Path({str(tmp_path)!r}))
assert not run({apart!r}, Path({str(tmp_path)!r}))
""",
    )
    run(QUICK, tmp_path)
    store = Store(tmp_path)
    weights = [torch.load(store.folder(config.id) / "model.pt")["0.0.weight"] for config in (QUICK, synced, apart)]
    with_sync, without = (float((weights[0] - other).abs().max() / weights[0].abs().max()) for other in weights[1:])
    assert with_sync < 1e-4
    assert without > 10 * with_sync
    assert store.record(synced.id).curve[-1]["test_loss"] == pytest.approx(
        store.record(QUICK.id).curve[-1]["test_loss"], rel=1e-3
    )
    with pytest.raises(anynorm.DataError, match=r"devices=2 and 1 process\. Use torchrun --nproc-per-node 2"):
        run(synced, tmp_path / "other")


@pytest.mark.slow
def test_a_nan_in_one_process_ends_the_run_in_all_of_them_at_that_step(tmp_path):
    """Only rank 1 has the NaN, in its loss or in an evaluation."""
    lines = torchrun(
        tmp_path / "nan.py",
        f"""
import os
import torch
torch.set_num_threads(1)
from anynorm.lab.tasks.classification.task import Classification
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import DivergedError
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.trainer import Trainer

rank = int(os.environ["RANK"])
config = Config(**{vars(replace(QUICK, batch_size=8, devices=2, num_evals=2))!r})

class NanInLoss(Classification):
    def training_batch(self, step, number=0):
        inputs, targets = super().training_batch(step, number)
        return (inputs * float("nan") if rank == 1 and step == 2 else inputs), targets

class NanInEvaluation(Classification):
    def evaluate(self):
        return {{"error": 0.0, "loss": float("nan") if rank == 1 else 0.0}}

for task in (NanInLoss, NanInEvaluation):
    trainer = Trainer(config, task(config))
    try:
        for _ in range(4):
            trainer.training_step()
            if trainer.step == 2:
                trainer.evaluate()
    except DivergedError as error:
        os.write(1, f"{{task.__name__}}, rank {{rank}}: {{error}}\\n".encode())  # one write: lines do not mix
    assert trainer.step == 2
""",
    ).splitlines()
    assert sorted(line for line in lines if "rank" in line) == [
        "NanInEvaluation, rank 0: a test metric is not finite in another process after step 2",
        "NanInEvaluation, rank 1: the test loss is nan after step 2",
        "NanInLoss, rank 0: a metric is not finite in another process in step 2",
        "NanInLoss, rank 1: the loss is nan in step 2",
    ]


@pytest.mark.slow
def test_the_main_process_decides_and_all_wait_at_a_barrier(tmp_path):
    output = torchrun(
        tmp_path / "collectives.py",
        """
import time
import torch
from anynorm.lab.training.config import Config
from anynorm.lab.training.devices import Hardware, make_fabric
from anynorm.lab.training.distributed import Processes
make_fabric(Config(devices=2), Hardware("cpu"))
make_fabric(Config(devices=2), Hardware("cpu"))  # a second one joins the same processes
processes = Processes(2)
rank = processes.rank
assert processes.is_main == (rank == 0)
assert processes.broadcast_bool(rank == 0) and not processes.broadcast_bool(rank == 1)
assert processes.all_true(True) and not processes.all_true(rank == 0) and not processes.all_true(rank == 1)
assert processes.sum([1.0, float(rank)]) == [2.0, 1.0]
parameters = [torch.zeros(3, requires_grad=True), torch.zeros(2, 2, dtype=torch.float64, requires_grad=True), torch.zeros(1)]
for parameter in parameters[:2]:
    parameter.grad = torch.full_like(parameter, float(rank))
processes.average_gradients(parameters)
assert all(torch.equal(parameter.grad, torch.full_like(parameter, 0.5)) for parameter in parameters[:2])
tensors = [torch.full((2,), rank), torch.full((3,), float(rank))]
processes.broadcast_tensors(tensors)
assert not any(tensor.any() for tensor in tensors)
start = time.monotonic()
time.sleep(2 * rank)
processes.barrier()
assert time.monotonic() - start > 1.5
print("agreed", flush=True)
""",
    )
    assert output.count("agreed") == 2


def test_a_single_process_is_its_own_group():
    processes = Processes()
    processes.barrier()
    assert (processes.rank, processes.is_main) == (0, True)
    assert processes.sum([1.5]) == [1.5]
    for value in (True, False):
        assert processes.broadcast_bool(value) is processes.all_true(value) is value
