"""Telling an optimizer that parameters were replaced: each new one takes the group and the state of the one it stands for."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anynorm.errors import SurgeryError
from anynorm.surgery.find import UndoLog

Pair = tuple[nn.Module, nn.Module]


def move_optimizer(optimizer: torch.optim.Optimizer, pairs: list[Pair], ledger: UndoLog) -> None:
    """Move groups and state from the parameters of old modules to those of new ones.

    A parameter of the same name and shape goes on with its state; another starts anew, in the group of its module's others.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SurgeryError(f"optimizer= takes a torch.optim.Optimizer, not a {type(optimizer).__name__}.")
    for old, new in pairs:
        before, after = dict(old.named_parameters()), dict(new.named_parameters())
        ledger.backs.append(lambda before=before, after=after: _move(optimizer, after, before))  # type: ignore[misc]
        _move(optimizer, before, after)


def _move(optimizer: torch.optim.Optimizer, old: dict[str, Any], new: dict[str, Any]) -> None:
    kept = {id(parameter) for parameter in new.values()}
    places = {
        name: (group, k)
        for group in optimizer.param_groups
        for k, held in enumerate(group["params"])
        for name, parameter in old.items()
        if held is parameter and id(parameter) not in kept
    }
    if not places and old:
        return  # none of them is trained by this optimizer
    home = next(iter(places.values()))[0] if places else optimizer.param_groups[0]
    for name, parameter in new.items():
        if any(parameter is held for group in optimizer.param_groups for held in group["params"]):
            continue
        if name in places:
            group, k = places[name]
            group["params"][k] = parameter
            if parameter.shape == old[name].shape and old[name] in optimizer.state:
                optimizer.state[parameter] = optimizer.state[old[name]]
        else:
            home["params"].append(parameter)
    gone = {id(old[name]) for name in places}
    for group in optimizer.param_groups:
        group["params"] = [held for held in group["params"] if id(held) not in gone]
    for name in places:
        optimizer.state.pop(old[name], None)
