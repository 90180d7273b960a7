"""Seconds per training step of a comparison's norms, measured once and kept in the store.

`anynorm.training.timing.step_times` measures them and writes `timings/*.json` beside the runs; the report page reads these files.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from anynorm.training.config import Config


def timed_config(config: Config) -> Config:
    """Return the run whose steps are timed for `config`: in one process, whatever the number of epochs and the seed."""
    return replace(config, epochs=1, stop_epoch=None, seed=0, devices=1, sync=False)


class StepTimes:
    """The measured step times of a store.

    Args:
        root: the folder of the store.
    """

    def __init__(self, root: Path) -> None:
        self._by_run: dict[str, dict[str, float]] = {}
        for path in sorted((root / "timings").glob("*.json"), key=lambda path: path.stat().st_mtime):
            try:
                content = json.loads(path.read_text())
                self._by_run |= dict.fromkeys(content["ids"], content["seconds"])  # the latest measurement counts
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a damaged file is measured again by the next comparison

    def get(self, config: Config) -> float | None:
        """Return the seconds per step of a run; None if they were not measured."""
        return self._by_run.get(timed_config(config).id, {}).get(config.norm)
