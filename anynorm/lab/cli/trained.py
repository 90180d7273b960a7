"""`--model run:ID`: the network of a finished run, and its test data."""

from __future__ import annotations

from pathlib import Path

from anynorm.cli.plugins import TrainedModel


def load_trained(name: str, folder: Path) -> TrainedModel:
    """Return the network of the run with this id in the folder of runs."""
    from anynorm.lab.tasks.run import load_run

    task = load_run(folder, name)
    standardization = {}
    if hasattr(task, "data"):
        standardization = {key: tuple((getattr(task.data, key).flatten() / 255).tolist()) for key in ("mean", "std")}
    return TrainedModel(task.network, task.eval_batches, standardization)
