"""Stages of a distillation: parts of a network that are trained one after the other.

A stage is a module of the converted network and the module of the original at the same path. By default the stages are the
residual blocks, as in `xbn`. Each has parameters of its own, and runs once per forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from anynorm.errors import SurgeryError, did_you_mean
from anynorm.surgery.blocks import find_blocks
from anynorm.surgery.find import check_model, find_norms
from anynorm.table import pluralize


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a network and its counterpart in the original."""

    path: str
    module: nn.Module
    original: nn.Module

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained: those with a gradient."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]


def check_models(model: nn.Module, original: nn.Module) -> None:
    """Check that a converted model can be trained and its original is another model.

    Raises:
        SurgeryError: if one of them is wrapped or compiled, they have parameters in common, or the model has none to train.
    """
    for name, each in (("model", model), ("original", original)):
        check_model(each)
        for path, module in each.named_modules():
            if type(module).__name__ == "OptimizedModule":
                place = f"{name}, at '{path}'," if path else name
                raise SurgeryError(
                    f"{place} is compiled by torch.compile; distill observes the blocks by hooks, which compiled code skips. "
                    "Pass the module that was compiled, and compile it afterwards. The model is unchanged."
                )
    known = {id(parameter) for parameter in original.parameters()}
    if model is original or any(id(parameter) in known for parameter in model.parameters()):
        raise SurgeryError(
            "original must be a copy that does not share parameters with the model: original = copy.deepcopy(model) before "
            "convert. The model is unchanged."
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SurgeryError(
            "distill trains the parameters with requires_grad, and the model has none: model.requires_grad_(True)."
        )


def find_stages(model: nn.Module, original: nn.Module, paths: Sequence[str] | None) -> list[Stage]:
    """Return the stages at some paths, or the residual blocks, in the order of the modules.

    Raises:
        SurgeryError: if there is no module at a path in one of the models, a stage contains another, or stages share modules.
    """
    if paths is None:
        paths = [block.path for block in find_blocks(original, find_norms(original)) if block.path]
    if isinstance(paths, str):
        raise SurgeryError(f"stages must be a list of paths, such as ['layer1', 'layer2']; got the string {paths!r}.")
    here, there = (dict(each.named_modules(remove_duplicate=False)) for each in (model, original))
    for path in paths:
        for name, modules in (("model", here), ("original", there)):
            if not path or path not in modules:
                raise SurgeryError(
                    f"stages must be paths of modules in the model and its original; the {name} has none at {path!r}."
                    f"{did_you_mean(path, modules)} The model is unchanged."
                )
    stages = [Stage(path, here[path], there[path]) for path in sorted(set(paths), key=list(here).index)]
    _check_separate(stages)
    return stages


def _check_separate(stages: list[Stage]) -> None:
    """Check that no parameter belongs to two stages, because training the second would change the first."""
    owner: dict[int, tuple[Stage, str]] = {}
    for stage in stages:
        for name, parameter in stage.module.named_parameters():
            other, other_name = owner.setdefault(id(parameter), (stage, name))
            if other is not stage:
                raise SurgeryError(
                    f"the blocks '{other.path}' and '{stage.path}' share parameters ('{other.path}.{other_name}' is "
                    f"'{stage.path}.{name}'), so training the second would change the first. Pass stages that contain both, or "
                    "stages=[] to train end to end only. The model is unchanged."
                )


def check_sample_count(stage: Stage, num_values: int, num_samples: int) -> None:
    """Check that a stage has at least as many output values as parameters.

    Args:
        stage: the stage.
        num_values: the number of its output values per sample.
        num_samples: the number of samples to train on.

    Raises:
        SurgeryError: if it has fewer, with the number of samples that would do.
    """
    num_parameters = sum(parameter.numel() for parameter in stage.parameters)
    needed = -(-num_parameters // num_values)
    if num_samples < needed:
        raise SurgeryError(
            f"too few samples for block '{stage.path}': it has {num_parameters} parameters and {num_values} output values per "
            f"sample, so at least {needed} samples to train on are needed; got {pluralize(num_samples, 'sample')}, without the "
            "held-out tenth. The model is unchanged."
        )
