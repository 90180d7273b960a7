"""One forward pass instead of one per micro-batch of gradient accumulation.

A pass over k micro-batches with separate statistics for each has the outputs and gradients of k passes; the mean of k mean losses
is the mean over all samples. Running statistics are updated by one micro-batch after the other, as in k passes
(`anynorm.core.update_rules.Interpolation.update_in_sequence`). Only rounding differs. Small passes consist of overhead: one pass
takes a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from anynorm.core.update_rules import Frozen, Interpolation
from anynorm.errors import SpecError
from anynorm.layers.norm import CustomNorm, Norm


def unsupported_reason(norm: Norm) -> str | None:
    """Return why a norm cannot compute several micro-batches in one pass; None if it can."""
    rule, definition = norm.update_rule, norm.norm_spec
    has_rule = isinstance(rule, Interpolation | Frozen) or not norm.pools_samples
    reasons = {
        "it is outside the algebra of cuts": isinstance(norm, CustomNorm),
        "it takes a condition": bool(definition.num_classes) or definition.takes_style,
        "it divides the batch already": any(cut.is_ghost for cut in norm.cuts),
        "its statistics are synchronized": norm.sync_group.is_synchronized,
        "it accumulates statistics": norm.accumulator is not None,
        f"its update rule is {type(rule).__name__}": not has_rule,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


@contextmanager
def micro_batches(norms: Iterable[Norm], size: int) -> Iterator[None]:
    """Compute statistics per micro-batch inside a `with` block, in passes in train mode whose batch contains several.

    Inference, specs, parameters and buffers do not depend on it.

    Args:
        norms: the norms of a network.
        size: number of samples per micro-batch; the batch size of a pass must be a multiple of it.

    Raises:
        SpecError: if a norm does not support it (see `unsupported_reason`).

    >>> import anynorm, torch
    >>> norm, x = anynorm.make("bn", 8), torch.randn(6, 8, 4, 4)
    >>> with micro_batches([norm], 2):
    ...     y = norm(x)
    >>> torch.allclose(y[2:4], torch.nn.functional.batch_norm(x[2:4], None, None, training=True), atol=1e-6)
    True
    >>> norm.num_batches_tracked
    tensor(3)
    """
    norms = list(norms)
    for norm in norms:
        if reason := unsupported_reason(norm):
            raise SpecError(f"{norm.spec} cannot compute several micro-batches in one pass: {reason}.")
    try:
        for norm in norms:
            norm.micro_batch_size = size
        yield
    finally:
        for norm in norms:
            norm.micro_batch_size = None
