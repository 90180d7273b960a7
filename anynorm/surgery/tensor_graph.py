"""The graph of the tensor operations (ATen) that a model runs on an example.

A norm is one operation, named "norm", whatever it computes. Operations on which no output of the model depends are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from anynorm.surgery.dataflow import tensors_of
from anynorm.surgery.modes import eval_mode

NORM = "norm"
OVERWRITTEN = "a write in place"
VIEWS = {
    "view",
    "_unsafe_view",
    "_reshape_alias",
    "squeeze",
    "unsqueeze",
    "t",
    "transpose",
    "permute",
    "alias",
    "detach",
    "expand",
}
VIEWS |= {"select", "unbind", "slice", "split", "split_with_sizes"}
"""Operations whose output is their input, or a part of it, with other axes."""


class Source(NamedTuple):
    """A parameter or buffer of a module."""

    module: nn.Module
    name: str
    path: str

    @property
    def tensor(self) -> Tensor:
        """The current parameter or buffer."""
        tensor: Tensor = getattr(self.module, self.name)
        return tensor


@dataclass(eq=False)
class Value:
    """A tensor between two writes to it.

    Attributes:
        tensor: the tensor; its values are those at the end of the run.
        op: the operation that computed it; None for a parameter, a buffer, an input of the model or a constant.
        source: the parameter or buffer that it is. A tied parameter is one value per module that uses it.
        users: the operations that have it as an argument, in order.
    """

    tensor: Tensor
    op: Op | None = None
    source: Source | None = None
    users: list[Op] = field(default_factory=list)

    def origin(self) -> Value:
        """Return the value of which this one is a view: itself if it is no view."""
        value = self
        while value.op is not None and value.op.name in VIEWS:
            value = value.op.args[0]
        return value

    def reads(self) -> Iterator[tuple[Op, Value]]:
        """Yield the operations that read this value or views of it, each with what it reads."""
        for op in self.users:
            if op.name in VIEWS:
                for view in op.outputs:
                    yield from view.reads()
            else:
                yield op, self


@dataclass(eq=False)
class Op:
    """An operation.

    Attributes:
        name: name of the ATen operation, such as "add"; that of a write in place ends with "_".
        args: positional arguments, with values in place of tensors.
        kwargs: keyword arguments, likewise.
        module: the innermost module that was running.
        path: the path of this module.
        outputs: the computed values.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: nn.Module
    path: str
    outputs: list[Value] = field(default_factory=list)

    @property
    def inputs(self) -> list[Value]:
        """The values among the arguments."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Value)]

    def argument(self, index: int, name: str, default: Any) -> Any:
        """Return an argument that can be positional or a keyword."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def __str__(self) -> str:
        where = f"'{self.path}' ({type(self.module).__name__})" if self.path else type(self.module).__name__
        return f"{where}, {self.name}"


