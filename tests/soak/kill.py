"""Kill runs of all tasks at random moments, resume them, and compare their ends: `python -m tests.soak.kill --kills 100`.

A run is a forked process, killed by SIGKILL after a random part of the time that the uninterrupted run took, from its first line
on, and started again. After the kills of its task, it resumes to its end, which must have the bits of the uninterrupted run.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from anynorm.lab.tasks.run import train
from anynorm.lab.training.config import Config
from tests.lab.tasks.test_battery import SMOKE, end_of, identical
from tests.soak.result import write_result


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="number of kills (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", help="kill this task only")
    parser.add_argument("--json", type=Path, help="add the result to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = [arguments.task] if arguments.task else list(SMOKE)
    failures, done, with_checkpoint = 0, 0, 0
    for index, name in enumerate(names):
        kills = arguments.kills * (index + 1) // len(names) - arguments.kills * index // len(names)
        config = replace(SMOKE[name], ema_decay=0.9)
        resumed, problem = kill_run(config, kills, random.Random(f"{arguments.seed}:{name}"))
        done, with_checkpoint, failures = done + kills, with_checkpoint + resumed, failures + bool(problem)
        shown = problem or f"equal after {kills} kills, {resumed} of them with a checkpoint"
        print(
            f"{name}: {shown}" + f"  # python -m tests.soak.kill --task {name} --seed {arguments.seed}" * bool(problem),
            flush=True,
        )
    print(f"{done} kills of {len(names)} tasks ({with_checkpoint} after the first checkpoint): {failures} ends differ.")
    result = {
        "kills": done,
        "after_a_checkpoint": with_checkpoint,
        "tasks": len(names),
        "differ": failures,
        "seed": arguments.seed,
    }
    write_result(arguments.json, "kill", result)
    return int(failures > 0)


def kill_run(config: Config, kills: int, generator: random.Random) -> tuple[int, str]:
    """Kill a run several times.

    Returns:
        The number of kills after the first checkpoint, and what is wrong; "" if the end is that of the uninterrupted run.
    """
    folder = Path(tempfile.mkdtemp())
    (folder / "whole").mkdir()
    (folder / "killed").mkdir()
    try:
        start = time.monotonic()
        train(config, folder / "whole", seconds=0.0)
        seconds = time.monotonic() - start
        resumed = 0
        for _ in range(kills):
            resumed += (folder / "killed" / "checkpoint.pt").exists()
            process = os.fork()
            if process == 0:
                run_forever(config, folder / "killed")
            time.sleep(seconds * generator.random())
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            if not os.WIFSIGNALED(status):
                return resumed, "a process ended before it was killed"
        return resumed, difference(config, folder)
    finally:
        shutil.rmtree(folder)


def run_forever(config: Config, folder: Path) -> None:
    """Train in a forked process, which then waits to be killed."""
    try:
        train(config, folder, seconds=0.0)
        time.sleep(3600)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def difference(config: Config, folder: Path) -> str:
    """Resume a run that was killed, and return how its end differs from that of an uninterrupted run."""
    uninterrupted = train(config).trainer
    try:
        resumed: Any = train(config, folder / "killed").trainer
    except Exception as error:
        return f"cannot be resumed: {type(error).__name__}: {error}"
    if not identical(end_of(resumed), end_of(uninterrupted)):
        return "the bits of the end differ"
    return "" if resumed.curve.points == uninterrupted.curve.points else "the curve differs"


if __name__ == "__main__":
    sys.exit(main())
