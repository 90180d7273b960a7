"""What every task passes: reproducibility, resume after a kill, two processes as one, divergence, evaluation without a trace."""

import subprocess
import sys
import time
from dataclasses import replace
from signal import SIGKILL
from typing import Any

import pytest
import torch

from anynorm.io.pictures import encode_png
from anynorm.lab.tasks import TASKS, make_task
from anynorm.lab.tasks.run import make_trainer, run, train
from anynorm.lab.training.config import Config
from anynorm.lab.training.store import Store
from tests.cover import thorough_except
from tests.distributed import train_in_two_processes
from tests.helpers import same
from tests.lab.tasks.adaptation.test_task import LOOPS
from tests.lab.tasks.adaptation.test_task import QUICK as ADAPTATION
from tests.lab.tasks.detection.test_task import QUICK as QUICK_DETECTION
from tests.lab.tasks.generation.test_task import QUICK as QUICK_GENERATION
from tests.lab.tasks.search.test_evaluation_task import QUICK as QUICK_EVALUATION
from tests.lab.tasks.search.test_manas import QUICK as QUICK_MANAS
from tests.lab.tasks.search.test_task import QUICK as QUICK_SEARCH
from tests.lab.tasks.segmentation.test_task import QUICK as QUICK_SEGMENTATION
from tests.lab.tasks.video.test_task import FIXED as FIXED_VIDEO
from tests.lab.tasks.video.test_task import QUICK as QUICK_VIDEO

pytestmark = pytest.mark.filterwarnings("ignore:clusters? .* no sample")  # of CAN, after a few steps

