"""Write the recorded results of the soak into docs/guide/amp_and_gpu.md: `python -m tests.soak.page`."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
PAGE = ROOT / "docs" / "guide" / "amp_and_gpu.md"
ITEM = re.compile(r"^- Random passes: .*$", re.M)


def item() -> str:
    """Return the item of the list of what has been tested."""
    results = json.loads(RESULTS.read_text())
    passes, kill, steady = results["passes"], results["kill"], results["steady"]
    growth = steady["growth"]
    source = f"seed {passes['seed']}, commit {passes['commit']}, {passes['hardware']}"
    return (
        f"- Random passes: {passes['passes']} of C++, of Triton's interpreter and of the plain operations against float64 "
        f"(`make soak`, {source}): {passes['differ']} differ. {kill['kills']} kills of {kill['tasks']} training tasks at random "
        f"moments, {kill['after_a_checkpoint']} of them after a checkpoint (commit {kill['commit']}): {kill['differ']} ends "
        f"differ. Over {steady['steps']} training steps with changing shapes: memory {growth['memory in MB']:+.1f} MB, "
        f"file descriptors {growth['file descriptors']:+.0f}, threads {growth['threads']:+.0f}."
    )


def main() -> None:
    """Replace the item."""
    PAGE.write_text(ITEM.sub(item(), PAGE.read_text()))


if __name__ == "__main__":
    main()
