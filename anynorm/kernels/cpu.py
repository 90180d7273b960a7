"""The C++ kernels for eager CPU tensors of float32 and bfloat16: loads the library and calls its operator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anynorm.core.cuts import ALL
from anynorm.kernels import reference
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params, UnsupportedError, read_batch_stats

_FOLDER = Path(__file__).parent


class Library:
    """The compiled operator, loaded at first use.

    Attributes:
        normalize: the operator; None if it is not available.
        problem: the reason why it is not available.
        is_loaded: whether `load` was called.
    """

    def __init__(self) -> None:
        self.normalize: Callable[..., tuple[Tensor, Tensor]] | None = None
        self.problem = ""
        self.is_loaded = False

    def load(self) -> None:
        """Load the library that was built for the installed version of torch; warn if there is none."""
        try:
            self._load()
        finally:
            self.is_loaded = True  # set last, because other threads read it

    def _load(self) -> None:
        version = torch.__version__.partition("+")[0]
        path = _FOLDER / f"_native-torch{version}.so"
        others = sorted(_FOLDER.glob("_native-torch*.so"))
        build = "Run pip install --no-build-isolation again, with a C++ compiler"
        if path.exists():
            try:
                torch.ops.load_library(path)  # type: ignore[no-untyped-call]
                self.normalize = torch.ops.anynorm_native.normalize.default
                return
            except OSError as error:
                self.problem = f"{path.name} cannot be loaded: {error}"
        elif others:
            built_for = others[0].stem.removeprefix("_native-torch")
            self.problem = f"they were built for torch {built_for}, and torch {version} is installed"
        else:
            log = _FOLDER / "_build_error.txt"
            self.problem = log.read_text().strip() if log.exists() else "they were not built"
        warnings.warn(f"anynorm runs without its C++ kernels: {self.problem}. {build}.", stacklevel=2)


library = Library()


def describe() -> str:
    """Return a description of when the kernels are used, or why they are not available."""
    if not library.is_loaded:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.load()
    if library.normalize is None:
        return f"not available: {library.problem}"
    return f"C++ ({torch.ops.anynorm_native.cpu_capability()}), used for eager CPU tensors of float32 and bfloat16"


def check_supported(_spec: ForwardSpec, _x: Tensor) -> None:
    """Raise UnsupportedError if the kernels do not support a forward pass with the input x."""
    if not library.is_loaded:
        library.load()
    if library.normalize is None:
        raise UnsupportedError(f"they are not available ({library.problem})")


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Return y and the batch statistics; update the running statistics in place. For the arguments, see `kernels.normalize`."""
    running = [buffer for pair in buffers.running_stats for buffer in pair or (None, None)]
    momentum = -1.0 if buffers.momentum is None else buffers.momentum
    y, stats = library.normalize(  # type: ignore[misc]
        x, params[:8], running, buffers.labels, spec.encoded, spec.eps, spec.sync_group.name, buffers.num_batches, momentum
    )
    y = reference.finish(y, params.residual, spec.activation)
    if not spec.pools_batch or (momentum >= 0 and not spec.num_domains and not spec.sync_group.is_synchronized):
        return y, BatchStats([None] * len(spec.uses_batch), is_updated=momentum >= 0)
    num_domains = max(spec.num_domains, 1)
    counts, tables = stats[-num_domains:], stats[:-num_domains].reshape(2, -1)
    return y, read_batch_stats(spec, x, tables, counts, _num_rows(spec, x))._replace(is_updated=momentum >= 0)


def _num_rows(spec: ForwardSpec, x: Tensor) -> list[int]:
    """Return the number of rows in the table of each cut: sample parts or domains; 0 for the cut whose means are x itself."""
    shape = (x.shape[0], x.shape[1], math.prod(x.shape[2:]))
    num_rows, skipped = [], False
    for cut, uses_batch in zip(spec.cuts.distinct, spec.uses_batch, strict=True):
        is_local = uses_batch and cut.samples == ALL
        is_input = is_local and not skipped and shape[2] == 1 and cut.parts(shape)[:2] == shape[:2]
        skipped = skipped or is_input
        num_rows.append(0 if is_input else cut.parts(shape)[0] if is_local else max(spec.num_domains, 1))
    return num_rows


def _reference_backward(
    x: Tensor,
    params: list[Tensor | None],
    running_stats: list[Tensor | None],
    labels: Tensor | None,
    spec: list[int],
    eps: float,
    group: str,
    dy: Tensor,
    needed: list[bool],
) -> list[Tensor]:
    """Return the needed gradients, computed by the reference so that they can be differentiated again."""
    pairs = tuple(zip(running_stats[::2], running_stats[1::2], strict=True))
    decoded = ForwardSpec.decode(spec, Params(*params), x.shape[1], eps, group)
    grads = reference.gradients(decoded, x, Params(*params), Buffers(pairs, labels), dy, [*needed, False])
    return [grad for grad in grads if grad is not None]


_operators: Any = torch.library.Library("anynorm", "FRAGMENT")  # type: ignore[no-untyped-call]
_operators.define(
    "reference_backward(Tensor x, Tensor?[] params, Tensor?[] running_stats, Tensor? labels, int[] spec, float eps, str group, "
    "Tensor dy, bool[] needed) -> Tensor[]"
)
_operators.impl("reference_backward", _reference_backward, "CompositeImplicitAutograd")
