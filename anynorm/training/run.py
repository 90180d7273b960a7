"""One run from configuration to record: train, measure the trained network, store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.data import ImageDataset, load_dataset
from anynorm.diagnostics import estimation_shift, importance
from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.errors import AnynormError, DiagnosticError, DiskError
from anynorm.io.checkpoints import read_state_dict
from anynorm.surgery.find import find_norms
from anynorm.training import distributed
from anynorm.training.checkpoint import save_checkpoint
from anynorm.training.config import Config
from anynorm.training.provenance import provenance
from anynorm.training.store import Store
from anynorm.training.task import Task
from anynorm.training.trainer import Trainer, make_model, train

SHIFT_SAMPLES, SHIFT_BATCH_SIZE = 1000, 500


def run(
    config: Config,
    root: Path,
    *,
    data: ImageDataset | None = None,
    task: Task | None = None,
    callback: Callable[[Trainer], None] | None = None,
) -> bool:
    """Train a run and store its record, unless the store has the record or another process trains the run.

    A run that diverges or cannot be built is recorded as failed, with the reason. An interrupted run resumes at the next call.

    Args:
        config: the run.
        root: the folder of the store.
        data: the data set of `config.data`, if it is already loaded.
        task: what is trained; the default is classification of `data`.
        callback: called with the trainer after every step.

    Returns:
        Whether this call trained the run.
    """
    distributed.init_process_group(config.devices)
    store = Store(root)
    if not distributed.broadcast_bool(distributed.is_main_process() and store.begin(config)):
        return False
    try:
        if task is None:
            data = data or load_dataset(config.data, config.image_size)
        outcome = _train_and_measure(config, store.folder(config.id), data, task, callback)
        if distributed.is_main_process():
            store.finish(config, outcome)
    finally:
        store.release(config)
    distributed.barrier()  # when the call returns, the record can be read in every process
    return True


def _train_and_measure(
    config: Config, folder: Path, data: ImageDataset | None, task: Task | None, callback: Callable[[Trainer], None] | None
) -> dict[str, Any]:
    start, environment = time.perf_counter(), provenance() | {"threads": torch.get_num_threads()}
    outcome: dict[str, Any]
    try:
        trainer, failure = train(config, folder, data=data, task=task, callback=callback)
        outcome = {"status": "failed" if failure else "done", "note": failure, **summarize(trainer, failed=bool(failure))}
        if distributed.is_main_process():
            save_checkpoint(trainer.result.state_dict(), folder / "model.pt")
    except DiskError:
        raise  # not a result of the run: it resumes when the disk has space
    except AnynormError as error:
        outcome = {"status": "failed", "note": f"{type(error).__name__}: {error}", "curve": []}
    outcome["seconds"] = round(time.perf_counter() - start, 2)
    outcome["provenance"] = environment
    return outcome


def load_run(root: Path, name: str) -> tuple[nn.Module, ImageDataset]:
    """Return the trained network of a run, in eval mode, and its data set.

    Args:
        root: the folder of the store.
        name: the id of the run, or its beginning.
    """
    store = Store(root)
    config = store.config(name)
    data = load_dataset(config.data, config.image_size)
    model = make_model(config, data)
    model.load_state_dict(read_state_dict(store.folder(config.id) / "model.pt"))
    return model.eval(), data


def summarize(trainer: Trainer, *, failed: bool) -> dict[str, Any]:
    """Return the results of a training that has ended: curve, final errors, memory, statistics of its norms."""
    last = trainer.curve[-1] if trainer.curve else {}
    results: dict[str, Any] = {
        "steps": trainer.step,
        "curve": trainer.curve,
        "test_error": None if failed else last.get("test_error"),
        "train_error": last.get("train_error"),
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "saved_bytes": saved_bytes(trainer),
    }
    if not failed:
        results |= {"shift": _estimation_shift(trainer), "importance": _mixing_weights(trainer.result)}
    return results


def _estimation_shift(trainer: Trainer) -> list[dict[str, Any]] | None:
    """Return the estimation shift per norm, with its position among all norms; None if no norm has running statistics."""
    images = trainer.data.standardize(trainer.data.test[0][:SHIFT_SAMPLES])
    batches = images.split(SHIFT_BATCH_SIZE)  # type: ignore[no-untyped-call]
    try:
        report = estimation_shift(trainer.result, batches, trial_samples=0)
    except DiagnosticError:
        return None
    positions = {site.path: position for position, site in enumerate(find_norms(trainer.result), 1)}
    columns = ("path", "norm", "esm_mean", "esm_std", "shift")
    return [{"place": positions[row["path"]], **{key: row.get(key) for key in columns}} for row in report]


def _mixing_weights(model: nn.Module) -> list[dict[str, Any]] | None:
    """Return the learned weights per mixed norm; None if the model has none."""
    try:
        return importance(model).rows
    except DiagnosticError:
        return None


def saved_bytes(trainer: Trainer) -> int:
    """Return the bytes that a forward pass saves for backward besides the parameters; tensors that share storage count once."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in trainer.model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs, targets = trainer.batch(0, 0)
    with preserve_buffers(trainer.model), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = trainer.task.loss(trainer.model.train(), inputs, targets)
    del loss  # not earlier: freed memory would be reused, and two tensors would have one address
    return sum(sizes.values())