@dataclass(eq=False)
class Graph:
    """The operations on which the outputs of a model depend, in order.

    Attributes:
        ops: the operations.
        outputs: the values that the model returns.
        output: the output of the model as it is.
        sources: the parameters and buffers that the operations read.
        registered: all parameters and buffers of the model by the id of their tensor; a tied parameter is several.
    """

    ops: list[Op]
    outputs: set[Value]
    output: Any
    sources: dict[Source, Value]
    registered: dict[int, list[Source]]

    def calls_of(self, norm: nn.Module) -> list[Op]:
        """Return the calls of a norm."""
        return [op for op in self.ops if op.name == NORM and op.module is norm]

    def reads(self, tensor: Tensor) -> Iterator[tuple[Op, Value]]:
        """Yield the operations that read a parameter or buffer or views of it, each with what it reads."""
        for source in self.registered[id(tensor)]:
            if source in self.sources:
                yield from self.sources[source].reads()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that records operations, except inside norms."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []
        self.running: list[tuple[nn.Module, str]] = [(model, "")]
        self.norm_depth = 0
        self.values: dict[int, Value] = {}
        self.source_values: dict[Source, Value] = {}
        self.sources: dict[int, list[Source]] = {}
        self.by_storage: dict[int, list[Tensor]] = {}
        for path, module in model.named_modules():
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None:
                    self.sources.setdefault(id(tensor), []).append(Source(module, name, f"{path}.{name}".lstrip(".")))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.norm_depth:
            return func(*args, **kwargs)
        with self:  # in inference mode, composite operations such as linear arrive here whole
            decomposed = func.decompose(*args, **kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        output = func(*args, **kwargs)
        self.record(func.overloadpacket.__name__, args, kwargs, output)
        if func._schema.is_mutable:
            self._mark_overwritten([tensor for tensor in tree_leaves(output) if isinstance(tensor, Tensor)])
        return output

    def record(self, name: str, args: Any, kwargs: Any, output: Any) -> None:
        """Record an operation."""
        args, kwargs = tree_map_only(Tensor, self.value_of, (args, kwargs))
        op = Op(name, args, kwargs, *self.running[-1])
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self._set_value(tensor, Value(tensor, op))
                op.outputs.append(self.values[id(tensor)])
        self.ops.append(op)

    def value_of(self, tensor: Tensor) -> Value:
        """Return the current value of a tensor."""
        if id(tensor) not in self.values:
            sources = self.sources.get(id(tensor))
            if sources:
                source = next((source for source in sources if source.module is self.running[-1][0]), sources[0])
                return self.source_values.setdefault(source, Value(tensor, source=source))
            self._set_value(tensor, Value(tensor))
        return self.values[id(tensor)]

    def _set_value(self, tensor: Tensor, value: Value) -> None:
        self.values[id(tensor)] = value
        aliases = self.by_storage.setdefault(tensor.untyped_storage()._cdata, [])
        if not any(alias is tensor for alias in aliases):
            aliases.append(tensor)

    def _mark_overwritten(self, written: list[Tensor]) -> None:
        """Set the values of all other tensors that share memory with written ones to unknown contents."""
        for tensor in written:
            for alias in self.by_storage[tensor.untyped_storage()._cdata]:
                if not any(alias is each for each in written):
                    op = Op(OVERWRITTEN, (self.values[id(tensor)],), {}, *self.running[-1])
                    op.outputs.append(Value(alias, op))
                    self.values[id(alias)] = op.outputs[0]
                    self.ops.append(op)


@contextmanager
def _record_modules(model: nn.Module, norms: list[nn.Module], recorder: _Recorder) -> Iterator[None]:
    paths = {module: path for path, module in model.named_modules()}

    def before(module: nn.Module, _: Any) -> None:
        recorder.running.append((module, paths[module]))
        recorder.norm_depth += module in norms

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if module in norms:
            recorder.norm_depth -= 1
            if not recorder.norm_depth:
                recorder.record(NORM, args, kwargs, output)
        recorder.running.pop()

    with ExitStack() as stack:
        for module in paths:
            for handle in (
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after, with_kwargs=True),
            ):
                stack.callback(handle.remove)
        yield


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Make nn.TransformerEncoderLayer and nn.MultiheadAttention call their children instead of one fused operation."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def record_graph(model: nn.Module, run: Callable[[nn.Module], Any], norms: list[nn.Module]) -> Graph:
    """Run a model on an example in eval mode and record its operations.

    Args:
        model: the model; the mode of each module is restored.
        run: a function that calls the model with the example.
        norms: the modules that are recorded as one operation.
    """
    recorder = _Recorder(model)
    with eval_mode(model), _without_fused_attention(), _record_modules(model, norms, recorder), recorder:
        output = run(model)
    outputs = {recorder.value_of(tensor) for tensor in tensors_of(output)}
    ops = _live(recorder.ops, outputs)
    sources = {source: value for source, value in recorder.source_values.items() if value.users or value in outputs}
    return Graph(ops, outputs, output, sources, recorder.sources)


def _live(ops: list[Op], outputs: set[Value]) -> list[Op]:
    """Return the operations on which outputs depend, and make them the users of their inputs."""
    needed = set(outputs)
    live = []
    for op in reversed(ops):
        if any(value in needed for value in op.outputs):
            live.append(op)
            needed.update(op.inputs)
    for op in reversed(live):
        for value in dict.fromkeys(op.inputs):
            value.users.append(op)
    return live[::-1]
