"""Time a new process up to its first output: torch alone, and torch with a norm of anynorm.

    python benchmarks/startup.py [--rounds 10] [--json out.json]

The processes are timed alternately; the result is the minimum time of each. The target is at most 0.3 s more than torch alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path

from measurement import best_times, write_results
from sections import startup_section
from targets import startup_targets

PROGRAMS = {
    "torch": "import torch\ntorch.nn.BatchNorm2d(8)(torch.zeros(2, 8, 4, 4))",
    "import anynorm": "import torch, anynorm\ntorch.nn.BatchNorm2d(8)(torch.zeros(2, 8, 4, 4))",
    "anynorm": "import torch, anynorm\nanynorm.make('sn', 8)(torch.zeros(2, 8, 4, 4))",
}


def run_program(program: str) -> None:
    """Run a program in a new process."""
    subprocess.run([sys.executable, "-c", program], check=True)


def main() -> None:
    """Measure, and print the times and the result of the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="processes of each kind (default: 10)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    calls = {name: partial(run_program, program) for name, program in PROGRAMS.items()}
    results = {"seconds": best_times(calls, 0, min_rounds=arguments.rounds)}
    print(startup_section(results))
    for target in startup_targets(results):
        print(target)
    write_results(arguments.json, results)


if __name__ == "__main__":
    main()
