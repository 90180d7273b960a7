"""Seconds per training step of the norms of a comparison, read from the cache in the store.

`anynorm.lab.tasks.timing.step_times` measures the times and writes them to `timings/*.json` in the store; the report page
reads these files.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from anynorm.lab.training.config import Config


def timed_config(config: Config) -> Config:
    """Return the configuration that is timed in place of `config`: one device, one epoch, seed 0."""
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
                self._by_run |= dict.fromkeys(content["ids"], content["seconds"])  # the latest measurement overrides earlier ones
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a damaged file is ignored; the next comparison measures again

    def get(self, config: Config) -> float | None:
        """Return the seconds per step of a run; None if the time was not measured."""
        return self._by_run.get(timed_config(config).id, {}).get(config.norm)
