"""Features of a classifier: the input of its last linear layer."""

from __future__ import annotations

from torch import Tensor, nn

from anynorm.errors import DataError


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the last linear layer of a model, in the order of its modules.

    Raises:
        DataError: if it has none.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise DataError(f"features are the input of the last nn.Linear of a model; this {type(model).__name__} has none.")
    return layers[-1]


def features_and_logits(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input of the last linear layer, (n, d), and the output of the model."""
    inputs: list[Tensor] = []
    hook = last_linear(model).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    try:
        logits: Tensor = model(x)
    finally:
        hook.remove()
    return inputs[-1].flatten(1), logits
