"""Count the bytes that the reference kernels save and their passes over x, in eager mode and under torch.compile.

    python benchmarks/reference.py [--shape 8,64,16,16] [--json out.json]

saved      bytes saved for backward / bytes of x, without parameters
eager      number of operators that read or write a tensor as large as x, as recorded by torch.profiler; without views
compiled   number of fused loops of inductor on the CPU that access a buffer as large as x; a loop may read a row several times

The results are counts, so they do not depend on the machine.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from candidates import ReferenceKernels
from measurement import condition_of, saved_bytes, write_results
from sections import reference_section
from torch import Tensor, nn
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner, inductor_metrics_log
from torch._inductor.graph import GraphLowering
from torch.profiler import ProfilerActivity, profile

import anynorm
from anynorm.progress import track

SPECS = ("bn", "in", "ln", "gn:32", "hn:32", "sn", "bgn:32", "sabn@10", "pn")


def is_view(name: str) -> bool:
    """Whether an operator returns a view of its input or only allocates memory."""
    if name.startswith(("aten::empty", "aten::_unsafe_view")):  # the schema of _unsafe_view does not declare a view
        return True
    schemas = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    aliases = [output.alias_info for schema in schemas for output in schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def count_operators(call: Callable[[], object], numel: int) -> int:
    """Count the operators of a call that read or write a tensor of `numel` elements.

    If an operator calls others that are counted, only the inner operators are counted.
    """
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as profiler:
        call()

    def touches(event: Any) -> bool:
        return event.name.startswith("aten::") and any(math.prod(shape) == numel for shape in event.input_shapes if shape)

    def passes(event: Any) -> int:
        inner = sum(passes(child) for child in event.cpu_children)
        return inner or int(touches(event) and not is_view(event.name))

    return sum(passes(event) for event in profiler.events() if event.cpu_parent is None)


def count_eager(norm: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return the number of operators of the reference kernels that read or write x, forward and backward."""
    module, condition = ReferenceKernels(norm), condition_of(norm)
    x = x.detach().requires_grad_()
    outputs: list[Tensor] = []
    forward = count_operators(lambda: outputs.append(module(x, *condition)), x.numel())
    dy = torch.ones_like(x)
    return forward, count_operators(lambda: torch.autograd.grad(outputs, [x, *trainable(norm)], dy), x.numel())


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


@contextmanager
def record_kernels() -> Iterator[list[dict[str, int]]]:
    """Record the fused loops that inductor generates in a `with` block, each as accessed bytes by buffer; disable its caches."""
    kernels: list[dict[str, int]] = []
    count_bytes = GraphLowering.count_bytes

    def record(graph: GraphLowering) -> Any:
        kernels.extend(node.get_read_write_buffer_accesses(True, True) for node in graph.scheduler.nodes)
        return count_bytes(graph)

    level, propagate = inductor_metrics_log.level, inductor_metrics_log.propagate
    inductor_metrics_log.setLevel(logging.INFO)  # inductor calls count_bytes only to log its result
    inductor_metrics_log.propagate = False
    try:
        with patch.object(GraphLowering, "count_bytes", record), config.patch(force_disable_caches=True):
            yield kernels
    finally:
        inductor_metrics_log.setLevel(level)
        inductor_metrics_log.propagate = propagate


def count_compiled(norm: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return the number of fused loops over x that inductor generates, forward and backward.

    Raises:
        RuntimeError: if inductor reports no loop over x, since every norm needs at least one.
    """
    counts = {False: 0, True: 0}
    size = x.numel() * x.element_size()
    torch._dynamo.reset()
    with record_kernels() as kernels:

        def compile_graph(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
            kernels.clear()
            compiled = compile_fx_inner(graph, inputs, **options)
            counts[bool(options.get("is_backward"))] += sum(max(kernel.values(), default=0) >= size for kernel in kernels)
            return compiled

        backend = partial(compile_fx, inner_compile=compile_graph)
        compiled = torch.compile(norm, fullgraph=True, dynamic=False, backend=backend)
        compiled(x.detach().requires_grad_(), *condition_of(norm)).sum().backward()
    if 0 in counts.values():
        raise RuntimeError(f"inductor reported no kernel over x: {counts[False]} forward, {counts[True]} backward.")
    return counts[False], counts[True]


def measure(spec: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the counts of one norm in train mode."""
    x = torch.randn(shape)
    norm = anynorm.make(spec, shape[1])
    saved = saved_bytes(ReferenceKernels(norm), x, *condition_of(norm)) / (x.numel() * x.element_size())
    eager, compiled = count_eager(norm, x), count_compiled(norm, x)
    return {"spec": spec, "saved": saved, "eager": list(eager), "compiled": list(compiled)}


def main() -> None:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8,64,16,16", help="the shape of x (default: 8,64,16,16)")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    arguments = parser.parse_args()
    shape = tuple(int(size) for size in arguments.shape.split(","))
    results = {"shape": list(shape), "rows": [measure(spec, shape) for spec in track(SPECS, "counting")]}
    print(reference_section(results))
    write_results(arguments.json, results)


if __name__ == "__main__":
    main()
