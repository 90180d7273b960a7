"""Jobs return their results wherever they run, and a worker that dies costs its own job alone."""

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
from anynorm.lab.tasks.run import run
from anynorm.lab.training.config import Config
from anynorm.lab.training.executors import MAX_ATTEMPTS, Executor, LocalExecutor, RayExecutor, make_executor
from anynorm.lab.training.provenance import cpu_count
from anynorm.lab.training.store import Store

ROOT = Path(__file__).parents[3]

needs_ray = pytest.mark.skipif("not __import__('importlib').util.find_spec('ray')", reason="needs the cluster extra")


def square(number):
    return number * number, torch.get_num_threads(), os.getpid()


def get_pid(_):
    return os.getpid()


def die_once(folder, number):
    """Kill the process of job 2 in its first attempt."""
    mark = Path(folder) / str(number)
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_always(folder, number):
    """Kill the process of job 2 in every attempt; the other jobs end after the last of them."""
    if number == 2:
        (Path(folder) / f"{os.getpid()}.killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while len(list(Path(folder).glob("*.killed"))) < MAX_ATTEMPTS:
        time.sleep(0.05)
    time.sleep(1)
    return number


def refuse(number):
    raise SpecError(f"{number} is refused")


def refuse_7_and_sleep(folder, number):
    """Raise in job 7 when the others have begun; they would sleep for minutes."""
    if number == 7:
        while not list(Path(folder).iterdir()):
            time.sleep(0.05)
        raise SpecError("7 is refused")
    sleep_long(Path(folder) / str(number))


def sleep_long(path):
    part = Path(f"{path}.part")
    part.write_text(str(os.getpid()))
    part.replace(path)
    time.sleep(300)


def wait_for_file(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return path.read_text()


def wait_for_end(pids):
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("executor", [LocalExecutor(1), LocalExecutor(2)])
def test_every_item_is_returned_with_its_result_from_a_single_thread(executor):
    threads = torch.get_num_threads()
    results = dict(executor.map_unordered(square, [3, 1, 2, 5]))
    assert {item: result[0] for item, result in results.items()} == {1: 1, 2: 4, 3: 9, 5: 25}
    assert {result[1] for result in results.values()} == {1}
    pids = {result[2] for result in results.values()}
    assert (os.getpid() in pids) == (executor.workers == 1)
    assert len(pids) <= executor.workers
    assert torch.get_num_threads() == threads
    assert list(executor.map_unordered(square, [])) == []


def test_a_killed_worker_is_replaced_and_its_job_repeated(tmp_path):
    results = LocalExecutor(2).map_unordered(partial(die_once, tmp_path), [1, 2, 3, 4])
    assert sorted(item for item, _ in results) == [1, 2, 3, 4]


def test_a_job_that_kills_every_worker_fails_after_the_others_are_done(tmp_path):
    done = []
    message = rf"2 failed after {MAX_ATTEMPTS} attempts: its worker process was killed .* Run the command again to resume"
    with pytest.raises(DataError, match=message):  # noqa: PT012
        for item, _ in LocalExecutor(2).map_unordered(partial(die_always, tmp_path), [2, 1, 3]):
            done.append(item)
    assert sorted(done) == [1, 3]
    assert len(list(tmp_path.glob("*.killed"))) == MAX_ATTEMPTS == 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_dies_between_two_jobs_is_replaced():
    pids = []
    for _, pid in LocalExecutor(2).map_unordered(get_pid, range(6)):
        pids.append(pid)
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)  # the pool sees it
    assert len(pids) == 6
    assert len(set(pids)) > 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGKILL])
