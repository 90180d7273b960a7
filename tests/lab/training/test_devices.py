"""Devices and precision: what is refused, what runs without waiting for a device, and how several processes are started."""

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import anynorm
from anynorm.lab.comparison.check import check_task
from anynorm.lab.comparison.comparison import Comparison
from anynorm.lab.tasks.run import make_trainer, train
from anynorm.lab.training import curve, trainer
from anynorm.lab.training.config import Config
from anynorm.lab.training.devices import WORKER_VARIABLE, Hardware, available_devices, check_processes, make_fabric, num_gpus

QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05, num_evals=1)


class MetaFabric:
    """A device without values, in place of a GPU: reading a value raises; on a GPU it would only wait."""

    device = torch.device("meta")
    strategy = SimpleNamespace(
        optimizer_step=lambda optimizer: optimizer.step(),
        precision=SimpleNamespace(state_dict=dict, load_state_dict=lambda _: None),
    )

    def autocast(self):
        return nullcontext()

    def backward(self, loss):
        loss.backward()


@pytest.fixture
def meta_trainer(monkeypatch):
    monkeypatch.setattr(trainer, "make_fabric", lambda *_: MetaFabric())
    monkeypatch.setattr("anynorm.lab.training.task.FUSED", False)  # torch has no fused optimizer for this device
    return lambda **options: make_trainer(replace(QUICK, **options))


@pytest.mark.parametrize(
    "options", [{"ema_decay": 0.9}, {"crop": 1, "flip": True, "cutout": 2, "mixup": 0.2, "grad_accum_steps": 2, "batch_size": 8}]
)
@pytest.mark.parametrize("norm", ["bn", "sn", "gn:4"])
def test_a_step_on_a_device_never_waits_for_it(meta_trainer, norm, options):
    training = meta_trainer(norm=norm, **options)
    assert {parameter.device.type for parameter in training.task.parameters()} == {"meta"}
    for _ in range(3):
        training.training_step()
    assert len(training.curve._pending) == 3
    with pytest.raises(RuntimeError, match="meta"):
        training.curve.check()


def test_metrics_on_a_device_are_read_every_few_steps(meta_trainer, monkeypatch):
    training = meta_trainer()
    monkeypatch.setattr(training.curve, "check", training.curve._pending.clear)
    pending = []
    for _ in range(curve.GPU_STEPS + 2):
        training.step = 0
        training.training_step()
        pending.append(len(training.curve._pending))
    assert pending == [*range(1, curve.GPU_STEPS), 0, 1, 2]


def test_a_device_that_is_not_there_is_refused_with_those_that_are():
    assert available_devices() == ["cpu"]
    assert Hardware("auto").kind == Hardware("cpu").kind == "cpu"
    assert num_gpus(Hardware("cpu")) == 0
    with pytest.raises(anynorm.DataError, match=r"device cuda is not available; this machine has cpu\. `anynorm info` prints"):
        Hardware("cuda")
    with pytest.raises(anynorm.SpecError, match="device must be one of auto cpu cuda mps; got 'gpu'"):
        Hardware("gpu")
    with pytest.raises(anynorm.SpecError, match="nodes must be at least 1; got 0"):
        Hardware(nodes=0)
    with pytest.raises(anynorm.SpecError, match="logger must be one of tensorboard; got 'wandb'"):
        Hardware(logger="wandb")


def test_half_precision_needs_a_gpu_and_an_unknown_precision_is_refused():
    with pytest.raises(anynorm.DataError, match=r"precision 16-mixed needs a GPU\. Use bf16-mixed or 32 on the CPU"):
        make_trainer(replace(QUICK, precision="16-mixed"))
    with pytest.raises(anynorm.SpecError, match="precision must be one of 32 bf16-mixed 16-mixed; got 'float16'"):
        replace(QUICK, precision="float16")


def test_mixed_precision_computes_in_bfloat16_and_keeps_float32_parameters():
    training = make_trainer(replace(QUICK, precision="bf16-mixed"))
    dtypes = []
    training.task.network.register_forward_hook(lambda *arguments: dtypes.append(arguments[2].dtype))
    training.training_step()
    assert dtypes == [torch.bfloat16]
    assert {parameter.dtype for parameter in training.task.parameters()} == {torch.float32}


def test_the_number_of_processes_must_be_that_of_the_run(monkeypatch):
    with pytest.raises(anynorm.DataError, match=r"devices=2 and 1 process\. Use torchrun --nproc-per-node 2"):
        check_processes(replace(QUICK, devices=2), Hardware("cpu"))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(anynorm.DataError, match=r"devices=1 and 3 processes\. Use torchrun --nproc-per-node 1"):
        check_processes(QUICK, Hardware("cpu"))
    with pytest.raises(anynorm.DataError, match=r"devices must be a multiple of nodes; got devices=3 and nodes=2"):
        check_processes(replace(QUICK, devices=3), Hardware("cpu", nodes=2))


def test_each_worker_process_uses_its_own_gpu(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    class Fabric:
        world_size = 1

        def __init__(self, **arguments):
            chosen.append((arguments["accelerator"], arguments["devices"]))

        def launch(self):
            pass

    monkeypatch.setattr("lightning_fabric.Fabric", Fabric)
    for worker in ("0", "1", "2"):
        monkeypatch.setenv(WORKER_VARIABLE, worker)
        make_fabric(QUICK, Hardware("auto"))
    assert chosen == [("cuda", [0]), ("cuda", [1]), ("cuda", [0])]


@pytest.mark.slow
def test_the_command_starts_the_processes_of_a_run_by_itself(tmp_path):
    arguments = "compare --norms gn:4 --batch-sizes 8 --seeds 1 --epochs 1 --num-train 64 --model small --width 0.5 --device cpu"
    command = [sys.executable, "-m", "anynorm", *arguments.split(), "--devices", "2", "--runs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert "[1/1] gn:4, batch size 8, seed 0:" in done.stderr
    assert done.stdout.count("Wrote") == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile itself reads it
def test_a_compiled_network_learns_as_the_eager_one(tmp_path):
    eager, compiled = (train(replace(QUICK, norm="gn:4", compile=flag)).trainer for flag in (False, True))
    assert compiled.curve.points[-1]["test_loss"] == pytest.approx(eager.curve.points[-1]["test_loss"], rel=1e-3)
    assert compiled.task.state_dict().keys() == eager.task.state_dict().keys()


def test_the_hardware_of_a_comparison_is_that_of_its_checks_and_timings(monkeypatch, tmp_path):
    used = []

    def record_hardware(config, hardware):
        used.append(hardware)
        return make_fabric(config, hardware)

    monkeypatch.setattr(trainer, "make_fabric", record_hardware)
    hardware = Hardware("cpu", nodes=2, num_workers=0)
    comparison = Comparison(QUICK, ["bn"], [16], 1, root=tmp_path, hardware=hardware)
    check_task(comparison)
    comparison.step_seconds()
    assert used == [hardware, hardware]