SMOKE = {
    "classification": Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=4, lr=0.05, num_evals=2),
    "few_shot": Config(
        task="few_shot",
        model="resnet12",
        width=0.125,
        num_train=64,
        batch_size=16,
        epochs=2,
        lr=0.05,
        num_evals=2,
        options={"padding": 4, "num_ways": 4, "num_episodes": 10, "num_queries": 5},
    ),
    "adversarial": Config(
        task="adversarial",
        model="preact_resnet8",
        width=0.5,
        num_train=32,
        num_test=20,
        batch_size=16,
        epochs=2,
        lr=0.05,
        num_evals=2,
        options={"train_attack": "pgd:2", "attack": "pgd:2"},
    ),
    "advprop": Config(
        task="advprop",
        model="preact_resnet8",
        norm="saauxbn@2",
        width=0.5,
        num_train=32,
        num_test=20,
        batch_size=16,
        epochs=2,
        lr=0.05,
        num_evals=2,
        options={"train_attack": "pgd:2", "attack": "pgd:2"},
    ),
    "architecture_evaluation": QUICK_EVALUATION,
    **{name: replace(QUICK_MANAS, task=name) for name in ("manas_exp3", "manas_least_squares", "random_search")},
    "segmentation": QUICK_SEGMENTATION,
    "generation": replace(QUICK_GENERATION, lr=2e-3),
    "darts": QUICK_SEARCH,
    "darts_second_order": replace(QUICK_SEARCH, task="darts_second_order", num_train=32),
    "examples.frequency:Frequency": Config(task="examples.frequency:Frequency", batch_size=100, epochs=1, lr=0.01, num_evals=2),
    "style_transfer": Config(
        task="style_transfer",
        norm="saadain",
        num_train=16,
        num_test=4,
        batch_size=4,
        epochs=2,
        optimizer="adam",
        lr=1e-3,
        image_size=16,
        num_evals=2,
        options={"styles": "digits", "encoder": "random", "resize": 24},
    ),
    "single_style_transfer": Config(
        task="single_style_transfer",
        width=0.25,
        num_train=16,
        num_test=4,
        batch_size=4,
        epochs=2,
        optimizer="adam",
        lr=1e-3,
        image_size=16,
        num_evals=2,
        options={"style_image": "sklearn:flower.jpg", "encoder": "random", "resize": 24},
    ),
    "controller_search": Config(
        task="controller_search",
        norm="ln",
        batch_size=4,
        epochs=2,
        lr=0.01,
        num_evals=2,
        options={"table": "tests.tables:small_table", "hidden_size": 8, "steps_per_epoch": 4},
    ),
    "source_only": ADAPTATION,
    "adabn": replace(ADAPTATION, task="adabn"),
    "dsbn": replace(ADAPTATION, task="dsbn", norm="bn.aux@2", options=LOOPS),
    "can": replace(ADAPTATION, task="can", norm="bn.aux@2", options=LOOPS),
    "can_all_classes": replace(ADAPTATION, task="can_all_classes", norm="gn:4.cc@2", options=LOOPS),
    "detection": QUICK_DETECTION,
    "video": QUICK_VIDEO,
    "tests.lab.training.test_task:Adversarial": Config(
        task="tests.lab.training.test_task:Adversarial", batch_size=8, epochs=2, num_evals=2
    ),
}
"""The configuration of a short run per task: the built-in ones, one of a user, and one with two networks."""
WITHOUT_RANDOM_NUMBERS: dict[str, dict[str, Any]] = {
    "classification": {},
    "adversarial": {"options": {"train_attack": "fgsm", "attack": "pgd:2"}},
    "advprop": {"options": {"train_attack": "fgsm", "attack_norm_mode": "train", "attack": "pgd:2"}},
    "darts": {"norm": "bn"},
    "manas_least_squares": {},
    "few_shot": {},
    # of 8 seeds, rounding moves a value across the kink of a ReLU with seed 0 (or another one, with other kernels)
    "segmentation": {"seed": 1},
    "source_only": {},
    "adabn": {},
    "video": FIXED_VIDEO,
    # at lr 0.01, rounding in the first step grows to 6e-5 within 20 steps; at 0.0025 the two ends differ by 9e-8
    "examples.frequency:Frequency": {"options": {"random_sign": False}, "lr": 0.0025},
}
"""Settings without random numbers in a batch; these differ between processes. The task with two networks draws its samples."""
WITHOUT_RUNNING_STATS = {"generation": "gn:4.cc@K", "style_transfer": "gn:4.style"}
"""Norms that diverge with the learning rate: those with running statistics may keep the loss finite."""
DIVERGENT_LR = {"controller_search": 1e30}
"""Learning rates that diverge, where 1e12 does not: the logits of the controller are bounded, so weights must overflow."""
WITHOUT_SHIFT = {
    "tests.lab.training.test_task:Adversarial",
    "generation",
    "style_transfer",
    "controller_search",
    "dsbn",
    "can",
    "can_all_classes",
}
"""Tasks without test batches for their network."""
NAMES = list(SMOKE)
KILLED = {"classification", "generation"}
"""Tasks that `make test` kills by a signal: one network, and two with moving averages. A third run decodes in another process."""


def test_every_task_is_in_the_battery():
    assert set(TASKS) <= set(SMOKE)


def end_of(trainer):
    """Return everything that the end of a training consists of."""
    return {
        **trainer.task.state_dict(),
        **{f"average.{name}": x for name, a in trainer.averages.items() for name, x in a.state_dict().items()},
    }


def identical(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(name):
    first, second = (train(SMOKE[name]).trainer for _ in range(2))
    other = train(replace(SMOKE[name], seed=1)).trainer
    assert identical(end_of(first), end_of(second))
    assert first.curve.points == second.curve.points
    assert not identical(end_of(first), end_of(other))


@pytest.mark.parametrize("name", NAMES)
def test_a_run_interrupted_after_any_step_ends_with_the_same_bits(name, tmp_path):
    config = replace(SMOKE[name], ema_decay=0.9)
    uninterrupted = train(config).trainer
    stops = sorted({2, uninterrupted.steps // 2 + 1, uninterrupted.steps})  # early, after an evaluation, in the last step

    def stop(trainer):
        if stops and trainer.step == stops[0]:
            del stops[0]
            raise KeyboardInterrupt

    while stops:
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path, seconds=0.0, callback=stop)
    resumed = train(config, tmp_path).trainer
    assert identical(end_of(resumed), end_of(uninterrupted))
    assert resumed.curve.points == uninterrupted.curve.points


@pytest.mark.slow
@pytest.mark.parametrize("name", thorough_except(KILLED, NAMES))
def test_a_run_killed_by_the_system_ends_with_the_same_bits(name, tmp_path):
    check_kill(replace(SMOKE[name], epochs=8 * SMOKE[name].epochs, ema_decay=0.9), tmp_path)


@pytest.mark.slow
def test_a_run_with_a_process_that_decodes_images_is_killed_and_ends_with_the_same_bits(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for index in range(16):
        path = tmp_path / "images" / ("test" if index < 4 else "train") / str(index % 2) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=generator)))
    config = replace(SMOKE["classification"], data=f"stream:{tmp_path}/images", image_size=16, num_train=12, num_test=4)
    (tmp_path / "run").mkdir()
    check_kill(replace(config, batch_size=4, epochs=30), tmp_path / "run")


