"""The C++ kernels for CPU tensors of float32 and bfloat16: loads the library and calls its operators."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anynorm.core.compat import constant_in_compiled_code
from anynorm.core.cuts import ALL
from anynorm.kernels import compiled, reference
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params, UnsupportedError, read_batch_stats
from anynorm.kernels.ragged import Mask, Points, Ragged

_FOLDER = Path(__file__).parent


class Library:
    """The compiled module, loaded at first use.

    Attributes:
        normalize: its function for eager code; None if it is not available.
        define: its function that returns the first argument of `normalize`.
        problem: the reason why it is not available.
        is_loaded: whether `load` was called.
    """

    def __init__(self) -> None:
        self.normalize: Callable[..., tuple[Tensor, Tensor] | None] | None = None
        self.define: Callable[[list[int], float, float, str], Any] | None = None
        self.problem = ""
        self.is_loaded = False

    def load(self) -> None:
        """Load the library that was built for the installed versions of torch and Python; warn if there is none."""
        try:
            self._load()
        finally:
            self.is_loaded = True  # set last, because other threads read it

    def _load(self) -> None:
        versions = f"torch{torch.__version__.partition('+')[0]}-{sys.implementation.cache_tag}"
        path = _FOLDER / f"_native-{versions}.so"
        others = sorted(_FOLDER.glob("_native-torch*.so"))
        build = "Run pip install --no-build-isolation again, with a C++ compiler"
        if path.exists():
            try:
                loader = ExtensionFileLoader("anynorm.kernels._native", str(path))
                module = module_from_spec(ModuleSpec(loader.name, loader, origin=str(path)))
                loader.exec_module(module)
                compiled.register()
                self.normalize, self.define = module.normalize, module.define
                return
            except ImportError as error:
                self.problem = f"{path.name} cannot be loaded: {error}"
        elif others:
            self.problem = f"they were built for {others[0].stem.removeprefix('_native-')}, and {versions} is installed"
        else:
            log = _FOLDER / "_build_error.txt"
            self.problem = log.read_text().strip() if log.exists() else "they were not built"
        warnings.warn(f"anynorm runs without its C++ kernels: {self.problem}. {build}.", stacklevel=2)


library = Library()
_NO_PAIR = (None, None)


def describe() -> str:
    """Return a description of when the kernels are used, or why they are not available."""
    if not library.is_loaded:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.load()
    if library.normalize is None:
        return f"not available: {library.problem}"
    return (
        f"C++ ({torch.ops.anynorm_native.cpu_capability()}), used for CPU tensors of float32 and bfloat16, also in compiled code"
    )


@constant_in_compiled_code
def is_available() -> bool:
    """Whether the kernels are available; loads them at first use."""
    if not library.is_loaded:
        library.load()
    return library.normalize is not None


def check_supported(_spec: ForwardSpec, _x: Tensor) -> None:
    """Raise UnsupportedError if the kernels do not support a forward pass with the input x."""
    if not is_available():
        raise UnsupportedError(f"they are not available ({library.problem})")


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Return y and the batch statistics; update the running statistics in place. For the arguments, see `kernels.normalize`."""
    if torch.compiler.is_compiling():
        result: tuple[Tensor, Tensor] | None = compiled.normalize(spec, x, params, buffers)
    else:
        result = _call(spec, x, params, buffers)
    if result is None:
        raise UnsupportedError("a tensor is on another device or is an instance of a subclass, or parameters are float64")
    y, stats = result
    is_updated = buffers.momentum is not None
    has_fixed_counts = not spec.has_variable_counts and buffers.ragged is None
    if not spec.pools_batch or (is_updated and has_fixed_counts):
        return y, BatchStats([None] * len(spec.uses_batch), is_updated=is_updated)
    num_domains = max(spec.num_domains, 1)
    is_checked = is_updated and not torch.compiler.is_compiling() and buffers.ragged is None
    if is_checked and 1.0 not in stats[-num_domains:].tolist():
        return y, BatchStats([None] * len(spec.uses_batch), is_updated=True)  # no statistic has a single value
    counts, tables = stats[-num_domains:], stats[:-num_domains].reshape(2, -1)
    return y, read_batch_stats(spec, x, tables, counts, _num_rows(spec, x, buffers.ragged))._replace(is_updated=is_updated)


