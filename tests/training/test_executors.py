"""Jobs are done wherever they are sent, and a worker that is lost step_times its job alone."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from anynorm.errors import DataError, SpecError
from anynorm.training.config import Config
from anynorm.training.executors import TRIES, LocalExecutor, RayExecutor, Worker, make_executor
from anynorm.training.provenance import cpu_count
from anynorm.training.store import Store

ROOT = Path(__file__).parent.parent.parent

needs_ray = pytest.mark.skipif("not __import__('importlib').util.find_spec('ray')", reason="needs the cluster extra")


def squared(number):
    return number * number, torch.get_num_threads(), os.getpid()


def killed_once(folder, number):
    """Be killed by the system the first time."""
    marks = Path(folder) / str(number)
    if number == 2 and not marks.exists():
        marks.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def killed_always(folder, number):
    """Be killed by the system whenever it is 2; others are not done before that has been given up."""
    if number == 2:
        (Path(folder) / f"{os.getpid()}.killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while len(list(Path(folder).glob("*.killed"))) < TRIES:
        time.sleep(0.05)
    time.sleep(1)
    return number


def refused(number):
    raise SpecError(f"{number} is refused")


@pytest.mark.parametrize("chosen", [LocalExecutor(1), LocalExecutor(2)])
def test_every_item_comes_back_with_its_answer_from_one_thread(chosen):
    threads = torch.get_num_threads()
    found = dict(chosen.map_unordered(squared, [3, 1, 2, 5]))
    assert {item: answer[0] for item, answer in found.items()} == {1: 1, 2: 4, 3: 9, 5: 25}
    assert {answer[1] for answer in found.values()} == {1}
    assert (os.getpid() in {answer[2] for answer in found.values()}) == (chosen.workers == 1)
    assert torch.get_num_threads() == threads


def test_a_killed_worker_is_replaced_and_its_job_done_again(tmp_path):
    assert sorted(item for item, _ in LocalExecutor(2).map_unordered(partial(killed_once, tmp_path), [1, 2, 3, 4])) == [
        1,
        2,
        3,
        4,
    ]


def test_a_job_that_kills_every_worker_is_given_up_and_costs_no_other(tmp_path):
    done = []
    with pytest.raises(DataError, match=rf"2 was given up: the process that worked on it was killed .* {TRIES} times"):  # noqa: PT012
        for item, _ in LocalExecutor(2).map_unordered(partial(killed_always, tmp_path), [2, 1, 3]):
            done.append(item)
    assert sorted(done) == [1, 3]


def test_a_worker_that_dies_between_two_jobs_is_replaced():
    worker = Worker()
    os.kill(worker.map_unordered(own_pid, 0), signal.SIGKILL)
    patience = time.monotonic() + 30
    while not worker.pool._broken:
        assert time.monotonic() < patience
        time.sleep(0.05)
    assert worker.map_unordered(str, 2) == "2"
    worker.pool.shutdown()


def own_pid(_):
    return os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_workers_do_not_outlive_the_process_that_waits_for_them(sign, tmp_path):
    """However it ends: stopped by hand, or killed without a word."""
    code = """
from tests.training.test_executors import *
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have none
list(LocalExecutor(2).map_unordered(slow, [sys.argv[1] + name for name in 'ab']))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    waits = subprocess.Popen([sys.executable, "-c", code, f"{tmp_path}/"], env=environment, stderr=subprocess.DEVNULL)
    try:
        workers = [int(_written(tmp_path / name)) for name in "ab"]
        waits.send_signal(sign)
        waits.wait(30)
    finally:
        waits.kill()
        waits.wait()
    patience = time.monotonic() + 30
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < patience
        time.sleep(0.1)


def slow(path):
    Path(path).with_suffix(".part").write_text(str(os.getpid()))
    Path(path).with_suffix(".part").replace(path)
    time.sleep(300)


def _written(path):
    patience = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < patience
        time.sleep(0.1)
    return path.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_job_raises_is_raised(workers):
    with pytest.raises(SpecError, match="7 is refused"):
        list(LocalExecutor(workers).map_unordered(refused, [7, 7]))


def test_an_executor_that_is_not_known_says_which_are():
    with pytest.raises(DataError, match=r"There is no executor 'slurm'\. Known: local ray\."):
        make_executor("slurm")
    assert make_executor("local").workers == cpu_count()


@needs_ray
@pytest.mark.slow
def test_on_two_workers_of_ray_a_killed_one_is_replaced_and_stored_runs_are_the_same(tmp_path):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(Path.cwd())}})
    try:
        cluster = RayExecutor(2)
        found = dict(cluster.map_unordered(squared, [1, 2, 3]))
        assert {item: answer[0] for item, answer in found.items()} == {1: 1, 2: 4, 3: 9}
        assert {answer[1] for answer in found.values()} == {1}
        assert os.getpid() not in {answer[2] for answer in found.values()}
        assert sorted(item for item, _ in cluster.map_unordered(partial(killed_once, tmp_path), [1, 2, 3, 4])) == [1, 2, 3, 4]
        with pytest.raises(SpecError, match="7 is refused"):
            list(cluster.map_unordered(refused, [7]))
        with pytest.raises(DataError, match=rf"2 was given up after {TRIES} tries"):
            list(cluster.map_unordered(partial(killed_always, tmp_path), [2]))
        from anynorm.comparison import Plan, run_all

        base = Config(model="small", num_train=64, epochs=1)
        there, here = (Plan(base, ["bn", "gn:4"], [16], 1, root=tmp_path / name) for name in ("ray", "local"))
        assert {config.norm for config in run_all(there, 2, "ray")} == {"bn", "gn:4"}
        assert not list(run_all(there, 2, "ray"))  # what is there is not run again
        list(run_all(here, 1))
        for config in there.configs():
            errors = [Store(plan.root).record(config.id)["test_error"] for plan in (there, here)]
            assert errors[0] == errors[1]
    finally:
        ray.shutdown()


@needs_ray
@pytest.mark.slow
def test_a_cluster_of_our_own_works_where_we_are_and_ends_with_us(tmp_path, monkeypatch):
    import ray

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYNORM_RUNS", "here")
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    assert dict(RayExecutor(1).map_unordered(surroundings, [0])) == {0: (str(tmp_path), "here")}
    assert not ray.is_initialized()
    assert list(RayExecutor(1).map_unordered(surroundings, [])) == []


def surroundings(_):
    return str(Path.cwd()), os.environ["ANYNORM_RUNS"]


def test_without_ray_the_executor_says_what_to_install(monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *rest, **others):
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"--executor ray needs Ray: pip install 'anynorm\[cluster\]'"):
        list(RayExecutor(1).map_unordered(squared, [1]))
