"""Compile kernels for launches recorded on CPU tensors: every kernel for three targets; those that read x for every layout.

Prints two JSON lists.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anynorm import kernels
from anynorm.kernels import gpu, gpu_kernels, gpu_pass, gpu_plan
from tests.helpers import condition_for, make

TARGETS = [GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)]
TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64", torch.int64: "*i64"}
OVER_X = (gpu_kernels.row_sums, gpu_kernels.apply)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def record(spec, dtype, shape, last, activation=None, adds=False):
    """The launches of a forward and a backward pass in training."""
    launches: list[Any] = []
    gpu_pass._launch = lambda kernel, grid, *args, **constants: launches.append((kernel, args, constants))
    x = torch.zeros(shape, dtype=dtype).to(memory_format=torch.channels_last if last else torch.contiguous_format)
    residual = torch.zeros_like(x).requires_grad_() if adds else None
    norm = make(spec, channels=shape[1], activation=activation)
    with kernels.use("gpu"):
        y = norm(x.requires_grad_(), condition_for(norm, x), residual=residual)
    y.backward(torch.empty_like(x))
    return launches


def source(kernel, args, constants):
    """What the JIT would compile for these arguments."""
    constexprs: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}

    def signature(path, value):
        if isinstance(value, tuple):
            parts = [signature((*path, k), part) for k, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if value is None or (isinstance(value, int) and value == 1):
            constexprs[path] = value
            return "constexpr"
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[path] = [["tt.divisibility", 16]]
        return TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32" if isinstance(value, int) else "fp32"

    types = {name: signature((k,), value) for k, (name, value) in enumerate(zip(kernel.arg_names, args, strict=False))}
    for k, name in enumerate(kernel.arg_names[len(args) :], len(args)):
        types[name], constexprs[(k,)] = "constexpr", constants[name]
    return ASTSource(kernel, types, constexprs=constexprs, attrs=attributes)


def inspect(compiled, target):
    """The bytes or registers spilled to local memory, and the widest load from global memory in bits."""
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        spilled = sum(map(int, re.findall(r"\.(?:vgpr_spill_count|private_segment_fixed_size):\s*(\d+)", text)))
        return spilled, max(32 * int(n or 1) for n in re.findall(r"(?:global|buffer)_load_dword(?:x(\d))?", text))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    (stack, local) = re.search(r"STACK:(\d+).*LOCAL:(\d+)", usage).groups()
    loads = re.findall(r"ld\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", compiled.asm["ptx"])
    return int(stack) + int(local), max(int(n or 1) * int(bits) for n, bits in loads)


def compile_for(target, launch):
    return triton.compile(source(*launch), target=target, options={"enable_fp_fusion": True})


def count_accesses(dtype, last, activation, adds):
    """For each kernel that reads x: the tiles that it loads and stores, and its 128-bit loads and stores per tile."""
    rows, shape = [], (1, 320, 64, 64)
    for launch in record("gn:32", dtype, shape, last, activation, adds):
        kernel, args, _ = launch
        if kernel not in OVER_X:
            continue
        flat = [part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,))]
        num_tensors = sum(isinstance(part, torch.Tensor) and part.shape == shape for part in flat)
        stores = 1 if kernel is gpu_kernels.apply else int(args[3] is not None)  # y or dx, or the gradient of the residual
        loads = num_tensors - stores + (kernel is gpu_kernels.row_sums)  # the first tile of x is loaded twice
        ptx = compile_for(TARGETS[1], launch).asm["ptx"]
        per_tile = gpu_plan.TILE // (128 * 16)  # 16 bytes for each of 128 threads
        found = [len(re.findall(rf"{access}\.global(?:\.\w+)*?\.v4\.b32", ptx)) / per_tile for access in ("ld", "st")]
        case = f"{kernel.__name__} {dtype} last={last} {activation} residual={adds}"
        rows.append({"case": case, "tiles": [loads, stores], "vectors": found})
    return rows


def main():
    gpu.problems[torch.device("cpu")], gpu_kernels.INTERPRETED = "", True
    last_of_each = {launch[0]: launch for launch in record("in+bn", torch.float32, (8, 32, 14, 14), False, "gelu")}
    half = [launch for launch in record("bn", torch.bfloat16, (8, 64, 14, 14), True)[:5] if launch[0] in OVER_X]
    zero_mean = [launch for launch in record("0/in+bn.nobias", torch.float32, (8, 32, 14, 14), False) if launch[0] not in OVER_X]
    launches = [(launch, target) for launch in [*last_of_each.values(), *half] for target in TARGETS]
    rows = []
    for launch, target in launches + [(launch, TARGETS[1]) for launch in zero_mean]:
        spilled, bits = inspect(compile_for(target, launch), target)
        rows.append({"kernel": launch[0].__name__, "target": str(target.arch), "spilled": spilled, "max_bits": bits})
    cases = [(torch.float32, "silu", False), (torch.float16, "relu", True)]
    print(json.dumps(rows))
    print(json.dumps([row for case in cases for last in (False, True) for row in count_accesses(case[0], last, *case[1:])]))


if __name__ == "__main__":
    main()