def _call(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, Tensor] | None:
    """Call the function for eager code; it returns None for tensors that it does not support."""
    definition = spec.definition
    if definition is None or spec.sync_group.is_synchronized:  # a process group may be destroyed, and another one made
        definition = spec.definition = library.define(spec.encoded, spec.eps, spec.slope, spec.sync_group.name)  # type: ignore[misc]
    running = buffers.running_stats
    pairs = running[0] if len(running) == 1 else tuple([buffer for pair in running for buffer in pair or _NO_PAIR])
    momentum = -1.0 if buffers.momentum is None else buffers.momentum
    _, labels, num_batches, _, num_skipped, ragged = buffers
    members = () if ragged is None else (ragged[0], ragged.num_samples)
    return library.normalize(  # type: ignore[misc]
        definition, x, params, pairs or _NO_PAIR, labels, num_batches, num_skipped, momentum, *members
    )


def _num_rows(spec: ForwardSpec, x: Tensor, ragged: Ragged | None) -> list[int]:
    """Return the number of rows in the table of each cut: sample parts or domains; 0 for the cut whose means are x itself."""
    shape = (x.shape[0] if ragged is None else ragged.num_samples, x.shape[1], math.prod(x.shape[2:]))
    num_rows, skipped = [], ragged is not None
    for cut, uses_batch in zip(spec.cuts.distinct, spec.uses_batch, strict=True):
        is_local = uses_batch and cut.samples == ALL
        is_input = bool(spec.cuts.mean) and is_local and not skipped and shape[2] == 1 and cut.parts(shape)[:2] == shape[:2]
        skipped = skipped or is_input
        num_rows.append(0 if is_input else cut.parts(shape)[0] if is_local else max(spec.num_domains, 1))
    return num_rows


def _reference_backward(
    x: Tensor,
    params: list[Tensor | None],
    y: Tensor | None,
    running_stats: list[Tensor | None],
    labels: Tensor | None,
    spec: list[int],
    eps: float,
    slope: float,
    group: str,
    members: Tensor | None,
    num_samples: int,
    dy: Tensor,
    needed: list[bool],
) -> list[Tensor]:
    """Return the needed gradients, computed by the reference so that they can be differentiated again.

    With a residual, y is given instead of it if there is an activation. `members` is the mask or the batch index.
    """
    pairs = tuple(zip(running_stats[::2], running_stats[1::2], strict=True))
    decoded = ForwardSpec.decode(spec, Params(*params), x.shape[1], eps=eps, slope=slope, group=group)
    if y is not None and decoded.activation is not None:
        dy = decoded.activation.gradient_from_output(y, dy)
        decoded = decoded.without_activation
    ragged = None if members is None else Mask(members) if members.dtype is torch.bool else Points(members, num_samples)
    buffers = Buffers(pairs, labels, ragged=ragged)
    grads = reference.gradients(decoded, x, Params(*params), buffers, dy, [*needed[:-1], False])
    grads[-1] = dy if needed[-1] else None
    return [grad for grad in grads if grad is not None]


_operators: Any = torch.library.Library("anynorm", "FRAGMENT")  # type: ignore[no-untyped-call]
_operators.define(
    "reference_backward(Tensor x, Tensor?[] params, Tensor? y, Tensor?[] running_stats, Tensor? labels, int[] spec, float eps, "
    "float slope, str group, Tensor? members, int num_samples, Tensor dy, bool[] needed) -> Tensor[]"
)
_operators.impl("reference_backward", _reference_backward, "CompositeImplicitAutograd")
