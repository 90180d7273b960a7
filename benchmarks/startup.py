"""Time a new process up to its first output: torch alone, and torch with a norm of anynorm.

    python benchmarks/startup.py [--rounds 10] [--json out.json]

Processes take turns; the best time of each counts. The target is at most 0.3 s more than torch alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

TARGET = 0.3
PROGRAMS = {
    "torch": "import torch\ntorch.nn.BatchNorm2d(8)(torch.zeros(2, 8, 4, 4))",
    "import anynorm": "import torch, anynorm\ntorch.nn.BatchNorm2d(8)(torch.zeros(2, 8, 4, 4))",
    "anynorm": "import torch, anynorm\nanynorm.make('sn', 8)(torch.zeros(2, 8, 4, 4))",
}


def main() -> None:
    """Measure and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="processes of each kind (default: 10)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    times = dict.fromkeys(PROGRAMS, float("inf"))
    for _ in range(arguments.rounds):
        for name, program in PROGRAMS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True)
            times[name] = min(times[name], time.perf_counter() - start)
    extra = times["anynorm"] - times["torch"]
    for name, seconds in times.items():
        print(f"{name:>16} {seconds:.2f} s")
    print(f"extra time to the first output: {extra:.2f} s (target {TARGET}: {'met' if extra <= TARGET else 'missed'})")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "seconds": times, "extra": extra}, indent=1))


if __name__ == "__main__":
    main()
