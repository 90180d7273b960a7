"""Run a configuration: make the task that it names, train the networks, measure them, and write the record to the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anynorm.diagnostics import estimation_shift, importance
from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.errors import AnynormError, DiagnosticError, DiskError, ReadError
from anynorm.io.checkpoints import read_state_dict
from anynorm.lab.tasks import make_task, task_class
from anynorm.lab.training.checkpoint import save_checkpoint
from anynorm.lab.training.config import Config
from anynorm.lab.training.devices import Hardware, check_processes, describe_device, make_fabric
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.items import pack_items
from anynorm.lab.training.provenance import provenance
from anynorm.lab.training.record import DONE, FAILED, LayerShift, RunRecord
from anynorm.lab.training.store import Store
from anynorm.lab.training.task import Metric, Task
from anynorm.lab.training.trainer import Trainer, fit
from anynorm.surgery.batches import size_of
from anynorm.surgery.find import find_norms

SHIFT_SAMPLES, SHIFT_BATCH_SIZE = 1000, 500


class TrainResult(NamedTuple):
    """The result of `train`: the trainer, and the reason why training diverged ("" if it did not)."""

    trainer: Trainer
    failure: str


def make_trainer(config: Config, hardware: Hardware | None = None) -> Trainer:
    """Return a trainer of the task that a configuration names, before the first step."""
    return Trainer(config, make_task(config.at_start()), hardware)


def train(
    config: Config,
    folder: Path | None = None,
    *,
    task: Task | None = None,
    hardware: Hardware | None = None,
    seconds: float = 20.0,
    callback: Callable[[Trainer], None] | None = None,
) -> TrainResult:
    """Train until the last step, or until the run diverges.

    Args:
        config: the configuration of the run.
        folder: the folder of the checkpoint and artifacts; training resumes from the checkpoint if it exists. None to write no
            files.
        task: the task to train, with the norms of `config.at_start()`; None for the task of `config.task`.
        hardware: the hardware to train on; the CPU by default.
        seconds: minimum time between checkpoints.
        callback: a function that is called with the trainer after every step.
    """
    trainer = Trainer(config, make_task(config.at_start()) if task is None else task, hardware)
    return TrainResult(trainer, fit(trainer, folder, seconds=seconds, callback=callback))


def run(
    config: Config,
    root: Path,
    *,
    task: Task | None = None,
    hardware: Hardware | None = None,
    callback: Callable[[Trainer], None] | None = None,
) -> bool:
    """Train a run and store its record, unless the store has the record or another process is training the run.

    If the run diverges or its networks cannot be built, its record has the status "failed" and the reason. An interrupted run
    resumes in the next call.

    Args:
        config: the configuration of the run.
        root: the folder of the store.
        task: the task to train; None for the task of `config.task`.
        hardware: the hardware to train on; the CPU by default.
        callback: a function that is called with the trainer after every step.

    Returns:
        Whether this call trained the run.
    """
    hardware = hardware or Hardware("cpu")
    check_processes(config, hardware)
    if config.devices > 1:
        make_fabric(config, hardware)  # initializes the process group
    processes, store = Processes(config.devices), Store(root)
    if not processes.broadcast_bool(processes.is_main and store.begin(config)):
        return False
    try:
        if task is None:
            task_class(config.task).prepare(config)
        record = _train_and_measure(config, store.folder(config.id), task, hardware, callback)
        if processes.is_main:
            store.finish(record)
    finally:
        store.release(config)
    processes.barrier()  # when the call returns, the record can be read in every process
    return True


def get_or_train(config: Config, root: Path, hardware: Hardware | None = None) -> RunRecord:
    """Return the record of a run; train the run first if the store does not have its record.

    If another process is training the run, wait for it, and continue the training if that process is killed.

    Args:
        config: the configuration of the run.
        root: the folder of the store.
        hardware: the hardware to train on; the CPU by default.
    """
    store = Store(root)
    while (record := store.read(config.id)) is None:
        if not run(config, root, hardware=hardware) and not store.is_valid(config.id):
            time.sleep(1)
    return record


def _train_and_measure(
    config: Config, folder: Path, task: Task | None, hardware: Hardware, callback: Callable[[Trainer], None] | None
) -> RunRecord:
    start, environment = time.perf_counter(), provenance() | {"threads": torch.get_num_threads()}
    record = RunRecord(config.id, asdict(config), DONE)
    try:
        trainer, failure = train(config, folder, task=task, hardware=hardware, callback=callback)
        environment["device"] = describe_device(trainer.fabric.device)
        with trainer.evaluation_networks() as trained:
            if trainer.processes.is_main:
                for name, network in trained.named_children():
                    save_checkpoint(network.state_dict(), folder / f"{name}.pt")
                if own := own_state(trained):
                    save_checkpoint(own, folder / "task.pt")
        record = summarize(replace(record, status=FAILED, note=failure) if failure else record, trainer)
    except (DiskError, ReadError):
        raise  # not a result of the run: it resumes when the disk has space, or the images can be read again
    except AnynormError as error:
        if config.devices > 1:
            raise  # the other processes may not have failed
        record = replace(
            record, status=FAILED, note=f"{type(error).__name__}: {error}", metric=_metric_of_failed_run(config, task)
        )
    except (RuntimeError, MemoryError) as error:
        if config.devices > 1 or not _is_out_of_memory(error):
            raise
        advice = "Use a smaller batch size, and grad_accum_steps for as many samples per step"
        note = f"out of memory with batch_size={config.batch_size} on {hardware.kind}. {advice}."
        record = replace(record, status=FAILED, note=note, metric=_metric_of_failed_run(config, task))
    return replace(record, seconds=round(time.perf_counter() - start, 2), provenance=environment)


def _metric_of_failed_run(config: Config, task: Task | None) -> Metric:
    """Return the metric of a run; the default of the task if the settings of a failed run do not determine it."""
    kind: type[Task] = task_class(config.task) if task is None else type(task)
    try:
        return kind.metric_for(config)
    except AnynormError:
        return kind.metric


def _is_out_of_memory(error: Exception) -> bool:
    messages = ("can't allocate memory", "MPS backend out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(message in str(error) for message in messages)


def load_run(root: Path, name: str) -> Task:
    """Load the task of a run with its trained networks, in eval mode.

    Args:
        root: the folder of the store.
        name: the id of the run, or a prefix of it.
    """
    store = Store(root)
    config = store.config(name)
    task = make_task(config)
    for network_name, network in task.named_children():
        network.load_state_dict(read_state_dict(store.folder(store.find(name)) / f"{network_name}.pt"))
    path = store.folder(store.find(name)) / "task.pt"
    if path.exists():
        task.load_state_dict(read_state_dict(path), strict=False)
    return task.eval()


def own_state(task: Task) -> dict[str, Tensor]:
    """Return the parameters and buffers of a task that do not belong to one of its networks."""
    networks = {name for name, _ in task.named_children()}
    return {name: value for name, value in task.state_dict().items() if name.partition(".")[0] not in networks}


def summarize(record: RunRecord, trainer: Trainer) -> RunRecord:
    """Return a record with the results of a training: curve, final metrics, memory, estimation shift and mixing weights.

    Args:
        record: the record with the configuration and the status. If the training failed, test metrics are None, and norms are not
            measured.
        trainer: the trainer after the last step.
    """
    task, points = trainer.task, trainer.curve.points
    last = {name: value for name, value in points[-1].items() if name.startswith(("train_", "test_"))} if points else {}
    record = replace(
        record,
        steps=trainer.step,
        curve=points,
        metric=task.metric_for(trainer.config),
        metrics={name: value if record.done or name.startswith("train_") else None for name, value in last.items()},
        parameters=sum(parameter.numel() for parameter in task.parameters()),
        saved_bytes=saved_bytes(trainer),
        items={name: pack_items(values) for name, values in task.items.items()} if record.done else {},
    )
    if record.done:
        with trainer.evaluation_networks():
            record = replace(record, shift=_estimation_shift(task), importance=_mixing_weights(task.network))
    task.close()
    return record


def _estimation_shift(task: Task) -> list[LayerShift] | None:
    """Return the estimation shift of each norm; None if no norm has running statistics."""
    batches = task.eval_batches(SHIFT_BATCH_SIZE)
    if batches is None:
        return None
    try:
        report = estimation_shift(task.network, _first_samples(batches, SHIFT_SAMPLES), trial_samples=0)
    except DiagnosticError:
        return None
    positions = {site.path: position for position, site in enumerate(find_norms(task.network), 1)}
    columns = ("esm_mean", "esm_std", "shift")
    return [LayerShift(positions[row["path"]], row["path"], row.get("norm"), *map(row.get, columns)) for row in report]


def _first_samples(batches: Iterable[Any], count: int) -> Iterator[Any]:
    """Yield batches until they have at least `count` samples in total."""
    for batch in batches:
        if count <= 0:
            return
        yield batch
        count -= size_of(batch)


def _mixing_weights(model: nn.Module) -> list[dict[str, Any]] | None:
    """Return the learned mixing weights of each norm that has any; None if no norm has."""
    try:
        return importance(model).rows
    except DiagnosticError:
        return None


def saved_bytes(trainer: Trainer) -> int | None:
    """Return the number of bytes that a forward pass saves for backward, without parameters; shared storage counts once.

    Returns:
        The number of bytes; None for a task that does not define `loss`, whose step may have several forward passes.
    """
    task = trainer.task
    if type(task).loss is Task.loss:
        return None
    parameters = {parameter.untyped_storage().data_ptr() for parameter in task.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = task.training_batch(0)
    with preserve_buffers(task), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), trainer.autocast():
        metrics = task.train().loss(batch)
    del metrics  # the graph must live until here: freed memory would be reused, and two tensors would have the same address
    return sum(sizes.values())