def test_workers_do_not_outlive_their_parent(signal_, tmp_path):
    """Whether it is interrupted by Ctrl-C or killed."""
    code = """
from tests.lab.training.test_executors import *
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
list(LocalExecutor(2).map_unordered(sleep_long, [sys.argv[1] + name for name in 'ab']))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", code, f"{tmp_path}/"], env=environment, stderr=subprocess.DEVNULL)
    try:
        workers = [int(wait_for_file(tmp_path / name)) for name in "ab"]
        parent.send_signal(signal_)
        parent.wait(30)
    finally:
        parent.kill()
        parent.wait()
    wait_for_end(workers)


@pytest.mark.slow
def test_a_script_without_a_main_guard_gets_a_message_that_names_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from anynorm.lab.training.executors import LocalExecutor\nlist(LocalExecutor(2).map_unordered(abs, [1, 2]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "must start workers inside `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_of_a_job_is_raised(workers):
    with pytest.raises(SpecError, match="7 is refused"):
        list(LocalExecutor(workers).map_unordered(refuse, [7, 7]))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_exception_of_a_job_stops_the_others(tmp_path):
    with pytest.raises(SpecError, match="7 is refused"):
        list(LocalExecutor(2).map_unordered(partial(refuse_7_and_sleep, tmp_path), [1, 7, 2]))
    (path,) = tmp_path.iterdir()
    wait_for_end([int(path.read_text())])


def test_an_unknown_executor_is_refused():
    with pytest.raises(DataError, match=r"executor must be one of local ray; got 'slurm'\."):
        make_executor("slurm")
    assert make_executor("local").workers == cpu_count()


@needs_ray
@pytest.mark.slow
def test_on_two_workers_of_ray_a_killed_one_is_replaced_and_stored_runs_are_the_same(tmp_path):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(Path.cwd())}})
    try:
        cluster = RayExecutor(2)
        results = dict(cluster.map_unordered(square, [1, 2, 3]))
        assert {item: result[0] for item, result in results.items()} == {1: 1, 2: 4, 3: 9}
        assert {result[1] for result in results.values()} == {1}
        assert os.getpid() not in {result[2] for result in results.values()}
        assert sorted(item for item, _ in cluster.map_unordered(partial(die_once, tmp_path), [1, 2, 3, 4])) == [1, 2, 3, 4]
        with pytest.raises(SpecError, match="7 is refused"):
            list(cluster.map_unordered(refuse, [7]))
        with pytest.raises(DataError, match=rf"2 failed after {MAX_ATTEMPTS} attempts"):
            list(cluster.map_unordered(partial(die_always, tmp_path), [2]))
        configs = [Config(model="small", num_train=64, batch_size=16, epochs=1, norm=norm) for norm in ("bn", "gn:4")]
        executors: dict[str, Executor] = {"ray": cluster, "local": LocalExecutor(1)}
        for name, executor in executors.items():
            trained = dict(executor.map_unordered(partial(run, root=tmp_path / name), configs))
            assert trained == dict.fromkeys(configs, True)
            repeated = dict(executor.map_unordered(partial(run, root=tmp_path / name), configs))
            assert repeated == dict.fromkeys(configs, False)  # the store has them
        for config in configs:
            curves = [Store(tmp_path / name).record(config.id).curve for name in executors]
            assert curves[0] == curves[1]
    finally:
        ray.shutdown()


@needs_ray
@pytest.mark.slow
def test_a_temporary_cluster_has_our_folder_and_variables_and_ends_with_the_jobs(tmp_path, monkeypatch):
    import ray

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYNORM_DATA", "here")
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    assert dict(RayExecutor(1).map_unordered(get_surroundings, [0])) == {0: (str(tmp_path), "here")}
    assert not ray.is_initialized()
    assert list(RayExecutor(1).map_unordered(get_surroundings, [])) == []


@needs_ray
@pytest.mark.slow
def test_every_job_on_cuda_has_a_gpu_of_the_ray_cluster_to_itself(tmp_path):
    """The GPUs are declared to Ray; the machine needs none."""
    import ray

    ray.init(
        num_cpus=4,
        num_gpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    try:
        for executor in (RayExecutor(4, "cuda"), RayExecutor(4, "auto"), make_executor("ray", 4)):
            folder = tmp_path / str(time.monotonic())
            folder.mkdir()
            results = dict(executor.map_unordered(partial(use_gpu, folder), range(4)))
            gpus, at_a_time = zip(*results.values(), strict=True)
            assert sorted(set(gpus)) == ["0", "1"]
            assert max(at_a_time) == 2  # of four jobs on four cores
        ((_, (gpus, _)),) = RayExecutor(4, "cuda", devices=2).map_unordered(partial(use_gpu, tmp_path), [0])
        assert sorted(gpus.split(",")) == ["0", "1"]
        ((_, (gpus, _)),) = RayExecutor(4, "cpu").map_unordered(partial(use_gpu, tmp_path), [0])
        assert gpus == ""
        with pytest.raises(DataError, match=r"at least 3 GPUs; the machines of the Ray cluster have at most 2\."):
            list(RayExecutor(4, "cuda", devices=3).map_unordered(partial(use_gpu, tmp_path), [0]))
    finally:
        ray.shutdown()


def use_gpu(folder, number):
    """Return the GPUs of the job and the number of jobs that run at this moment."""
    import ray

    mark = folder / str(number)
    mark.touch()
    time.sleep(2)
    at_a_time = len(list(folder.iterdir()))
    mark.unlink()
    return ",".join(str(gpu) for gpu in ray.get_gpu_ids()), at_a_time


def test_without_gpus_in_the_ray_cluster_auto_is_the_cpu_and_cuda_is_refused():
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"GPU": 8.0}}]
    assert RayExecutor(2)._gpus_per_job(nodes) == 0
    with pytest.raises(DataError, match=r"at least 1 GPUs; the machines of the Ray cluster have at most 0\."):
        RayExecutor(2, "cuda")._gpus_per_job(nodes)


def get_surroundings(_):
    return str(Path.cwd()), os.environ["ANYNORM_DATA"]


def test_without_ray_the_error_names_the_extra(monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *rest, **others):
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"--executor ray needs Ray: pip install 'anynorm\[cluster\]'"):
        list(RayExecutor(1).map_unordered(square, [1]))
