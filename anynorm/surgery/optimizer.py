"""Replacement of parameters in an optimizer, with their groups and state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anynorm.errors import SurgeryError
from anynorm.surgery.undo import UndoLog


def replace_in_optimizer(optimizer: torch.optim.Optimizer, modules: list[tuple[nn.Module, nn.Module]], undo_log: UndoLog) -> None:
    """Replace the parameters of old modules in an optimizer by the parameters of new modules.

    A new parameter gets the state of the old parameter with the same name and shape. Any other new parameter starts without
    state, in the parameter group of the old module.

    Args:
        optimizer: the optimizer, changed in place.
        modules: pairs of an old and a new module.
        undo_log: the undo log to which the functions that revert the change are added.

    Raises:
        SurgeryError: if `optimizer` is not a torch optimizer.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SurgeryError(f"optimizer must be a torch.optim.Optimizer; got a {type(optimizer).__name__}.")
    for old, new in modules:
        before, after = dict(old.named_parameters()), dict(new.named_parameters())
        undo_log.undo_steps.append(lambda before=before, after=after: _replace(optimizer, after, before))  # type: ignore[misc]
        _replace(optimizer, before, after)


def _replace(optimizer: torch.optim.Optimizer, old: dict[str, Any], new: dict[str, Any]) -> None:
    new_ids = {id(parameter) for parameter in new.values()}
    positions = {
        name: (group, k)
        for group in optimizer.param_groups
        for k, trained in enumerate(group["params"])
        for name, parameter in old.items()
        if trained is parameter and id(parameter) not in new_ids
    }
    if not positions and old:
        return  # the optimizer has none of the old parameters
    module_group = next(iter(positions.values()))[0] if positions else optimizer.param_groups[0]
    for name, parameter in new.items():
        if any(parameter is trained for group in optimizer.param_groups for trained in group["params"]):
            continue
        if name in positions:
            group, k = positions[name]
            group["params"][k] = parameter
            if parameter.shape == old[name].shape and old[name] in optimizer.state:
                optimizer.state[parameter] = optimizer.state[old[name]]
        else:
            module_group["params"].append(parameter)
    removed = {id(old[name]) for name in positions}
    for group in optimizer.param_groups:
        group["params"] = [trained for trained in group["params"] if id(trained) not in removed]
    for name in positions:
        optimizer.state.pop(old[name], None)
