"""Check the task of a comparison before its first run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anynorm.errors import SpecError
from anynorm.lab.tasks.run import make_trainer
from anynorm.lab.training.config import Config
from anynorm.lab.training.devices import Hardware

if TYPE_CHECKING:
    from anynorm.lab.comparison.comparison import Comparison


def check_task(comparison: Comparison) -> None:
    """Run the task on one batch of each size, so that errors in the task or its data are reported before the first run.

    The task is checked with BN, or with the first norm of the comparison that it supports if it does not support BN. Other norms
    are not checked: a norm that cannot be used must not stop a comparison.

    Raises:
        DataError: if the networks cannot process the data (`Task.check`).
        SpecError: if none of the norms can be used.
    """
    base = replace(comparison.base, devices=1, sync=False, compile=False)
    for size in comparison.batch_sizes:
        errors = {}
        for norm in dict.fromkeys(["bn", *comparison.norms]):
            try:
                _check(replace(base, norm=norm, batch_size=size), comparison.hardware)
                break
            except SpecError as error:
                errors[norm] = error
        else:
            raise errors[comparison.norms[0]]


def _check(config: Config, hardware: Hardware) -> None:
    task = make_trainer(config, hardware).task
    try:
        task.check()
    finally:
        task.close()
