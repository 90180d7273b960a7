"""One run from configuration to record: trained, looked at, kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.data import DataSet, load
from anynorm.diagnostics import estimation_shift, importance
from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.errors import AnynormError, DiagnosticError, DiskError
from anynorm.io.checkpoints import read_state_dict
from anynorm.models import build
from anynorm.surgery.find import find_norms
from anynorm.training import distributed as together
from anynorm.training.config import Config
from anynorm.training.norm_layout import apply_norms
from anynorm.training.provenance import provenance
from anynorm.training.store import Store
from anynorm.training.trainer import Trainer, save, train


def run(config: Config, root: Path, *, data: DataSet | None = None, callback: Callable[[Trainer], None] | None = None) -> bool:
    """Train a run of a store, unless it is done or somebody else has it; say whether it was.

    A run that diverges, or cannot be built, is recorded as failed, with the reason.
    """
    together.join(config.devices)
    store, first = Store(root), together.rank() == 0
    if not together.broadcast_bool(first and store.begin(config)):
        return False
    try:
        outcome = _outcome(config, store.folder(config.id), data or load(config.data, config.image_size), callback)
        if first:
            store.finish(config, outcome)
    finally:
        store.release(config)
    return together.broadcast_bool(True)  # the others wait here until the first has written


def _outcome(config: Config, folder: Path, data: DataSet, callback: Callable[[Trainer], None] | None) -> dict[str, Any]:
    began, made = time.perf_counter(), provenance() | {"threads": torch.get_num_threads()}
    outcome: dict[str, Any]
    try:
        training, failure = train(config, folder, data=data, callback=callback)
        outcome = {"status": "failed" if failure else "done", "note": failure, **describe(training, bool(failure))}
        if together.rank() == 0:
            save(training.result.state_dict(), folder / "model.pt")
    except DiskError:
        raise  # the run has not failed: it goes on when there is room
    except AnynormError as error:
        outcome = {"status": "failed", "note": f"{type(error).__name__}: {error}", "curve": []}
    outcome["seconds"] = round(time.perf_counter() - began, 2)
    outcome["provenance"] = made
    return outcome


def load_run(root: Path, name: str) -> tuple[nn.Module, DataSet]:
    """Give the network of a run as it ended, and its data."""
    store = Store(root)
    config = store.config(name)
    path = store.folder(config.id) / "model.pt"
    data = load(config.data, config.image_size)
    model = apply_norms(build(config.model, data.shape, config.width), config.norm, config.batch_size)
    model.load_state_dict(read_state_dict(path))
    return model.eval(), data


def describe(training: Trainer, failed: bool) -> dict[str, Any]:
    """Give the numbers of a training that has ended, and what its norms have come to."""
    last = training.curve[-1] if training.curve else {}
    found: dict[str, Any] = {
        "steps": training.step,
        "curve": training.curve,
        "test_error": None if failed else last.get("test_error"),
        "train_error": last.get("train_error"),
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "saved_bytes": saved_bytes(training),
    }
    if not failed:
        found |= {"shift": _shift(training), "importance": _importance(training.result)}
    return found


def _shift(training: Trainer) -> list[dict[str, Any]] | None:
    """Give the estimation shift of norms on a part of the test set, with their places among all; None where nothing is kept."""
    images = training.data.standardised(training.data.test[0][:1000])
    try:
        report = estimation_shift(training.result, images.split(500), trial_samples=0)  # type: ignore[no-untyped-call]
    except DiagnosticError:
        return None
    places = {site.path: place for place, site in enumerate(find_norms(training.result), 1)}
    columns = ("path", "norm", "esm_mean", "esm_std", "shift")
    return [{"place": places[row["path"]], **{key: row.get(key) for key in columns}} for row in report]


def _importance(model: nn.Module) -> list[dict[str, Any]] | None:
    try:
        return importance(model).rows
    except DiagnosticError:
        return None


def saved_bytes(training: Trainer) -> int:
    """Count the bytes that a forward pass keeps for backward, beside the parameters; each tensor once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in training.model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x, targets = training.batch(0, 0)
    with preserve_buffers(training.model), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(training.model.train()(x), targets)
    del loss  # only now, so that no two tensors had the same address
    return sum(kept.values())
