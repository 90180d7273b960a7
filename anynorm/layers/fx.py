"""Norms in graphs of torch.fx: one node `call_module` per call, with every tracer, as for the layers of torch.nn.

The default tracer takes only modules of torch.nn as leaves, and traces through all others. A norm cannot be traced through: its
computation depends on the shape of its input. So its `forward`, called with a proxy, adds the node itself. To trace through
norms, use `torch.fx.experimental.proxy_tensor.make_fx` or `torch.export.export` with an example input: they record operations of
tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.fx import Proxy

from anynorm.core.activation import read_activation
from anynorm.errors import SpecError

if TYPE_CHECKING:
    from anynorm.layers.norm import Norm


def add_call(norm: Norm, proxy: Proxy, condition: Any, options: dict[str, Any]) -> Any:
    """Add a call of a norm to the graph of a proxy, and return the proxy of its output.

    Args:
        norm: a norm inside the module that is traced.
        proxy: its input.
        condition: its condition; None for the one of an enclosing `with anynorm.condition(…)` block. If that one is a proxy too,
            it becomes an argument of the node; otherwise the node uses the condition that is set when the graph runs.
        options: the keyword arguments of the call; None for those that were not passed.

    Raises:
        SpecError: if the norm itself is traced, or an activation is not given by its name.
    """
    tracer: Any = proxy.tracer
    path = tracer.path_of_module(norm)
    if not path:
        raise SpecError(
            f"torch.fx records a norm as a call of a module, so it must be inside of another one; got {norm.spec} itself. Trace "
            "nn.Sequential(norm), or use torch.fx.experimental.proxy_tensor.make_fx(norm)(x), which records its operations."
        )
    if condition is None and isinstance(norm._condition, Proxy):
        condition = norm._condition
    passed = {name: value for name, value in options.items() if value is not None}
    if "activation" in passed:
        passed["activation"] = _activation_name(passed["activation"])
    return tracer.create_proxy("call_module", path, (proxy,) if condition is None else (proxy, condition), passed)


def _activation_name(activation: Any) -> str:
    """Return the name of an activation, which a graph can hold."""
    read = read_activation(activation)
    if read is None or read != read_activation(read.name):
        raise SpecError(f"torch.fx records an activation by its name; got {read!r}. Pass it to anynorm.make instead.")
    return read.name