def check_kill(config, folder):
    """Kill a run after its first checkpoint, resume it, and compare its end with that of an uninterrupted run."""
    code = f"""
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from anynorm.lab.training.config import Config
from anynorm.lab.tasks.run import train
train({config!r}, Path(sys.argv[1]), seconds=0.0)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    while not (folder / "checkpoint.pt").exists():
        assert process.poll() is None, "the run ended before its first checkpoint"
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(SIGKILL)
    assert process.wait() == -SIGKILL
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        resumed, uninterrupted = train(config, folder).trainer, train(config).trainer
    finally:
        torch.set_num_threads(threads)
    assert identical(end_of(resumed), end_of(uninterrupted))
    assert resumed.curve.points == uninterrupted.curve.points


@pytest.mark.slow
def test_two_synchronized_processes_are_one_with_the_whole_batch(tmp_path):
    configs = {name: replace(SMOKE[name], epochs=1, **options) for name, options in WITHOUT_RANDOM_NUMBERS.items()}
    halves = [replace(config, batch_size=config.batch_size // 2, devices=2, sync=True) for config in configs.values()]
    train_in_two_processes(halves, tmp_path)
    for config, half in zip(configs.values(), halves, strict=True):
        run(config, tmp_path)
        one, two = (torch.load(Store(tmp_path).folder(run.id) / "model.pt") for run in (config, half))
        for name, expected in one.items():
            same(two[name], expected, rtol=1e-3, atol=1e-5)  # sums in another order


@pytest.mark.parametrize("name", NAMES)
def test_divergence_is_reported_with_its_step(name):
    lr, norm = DIVERGENT_LR.get(name, 1e12), WITHOUT_RUNNING_STATS.get(name, "gn:4")
    trainer, failure = train(replace(SMOKE[name], lr=lr, norm=norm, epochs=20, schedule="constant"))
    assert failure.startswith("the ")
    assert "step" in failure
    assert trainer.step < trainer.steps


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_leaves_no_trace(name):
    trainer = make_trainer(replace(SMOKE[name], ema_decay=0.9))
    trainer.training_step()
    before = {key: value.clone() for key, value in end_of(trainer).items()}
    networks = dict(trainer.task.named_children())
    trainer.evaluate()
    assert identical(before, end_of(trainer))
    assert dict(trainer.task.named_children()) == networks
    assert all(module.training for module in trainer.task.modules())
    once, twice = make_trainer(SMOKE[name]), make_trainer(SMOKE[name])
    once.evaluate()
    for each in (once, twice):
        each.training_step()
    assert identical(end_of(once), end_of(twice))


@pytest.mark.parametrize("name", NAMES)
def test_a_short_run_takes_seconds_and_its_record_has_the_metric(name, tmp_path):
    start = time.process_time()
    assert run(SMOKE[name], tmp_path)
    assert time.process_time() - start < 10
    record = Store(tmp_path).record(SMOKE[name].id)
    metric = make_task(SMOKE[name]).metric_for(SMOKE[name])
    assert record.metric.name == metric.name
    assert record.metrics[f"test_{metric.name}"] == record.curve[-1][f"test_{metric.name}"]
    assert len(record.curve) == 2
    assert bool(record.shift) == (name not in WITHOUT_SHIFT)
