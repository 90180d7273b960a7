"""Scenarios on two processes: functions on two ranks, and scripts that torchrun starts."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import anynorm
from anynorm import kernels
from tests.helpers import condition_for, make, same, same_state

WORLD = 2
ROOT = Path(__file__).parents[1]


def two_processes(scenario, tmp_path):
    """Run a scenario on two ranks; an assertion that fails in one fails the test."""
    spawn(_rank, (scenario, str(tmp_path / "store")), nprocs=WORLD)


def _rank(rank, scenario, store):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    try:
        scenario(rank)
    finally:
        dist.destroy_process_group()


def torchrun(script, code):
    """Run code in two processes and return their output."""
    script.write_text(code)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}  # tasks of tests
    done = subprocess.run(launcher, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "requires_grad" not in done.stderr
    return done.stdout


def train_in_two_processes(configs, runs):
    """Train runs one after another, in two processes, and store them in a folder."""
    torchrun(
        runs / "two.py",
        f"""
import torch
from pathlib import Path
torch.set_num_threads(1)
from anynorm.lab.training.config import Config
from anynorm.lab.tasks.run import run
for config in {configs!r}:
    assert run(config, Path({str(runs)!r}))
""",
    )


def run(norm, x, condition, adds_x=False):
    """Output and gradients of a function whose sum over parts is that of the whole; x is the residual too if `adds_x`."""
    x = x.detach().clone().requires_grad_()
    y = norm(x, condition, residual=x if adds_x else None)
    (y * y.detach().cos()).sum().backward()
    return y.detach(), x.grad, [p.grad for p in norm.parameters() if p.requires_grad]


def check_parts(rank, spec, whole, split, name="auto", activation=None, adds_x=False):
    """Check that ranks with the samples before and after `split`, on kernels of that name, give what one process gives."""
    alone, together = make(spec, activation=activation), make(spec, activation=activation)
    assert [row["path"] for row in anynorm.sync(together)] == [""]
    condition = condition_for(alone, whole)
    y, grad, parameter_grads = run(alone, whole, condition, adds_x)
    where = slice(0, split) if rank == 0 else slice(split, len(whole))
    with kernels.use(name):
        own_condition = None if condition is None else condition[where]
        z, own_grad, own_parameter_grads = run(together, whole[where], own_condition, adds_x)
    same(z, y[where], rtol=1e-4, atol=1e-5)
    same(own_grad, grad[where], rtol=1e-3, atol=1e-5)
    for ours, expected in zip(own_parameter_grads, parameter_grads, strict=True):
        total = ours.clone()
        dist.all_reduce(total)
        same(total, expected, rtol=1e-4, atol=1e-4)
    same_state(together, alone)
