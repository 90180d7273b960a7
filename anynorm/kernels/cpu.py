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
from anynorm.core.moments import Moments
from anynorm.kernels import reference
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params, UnsupportedError

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
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


def check_supported(spec: ForwardSpec, x: Tensor) -> None:
    """Raise UnsupportedError if the kernels do not support a forward pass with the input x."""
    if not library.is_loaded:
        library.load()
    if library.normalize is None:
        raise UnsupportedError(f"they are not available ({library.problem})")
    if spec.has_positional_cut:
        raise UnsupportedError("a cut keeps every position separate")
    if spec.has_crossing_cut:
        raise UnsupportedError("parts of a cut end inside channels")
    if spec.sync_group.is_synchronized:
        if spec.has_ghost_cut:
            raise UnsupportedError("ghost batches are synchronized")
    elif not x.numel() or not (x.is_contiguous() or (x.dim() in _FORMATS and x.is_contiguous(memory_format=_FORMATS[x.dim()]))):
        raise UnsupportedError("the input is empty or its rows are not dense")


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Return y and the batch statistics; update the running statistics in place. For the arguments, see `kernels.normalize`."""
    running = [buffer for pair in buffers.running_stats for buffer in pair or (None, None)]
    momentum = -1.0 if buffers.momentum is None else buffers.momentum
    y, stats = library.normalize(  # type: ignore[misc]
        x, params, running, buffers.labels, spec.encoded, spec.eps, spec.sync_group.name, buffers.num_batches, momentum
    )
    if not spec.pools_batch or (momentum >= 0 and not spec.num_domains and not spec.sync_group.is_synchronized):
        return y, BatchStats([None] * len(spec.uses_batch), is_updated=momentum >= 0)
    return y, _read_stats(spec, x, stats)._replace(is_updated=momentum >= 0)


def _read_stats(spec: ForwardSpec, x: Tensor, stats: Tensor) -> BatchStats:
    """Return the moments of the cuts that pooled samples of the batch.

    Args:
        spec: the description of the forward pass.
        x: the input.
        stats: the second output of the operator: means and variances of all cuts, followed by the counts of the domains.
    """
    num_domains = max(spec.num_domains, 1)
    counts, stats = stats[-num_domains:], stats[:-num_domains].reshape(2, -1)
    n, c, positions = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    by_cut: list[Moments | None] = []
    num_values, offset, skipped = None, 0, False
    for cut, uses_batch in zip(spec.cuts.distinct, spec.uses_batch, strict=True):
        parts = cut.parts((n, c, 1))
        is_local = uses_batch and cut.samples == ALL
        rows = parts[0] if is_local else num_domains
        if is_local and parts[:2] == (n, c) and positions == 1 and not skipped:
            rows, skipped = 0, True  # its means are x itself and are not stored
        size = rows * parts[1] * parts[2]
        if not (uses_batch and cut.pools_samples):
            by_cut.append(None)
        else:
            mean, var = stats[:, offset : offset + size].reshape(2, rows, *parts[1:])
            num_values = counts.new_full((1,), n * positions) if is_local else counts * spec.encoded[-1]
            per_part = num_values.reshape(-1, 1, 1) * (c / (parts[1] * parts[2]) / (rows if is_local else 1))
            by_cut.append(Moments(mean, var, per_part.expand_as(mean)))
        offset += size
    return BatchStats(by_cut, None, None if num_values is None else num_values.reshape(-1, 1, 1))


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
    grads = reference.gradients(decoded, x, Params(*params), Buffers(pairs, labels), dy, needed)
    return [grad for grad in grads if grad is not None]


_operators: Any = torch.library.Library("anynorm", "FRAGMENT")  # type: ignore[no-untyped-call]
_operators.define(
    "reference_backward(Tensor x, Tensor?[] params, Tensor?[] running_stats, Tensor? labels, int[] spec, float eps, str group, "
    "Tensor dy, bool[] needed) -> Tensor[]"
)
_operators.impl("reference_backward", _reference_backward, "CompositeImplicitAutograd")
